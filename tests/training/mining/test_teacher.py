"""Lists of documents with a teacher's scores, compared with known scores and the ranking of the service."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import closing

import numpy as np
import pytest

from models.search.content import Content
from tests.training.conftest import WORDS
from tests.training.evaluation.pairs import encode
from training.errors import NothingToLearn
from training.evaluation.encoding import Encode, Vectors
from training.evaluation.modes import WordIndex, find, get_passages
from training.evaluation.scorable import Scorable
from training.mining.queries import Query, build_queries
from training.mining.teacher import DEPTH, Listed, lists, spread
from training.text.corpus import LISTED

DOCUMENTS = [f"{word} and {WORDS[at - 1]}" for at, word in enumerate(WORDS)]


def scorable(queries: Encode, documents: Encode) -> Scorable:
    def split(content: Content, _: int | None) -> list[str]:
        return content.text.split(" | ")

    return Scorable(None, None, None, queries, queries, documents, split, 64)


def listed(documents: Sequence[str], queries: Sequence[Query], model: Scorable) -> list[Listed]:
    return [*lists([Content(text) for text in documents], queries, model)]


def cosines(of: dict[str, float], otherwise: float = 0.0) -> Scorable:
    """Returns a model. `of`: cosines of documents to any query, for other documents `otherwise`."""

    def documents(texts: list[str]) -> Vectors:
        return encode([str(of.get(text, otherwise)) for text in texts])

    return scorable(lambda texts: encode(["east"] * len(texts)), documents)


def test_without_words_in_common_a_score_is_the_cosine() -> None:
    of = {text: 0.9 - 0.1 * at for at, text in enumerate(DOCUMENTS[:LISTED])}
    (found,) = listed(DOCUMENTS[:LISTED], [Query("nothing alike")], cosines(of))
    assert found.documents == tuple(DOCUMENTS[:LISTED])
    assert found.scores == pytest.approx(list(of.values()), abs=1e-6)


def test_words_add_to_the_cosine_what_fusion_gives_them() -> None:
    """The best keyword match gains (1 - w) / w times the range of the cosines. w is the weight of fusion."""
    of = dict.fromkeys(DOCUMENTS[:LISTED], 0.5) | {DOCUMENTS[3]: 0.6}
    (found,) = listed(DOCUMENTS[:LISTED], [Query("garden")], cosines(of))
    with closing(WordIndex(DOCUMENTS[:LISTED])) as words:
        counted = words.nearest("garden", 9)
    assert [*counted] == [5, 6]  # both have the word, once in three
    expected = {DOCUMENTS[place]: 0.5 + 0.1 * bm25 / counted[5] for place, bm25 in counted.items()}
    scores = dict(zip(found.documents, found.scores, strict=True))
    assert list(scores)[:2] == [DOCUMENTS[3], DOCUMENTS[5]]
    assert scores == pytest.approx(of | expected, abs=1e-5)


def test_a_document_is_scored_without_the_query_that_was_cut_out_of_it() -> None:
    """The document that a query was cut from leads its list, where its text lacks the query."""
    documents = ["garden bridge. paper", *DOCUMENTS[7:14]]
    query = Query("garden bridge", 0, "paper")
    of = {documents[0]: 0.95, "paper": 0.3, documents[5]: 0.6}
    (found,) = listed(documents, [query], cosines(of, 0.2))
    assert (found.query, found.documents[0]) == ("garden bridge", "paper")
    assert found.scores[0] == pytest.approx(0.3, abs=1e-6)  # no word of the query is left in it
    with_words = dict(zip(found.documents, found.scores, strict=True))
    assert with_words["paper and bridge"] == pytest.approx(
        0.2 + (0.6 - 0.2) / 2, abs=1e-5
    )  # one of two words
    kept = query._replace(rest="paper bridge garden garden")
    (found,) = listed(documents, [kept], cosines(of, 0.2))
    assert found.scores[0] == pytest.approx(0.6, abs=1e-5)  # the best by words, of those left


def test_what_people_asked_is_ranked_as_the_service_ranks_it() -> None:
    random = np.random.default_rng(1)
    documents = [" ".join(random.choice(WORDS, 6)) for _ in range(200)]
    queries = [" ".join(random.choice(WORDS, 2)) for _ in range(5)]
    table = {text: random.normal(size=8).astype(np.float32) for text in (*documents, *queries)}

    def vectors(texts: list[str]) -> Vectors:
        return np.array([table[text] for text in texts])

    model = scorable(vectors, vectors)
    with closing(WordIndex(documents)) as words:
        passages = get_passages([Content(text) for text in documents], model.split, vectors)
        expected = [[*each["hybrid"]] for each in find(queries, vectors(queries), passages, words, DEPTH)]
    found = listed(documents, [Query(query) for query in queries], model)
    for each, ranked in zip(found, expected, strict=True):
        assert each.documents == tuple(documents[place] for place in spread(ranked, LISTED))
        assert list(each.scores) == sorted(each.scores, reverse=True)


def test_a_long_document_is_its_best_passage() -> None:
    documents = [*DOCUMENTS[:7], "far | near | middle"]
    model = cosines({"far": -0.5, "near": 0.9, "middle": 0.4})
    (found,) = listed(documents, [Query("nothing alike")], model)
    assert found.documents[0] == "near"
    assert found.scores[0] == pytest.approx(0.9, abs=1e-6)
    requested = Query("nothing alike", 7, "far | middle")
    (found,) = listed(documents, [requested], model)
    assert found.documents[0] == "middle"
    assert found.scores[0] == pytest.approx(0.4, abs=1e-6)


def test_a_document_is_embedded_and_found_by_its_title_too_as_in_the_service() -> None:
    """In a list, a document's title precedes the rest of its text, unless the query is the title."""
    documents = [Content(text) for text in DOCUMENTS[:7]]
    titled = Content("garden bridge. paper window", "Harbour cat")
    text = "garden is by the bridge. paper window"
    queries = [Query("harbour"), *build_queries([("", ""), ("Harbour cat", text)])]
    assert [query.source for query in queries] == [None, 1, 1]
    of = {"Harbour cat paper window": 0.9, text: 0.7, DOCUMENTS[1]: 0.6}
    model = cosines(of, 0.2)._replace(split=lambda content, _: [content.whole])
    requested, title, sentence = lists([*documents[:1], titled, *documents[1:]], queries, model)
    assert requested.documents[0] == "Harbour cat garden bridge. paper window"  # found by a word of its title
    assert requested.scores[0] == pytest.approx(0.6, abs=1e-5)
    assert title.documents[0] == text
    assert title.scores[0] == pytest.approx(0.7)
    assert sentence.documents[0] == "Harbour cat paper window"
    assert sentence.scores[0] == pytest.approx(0.9)


