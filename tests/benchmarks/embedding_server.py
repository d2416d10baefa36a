"""A server whose vectors depend only on the text, for tests of the load generators."""

import json
import threading
import time
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

DIMENSION = 8


def vector(text: str) -> NDArray[np.float32]:
    """Return a vector that differs for each text."""
    return np.random.default_rng(list(text.encode())).standard_normal(DIMENSION).astype(np.float32)


class EmbeddingServer(ThreadingHTTPServer):
    """Answers `POST /embed` as the service does, with faults on request.

    Attributes:
        mixed: True if each text gets the vector of another text.
        status: Status of all answers.
        closes: How many of the next requests it answers by closing the connection.
        idle_seconds: Seconds until it closes an idle connection. None: never.
        slow_seconds: Delay of requests with the text "slow".
        bodies: Number of answers by request body.

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
        self.bodies: Counter[str] = Counter()
        self.port = int(self.server_address[1])
        self._thread = threading.Thread(target=self.serve_forever, args=(0.01,))

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()
        self._thread.join()
        self.server_close()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    # Head and body are separate writes, and Nagle's algorithm would delay the second by 40 ms.
    disable_nagle_algorithm = True
    server: EmbeddingServer

    def setup(self) -> None:
        super().setup()
        self.connection.settimeout(self.server.idle_seconds)

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"])).decode()
        if self.server.closes:
            self.server.closes -= 1
            self.close_connection = True
            return
        self.server.bodies[body] += 1
        inputs: Any = json.loads(body)["inputs"]
        texts = [inputs] if isinstance(inputs, str) else inputs
        time.sleep(self.server.slow_seconds if "slow" in texts else 0)
        suffix = "?" if self.server.mixed else ""
        answer = json.dumps([vector(text + suffix).tolist() for text in texts]).encode()
        self.send_response(self.server.status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, format: str, *args: object) -> None:
        """Write no log."""
