"""An HTTP server that answers GET, POST and PUT requests with JSON, for readers of a service."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qsl, urlsplit

Answer = Callable[[str, dict[str, Any], Mapping[str, str]], tuple[Any, ...]]


@contextmanager
def json_server(answer: Answer) -> Iterator[str]:
    """Yields the URL. `answer` gets path, parameters, headers, and returns status, body and maybe headers.

    For a POST or PUT, the parameters are the members of the JSON body.
    """

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._answer(dict(parse_qsl(urlsplit(self.path).query)))

        def do_POST(self) -> None:
            self._answer(json.loads(self.rfile.read(int(self.headers["content-length"]))))

        do_PUT = do_POST  # noqa: N815  BaseHTTPRequestHandler calls this name

        def _answer(self, parameters: dict[str, Any]) -> None:
            status, body, *headers = answer(urlsplit(self.path).path, parameters, dict(self.headers))
            content = body if isinstance(body, bytes) else json.dumps(body).encode()
            self.send_response(status)
            for name, value in {"content-length": str(len(content)), **dict(*headers)}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *arguments: object) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
