"""A million documents in one service: `python -m benchmarks.million --corpus FILE --model VERSION`

    import ─▶ stop, start ─▶ searches while the index is built anew ─▶ searches, with filters too
           ─▶ searches while 1,000 documents a second are added ─▶ kill -9 in the middle of additions, start

Documents are true texts, imported by `python -m service import` and embedded by VERSION of SIMILE_MODELS_DIR.
A table of tokens (docs/METHODS.md) embeds many more than a thousand a second. One client searches without a
pause, each query the first words of a text that is not stored. Half of all documents pass a filter, more or
less, and no filter was asked before its first search. Additions arrive at random, a hundred documents in a
request, and are durable before they are answered.
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
from contextlib import closing, suppress
from dataclasses import asdict, dataclass
from http.client import HTTPConnection
from itertools import islice, product
from pathlib import Path
from typing import Any
from urllib.parse import quote

from benchmarks.closedloop import ClosedLoop, Load
from benchmarks.machine import memory_mb, process_seconds
from benchmarks.openloop import Flow, OpenLoop
from benchmarks.places import BenchError, arguments, say, scratch
from benchmarks.results import Spread, p50_p99
from benchmarks.server import Server, call, served
from benchmarks.tables import Verdict, conclude, table
from benchmarks.variants import drawn
from benchmarks.wire import get, post
from benchmarks.workloads import PROJECT
from models.store import Store, models_dir

WORDS = 8  # of a text's beginning, as a query
QUERIES = 2000
AT_ONCE = 100  # documents of one request
MODES = ("dense", "lexical", "hybrid")
FIELDS = ("declared", "not_declared")  # of each document's metadata, with the same values from 0 to 99
FILTERS = 10  # of a field and a mode
WARM = 10  # searches
ANSWERED = 20  # additions before the kill
KILL_SECONDS = 0.02  # into another one, which takes longer
AT_REST, LOOK_SECONDS, SETTLE_SECONDS = 0.05, 3.0, 600.0  # of a processor
SPARE_SECONDS = 30  # of additions, while the searches beside them begin


def main() -> None:
    options = _options()
    published = Store(models_dir(os.environ))
    adding = options.rate * (options.seconds + SPARE_SECONDS)
    last = 2 * ANSWERED * AT_ONCE  # that the kill interrupts
    with scratch(OSError, subprocess.CalledProcessError) as folder:
        wanted = options.documents + adding + last + QUERIES
        texts = drawn(options.corpus, wanted)
        if len(texts) < wanted:
            raise BenchError(f"{options.corpus} has only {len(texts):,} distinct texts")
        shutil.copytree(published.folder(options.model), folder / "models" / options.model)
        Store(folder / "models").want(options.model)
        bench = _Bench(folder, texts[-QUERIES:], options.seconds)
        bench.fill(texts[: options.documents])
        added = bench.search_and_add(texts[options.documents :][:adding], options.rate)
        promised = bench.start_after_kill(texts[-QUERIES - last : -QUERIES])
    text = [
        f"## {options.documents:,} documents, and {options.rate:,} more a second",
        table(["", "s", "documents", "its own memory, MiB", "with mapped files, MiB"], bench.steps),
        table(["filter on a field", "search", "first ms", "second ms"], bench.filtered),
        table(["search", "meanwhile", "searches/s", "p50 ms", "p99 ms"], bench.searches),
        f"{AT_ONCE} documents in a request: p50 {added.p50:.0f} ms, p99 {added.p99:.0f} ms.",
    ]
    verdicts = [
        Verdict("documents added a second", added.documents / added.seconds, 0.9 * options.rate, True),
        Verdict("additions that failed", added.failed, 0),
        Verdict("documents lost by a kill", max(0, promised - bench.stored), 0),
    ]
    found = {
        "steps": bench.steps,
        "filtered": bench.filtered,
        "searches": bench.searches,
        "added": asdict(added),
    }
    conclude("million", found, text, verdicts)


def _options() -> argparse.Namespace:
    parser = arguments("million", __doc__, corpus=True)
    parser.add_argument("--model", required=True, metavar="VERSION", help="a version in SIMILE_MODELS_DIR")
    parser.add_argument("--documents", type=int, default=1_000_000)
    parser.add_argument(
        "--rate", type=int, default=1000, help="documents added in a second, in hundreds (1000)"
    )
    parser.add_argument("--seconds", type=int, default=20, help="of searches of one mode (20)")
    return parser.parse_args()


@dataclass(frozen=True, slots=True)
class Added:
    """The additions while a client searched."""

    documents: int  # answered 200
    failed: int  # requests
    seconds: float
    p50: float  # milliseconds of a request
    p99: float


class _Bench:
    """A service on one folder, and the rows of both tables."""

    def __init__(self, folder: Path, asked: Sequence[str], seconds: float) -> None:
        self._folder, self._asked, self._seconds = folder, asked, seconds
        self.steps: list[list[object]] = []
        self.searches: list[list[object]] = []
        self.filtered: list[list[object]] = []
        self.stored = 0

    def fill(self, texts: Sequence[str]) -> None:
        """Import the documents into a running service."""
        say(f"importing {len(texts):,} documents")
        file = self._folder / "documents.jsonl"
        with file.open("w", encoding="utf-8") as stream:
            stream.writelines(json.dumps(_document(at, text)) + "\n" for at, text in enumerate(texts))
        with self._server() as server:
            began = time.monotonic()
            url = f"http://127.0.0.1:{server.port}"
            command = [sys.executable, "-m", "service", "import", str(file), "--url", url]
            subprocess.run(command, cwd=PROJECT, check=True)
            self._step("import", server, time.monotonic() - began)

    def search_and_add(self, more: Sequence[str], rate: int) -> Added:
        """Start again; search, first alone and then while `more` are added, `rate` a second."""
        with self._server() as server:
            self._first_search("start behind a stop", server)
            began = time.monotonic()
            self._search(server, MODES[0], "the index is built anew")
            self._settle(server, began)
            for mode in MODES:
                self._search(server, mode, "nothing")
            self._filter(server)
            requests = [post("/documents", body) for body in self._bodies(more)]
            flow = OpenLoop(Flow(server.port, requests, rate / AT_ONCE, self._seconds + SPARE_SECONDS, 4, 16))
            self._search(server, MODES[-1], f"{rate:,} documents a second")
            outcomes = flow.finish()
            seconds = float((outcomes.arrived + outcomes.milliseconds / 1000).max()) - flow.begin
            self._step("behind the additions", server, seconds)
        answered = int((outcomes.status == 200).sum())
        failed = len(outcomes.status) - answered
        return Added(answered * AT_ONCE, failed, seconds, *p50_p99(outcomes.milliseconds))

    def start_after_kill(self, more: Sequence[str]) -> int:
        """Kill the service while it adds `more`, and start it again; the documents promised before."""
        answered, bodies = 0, self._bodies(more)
        with self._server() as server, suppress(BenchError):
            for body in bodies:
                if answered == ANSWERED:  # in the middle of the next one, or of one soon after
                    threading.Timer(KILL_SECONDS, os.kill, (server.pid, signal.SIGKILL)).start()
                call(server.port, "POST", "/documents", body)
                answered += 1
            raise AssertionError("the service outlived its kill")
        promised = self.stored + answered * AT_ONCE
        with self._server() as server:
            self._first_search("start behind kill -9", server)
        return promised

    def _bodies(self, texts: Sequence[str]) -> list[dict[str, Any]]:
        """Requests of a hundred documents each, numbered on from those that are stored."""
        documents = [_document(number, text) for number, text in enumerate(texts, self.stored)]
        return [{"documents": documents[at : at + AT_ONCE]} for at in range(0, len(documents), AT_ONCE)]

    def _server(self) -> Server:
        settings = {
            "SIMILE_MODELS_DIR": str(self._folder / "models"),
            "SIMILE_INDEXED_FIELDS": FIELDS[0],
        }
        return Server(self._folder / "data", settings=settings)

    def _first_search(self, name: str, server: Server) -> None:
        say(name)
        began = time.monotonic()
        if not call(server.port, "GET", _path(MODES[-1], self._asked[0]))["hits"]:
            raise BenchError("a search found nothing")
        self._step(name, server, server.ready_seconds + time.monotonic() - began)

    def _settle(self, server: Server, began: float) -> None:
        """Wait until the service does nothing: behind an import it builds its index anew, since `began`."""
        say("waiting until the service is at rest")
        busy = math.inf
        while busy > AT_REST:
            if time.monotonic() > began + SETTLE_SECONDS:
                raise BenchError(f"the service does not come to rest in {SETTLE_SECONDS:.0f} seconds")
            before = process_seconds(server.pid)
            time.sleep(LOOK_SECONDS)
            busy = (process_seconds(server.pid) - before) / LOOK_SECONDS
        self._step("until it is at rest", server, time.monotonic() - began)

    def _step(self, name: str, server: Server, seconds: float) -> None:
        memory, self.stored = memory_mb(server.pid), server.info()["index"]["documents"]
        self.steps.append([name, seconds, self.stored, memory["own"], memory["now"]])

    def _search(self, server: Server, mode: str, meanwhile: str) -> None:
        say(f"searching, {mode}; meanwhile {meanwhile}")
        requests = [get(_path(mode, text)) for text in self._asked]
        pids = {"server": server.pid, "bench": os.getpid()}
        answers = ClosedLoop(Load(server.port, requests, 1, WARM, self._seconds, pids)).finish()
        milliseconds = [each for _, each in answers.milliseconds]
        rate = len(milliseconds) / answers.window.seconds
        self.searches.append([mode, meanwhile, rate, *p50_p99(milliseconds)])

    def _filter(self, server: Server) -> None:
        """Each filter's first search and its second, with another query."""
        queries, least = iter(self._asked), iter(range(30, 100))
        with closing(HTTPConnection("127.0.0.1", server.port, timeout=60)) as connection:
            for field, mode in product(FIELDS, ("dense", "hybrid")):
                say(f"filters on a field that is {field}, {mode}")
                pairs = [
                    [
                        served(connection, "GET", _path(mode, next(queries), {field: {"$gte": value}}))[1]
                        for _ in "12"
                    ]
                    for value in islice(least, FILTERS)
                ]
                words = (Spread.of(times).words(1) for times in zip(*pairs, strict=True))
                self.filtered.append([field.replace("_", " "), mode, *words])


def _document(number: int, text: str) -> dict[str, Any]:
    return {"id": f"d{number}", "text": text, "metadata": dict.fromkeys(FIELDS, number % 100)}


def _path(mode: str, text: str, where: Any = None) -> str:
    condition = "" if where is None else f"&filter={quote(json.dumps(where))}"
    return f"/search?k=10&mode={mode}{condition}&q={quote(' '.join(text.split()[:WORDS]))}"


if __name__ == "__main__":
    main()
