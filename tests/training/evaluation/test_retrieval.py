"""Evaluation of search: rankings, search modes, and figures compared with those worked out by hand."""

from __future__ import annotations

import gzip
import math
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from models.manifest import FUSION, SearchDefaults
from models.search.content import Content
from models.search.fusion import fuse
from models.search.measures import judge, mean
from service.store.sqlite import fulltext, secondary_indexes
from service.store.sqlite.postings import PostingCache
from service.store.sqlite.schema import connect, migrate
from service.store.sqlite.secondary_indexes import bring_up_to_date
from service.store.values import DEFAULT_COLLECTION
from tests.training.evaluation.beir import DOCUMENTS, QRELS, QUERIES, by_brute_force, write_collection
from tests.training.evaluation.pairs import encode
from training.errors import TrainingError
from training.evaluation.encoding import Encode, Vectors
from training.evaluation.modes import CANDIDATES, Passages, WordIndex, find, get_passages, whole
from training.evaluation.retrieval import Collection, collections, load, retrieval
from training.evaluation.scorable import Scorable
from training.retraining.searches import score


def contents(documents: dict[str, str]) -> dict[str, Content]:
    return {name: Content(text) for name, text in documents.items()}


def dense(collection: Collection, queries: Encode, documents: Encode) -> dict[str, Any]:
    """Returns the figures of dense search only."""
    found = retrieval(collection, queries, documents, whole)
    return {name: figure for name, figure in found.items() if not isinstance(figure, dict)}


@pytest.mark.parametrize("plain", [False, True], ids=["our names, packed", "BEIR's names, plain"])
def test_both_layouts_are_read(tmp_path: Path, plain: bool) -> None:
    documents = DOCUMENTS | {"t": (" A title", " and text ")}
    found = load(write_collection(tmp_path / "set", documents, plain=plain))
    assert found.documents["a"] == Content("0.9")
    assert found.documents["t"] == Content("and text", "A title")
    assert found.queries == {"q1": "east", "q2": "0.0"}
    assert found.relevant == {"q1": {"b": 2, "d": 1}, "q2": {"d": 1}}


def test_a_set_is_a_folder_with_a_corpus_and_queries(tmp_path: Path) -> None:
    for name in ("two", "one"):
        write_collection(tmp_path / name)
    write_collection(tmp_path / "half")
    (tmp_path / "half" / "queries.jsonl.gz").unlink()
    (tmp_path / "corpus.jsonl").write_text("")
    assert list(collections(tmp_path)) == ["one", "two"]


def test_a_known_space_gives_figures_worked_out_by_hand(tmp_path: Path) -> None:
    found = dense(load(write_collection(tmp_path)), encode, encode)
    first = (2 / math.log2(3) + 1 / math.log2(5)) / (2 + 1 / math.log2(3))  # b at rank 2, d at rank 4
    assert found == {
        "ndcg10": pytest.approx((first + 1) / 2),
        "recall1": 0.5,
        "recall10": 1,
        "recall100": 1,
        "mrr10": pytest.approx((1 / 2 + 1) / 2),
        "map100": pytest.approx(((1 / 2 + 2 / 4) / 2 + 1) / 2),
        "queries": 2,
        "documents": 4,
        "empty": 0,
        "undefined": 0,
    }


def test_of_equal_documents_the_greater_id_goes_first_whatever_their_order() -> None:
    for names in (["1", "10", "9"], ["9", "1", "10"]):  # as text: 9, then 10, then 1
        documents = dict.fromkeys(names, "0.5")
        found = dense(Collection(contents(documents), {"q": "east"}, {"q": {"10": 1.0}}, 0), encode, encode)
        assert found["mrr10"] == 1 / 2


def test_a_document_with_the_querys_own_id_is_left_out_of_its_list() -> None:
    documents = {"q": "1.0"} | {str(at): str(0.9 - at / 1000) for at in range(100)}
    collection = Collection(contents(documents), {"q": "east"}, {"q": {"0": 1.0, "99": 1.0}}, 0)
    found = dense(collection, encode, encode)
    assert found["mrr10"] == 1
    assert found["recall100"] == 1  # the hundredth moves up


