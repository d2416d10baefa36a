"""Measure a service with a million documents: `python -m benchmarks.million --corpus FILE --model VERSION`.

    import ─▶ stop, start ─▶ searches while the index is rebuilt ─▶ searches, with and without filters
           ─▶ hybrid searches with three facets, and suggestions
           ─▶ searches while 1,000 documents a second are added ─▶ hybrid searches with and without a ranking,
              with highlights
           ─▶ kill -9 during additions, start

With `--features`, only searches without and with highlights, three facets and typo tolerance together, and
suggestions are measured. A query with a typo has one random edit (typos.py).

Documents are real texts from FILE, or with `--words` that many words of such texts. `python -m service
import` imports them, and the model VERSION of SIMILE_MODELS_DIR embeds them. A static model
(docs/METHODS.md) embeds far more than a thousand documents per second. One client searches without pause.
Its queries are the first words of texts that are not stored. The first words of a text are the title of its
document. Each filter matches about half of all documents. The service has not seen a filter before its first
search. Additions arrive at random times with a hundred documents each. The service answers after they are
durable.
"""

import argparse
import json
import math
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import ExitStack, closing, suppress
from http.client import HTTPConnection
from itertools import cycle, islice, product
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np

from benchmarks.command import (
    PROJECT,
    BenchError,
    Verdict,
    build_parser,
    format_table,
    progress,
    report,
    scratch_folder,
)
from benchmarks.documents import draw_texts
from benchmarks.load import Generator, Load, get_request, post_request
from benchmarks.machine import memory_mb, process_seconds
from benchmarks.processes import Server, call, postgres, request_ms
from benchmarks.rounds import Spread, p50_p99
from benchmarks.typos import ONE, edit_query
from models.store import ModelStore, models_dir

QUERY_WORDS = 8
QUERIES = 2000
BATCH = 100  # documents of one request
RATE = 1000  # documents added per second
SEARCH_SECONDS, FEATURE_SECONDS = 20, 12  # duration of the searches in each mode
MODES = ("dense", "lexical", "hybrid")
FIELDS = ("declared", "not_declared")  # metadata of each document, with the same values from 0 to 99
FACETS = (*FIELDS, "kind")  # fields that are counted
_FACETS = f"&facets={','.join(f'metadata.{field}' for field in FACETS)}"
TITLE_WORDS = 4
TYPED = (2, 3, 5, 8, 12)  # characters of a text to complete
ALL_FEATURES = "&highlight=true&typos=true"
ADDED_MS, SUGGEST_MS = (15.0, 40.0), 10.0  # Promises for SQLite: added p50 and p99, and p99 of suggestions.
FILTERS = 10  # number of filters on each field in each mode
WARM = 10  # searches
_SEARCHES = ["search", "meanwhile", "searches/s", "p50 ms", "p99 ms", "processor ms"]
ADDITIONS_BEFORE_KILL = 20
KILL_SECONDS = 0.02  # time from the start of an addition to the kill; an addition takes longer
IDLE, LOOK_SECONDS, SETTLE_SECONDS = 0.05, 3.0, 600.0  # IDLE: processors that an idle service may use
SPARE_SECONDS = 30  # additional time of the additions, because the searches must start first


