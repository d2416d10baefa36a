"""Send every kind of request to a service for half an hour: `python -m benchmarks.soak`.

    a third: warm-up ─▶ idle sample ─▶ two thirds ─▶ idle sample        a swap every two minutes throughout

Clients embed, compare, search, write, update, delete, send wrong requests and disconnect. Each client has a
fixed set of document ids, so the number of documents stays bounded. The status of every response is checked.
Meanwhile the benchmark activates three versions, one after another and again. The service has dropped the
vectors of a version before that version is activated again, so each swap embeds all documents.

An idle sample measures the service while no client is connected and the old version is out of memory. The
second idle sample must not need more memory than the first. Between them, one or two versions are in memory,
so a median or a trend is not meaningful. The benchmark compares the maxima of the second and the last third.
"""

import argparse
import http.client
import json
import random
import socket
import statistics
import struct
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, field
from itertools import cycle
from pathlib import Path
from typing import Any, Self
from urllib.parse import quote

from benchmarks import workloads
from benchmarks.command import Verdict, build_parser, format_table, progress, report, scratch_folder
from benchmarks.documents import publish_variants
from benchmarks.machine import Sample, sampling, take_sample, thirds
from benchmarks.processes import Server, call, metric, swap

GROWTH = 0.05  # of idle memory and of maximum memory
MORE_THREADS = 4  # pools of a bounded size may start a thread at any time
FILES_OF_A_THREAD = 2  # a reading thread opens the store's database and its log

VERSIONS = 3
SAMPLE_SECONDS = 2.0
LINGER_SECONDS = 6.0  # an unused generation is closed after five
MAX_SWAP_SECONDS = 600.0
IMPORT_DOCUMENTS = 200
TEXTS = 4000

# Requests of the clients.
NAMES = 200  # maximum number of documents of one client
MAX_TEXTS = 48
LONG_WORDS = 600
TOO_MANY_INPUTS = 2049
DEEP = 5000

JSON = {"content-type": "application/json"}
AS_BYTES = {"accept": "application/octet-stream"}
TIMEOUTS = [{"x-timeout-ms": milliseconds} for milliseconds in ("1", "5", "20")]
OPTIONS: list[dict[str, Any]] = [
    {},
    {"normalize": False},
    {"dimensions": 8},
    {"truncation_direction": "left"},
]
THREE_KINDS = {"kind": {"$in": [0, 1, 2]}}
ENCODINGS = [{"encoding_format": "float"}, {"encoding_format": "base64"}]
COHERE = {"model": "any", "input_type": "search_document", "embedding_types": ["float", "int8", "ubinary"]}
DOCUMENT_READS = ["/documents?limit=50", "/documents/count"]
OPERATOR_READS = ["/info", "/models", "/health", "/ready", "/metrics"]

PAUSE_SECONDS = 0.02  # of a client between two requests
ABORTED_SHARE = 0.06
HUGE_BYTES = 64 << 20  # declared, never sent
MAX_COMPLAINTS = 20
RESET = struct.pack("ii", 1, 0)  # SO_LINGER: close() sends a reset
TIMEOUT_SECONDS = 60


@dataclass(frozen=True, slots=True)
class Request:
    """An HTTP request and the response statuses that are valid for it."""

    name: str
    method: str
    target: str
    body: bytes | None = None
    expected: tuple[int, ...] = (200,)
    headers: Mapping[str, str] = field(default_factory=lambda: JSON)


