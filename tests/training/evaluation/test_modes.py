"""Dense, lexical and hybrid search in memory, against the service's own store and fusion."""

from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from models.search.content import Content
from models.search.fusion import fuse
from service.store.sqlite import fulltext, secondary_indexes
from service.store.sqlite.schema import connect, migrate
from service.store.sqlite.secondary_indexes import bring_up_to_date
from service.store.values import DEFAULT_COLLECTION
from training.evaluation.modes import CANDIDATES, Passages, WordIndex, find, passages_of, whole

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
            revisions, scores = fulltext.nearest(connection, query, 10, None, DEFAULT_COLLECTION)
            expected = dict(zip((revisions - 1).tolist(), scores.tolist(), strict=True))
            assert words.nearest(query, 10) == pytest.approx(expected)
    connection.close()


def test_a_document_has_the_cosine_of_its_best_passage() -> None:
    vectors = np.array([[1, 0], [0, 2], [0.6, 0.8]], np.float32)
    passages = Passages(vectors / np.linalg.norm(vectors, axis=1, keepdims=True), np.array([0, 0, 1]))
    with closing(WordIndex(["one", "two"])) as words:
        (found,) = find(["x"], np.array([[0, 3]], np.float32), passages, words, 10)
    assert found.dense == pytest.approx({0: 1.0, 1: 0.8})
    assert found.lexical == {}


def test_both_rankings_are_fused_with_the_weight_before_they_are_cut() -> None:
    texts = [f"word {at}" for at in range(30)] + ["zebra"]
    vectors = np.stack([np.cos(np.arange(31) / 31), np.sin(np.arange(31) / 31)], axis=1).astype(np.float32)
    query = np.array([[1, 0]], np.float32)
    contents = [Content(text) for text in texts]
    passages = passages_of(contents, whole, lambda parts: vectors[: len(parts)])
    for weight in (0.0, 0.5, 1.0):
        with closing(WordIndex(texts)) as words:
            (found,) = find(["zebra 7"], query, passages, words, 3, weight)
            near, worded = vectors @ query[0], words.nearest("zebra 7", CANDIDATES)
        fused = fuse(dict(enumerate(near.tolist())), worded, weight)
        order = sorted(fused, key=lambda place: (-round(float(fused[place]), 5), place))[:3]
        assert list(found.hybrid) == order, weight
        assert found.hybrid == pytest.approx({place: fused[place] for place in order}, rel=1e-5)
        assert list(found.dense) == [0, 1, 2]