def test_a_random_collection_agrees_with_loops_over_every_document() -> None:
    generator = np.random.default_rng(6)
    cosines = generator.integers(-20, 20, 300) / 20  # many are equal
    documents = {f"d{at}": str(cosine) for at, cosine in enumerate(cosines)}
    queries = {f"q{at}": str(generator.integers(-9, 9) / 10) for at in range(20)}
    relevant = {
        query: {f"d{at}": float(generator.integers(1, 4)) for at in generator.choice(300, 15, replace=False)}
        for query in queries
    }
    expected = []
    for query, text in queries.items():
        at = math.acos(float(text))
        apart = {name: round(abs(math.acos(float(there)) - at), 6) for name, there in documents.items()}
        ranked = sorted(sorted(documents, reverse=True), key=apart.__getitem__)
        expected.append(by_brute_force(ranked, relevant[query]))
    found = dense(Collection(contents(documents), queries, relevant, 0), encode, encode)
    for figure in expected[0]:
        assert found[figure] == pytest.approx(np.mean([each[figure] for each in expected]))


def test_words_and_both_are_measured_beside_the_vectors_and_documents_by_their_passages() -> None:
    """Document a ranks third by the beginnings of the documents, and second by their best passages."""
    documents = {"a": "-0.9 0.7", "b": "0.8 -0.8", "c": "0.1 zebra"}
    collection = Collection(contents(documents), {"q": "east"}, {"q": {"a": 1.0}}, 0)

    def near(texts: list[str]) -> Vectors:
        return encode([text.split()[0] for text in texts])

    by_head = retrieval(collection, near, near, whole)
    assert by_head["mrr10"] == 1 / 3

    def parts(content: Content, _: int | None) -> list[str]:
        return content.text.replace("zebra", "0").split()

    by_passage = retrieval(collection, near, encode, parts)
    assert by_passage["mrr10"] == 1 / 2
    assert by_passage["lexical"]["mrr10"] == 0, "no document has the query's word"
    assert by_passage["hybrid"] == {name: by_passage[name] for name in by_passage["hybrid"]}
    of_words = Collection(contents(documents), {"q": "zebra"}, {"q": {"c": 1.0}}, 0)
    found = retrieval(of_words, lambda texts: encode(["east"] * len(texts)), near, whole)
    assert (found["mrr10"], found["lexical"]["mrr10"], found["hybrid"]["mrr10"]) == (1 / 2, 1, 1)


def test_a_document_without_text_is_never_found_and_counted(tmp_path: Path) -> None:
    folder = write_collection(tmp_path, DOCUMENTS | {"e": (" ", "")}, qrels=[("q1", "e", 1), ("q1", "a", 1)])
    found = dense(load(folder), encode, encode)
    assert (found["documents"], found["empty"]) == (5, 1)
    assert (found["recall1"], found["recall100"]) == (0.5, 0.5)  # it is still relevant


def test_vectors_without_a_direction_are_counted_and_ranked_as_cosine_0() -> None:
    documents = {"a": "nowhere", "b": "-0.5", "c": "0.5"}
    found = dense(Collection(contents(documents), {"q": "east"}, {"q": {"a": 1.0}}, 0), encode, encode)
    assert (found["mrr10"], found["undefined"]) == (0.5, 1)


@pytest.mark.parametrize(
    ("documents", "queries", "qrels", "reason"),
    [
        (DOCUMENTS, QUERIES, [*QRELS, ("q2", "z", 1)], "tsv.gz, line 6: there is no document 'z' in"),
        (DOCUMENTS, QUERIES, [("q9", "a", 0)], "qrels.test.tsv.gz, line 2: there is no query 'q9' in"),
        (DOCUMENTS, QUERIES, [("q1", "a", "high")], "line 2: the score 'high' is not a number."),
        (DOCUMENTS, QUERIES, [("q1", "a", "nan")], "line 2: the score 'nan' is not a number."),
        (DOCUMENTS, QUERIES, [("q1", "a", 1), ("q1", "a", 2)], "line 3: this pair was judged before"),
        (DOCUMENTS, QUERIES, [("q1", "a", 0)], "qrels.test.tsv.gz names no relevant document."),
        (DOCUMENTS, {"q1": "  "}, QRELS, "queries.jsonl.gz, line 1: the query has no text."),
        ({"a": ("", "")}, {"q1": "1"}, [("q1", "a", 1)], "corpus.jsonl.gz holds no text."),
    ],
)
def test_what_does_not_fit_together_is_named(
    tmp_path: Path,
    documents: dict[str, tuple[str, str]],
    queries: dict[str, str],
    qrels: list[tuple[str, str, object]],
    reason: str,
) -> None:
    with pytest.raises(TrainingError) as caught:
        load(write_collection(tmp_path, documents, queries, qrels))
    assert str(caught.value).startswith(str(tmp_path))
    assert reason in str(caught.value)


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ('{"_id": "a", "text": "again"}', "line 5: the _id 'a' was there before."),
        ('{"_id": 7, "text": "one"}', "line 5 has no text under the name _id."),
        ('{"_id": "e", "title": ["x"], "text": "one"}', "line 5 has no text under the name title."),
        ('{"_id": "e"', "line 5 is not JSON."),
        ("[]", "line 5 has no text under the name _id."),
    ],
)
def test_a_bad_line_is_named(tmp_path: Path, line: str, reason: str) -> None:
    file = write_collection(tmp_path) / "corpus.jsonl.gz"
    file.write_bytes(gzip.compress(gzip.decompress(file.read_bytes()) + line.encode()))
    with pytest.raises(TrainingError) as caught:
        load(tmp_path)
    assert str(caught.value).startswith(f"{file}, {reason}")


