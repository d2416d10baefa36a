"""Processor time of a cached `POST /embed`, beside bare applications: `python -m benchmarks.cached`.

One client asks for the same text, one request at a time; the applications take turns, so that whatever else
the machine does meets all of them. Processor time is that of the server's process, of its kernel calls too.
"""

import socket
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager, suppress
from http.client import HTTPConnection
from pathlib import Path

from benchmarks.bare import APPS
from benchmarks.machine import process_seconds
from benchmarks.places import arguments, scratch
from benchmarks.process import LOOK_SECONDS, Process
from benchmarks.results import Spread
from benchmarks.server import Server, free_port, served
from benchmarks.tables import conclude, table
from benchmarks.workloads import PROJECT

TEXT = "A cached request is answered from memory, without the model."
LEAST_REQUESTS = 2000  # take some 70 ms of the quickest application
SAID = {
    "service": "the service, with its limits, metrics and cache",
    "routed": "FastAPI with a pydantic model, and a dictionary",
    "encoding": "the body parsed, a dictionary, the vector written as JSON",
    "answering": "the body read, and bytes that were ready",
}


def main() -> None:
    parser = arguments("cached", __doc__)
    parser.add_argument("--requests", type=int, default=4000, help="of each application in a round")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    if options.requests < LEAST_REQUESTS:
        parser.error(f"--requests: at least {LEAST_REQUESTS}; processor time is counted in steps of 10 ms")
    with scratch() as folder, ExitStack() as stack:
        server = stack.enter_context(Server(folder / "data", settings={"SIMILE_CACHE_MB": "64"}))
        body = folder / "answer.json"
        body.write_text(_ask(server.port, 2))  # the second is cached
        places = {"service": (server.pid, server.port)}
        for name in APPS:
            places[name] = stack.enter_context(_bare(name, body))
        milliseconds: dict[str, list[float]] = {name: [] for name in places}
        for round in range(options.rounds + 1):
            for name, (pid, port) in places.items():
                before = process_seconds(pid)
                _ask(port, options.requests)
                if round:  # the first one warms up
                    milliseconds[name].append((process_seconds(pid) - before) * 1000 / options.requests)
        _report(milliseconds, body.stat().st_size)


def _report(milliseconds: Mapping[str, list[float]], size: int) -> None:
    base = milliseconds["answering"]
    rows = []
    for name, words in SAID.items():
        ratios = [one / other for one, other in zip(milliseconds[name], base, strict=True)]
        rows.append([words, Spread.of(milliseconds[name]).words(3), Spread.of(ratios).words()])
    text = [
        "## A cached request of one text",
        table(["", "ms of processor time", "to the last row"], rows),
        f"An answer has {size:,} bytes.",
    ]
    conclude("cached", {"milliseconds": dict(milliseconds)}, text, [])


def _ask(port: int, requests: int) -> str:
    """Ask so often on one connection; the last answer's text. Raises BenchError."""
    with closing(HTTPConnection("127.0.0.1", port)) as connection:
        for _ in range(requests):
            text, _ = served(connection, "POST", "/embed", {"inputs": TEXT})
    return text


@contextmanager
def _bare(name: str, body: Path) -> Iterator[tuple[int, int]]:
    """The process and the port of a bare application."""
    port = free_port()
    process = Process(name, [sys.executable, "-m", "benchmarks.bare", name, str(port), body], cwd=PROJECT)
    with closing(process):
        while not process.ended:
            with suppress(OSError), closing(socket.create_connection(("127.0.0.1", port))):
                break
            time.sleep(LOOK_SECONDS)
        yield process.pid, port


if __name__ == "__main__":
    main()
