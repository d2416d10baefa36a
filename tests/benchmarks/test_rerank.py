"""What the benchmark of the reranker sends, reads and prints."""

import pytest

from benchmarks.__main__ import judge_floors
from benchmarks.command import BenchError
from benchmarks.rerank import FLOORS, RERANK, RERANK_K, SEARCHES, tables
from benchmarks.rounds import Cell, Measured, Results
from tests.benchmarks.runs import rates

LINES = ["a query\tone text", "a query\tanother text"]
RUN: dict[Cell, list[Measured | None]] = {
    ("sentence-transformers, torch", "at once"): rates(50),
    ("raw fp32", "at once"): rates(100),
    ("Simile fp32", "64 x 1"): rates(90, p50_ms=700, p99_ms=900),
    ("Simile fp32", "4 x 32"): rates(80, p50_ms=1600, p99_ms=1700),
    ("Simile fp32", "search"): rates(4, p50_ms=240, p99_ms=300),
    ("matrix products, fp32", "search"): rates(5),
}


def test_the_scores_are_read_in_the_order_of_the_texts() -> None:
    assert RERANK.body(LINES) == {"query": "a query", "texts": ["one text", "another text"]}
    found = RERANK.read([{"index": 1, "score": 0.75}, {"index": 0, "score": 0.25}])
    assert found == [[0.25, 0.75], [0.75, 0.25]]


def test_a_search_that_did_not_rerank_all_hits_ends_the_run() -> None:
    assert SEARCHES.body(LINES[:1])["queries"] == ["a query"]
    hits = [{"id": str(at), "score": 1.0, "rerank_score": at / 10} for at in range(RERANK_K)]
    assert SEARCHES.read({"results": [hits]}) == [[hit["rerank_score"] for hit in hits]]
    with pytest.raises(BenchError, match="did not rerank 20 hits"):
        SEARCHES.read({"results": [hits[1:]]})
    with pytest.raises(BenchError, match="late"):
        SEARCHES.read({"results": [hits], "warnings": ["late"]})


def test_the_report_has_promises_ratios_and_the_share_of_the_matrix_products() -> None:
    results = Results(RUN)
    assert {one.subject: (one.value, one.passed) for one in judge_floors(results, FLOORS)} == {
        "Simile fp32, 64 x 1, over sentence-transformers, torch": (1.8, True),
        "Simile fp32, 4 x 32, over sentence-transformers, torch": (1.6, True),
        "Simile fp32, 64 x 1, over raw fp32": (0.9, True),
        "Simile fp32, 4 x 32, over raw fp32": (0.8, False),
    }
    pairs, ratios, searches = tables(results)
    assert "| Simile fp32 |  | 90 (700 / 900) | 80 (1600 / 1700) |" in pairs
    assert "| Simile fp32, 4 x 32, over raw fp32 | 0.80 (0.80 to 0.80) |" in ratios
    assert (
        "| fp32 | 240 (240 to 240) | 300 (300 to 300) | 200 (200 to 200) | 0.80 (0.80 to 0.80) |" in searches
    )
