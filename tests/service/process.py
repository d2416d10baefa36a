"""The service in its own process with a real port."""

import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

import httpx2

from tests.waiting import LIMIT, until


def free_port() -> int:
    """Returns a free port below those that the kernel assigns to connections."""
    while True:
        port = 10_000 + secrets.randbelow(20_000)
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


def plain_environment(**variables: str) -> dict[str, str]:
    """Returns the environment without SIMILE_ variables and with `variables`."""
    return {name: value for name, value in os.environ.items() if not name.startswith("SIMILE_")} | variables


def is_ready(client: httpx2.Client) -> bool:
    """Returns whether the service is reachable and ready."""
    try:
        return client.get("/ready").status_code == 200
    except httpx2.TransportError:
        return False


class Service:
    """`python -m service` in `folder`. It is killed at the end if it still runs."""

    def __init__(self, folder: Path, models_dir: Path | None = None, **variables: str) -> None:
        if models_dir is not None and not (folder / "models").exists():
            shutil.copytree(models_dir, folder / "models")
        self.folder = folder
        self.port = free_port()
        self._environment = plain_environment(
            SIMILE_DATA_DIR=str(folder / "data"),
            SIMILE_MODELS_DIR=str(folder / "models"),
            SIMILE_PORT=str(self.port),
            # With a fixed number of workers, no start measures the fastest layout.
            **{"SIMILE_CACHE_MB": "0", "SIMILE_WORKERS": "2", "SIMILE_MAP_DOCUMENTS": "0", **variables},
        )
        self.log = folder / "service.log"
        self.process: subprocess.Popen[bytes]
        self.client = httpx2.Client(base_url=f"http://127.0.0.1:{self.port}", timeout=LIMIT, trust_env=False)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()
        self.client.close()

    def start(self, prefix: tuple[str, ...] = ()) -> None:
        """Starts the service and waits for `/ready`. `prefix` is a command such as `unshare`."""
        command = [*prefix, sys.executable, "-m", "service"]
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(command, env=self._environment, stdout=log, stderr=log)
        self.wait_until_ready()

    def wait_until_ready(self) -> None:
        try:
            until(lambda: self.process.poll() is not None or is_ready(self.client), self.log.read_text)
            assert self.process.poll() is None, self.log.read_text()
        except BaseException:
            self.kill()  # `__exit__` is not called when `__enter__` fails
            raise

    def stop(self, how: signal.Signals = signal.SIGTERM) -> int:
        """Stops the service and returns its exit status."""
        self.process.send_signal(how)
        return self.process.wait(LIMIT)

    def kill(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()

    def put(self, documents: Mapping[str, str], at: str = "") -> httpx2.Response:
        """Stores texts by id. `at` is the path of a collection."""
        body = {"documents": [{"id": id, "text": text} for id, text in documents.items()]}
        return self.client.post(f"{at}/documents", json=body)

    def stored(self) -> dict[str, str]:
        """Returns all stored texts by id."""
        found: dict[str, str] = {}
        after: str | None = ""
        while after is not None:
            page = self.client.get("/documents", params={"after": after, "limit": 1000}).json()
            found |= {document["id"]: document["text"] for document in page["documents"]}
            after = page["next"]
        return found


def run_and_fail(folder: Path, **variables: str) -> str:
    """Starts the service, which must fail. Returns its stderr."""
    defaults = {"SIMILE_DATA_DIR": str(folder / "data"), "SIMILE_PORT": str(free_port())}
    environment = plain_environment(**(defaults | variables))
    done = subprocess.run(
        [sys.executable, "-m", "service"],
        env=environment,
        capture_output=True,
        text=True,
        timeout=LIMIT,
        check=False,
    )
    assert done.returncode == os.EX_CONFIG, done
    assert "Traceback" not in done.stderr
    return done.stderr
