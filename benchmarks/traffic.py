"""The clients of soak.py: every kind of request, right and wrong, and the statuses that each may get.

`Requests` draws the requests of one client. Each client writes documents with its own names from a bounded
set, so the store keeps its size. `Traffic` runs the clients, which sometimes disconnect early, and checks
every status.
"""

import http.client
import json
import random
import socket
import struct
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote

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
    """A request and the statuses that are valid answers to it."""

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
            lambda: post("similarity", "/similarity", {"inputs": self._comparison()}): 2,
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
        """Return a body that takes the service a while, for a client that disconnects early."""
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

    def _comparison(self) -> dict[str, Any]:
        return {"source_sentence": self._text(), "sentences": self._some(8)}

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
    """Client threads. Between `pause` and `resume` they send nothing and hold no connection.

    Attributes:
        answers: Counts by kind of request, and by status or the way that the client left.
        slowest_ms: The longest latency of each kind of request.
        unexpected: Number of answers with a wrong status.
        complaints: The first of these answers.

    """

    def __init__(self, port: int, texts: Sequence[str], clients: int) -> None:
        """Create the clients, paused."""
        self.answers: defaultdict[str, Counter[str]] = defaultdict(Counter)
        self.slowest_ms: Counter[str] = Counter()
        self.unexpected = 0
        self.complaints: list[str] = []
        self._lock = threading.Lock()
        self._running = threading.Event()
        self._stop = threading.Event()
        self._clients = [_Client(self, port, texts, number) for number in range(clients)]
        for client in self._clients:
            client.start()

    def resume(self) -> None:
        """Let the clients send requests."""
        self._running.set()

    def pause(self) -> None:
        """Wait until the last answer has come and every connection is closed."""
        self._running.clear()
        for client in self._clients:
            client.disconnect()

    def stop(self) -> None:
        """End the clients."""
        self.pause()
        self._stop.set()
        self._running.set()
        for client in self._clients:
            client.join()

    def wait_for_turn(self) -> bool:
        """Wait while traffic is paused. Returns False after `stop`."""
        self._running.wait()
        return not self._stop.is_set()

    @property
    def paused(self) -> bool:
        """True while clients may not send requests."""
        return not self._running.is_set()

    def count(self, request: Request, status: int | str, milliseconds: float) -> None:
        """Count an answer."""
        with self._lock:
            self.answers[request.name][str(status)] += 1
            self.slowest_ms[request.name] = max(self.slowest_ms[request.name], int(milliseconds))

    def complain(self, complaint: str) -> None:
        """Count an unexpected answer."""
        with self._lock:
            self.unexpected += 1
            if len(self.complaints) < MAX_COMPLAINTS:
                self.complaints.append(complaint[:500])


class _Client(threading.Thread):
    """A connection with one request at a time."""

    def __init__(self, traffic: Traffic, port: int, texts: Sequence[str], number: int) -> None:
        super().__init__(daemon=True)
        self._traffic = traffic
        self._port = port
        self._chance = random.Random(number)
        self._requests = Requests(texts, f"client-{number}", self._chance)
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=TIMEOUT_SECONDS)
        self._acting = threading.Lock()

    def disconnect(self) -> None:
        """Wait for the request in flight, and close the connection."""
        with self._acting:
            self._connection.close()

    def run(self) -> None:
        while self._traffic.wait_for_turn():
            with self._acting:
                if not self._traffic.paused:
                    self._act()
            time.sleep(PAUSE_SECONDS)

    def _act(self) -> None:
        if self._chance.random() < ABORTED_SHARE:
            self._abort()
            return
        request = self._requests.draw()
        began = time.monotonic()
        try:
            self._connection.request(request.method, request.target, request.body, dict(request.headers))
            response = self._connection.getresponse()
            body = response.read()
        except (http.client.HTTPException, OSError) as error:
            self._connection.close()
            self._traffic.count(request, "broken", 0)
            self._traffic.complain(f"{request.method} {request.target}: {error!r}")
            return
        self._traffic.count(request, response.status, (time.monotonic() - began) * 1000)
        if response.status not in request.expected:
            complaint = f"{request.method} {request.target[:100]}: {response.status} {body[:300]!r}"
            self._traffic.complain(complaint)

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
            self._traffic.count(request, "broken", 0)
            self._traffic.complain(f"{request.name}: {error!r}")
            return
        self._traffic.count(request, status, 0)
        if status not in {"left", "200", "413"}:
            self._traffic.complain(f"{request.name}: {status}")

    def _send_part(self, connection: socket.socket, how: str, body: bytes) -> str:
        """Send the part of the body that `how` names. Returns a status if the client reads it, or "left"."""
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