@pytest.mark.parametrize("ranked", [7, 8, 9, 20, 49, 50, 51, 500])
def test_a_list_is_of_distinct_ranks_from_the_first_to_the_last(ranked: int) -> None:
    found = spread(range(ranked), 7)
    assert len(set(found)) == 7
    assert found == sorted(found)
    assert (found[0], found[-1]) == (0, min(ranked, DEPTH) - 1)


def test_a_list_is_denser_at_the_top() -> None:
    assert spread(range(100), 8) == [0, 1, 2, 4, 8, 15, 28, 49]


def test_fewer_documents_than_a_list_has_are_refused() -> None:
    with pytest.raises(NothingToLearn, match="7 documents are fewer than the 8 of a list"):
        listed(DOCUMENTS[:7], [Query("garden")], cosines({}))


def test_a_row_is_what_train_reads() -> None:
    queries = build_queries([("", f"the {word} is here now. {word} again") for word in WORDS])
    found = listed([query.rest for query in queries], queries, cosines({}))
    assert len(found) == len(WORDS)
    fields = found[0].line()
    assert list(fields) == ["query", *(f"doc_{number}" for number in range(1, 9)), "scores"]
    assert found[0].row() == ((fields["query"], *found[0].documents), fields["scores"])
    assert all(map(math.isfinite, fields["scores"]))