def test_a_set_without_judgments_of_a_test_split_is_refused(tmp_path: Path) -> None:
    (write_collection(tmp_path) / "qrels.test.tsv.gz").unlink()
    with pytest.raises(TrainingError, match=r"has no qrels\.test\.tsv or qrels/test\.tsv, plain or as \.gz"):
        load(tmp_path)


def test_each_part_is_searched_as_its_collection_has_learned(tmp_path: Path) -> None:
    """Each collection uses the mode, fusion weight and passage length that the manifest has for it."""
    documents = contents({"a": "-0.9 0.7", "b": "0.3", "c": "0.1 zebra"})
    both = {f"{part}{name}": content for part in "xy" for name, content in documents.items()}
    queries = {"xq": "zebra", "yq": "zebra"}
    within = {name: name[0] for name in (*both, *queries)}
    requested = Collection(both, queries, {name: {f"{name[0]}c": 1.0} for name in queries}, 0, within)
    lengths: list[int | None] = []

    def split(content: Content, passage_tokens: int | None) -> list[str]:
        lengths.append(passage_tokens)
        found = content.text.replace("zebra", "0").split()
        return found if passage_tokens else found[:1]

    learned = {"y": SearchDefaults(mode="hybrid", weight=1.0, fusion=FUSION, passage_tokens=16)}
    model = Scorable(None, None, None, encode, lambda texts: encode(["east"] * len(texts)), encode, split, 0)
    of_x, of_y = ([id[1:] for id in ids] for ids in score({"x": requested}, model, learned)["x"]["hits"])
    assert of_x == ["c", "b", "a"], "the word, and then the heads"
    assert of_y == ["a", "b", "c"], "the best passages alone"
    assert lengths == [None] * 3 + [16] * 3


def test_a_list_worked_out_by_hand() -> None:
    # Gains 0 3 0 1 at ranks 1 to 4, and one relevant document, of gain 2, that is not in the list.
    found = judge(["x", "a", "y", "b"], {"a": 3, "b": 1, "c": 2})
    dcg = 3 / math.log2(3) + 1 / math.log2(5)
    ideal = 3 + 2 / math.log2(3) + 1 / 2
    assert found["ndcg10"] == pytest.approx(dcg / ideal)
    assert (found["recall1"], found["recall10"], found["recall100"]) == pytest.approx((0, 2 / 3, 2 / 3))
    assert found["mrr10"] == 1 / 2
    assert found["map100"] == pytest.approx((1 / 2 + 2 / 4) / 3)


@pytest.mark.parametrize(
    ("rank", "expected"),
    [
        (1, (1, 1, 1, 1, 1, 1)),
        (2, (1 / math.log2(3), 0, 1, 1, 1 / 2, 1 / 2)),
        (10, (1 / math.log2(11), 0, 1, 1, 1 / 10, 1 / 10)),
        (11, (0, 0, 0, 1, 0, 1 / 11)),
        (100, (0, 0, 0, 1, 0, 1 / 100)),
        (101, (0, 0, 0, 0, 0, 0)),
    ],
)
def test_each_figure_looks_as_deep_as_its_name_says(rank: int, expected: tuple[float, ...]) -> None:
    ranked = [f"other {at}" for at in range(120)]
    ranked[rank - 1] = "the one"
    assert (*judge(ranked, {"the one": 1}).values(),) == pytest.approx(expected)


