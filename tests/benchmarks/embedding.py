"""A server that embeds texts by their characters: what the generators are tried on."""

import json
import threading
import time
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

WIDTH = 8


def vector(text: str) -> NDArray[np.float32]:
    """Another one for each text."""
    return np.random.default_rng(list(text.encode())).standard_normal(WIDTH).astype(np.float32)


class Embedding(ThreadingHTTPServer):
    """`POST /embed` as the service answers it. `mixed`: a text gets another's vector.

    closes: connections that it closes instead of answering. idle_seconds: how long it keeps one on which
    nothing comes. slow_seconds: how long the answer to the text "slow" takes.
    """

    daemon_threads = True

    def __init__(
        self,
        *,
        mixed: bool = False,
        status: int = 200,
        closes: int = 0,
        idle_seconds: float | None = None,
        slow_seconds: float = 0,
    ) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.mixed = mixed
        self.status = status
        self.closes = closes
        self.idle_seconds = idle_seconds
        self.slow_seconds = slow_seconds
        self.asked: Counter[str] = Counter()  # bodies
        self.port = int(self.server_address[1])
        self._thread = threading.Thread(target=self.serve_forever, args=(0.01,))

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.shutdown()
        self._thread.join()
        self.server_close()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # head and body go in two writes: the second would wait for an ACK, 40 ms
    server: Embedding

    def setup(self) -> None:
        super().setup()
        self.connection.settimeout(self.server.idle_seconds)

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"])).decode()
        if self.server.closes:
            self.server.closes -= 1
            self.close_connection = True
            return
        self.server.asked[body] += 1
        inputs: Any = json.loads(body)["inputs"]
        texts = [inputs] if isinstance(inputs, str) else inputs
        time.sleep(self.server.slow_seconds if "slow" in texts else 0)
        wrong = "?" if self.server.mixed else ""
        answer = json.dumps([vector(text + wrong).tolist() for text in texts]).encode()
        self.send_response(self.server.status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, format: str, *args: object) -> None:
        """Nobody reads it."""