def main() -> None:
    options = _parse_options()
    published = ModelStore(models_dir(os.environ))
    adding = 0 if options.features else RATE * (SEARCH_SECONDS + SPARE_SECONDS)
    last = 0 if options.features else 2 * ADDITIONS_BEFORE_KILL * BATCH  # interrupted by the kill
    with scratch_folder(OSError, subprocess.CalledProcessError) as folder, ExitStack() as stack:
        needed = options.documents + adding + last + QUERIES
        texts = draw_texts(options.corpus, needed, options.words)
        if len(texts) < needed:
            raise BenchError(f"{options.corpus} has only {len(texts):,} of {needed:,} distinct texts")
        shutil.copytree(published.folder(options.model), folder / "models" / options.model)
        ModelStore(folder / "models").request(options.model)
        database = stack.enter_context(postgres(folder)) if options.store == "postgres" else None
        bench = _Bench(folder, texts[-QUERIES:], database)
        bench.fill(texts[: options.documents])
        if options.features:
            added_ms, suggest = bench.measure_features()
            title = f"## {options.documents:,} documents in {options.store}"
            tables = [title, format_table(_SEARCHES, bench.searches)]
            kept = added_ms if options.store == "sqlite" else []  # PostgreSQL has no promise for these.
            report(f"features-{options.store}", {"searches": bench.searches}, tables, [*kept, suggest])
            return
        added = bench.search_and_add(texts[options.documents :][:adding])
        promised = bench.start_after_kill(texts[-QUERIES - last : -QUERIES])
    text = [
        f"## {options.documents:,} documents, and {RATE:,} more a second",
        format_table(["", "s", "documents", "anonymous memory, MiB", "RSS MiB"], bench.steps),
        format_table(["filter on a field", "search", "first ms", "second ms"], bench.filtered),
        format_table(_SEARCHES, bench.searches),
        f"{BATCH} documents in a request: p50 {added['p50']:.0f} ms, p99 {added['p99']:.0f} ms.",
    ]
    verdicts = [
        Verdict("documents added a second", added["documents"] / added["seconds"], 0.9 * RATE, True),
        Verdict("additions that failed", added["failed"], 0),
        Verdict("documents lost by a kill", max(0, promised - bench.stored), 0),
    ]
    figures = {"steps": bench.steps, "filtered": bench.filtered, "searches": bench.searches, "added": added}
    report("million", figures, text, verdicts)


def _parse_options() -> argparse.Namespace:
    parser = build_parser("million", __doc__, corpus=True)
    parser.add_argument("--model", required=True, metavar="VERSION", help="a version in SIMILE_MODELS_DIR")
    parser.add_argument("--documents", type=int, default=1_000_000)
    parser.add_argument("--words", type=int, default=0, metavar="N", help="of each document (0: whole texts)")
    parser.add_argument("--store", choices=("sqlite", "postgres"), default="sqlite")
    parser.add_argument("--features", action="store_true", help="only highlights, facets, typos, suggestions")
    return parser.parse_args()


