"""A second client in its own process, and a bare server that shows when the host stalls.

    python -m tests.service.bystander SERVICE_PORT FILE

Requests `/health`, one vector and the bare server in a loop, each on its own connection. Writes a line to
FILE for each answer: name, start (time.monotonic), duration, and the status or 0.
"""

import http.client
import json
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import NamedTuple

CONTROL, HEALTH, EMBED = "control", "GET /health", "POST /embed"
PAUSE_SECONDS = 0.02
_BARE = "import sys; from tests.service.bystander import serve_bare; serve_bare()"


class Look(NamedTuple):
    what: str
    requested: float
    took: float
    status: int

    @property
    def answered(self) -> float:
        return self.requested + self.took


class Bystander:
    """Reads the answers that the second client's process has recorded so far."""

    def __init__(self, file: Path) -> None:
        self._file = file

    def looks(self) -> list[Look]:
        lines = self._file.read_text().split("\n")[:-1]  # The last line may be incomplete.
        return [Look(*json.loads(line)) for line in lines]

    def since(self, begin: float, seconds: float = 60) -> list[Look]:
        """Returns answers after `begin`. Waits up to `seconds` for new ones of each kind."""
        now = time.monotonic()
        while True:
            looks = [look for look in self.looks() if look.answered >= begin]
            settled = {look.what for look in looks if look.requested >= now}
            if settled == {CONTROL, HEALTH, EMBED} or time.monotonic() > now + seconds:
                return looks
            time.sleep(PAUSE_SECONDS)


@contextmanager
def watching(port: int, file: Path) -> Iterator[Bystander]:
    file.write_text("")
    command = [sys.executable, "-m", "tests.service.bystander", str(port), str(file)]
    with subprocess.Popen(command) as process:
        try:
            yield Bystander(file)
        finally:
            process.terminate()


class _Bare(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, format: str, *arguments: object) -> None:
        pass


def serve_bare() -> None:
    """Runs the bare server: prints its port and serves until stdin closes."""
    server = HTTPServer(("127.0.0.1", 0), _Bare)
    print(server.server_port, flush=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    sys.stdin.read()


def _ask(what: str, port: int, write: threading.Lock) -> None:
    method, path = ("GET", "/") if what == CONTROL else what.split()
    body = None if method == "GET" else b'{"inputs": "a bystander"}'
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    while True:
        requested = time.monotonic()
        try:
            connection.request(method, path, body, {"Content-Type": "application/json"})
            answer = connection.getresponse()
            answer.read()
            status = answer.status
        except (OSError, http.client.HTTPException):
            connection.close()
            status = 0
        look = Look(what, requested, time.monotonic() - requested, status)
        with write:
            print(json.dumps(look), flush=True)
        time.sleep(PAUSE_SECONDS)


def main() -> None:
    service, file = sys.argv[1:]
    sys.stdout = Path(file).open("a", encoding="utf-8")  # noqa: SIM115  open until the process ends
    write = threading.Lock()
    with subprocess.Popen(
        [sys.executable, "-c", _BARE], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as bare:
        assert bare.stdout is not None
        ports = {CONTROL: int(bare.stdout.readline()), HEALTH: int(service), EMBED: int(service)}
        for what, port in ports.items():
            threading.Thread(target=_ask, args=(what, port, write), daemon=True).start()
        threading.Event().wait()


if __name__ == "__main__":
    main()