def test_the_ideal_list_is_cut_at_ten_and_recall_is_not() -> None:
    relevant = {str(at): 1.0 for at in range(20)}
    found = judge([str(at) for at in range(10)], relevant)
    assert found["ndcg10"] == pytest.approx(1)
    assert (found["recall1"], found["recall10"], found["map100"]) == pytest.approx((1 / 20, 1 / 2, 1 / 2))


def test_random_lists_agree_with_the_definitions() -> None:
    generator = np.random.default_rng(3)
    for _ in range(50):
        ranked = [str(at) for at in generator.permutation(150)]
        judged = generator.choice(200, generator.integers(1, 40), replace=False)
        relevant = {str(at): float(generator.integers(1, 5)) for at in judged}
        assert judge(ranked, relevant) == pytest.approx(by_brute_force(ranked, relevant))


def test_every_query_counts_once() -> None:
    found = mean([{"mrr10": 0.5, "map100": 0.25}, {"mrr10": 0.0, "map100": 0.75}])
    assert found == {"mrr10": 0.25, "map100": 0.5}


TEXTS = [
    "Searching for search engines: the searched and the searching",
    "서울에서 부산까지 기차로 간다",
    "東京都の天気",
    "A café near the river, naïve and small",
    "the river and the engines",
    "",
]


def test_words_are_counted_as_the_service_counts_them(tmp_path: Path) -> None:
    migrate(tmp_path / "simile.db")
    connection = connect(tmp_path / "simile.db")
    bring_up_to_date(connection)
    for at, text in enumerate(TEXTS):
        revision = connection.execute(
            "INSERT INTO documents (collection, id, text, metadata) VALUES (?, ?, ?, '{}')",
            (DEFAULT_COLLECTION, str(at), text),
        ).lastrowid
        assert revision is not None
        secondary_indexes.add(connection, revision)
    with closing(WordIndex(TEXTS)) as words:
        for query in ("searches", "서울", "京", "cafe engines river", "the", "nothing", "…"):
            revisions, scores = fulltext.nearest(
                connection, PostingCache(), query, 10, None, DEFAULT_COLLECTION
            )
            expected = dict(zip((revisions - 1).tolist(), scores.tolist(), strict=True))
            assert words.nearest(query, 10) == pytest.approx(expected)
    connection.close()


def test_a_document_has_the_cosine_of_its_best_passage() -> None:
    vectors = np.array([[1, 0], [0, 2], [0.6, 0.8]], np.float32)
    passages = Passages(vectors / np.linalg.norm(vectors, axis=1, keepdims=True), np.array([0, 0, 1]))
    with closing(WordIndex(["one", "two"])) as words:
        (found,) = find(["x"], np.array([[0, 3]], np.float32), passages, words, 10)
    assert found["dense"] == pytest.approx({0: 1.0, 1: 0.8})
    assert found["lexical"] == {}


def test_both_rankings_are_fused_with_the_weight_before_they_are_cut() -> None:
    texts = [f"word {at}" for at in range(30)] + ["zebra"]
    vectors = np.stack([np.cos(np.arange(31) / 31), np.sin(np.arange(31) / 31)], axis=1).astype(np.float32)
    query = np.array([[1, 0]], np.float32)
    contents = [Content(text) for text in texts]
    passages = get_passages(contents, whole, lambda parts: vectors[: len(parts)])
    for weight in (0.0, 0.5, 1.0):
        with closing(WordIndex(texts)) as words:
            (found,) = find(["zebra 7"], query, passages, words, 3, weight)
            near, worded = vectors @ query[0], words.nearest("zebra 7", CANDIDATES)
            cover = words.get_cover("zebra 7", worded)
        assert cover == 0.5
        fused = fuse(dict(enumerate(near.tolist())), worded, weight, cover=cover)
        order = sorted(fused, key=lambda place: (-round(float(fused[place]), 5), place))[:3]
        assert list(found["hybrid"]) == order, weight
        assert found["hybrid"] == pytest.approx({place: fused[place] for place in order}, rel=1e-5)
        assert list(found["dense"]) == [0, 1, 2]