class _Bench:
    """A service on one folder, and the rows of the report's tables."""

    def __init__(self, folder: Path, queries: Sequence[str], database: str | None) -> None:
        self._folder, self._queries, self._database = folder, queries, database
        self.steps: list[list[object]] = []
        self._seconds = SEARCH_SECONDS
        self.searches: list[list[Any]] = []
        self.filtered: list[list[object]] = []
        self.stored = 0

    def fill(self, texts: Sequence[str]) -> None:
        """Import the documents into a running service."""
        progress(f"importing {len(texts):,} documents")
        file = self._folder / "documents.jsonl"
        with file.open("w", encoding="utf-8") as stream:
            stream.writelines(json.dumps(_document(at, text)) + "\n" for at, text in enumerate(texts))
        with self._server() as server:
            began = time.monotonic()
            url = f"http://127.0.0.1:{server.port}"
            command = [sys.executable, "-m", "service", "import", str(file), "--url", url]
            subprocess.run(command, cwd=PROJECT, check=True)
            self._step("import", server, time.monotonic() - began)

    def search_and_add(self, more: Sequence[str]) -> dict[str, float]:
        """Restart the service; search it during the rebuild of the index, while idle, and during additions.

        Args:
            more: Texts of the documents to add, at RATE.

        Returns:
            The number of added documents, the number of failed requests, the seconds from the start of the
            load to the last answer, and the latency of an addition in milliseconds ("p50" and "p99").

        """
        with self._server() as server:
            self._first_search("start after a stop", server)
            began = time.monotonic()
            self._search(server, MODES[0], "the index is rebuilt")
            self._wait_until_idle(server, began)
            for mode in MODES:
                self._search(server, mode, "nothing")
            self._search(server, MODES[-1], "nothing, with 3 facets", _FACETS)
            self._suggest(server)
            self._filter(server)
            requests = [post_request("/documents", body) for body in self._bodies(more)]
            adding = SEARCH_SECONDS + SPARE_SECONDS
            flow = Generator(Load(server.port, requests, 4, adding, RATE / BATCH, max_connections=16))
            self._search(server, MODES[-1], f"{RATE:,} documents a second")
            outcomes = flow.finish()
            seconds = float((outcomes.arrived + outcomes.milliseconds / 1000).max()) - flow.begin
            self._step("after the additions", server, seconds)
        with self._server(SIMILE_RANKING="0") as server:
            self._wait_until_idle(server, time.monotonic())
            self._search(server, MODES[-1], "nothing, without a ranking")
        with self._server() as server:
            self._wait_until_idle(server, time.monotonic())
            self._search(server, MODES[-1], "nothing, with a ranking")
            self._search(server, MODES[-1], "nothing, with highlights", "&highlight=true")
        answered = int((outcomes.status == 200).sum())
        p50, p99 = p50_p99(outcomes.milliseconds)
        failed = len(outcomes.status) - answered
        return {"documents": answered * BATCH, "failed": failed, "seconds": seconds, "p50": p50, "p99": p99}

    def measure_features(self) -> tuple[list[Verdict], Verdict]:
        """Measure what highlights, facets and typo tolerance add to searches, and suggestions."""
        verdicts = []
        random = np.random.default_rng(0)
        queries = [" ".join(text.split()[:QUERY_WORDS]) for text in self._queries]
        edited = [edit_query(text, ONE, random) or text for text in queries]
        self._seconds = FEATURE_SECONDS
        with self._server() as server:
            self._wait_until_idle(server, time.monotonic())
            for mode in MODES[1:]:
                plain = [_path(mode, text) + "&typos=false" for text in queries]
                self._measure(server, mode, "nothing", plain)
                before = self.searches[-1][3:5]
                for name, texts in {"all features": queries, "all features, a typo": edited}.items():
                    paths = [_path(mode, text) + ALL_FEATURES + _FACETS for text in texts]
                    self._measure(server, mode, name, paths)
                    for what, old, new, most in zip(
                        ("p50", "p99"), before, self.searches[-1][3:5], ADDED_MS, strict=True
                    ):
                        verdicts.append(Verdict(f"{mode}, {name}: added {what} in ms", new - old, most))
            self._suggest(server)
        return verdicts, Verdict("suggestions: p99 in ms", self.searches[-1][4], SUGGEST_MS)

    def start_after_kill(self, more: Sequence[str]) -> int:
        """Kill the service while it adds the texts `more`, and start it again.

        Returns:
            Number of all documents that the service had acknowledged before the kill.

        """
        answered, bodies = 0, self._bodies(more)
        with self._server() as server, suppress(BenchError):
            for body in bodies:
                if answered == ADDITIONS_BEFORE_KILL:  # during the next addition or soon after
                    threading.Timer(KILL_SECONDS, os.kill, (server.pid, signal.SIGKILL)).start()
                call(server.port, "POST", "/documents", body)
                answered += 1
            raise AssertionError("the service survived kill -9")
        promised = self.stored + answered * BATCH
        with self._server() as server:
            self._first_search("start after kill -9", server)
        return promised

    def _bodies(self, texts: Sequence[str]) -> list[dict[str, Any]]:
        """Return request bodies with a hundred documents each. Ids continue after the stored documents."""
        documents = [_document(number, text) for number, text in enumerate(texts, self.stored)]
        return [{"documents": documents[at : at + BATCH]} for at in range(0, len(documents), BATCH)]

    def _server(self, **settings: str) -> Server:
        settings |= {"SIMILE_MODELS_DIR": str(self._folder / "models"), "SIMILE_INDEXED_FIELDS": FIELDS[0]}
        if self._database is not None:
            settings["SIMILE_DATABASE"] = self._database
        return Server(self._folder / "data", settings=settings)

    def _first_search(self, name: str, server: Server) -> None:
        progress(name)
        began = time.monotonic()
        if not call(server.port, "GET", _path(MODES[-1], self._queries[0]))["hits"]:
            raise BenchError("a search found nothing")
        self._step(name, server, server.ready_seconds + time.monotonic() - began)

    def _wait_until_idle(self, server: Server, began: float) -> None:
        """Wait until the service has rebuilt its index and is idle.

        Args:
            server: The service.
            began: Start of the rebuild. The time limit and the reported seconds count from it.

        """
        progress("waiting until the service is idle")
        busy = math.inf
        while busy > IDLE:
            if time.monotonic() > began + SETTLE_SECONDS:
                raise BenchError(f"the service is still busy after {SETTLE_SECONDS:.0f} seconds")
            before = process_seconds(server.pid)
            time.sleep(LOOK_SECONDS)
            busy = (process_seconds(server.pid) - before) / LOOK_SECONDS
        self._step("until idle", server, time.monotonic() - began)

    def _step(self, name: str, server: Server, seconds: float) -> None:
        memory, self.stored = memory_mb(server.pid), server.info()["index"]["documents"]
        self.steps.append([name, seconds, self.stored, memory["own"], memory["now"]])

    def _search(self, server: Server, mode: str, meanwhile: str, options: str = "") -> None:
        self._measure(server, mode, meanwhile, [_path(mode, text) + options for text in self._queries])

    def _suggest(self, server: Server) -> None:
        beginnings = [text[:count] for text, count in zip(self._queries, cycle(TYPED), strict=False)]
        self._measure(server, "suggest", "nothing", [f"/suggest?q={quote(typed)}" for typed in beginnings])

    def _measure(self, server: Server, name: str, meanwhile: str, paths: Sequence[str]) -> None:
        progress(f"searching, {name}; meanwhile {meanwhile}")
        requests = [get_request(path) for path in paths]
        pids = {"server": server.pid, "bench": os.getpid()}
        answers = Generator(Load(server.port, requests, 1, self._seconds, warm=WARM, pids=pids)).finish()
        cpu_ms = 1000 * answers.window.cpu_seconds["server"] / max(1, len(answers.status))
        self.searches.append([name, meanwhile, answers.rate, *p50_p99(answers.milliseconds), cpu_ms])

    def _filter(self, server: Server) -> None:
        """Measure the first and the second search with each filter. The two searches differ in the query."""
        queries, bounds = iter(self._queries), iter(range(30, 100))
        with closing(HTTPConnection("127.0.0.1", server.port, timeout=60)) as connection:
            for field, mode in product(FIELDS, ("dense", "hybrid")):
                progress(f"filters on the field {field}, {mode}")
                pairs = [
                    [request_ms(connection, _path(mode, next(queries), where)) for _ in "12"]
                    for where in ({field: {"$gte": bound}} for bound in islice(bounds, FILTERS))
                ]
                spreads = (Spread.of(times).text(1) for times in zip(*pairs, strict=True))
                self.filtered.append([field.replace("_", " "), mode, *spreads])


def _document(number: int, text: str) -> dict[str, Any]:
    metadata = dict.fromkeys(FIELDS, number % 100) | {"kind": f"kind {number % 20}"}
    words = text.split()
    title, rest = " ".join(words[:TITLE_WORDS]), " ".join(words[TITLE_WORDS:])
    return {"id": f"d{number}", "title": title if rest else "", "text": rest or text, "metadata": metadata}


def _path(mode: str, text: str, where: Any = None) -> str:
    condition = "" if where is None else f"&filter={quote(json.dumps(where))}"
    return f"/search?k=10&mode={mode}{condition}&q={quote(' '.join(text.split()[:QUERY_WORDS]))}"


if __name__ == "__main__":
    main()