class Requests:
    """Draws the requests of one client."""

    def __init__(self, texts: Sequence[str], owner: str, chance: random.Random) -> None:
        self._texts = texts
        self._owner = owner
        self._chance = chance
        text, some, pick, post = self._text, self._some, chance.choice, _post
        self._kinds: dict[Callable[[], Request], int] = {  # and their weights
            lambda: post("embed", "/embed", {"inputs": text()}): 6,
            lambda: post("embed many", "/embed", {"inputs": some(MAX_TEXTS)} | pick(OPTIONS)): 3,
            self._embed_long: 1,
            lambda: post("embed as bytes", "/embed", {"inputs": some(8)}, more=AS_BYTES): 1,
            lambda: post("short timeout", "/embed", {"inputs": some(32)}, (200, 504), pick(TIMEOUTS)): 1,
            lambda: post(
                "similarity",
                "/similarity",
                {"inputs": {"source_sentence": text(), "sentences": some(8)}},
            ): 2,
            lambda: post("similarity", "/similarity", {"pairs": [[each, text()] for each in some(8)]}): 1,
            self._search: 8,
            lambda: post("search many", "/search", {"queries": some(8), "k": 10, "filter": THREE_KINDS}): 2,
            lambda: post("openai", "/v1/embeddings", {"input": some(8), "model": "any"} | pick(ENCODINGS)): 3,
            lambda: post("cohere", "/v2/embed", COHERE | {"texts": some(8)}): 1,
            lambda: post("tokenize", "/tokenize", {"inputs": some(8)}): 1,
            lambda: post("write", "/documents", {"documents": self._documents()}): 4,
            lambda: Request("delete", "DELETE", self._document_path()): 2,
            lambda: Request("delete by filter", "DELETE", f"/documents?filter={_quoted(self._fields())}"): 1,
            lambda: Request(
                "read documents", "GET", pick([*DOCUMENT_READS, self._document_path()]), None, (200, 404)
            ): 2,
            lambda: Request("operation", "GET", pick(OPERATOR_READS)): 2,
            lambda: pick(WRONG): 4,
        }

    def draw(self) -> Request:
        """Return the next request."""
        [make] = self._chance.choices([*self._kinds], [*self._kinds.values()])
        return make()

    def large_body(self) -> bytes:
        """Return a large request body, which keeps the service busy while the client disconnects."""
        return _json({"inputs": self._some(MAX_TEXTS)})

    def _embed_long(self) -> Request:
        body = {"inputs": " ".join(self._text() for _ in range(LONG_WORDS // 10))}
        if self._chance.random() < 0.5:
            return _post("embed long", "/embed", body)
        return _post("embed too long", "/embed", body | {"truncate": False}, (422,))

    def _search(self) -> Request:
        target = f"/search?k={self._chance.choice([1, 10, 100])}&q={quote(self._text()[:80])}"
        if self._chance.random() < 0.3:
            target += f"&filter={_quoted({'kind': self._chance.randrange(4)})}"
        return Request("search", "GET", target)

    def _documents(self) -> list[dict[str, Any]]:
        return [{"id": self._name(), "text": text, "metadata": self._fields()} for text in self._some(20)]

    def _text(self) -> str:
        return self._chance.choice(self._texts)

    def _some(self, most: int) -> list[str]:
        return [self._text() for _ in range(self._chance.randint(1, most))]

    def _fields(self) -> dict[str, Any]:
        return {"owner": self._owner, "kind": self._chance.randrange(4)}

    def _name(self) -> str:
        return f"{self._owner}-{self._chance.randrange(NAMES)}"

    def _document_path(self) -> str:
        return f"/documents/{self._name()}"


def _json(body: Any) -> bytes:
    return json.dumps(body).encode()


def _quoted(condition: Any) -> str:
    return quote(json.dumps(condition))


def _post(
    name: str, path: str, body: Any, expected: tuple[int, ...] = (200,), more: dict[str, str] = JSON
) -> Request:
    return Request(name, "POST", path, _json(body), expected, JSON | more)


def _wrong_embed(body: bytes, status: int) -> Request:
    return Request("wrong", "POST", "/embed", body, (status,))


WRONG = [
    _wrong_embed(b'{"inputs": ', 422),
    _wrong_embed(b'{"inputs": 5}', 422),
    _wrong_embed(b'{"inputs": ["a", NaN]}', 422),
    _wrong_embed(b'{"inputs": ["\xff"]}', 422),
    _wrong_embed(b'{"inputs": ' + DEEP * b"[", 422),
    _wrong_embed(_json({"inputs": TOO_MANY_INPUTS * ["a"]}), 422),
    _wrong_embed(_json({"inputs": "a", "dimensions": 100_000}), 422),
    _wrong_embed(_json({"inputs": []}), 400),
    _wrong_embed(_json({"inputs": ["a", " "]}), 400),
    Request("wrong", "POST", "/embed", b"a", (415,), {"content-type": "text/plain"}),
    Request("wrong", "POST", "/embed", _json({"inputs": "a"}), (422,), JSON | {"x-timeout-ms": "soon"}),
    Request("wrong", "GET", "/embed", None, (405,)),
    Request("wrong", "GET", "/nowhere", None, (404,)),
    Request("wrong", "GET", "/search", None, (422,)),
    Request("wrong", "GET", "/search?q=a&k=0", None, (422,)),
    Request("wrong", "GET", "/search?q=a&filter=%7B%22a%22%3A%7B%22%24like%22%3A1%7D%7D", None, (422,)),
    Request("wrong", "DELETE", "/documents", None, (422,)),
    Request("wrong", "POST", "/documents", _json({"documents": [{"id": "a", "text": ""}]}), (400,)),
    Request("wrong", "POST", "/models/20200101T000000-none-00000000/activate", None, (404,)),
]


class Traffic:
    """Client threads that send requests inside a `with` block. Afterwards every connection is closed.

    Attributes:
        answers: Number of requests by kind, and by response status or how the client disconnected.
        slowest_ms: Highest latency of each kind of request.
        unexpected: Number of responses with an unexpected status.
        complaints: Messages about the first unexpected responses.

    """

    def __init__(self, port: int, texts: Sequence[str], clients: int) -> None:
        self.answers: defaultdict[str, Counter[str]] = defaultdict(Counter)
        self.slowest_ms: Counter[str] = Counter()
        self.unexpected = 0
        self.complaints: list[str] = []
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._clients = [_Client(self, port, texts, number) for number in range(clients)]
        self._threads: list[threading.Thread] = []

    def __enter__(self) -> Self:
        self._stop.clear()
        self._threads = [threading.Thread(target=each.run, args=(self._stop,)) for each in self._clients]
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def count(
        self, request: Request, status: int | str, milliseconds: float = 0, complaint: str | None = None
    ) -> None:
        """Count a response. `complaint` says why the response is unexpected."""
        with self._lock:
            self.answers[request.name][str(status)] += 1
            self.slowest_ms[request.name] = max(self.slowest_ms[request.name], int(milliseconds))
            if complaint:
                self.unexpected += 1
                self.complaints += [f"{request.method} {request.target[:100]}: {complaint}"[:500]]
                del self.complaints[MAX_COMPLAINTS:]


class _Client:
    """A client with one connection and one request at a time."""

    def __init__(self, traffic: Traffic, port: int, texts: Sequence[str], number: int) -> None:
        self._traffic = traffic
        self._port = port
        self._chance = random.Random(number)
        self._requests = Requests(texts, f"client-{number}", self._chance)
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=TIMEOUT_SECONDS)

    def run(self, stop: threading.Event) -> None:
        with closing(self._connection):
            while not stop.wait(PAUSE_SECONDS):
                act = self._abort if self._chance.random() < ABORTED_SHARE else self._send
                act()

    def _send(self) -> None:
        request = self._requests.draw()
        began = time.monotonic()
        try:
            self._connection.request(request.method, request.target, request.body, dict(request.headers))
            response = self._connection.getresponse()
            body = response.read()
        except (http.client.HTTPException, OSError) as error:
            self._connection.close()
            self._traffic.count(request, "broken", complaint=repr(error))
            return
        wrong = None if response.status in request.expected else f"{response.status} {body[:300]!r}"
        self._traffic.count(request, response.status, (time.monotonic() - began) * 1000, wrong)

    def _abort(self) -> None:
        """Disconnect before the end of a request, with or without a reset."""
        how = self._chance.choice(
            ["in the body", "before the answer", "in the answer", "rejected by its length"]
        )
        body = self._requests.large_body()
        length = HUGE_BYTES if how == "rejected by its length" else len(body)
        head = "POST /embed HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
        request = Request(f"left {how}" if length == len(body) else how, "POST", "/embed")
        try:
            with socket.create_connection(("127.0.0.1", self._port), TIMEOUT_SECONDS) as connection:
                connection.sendall(f"{head}content-length: {length}\r\n\r\n".encode())
                status = self._send_part(connection, how, body)
                if self._chance.random() < 0.5:
                    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
        except OSError as error:
            self._traffic.count(request, "broken", complaint=f"{how}: {error!r}")
            return
        wrong = None if status in {"left", "200", "413"} else f"{how}: {status}"
        self._traffic.count(request, status, complaint=wrong)

    def _send_part(self, connection: socket.socket, how: str, body: bytes) -> str:
        """Send a part of the body, depending on `how`. Returns the status if it is read, or "left"."""
        if how == "in the body":
            connection.sendall(body[: len(body) // 2])
        elif how == "before the answer":
            connection.sendall(body)
            time.sleep(self._chance.choice([0.0, 0.05, 0.4]))
        else:
            if how == "in the answer":
                connection.sendall(body)
            return connection.recv(64)[9:12].decode("latin-1")
        return "left"


def main() -> None:
    options = _parse_options()
    settings = {"SIMILE_GRACE_SECONDS": str(options.swap_seconds / 4)}
    with scratch_folder() as folder, Server(folder / "data", settings) as server:
        soaked = soak(server, folder / "data" / "models", options)
    _report(options, *soaked)


def _parse_options() -> argparse.Namespace:
    parser = build_parser("soak", __doc__, quick=True)
    parser.add_argument("--minutes", type=float, help="of traffic (30; 1 with --quick)")
    parser.add_argument("--swap-seconds", type=float, help="between two swaps (120; 6 with --quick)")
    parser.add_argument("--documents", type=int, help="stored beforehand (2000; 200 with --quick)")
    parser.add_argument("--clients", type=int, default=8)
    options = parser.parse_args()
    options.minutes = options.minutes or (1.0 if options.quick else 30.0)
    options.swap_seconds = options.swap_seconds or (6.0 if options.quick else 120.0)
    options.documents = options.documents or (200 if options.quick else 2000)
    return options


def soak(
    server: Server, models_dir: Path, options: argparse.Namespace
) -> tuple[list[Sample], list[Sample], list[float], Traffic]:
    """Return all samples, the two idle samples, the seconds of each swap, and the traffic."""
    first = server.info()["model_version"]
    progress(f"publishing {VERSIONS - 1} more versions and storing {options.documents} documents")
    others = publish_variants(models_dir, VERSIONS - 1)
    texts = workloads.mixture(server.tokenizer(), workloads.corpus(), TEXTS).texts
    for begin in range(0, options.documents, IMPORT_DOCUMENTS):
        rows = range(begin, min(options.documents, begin + IMPORT_DOCUMENTS))
        stored = [
            {"id": f"stored-{row}", "text": texts[row % len(texts)], "metadata": {"kind": row % 4}}
            for row in rows
        ]
        call(server.port, "POST", "/documents", {"documents": stored})
    versions, swap_seconds = cycle([*others, first]), list[float]()
    traffic = Traffic(server.port, texts, options.clients)
    samples: list[Sample] = []
    idle = []
    third = options.minutes * 60 / 3
    for seconds in (third, 2 * third):
        progress(f"{seconds:.0f} s of traffic")
        with traffic, sampling(server.pid, SAMPLE_SECONDS) as taken:
            swap_seconds += swap_repeatedly(server, models_dir, versions, options.swap_seconds, seconds)
        samples += taken
        progress("an idle sample")
        time.sleep(options.swap_seconds / 4 + LINGER_SECONDS)
        idle.append(take_sample(server.pid, int(metric(server.port, "simile_tasks"))))
    return samples, idle, swap_seconds, traffic


def swap_repeatedly(
    server: Server, models_dir: Path, versions: Iterator[str], every_seconds: float, seconds: float
) -> Iterator[float]:
    """Activate the next version every `every_seconds`, for `seconds` in total. Yields seconds per swap.

    Raises:
        BenchError: A swap failed.

    """
    until = time.monotonic() + seconds
    while time.monotonic() + every_seconds < until:
        time.sleep(every_seconds)
        yield swap(server.port, models_dir, next(versions), MAX_SWAP_SECONDS)
    time.sleep(max(0.0, until - time.monotonic()))


def _report(
    options: argparse.Namespace,
    samples: list[Sample],
    idle: list[Sample],
    swaps: list[float],
    traffic: Traffic,
) -> None:
    before, after = idle
    second, last = (max(sample.rss_mb for sample in part) for part in thirds(samples)[1:])
    threads = after.threads - before.threads
    files = after.files - before.files - FILES_OF_A_THREAD * max(0, threads)
    verdicts = [
        Verdict("idle memory: last sample over first", after.rss_mb / before.rss_mb, 1 + GROWTH),
        Verdict("maximum memory: last third over second", last / second, 1 + GROWTH),
        Verdict("more open files than in the first idle sample, without those of new threads", files, 0),
        Verdict("more threads than in the first idle sample", threads, MORE_THREADS),
        Verdict("unexpected answers", traffic.unexpected, 0),
        Verdict("more tasks than in the first idle sample", after.tasks - before.tasks, 0),
    ]
    result = {
        "minutes": options.minutes,
        "clients": options.clients,
        "documents": options.documents,
        "swap_seconds": swaps,
        "idle": [asdict(one) for one in idle],
        "answers": {name: dict(counted) for name, counted in sorted(traffic.answers.items())},
        "slowest_ms": dict(traffic.slowest_ms),
        "unexpected": traffic.complaints,
        "samples": [asdict(sample) for sample in samples],
    }
    duration = f", {statistics.median(swaps):.1f} s each (median)" if swaps else ""
    notes = (
        f"{options.minutes:g} minutes, {options.clients} clients, {options.documents:,} documents "
        f"stored beforehand, {len(swaps)} swaps{duration}. Each swap embeds all documents again."
    )
    text = [_memory_table(samples, idle), _answers_table(traffic), *traffic.complaints, notes]
    report("soak", result, text, verdicts)


def _memory_table(samples: list[Sample], idle: list[Sample]) -> str:
    rows: list[list[object]] = []
    for name, part in zip(("first", "second", "last"), thirds(samples), strict=True):
        memory = [sample.rss_mb for sample in part]
        files, threads = max(sample.files for sample in part), max(sample.threads for sample in part)
        row = [f"{name} third", statistics.median(memory), min(memory), max(memory), files, threads, ""]
        rows.append(row)
    for name, one in zip(("first", "last"), idle, strict=True):
        rows.append([f"{name} idle sample", one.rss_mb, "", "", one.files, one.threads, one.tasks])
    return format_table(("", "RSS MiB", "least", "most", "max files", "max threads", "tasks"), rows)


def _answers_table(traffic: Traffic) -> str:
    rows = [
        [
            kind,
            counted.total(),
            ", ".join(f"{status}: {count:,}" for status, count in sorted(counted.items())),
            traffic.slowest_ms[kind],
        ]
        for kind, counted in sorted(traffic.answers.items())
    ]
    return format_table(("request", "count", "answered", "slowest ms"), rows)


if __name__ == "__main__":
    main()
