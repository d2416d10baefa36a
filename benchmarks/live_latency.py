"""Measure what a live test costs a search: `python -m benchmarks.live_latency --corpus FILE`.

    searches without a test ─▶ a test begins ─▶ the same searches, all tested ─▶ it ends ─▶ the same again

Documents are texts of FILE with 20 words each, queries are the first words of others. The candidates are a
ranking of the active encoder, and a second encoder with the default model's weights.
"""

from collections.abc import Iterator, Sequence
from http.client import HTTPConnection
from pathlib import Path
from urllib.parse import urlencode

from benchmarks.command import Verdict, build_parser, format_table, progress, report, scratch_folder
from benchmarks.documents import draw_texts, publish_variants, store_documents
from benchmarks.live_week import FIRST, add_version, rank_by, read_test, wait_for
from benchmarks.million import QUERY_WORDS
from benchmarks.processes import Server, call, request_ms
from benchmarks.rounds import p50_p99
from models.store import ModelStore

WORDS = 20  # of a document
MAX_RATIO = {"a ranking": 1.5, "a second encoder": 2.2}  # of medians, tested over untested


def main() -> None:
    parser = build_parser("live_latency", __doc__, corpus=True)
    parser.add_argument("--documents", type=int, default=20_000)
    parser.add_argument("--searches", type=int, default=1000, metavar="N", help="with and without each test")
    options = parser.parse_args()
    with scratch_folder() as folder:
        texts = draw_texts(options.corpus, options.documents + options.searches, WORDS)
        documents, others = texts[: options.documents], texts[options.documents :]
        queries = [" ".join(text.split()[:QUERY_WORDS]) for text in others]
        rows = [*measure(folder, documents, queries)]
    columns = [
        "candidate",
        "p50 before",
        "p50 tested",
        "p50 after",
        "p99 before",
        "p99 tested",
        "p99 after",
        "ratio",
    ]
    verdicts = [
        Verdict(f"p50 with {name}, tested over untested", row[-1], MAX_RATIO[name]) for name, *row in rows
    ]
    report("live_latency", {"rows": rows}, [format_table(columns, rows)], verdicts)


def measure(
    folder: Path, documents: Sequence[str], queries: Sequence[str]
) -> Iterator[tuple[str, *tuple[float, ...]]]:
    """Yields each candidate's medians and 99th percentiles in milliseconds, and the ratio of medians."""
    store = ModelStore(folder / "models")
    base, second = publish_variants(store.root, 2)
    candidates = {"a ranking": add_version(store, base, ranking=rank_by(FIRST)), "a second encoder": second}
    store.request(base)
    settings = {"SIMILE_MODELS_DIR": str(store.root), "SIMILE_ACTIVATE": "manual", "SIMILE_LIVE_TEST": "1"}
    with Server(folder / "data", settings) as server:
        store_documents(server.port, documents, len(documents))
        for name, version in candidates.items():
            progress(name)
            before = search(server.port, queries)
            call(server.port, "POST", f"/models/{version}/test")
            wait_for(lambda: bool(read_test(server.port)["state"] == "running"), f"A test of {version}")
            tested = search(server.port, queries)
            call(server.port, "DELETE", f"/models/{version}/test")
            after = search(server.port, queries)
            medians, slowest = zip(before, tested, after, strict=True)
            yield name, *medians, *slowest, 2 * tested[0] / (before[0] + after[0])


def search(port: int, queries: Sequence[str]) -> tuple[float, float]:
    """Returns the median and the 99th percentile of hybrid searches, in milliseconds."""
    connection = HTTPConnection("127.0.0.1", port, timeout=60)
    paths = [
        f"/search?{urlencode({'q': query, 'user': f'visitor-{at}'})}" for at, query in enumerate(queries)
    ]
    times = [request_ms(connection, path) for path in paths]
    connection.close()
    return p50_p99(times)


if __name__ == "__main__":
    main()
