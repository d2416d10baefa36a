"""What a recipe is given to read, by its kind; nothing that was held out."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from training.errors import NothingToLearn, TrainingError
from training.evaluation.encoding import Encode
from training.evaluation.modes import whole
from training.evaluation.scorable import Scorable
from training.retraining import rows
from training.retraining.documents import Document
from training.retraining.rows import corpus_of
from training.text.corpus import LISTS, PAIRS, RELATIONS, TEXTS, TRIPLES, Corpus

DOCUMENTS = [
    Document("a", "Alpha", "first  text"),
    Document("b", "", "second text"),
    Document("c", "Gamma", "third text"),
]
JUDGED = {"which is second?": ["b", "held out"], "first text": ["a"]}


def never() -> Scorable:
    raise AssertionError("no model is needed")


def model(queries: Encode, documents: Encode, fingerprint: str = "one") -> Scorable:
    return Scorable(None, fingerprint, None, queries, queries, documents, whole, 64)


def drawn() -> Encode:
    """Vectors at random, others each time."""
    rng = np.random.default_rng(1)

    def encode(texts: Sequence[str]) -> np.ndarray:
        return rng.normal(size=(len(texts), 8)).astype(np.float32)

    return encode


def test_texts_are_the_documents() -> None:
    corpus = corpus_of(TEXTS, DOCUMENTS, JUDGED, never, 1)
    assert corpus.texts == ("first  text", "second text", "third text")


def test_pairs_are_judged_queries_and_titles_with_their_text() -> None:
    corpus = corpus_of(PAIRS, DOCUMENTS, JUDGED, never, 1)
    rows = list(zip(corpus.texts[::2], corpus.texts[1::2], strict=True))
    assert rows == [
        ("Alpha", "first text"),
        ("Gamma", "third text"),
        ("which is second?", "second text"),
    ]


def test_triples_have_the_negative_that_the_model_finds_nearest_below_the_margin() -> None:
    places = {"Alpha": 0, "Gamma": 0, "which is second?": 1}
    vectors = {"first text": [1.0, 0.0], "second text": [0.6, 0.8], "third text": [0.8, 0.6]}

    def queries(texts: list[str]) -> np.ndarray:
        return np.eye(2, dtype=np.float32)[[places[text] for text in texts]]

    def documents(texts: list[str]) -> np.ndarray:
        return np.array([vectors[text] for text in texts], np.float32)

    corpus = corpus_of(TRIPLES, DOCUMENTS, JUDGED, lambda: model(queries, documents), 1)
    rows = [corpus.texts[at : at + 3] for at in range(0, len(corpus.texts), 3)]
    assert rows == [
        ("Alpha", "first text", "third text"),  # 0.8 of 1.0
        ("Gamma", "third text", "second text"),  # 0.6 of 0.8; 1.0 is above the positive
        ("which is second?", "second text", "third text"),  # 0.6 of 0.8
    ]


def test_a_document_that_begins_with_its_title_is_no_negative_of_itself() -> None:
    documents = [Document("a", "Alpha", "Alpha: first text"), Document("b", "", "second text")]
    vectors = {"Alpha: first text": [0.5, 0.86], "first text": [1.0, 0.0], "second text": [0.4, 0.91]}

    def of(texts: list[str]) -> np.ndarray:
        return np.array([vectors.get(text, [1.0, 0.0]) for text in texts], np.float32)

    corpus = corpus_of(TRIPLES, documents, {}, lambda: model(of, of), 2)
    assert corpus.texts == ("Alpha", "first text", "second text")


def test_the_negatives_of_a_pair_are_one_row() -> None:
    vectors = {"first text": [1.0, 0.0], "second text": [0.6, 0.8], "third text": [0.8, 0.6]}

    def of(texts: list[str]) -> np.ndarray:
        return np.array([vectors.get(text, [1.0, 0.0]) for text in texts], np.float32)

    corpus = corpus_of(TRIPLES, DOCUMENTS, {}, lambda: model(of, of), 2)
    assert corpus.columns == 4
    assert corpus.texts == (
        *("Alpha", "first text", "third text", "second text"),
        *("Gamma", "third text", "second text", ""),  # of the two below 0.8 less the margin one is its own
    )


def test_without_titles_and_judgements_there_is_no_pair() -> None:
    with pytest.raises(NothingToLearn, match="documents need a title"):
        corpus_of(PAIRS, DOCUMENTS[1:2], {}, never, 1)
    with pytest.raises(TrainingError, match="pairs that people labelled"):
        corpus_of(RELATIONS, DOCUMENTS, JUDGED, never, 1)


def test_nothing_that_judges_is_trained_on_however_it_is_written() -> None:
    withheld = {"alpha", "third text"}  # a query that was held out is a title here, a held-out text a text
    assert corpus_of(TEXTS, DOCUMENTS, JUDGED, never, 1, withheld).texts == (
        "first  text",
        "second text",
    )
    corpus = corpus_of(PAIRS, DOCUMENTS, JUDGED, never, 1, withheld)
    assert corpus.texts == ("which is second?", "second text")


def test_triples_are_named_by_their_pairs_whatever_is_mined_for_them() -> None:
    """After a promotion the active model finds other negatives: that is no new text."""
    somehow = drawn()

    found = [corpus_of(TRIPLES, DOCUMENTS, JUDGED, lambda: model(somehow, somehow), 1) for _ in range(8)]
    assert len({corpus.digest for corpus in found}) == 1
    assert len({corpus.texts for corpus in found}) > 1


def test_lists_are_queries_of_the_text_with_documents_of_their_collection() -> None:
    words = "river stone market letter engine garden bridge paper window".split()
    documents = [
        Document(f"{part}{at}", word.title() if at == 1 else "", f"{part} is of a {word}. {word} again", part)
        for part in ("one", "two")
        for at, word in enumerate(words)
    ]
    few = [Document("x", "Few", "too few of them", "three")]
    somehow = drawn()

    def made(withheld: set[str], by: str = "one") -> Corpus:
        return corpus_of(LISTS, [*documents, *few], {}, lambda: model(somehow, somehow, by), 1, withheld)

    corpus = made({"two is of a garden.", "one is of a paper. paper again"})
    rows = [corpus.texts[at : at + 9] for at in range(0, len(corpus.texts), 9)]
    queries = [row[0] for row in rows]
    assert len(rows) == 9 + 9 + 2 - 2  # first sentences and titles, less what judges
    assert "Stone" in queries  # of either collection, with its own text
    assert not {"two is of a garden.", "one is of a paper.", "Few"} & set(queries)
    for row in rows:
        if row[0] != "Stone":
            word = row[0].split()[-1].strip(".")
            title = f"{word.title()} " if word == "stone" else ""  # the one that has a title
            assert row[1] == f"{title}{word} again"
            assert {text.removeprefix("Stone ").split()[0] for text in row[2:]} == {row[0].split()[0]}
        assert "one is of a paper. paper again" not in row
    again = made({"two is of a garden.", "one is of a paper. paper again"})
    assert again.labels != corpus.labels
    assert again.digest == corpus.digest
    assert corpus.digest != made({"two is of a garden.", "one is of a paper. paper again"}, "two").digest
    assert made(set()).digest != made(set(), "two").digest != corpus.digest


def test_a_title_that_no_search_looks_into_asks_and_is_in_no_list() -> None:
    documents = [
        Document(f"{at}", word.title(), f"here is a {word}. {word} again", title_is_searched=False)
        for at, word in enumerate("river stone market letter engine garden bridge paper".split())
    ]
    somehow = drawn()
    corpus = corpus_of(LISTS, documents, {}, lambda: model(somehow, somehow), 1)
    rows = [corpus.texts[at : at + 9] for at in range(0, len(corpus.texts), 9)]
    assert {row[0] for row in rows} >= {document.title for document in documents}
    assert not {text for row in rows for text in row[1:] if text[0].isupper()}


def test_queries_that_people_asked_get_lists_of_their_collection_unless_they_judge() -> None:
    documents = [
        Document(f"{part}{at}", "", f"{part} {word}", part)
        for part in ("one", "two")
        for at, word in enumerate("river stone market letter engine garden bridge paper".split())
    ]
    somehow = drawn()

    asked = {"two": ["where is the bridge", "Held  out"], "gone": ["nobody"]}
    corpus = corpus_of(LISTS, documents, {}, lambda: model(somehow, somehow), 1, {"held out"}, asked=asked)
    assert corpus.texts[0] == "where is the bridge"
    assert len(corpus.texts) == 9
    assert {text.split()[0] for text in corpus.texts[1:]} == {"two"}
    with pytest.raises(NothingToLearn):
        corpus_of(LISTS, documents, {}, lambda: model(somehow, somehow), 1, {"held out"})


def test_of_more_queries_than_a_training_reads_the_same_few_are_listed_and_those_of_people_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(rows, "MOST_LISTS", 5)
    documents = [
        Document(f"{part}{at}", "", f"{part} is of a {word}. {word} again", part)
        for part in ("one", "two")
        for at, word in enumerate("river stone market letter engine garden bridge paper".split())
    ]
    somehow = drawn()

    def listed(given: list[Document], asked: dict[str, list[str]]) -> set[str]:
        corpus = corpus_of(LISTS, given, {}, lambda: model(somehow, somehow), 1, asked=asked)
        return set(corpus.texts[::9])

    asked = {"two": ["where is the bridge", "what is a letter"]}
    found = listed(documents, asked)
    assert len(found) == 5
    assert found > {"where is the bridge", "what is a letter"}
    assert listed(documents[::-1], asked) == found
    assert found - listed(documents, {}) == {"where is the bridge", "what is a letter"}


def test_without_a_query_or_documents_enough_there_is_no_list() -> None:
    with pytest.raises(NothingToLearn, match="a collection needs 8 documents, and some of them a title"):
        corpus_of(LISTS, DOCUMENTS, {}, never, 1)


def test_what_people_called_not_relevant_is_a_negative_before_those_that_are_mined() -> None:
    documents = [*DOCUMENTS, Document("d", "", "fourth text"), Document("e", "", "second  text")]
    vectors = {"second text": [0.6, 0.8], "first text": [0.6, 0.8], "third text": [0.8, 0.6]}

    def of(texts: list[str]) -> np.ndarray:
        return np.array([vectors.get(text, [0.0, 1.0]) for text in texts], np.float32)

    said = {"which is second?": ["d", "e", "held out"], "Alpha": ["c"], "nobody asked": ["a"]}

    def row(negatives: int) -> tuple[str, ...]:
        found = corpus_of(TRIPLES, documents, JUDGED, lambda: model(of, of), negatives, not_relevant=said)
        rows = [found.texts[at : at + found.columns] for at in range(0, len(found.texts), found.columns)]
        [of_query] = [row for row in rows if row[0] == "which is second?"]
        return of_query[1:]

    assert row(1) == ("second text", "fourth text"), "its cosine of 1.0 is above the positive's"
    assert row(2) == ("second text", "fourth text", "third text")


def test_other_negatives_from_people_are_another_text_to_learn_from() -> None:
    def of(texts: list[str]) -> np.ndarray:
        return np.ones((len(texts), 2), np.float32)

    said = [None, {}, {"which is second?": ["c"]}, {"which is second?": ["c", "a"]}]
    digests = [
        corpus_of(
            TRIPLES, DOCUMENTS, JUDGED, lambda: model(of, of), 1, not_relevant={"Alpha": ["c"]} | (each or {})
        ).digest
        for each in said
    ]
    assert digests[0] == digests[1]
    assert len(set(digests)) == 3
