"""The service as a user runs it: `python -m service` in a process of its own, on a free loopback port."""

import http.client
import json
import os
import socket
import sys
import time
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any, Self

from benchmarks.places import BenchError
from benchmarks.process import Process
from benchmarks.workloads import PROJECT
from models.store import Store
from models.tokens.tokenizer import FILE_NAME, Tokenizer

READY_SECONDS = 120.0
STOP_SECONDS = 40.0
LOOK_SECONDS = 0.25


class Server:
    """The service on `data_dir`, with the vector cache off; up between `with` and its end.

    `settings` are variables beyond those that say where it is. `module` starts it.
    """

    def __init__(
        self,
        data_dir: Path,
        settings: Mapping[str, str] | None = None,
        module: str = "service",
    ) -> None:
        self._data_dir = data_dir
        self._settings = dict(settings or {})
        self._module = module
        self.port = free_port()
        self.ready_seconds = 0.0

    def __enter__(self) -> Self:
        environment = {name: value for name, value in os.environ.items() if not name.startswith("SIMILE_")}
        environment |= {
            "SIMILE_PORT": str(self.port),
            "SIMILE_DATA_DIR": str(self._data_dir),
            "SIMILE_CACHE_MB": "0",
            "SIMILE_LOG_LEVEL": "warning",
            **self._settings,
        }
        self._data_dir.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, "-m", self._module]
        self._process = Process("The service", command, env=environment, cwd=PROJECT)
        self.ready_seconds = self._process.wait_for(f"http://127.0.0.1:{self.port}/ready", READY_SECONDS)
        return self

    def __exit__(self, *_: object) -> None:
        self._process.close(STOP_SECONDS)

    @property
    def pid(self) -> int:
        return self._process.pid

    def tokenizer(self) -> Tokenizer:
        """The tokenizer of the version in service."""
        info = self.info()
        models = Path(self._settings.get("SIMILE_MODELS_DIR", self._data_dir / "models"))
        return Tokenizer(models / info["model_version"] / FILE_NAME, info["max_input_length"])

    def info(self) -> dict[str, Any]:
        """The answer of `GET /info`."""
        found: dict[str, Any] = call(self.port, "GET", "/info")
        return found


def timed(
    connection: http.client.HTTPConnection,
    method: str,
    path: str,
    body: Any = None,
    headers: Mapping[str, str] | None = None,
) -> tuple[http.client.HTTPResponse, str, float]:
    """The answer, its text, and the milliseconds from the request's first byte to the answer's last."""
    content = None if body is None else json.dumps(body)
    began = time.perf_counter()
    connection.request(method, path, content, {"content-type": "application/json", **(headers or {})})
    answer = connection.getresponse()
    text = answer.read()
    return answer, text.decode(), (time.perf_counter() - began) * 1000


def served(
    connection: http.client.HTTPConnection,
    method: str,
    path: str,
    body: Any = None,
    headers: Mapping[str, str] | None = None,
) -> tuple[str, float]:
    """The text of an answer and its milliseconds, as `timed`. Raises BenchError unless it is 200."""
    answer, text, milliseconds = timed(connection, method, path, body, headers)
    if answer.status != 200:
        raise BenchError(f"{method} {path} was answered {answer.status}: {text[:500]}")
    return text, milliseconds


def call(port: int, method: str, path: str, body: Any = None) -> Any:
    """Send a request on a connection of its own: the answer's JSON, or its text. Raises BenchError."""
    with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=300)) as connection:
        try:
            answer, text, _ = timed(connection, method, path, body)
        except (http.client.HTTPException, OSError) as error:
            raise BenchError(f"{method} {path} was not answered: {error!r}") from error
    if answer.status >= 300:
        raise BenchError(f"{method} {path} was answered {answer.status}: {text[:1000]}")
    return json.loads(text) if answer.getheader("content-type") == "application/json" else text


def metric(port: int, name: str) -> float:
    """The number that `GET /metrics` shows. Raises BenchError."""
    lines = dict(line.rsplit(" ", 1) for line in call(port, "GET", "/metrics").splitlines())
    return float(lines[name])


def swap(port: int, models_dir: Path, version: str, seconds: float) -> float:
    """Have `version` served; the seconds that it took, its build included. Raises BenchError."""
    began = time.monotonic()
    call(port, "POST", f"/models/{version}/activate")
    wait_until_live(models_dir, version, seconds)
    return time.monotonic() - began


def wait_until_live(models_dir: Path, version: str, seconds: float) -> None:
    """Until the service serves `version`: its account in the models folder, whose reading costs it nothing.

    Raises:
        BenchError: building it failed, or took longer than `seconds`.

    """
    until = time.monotonic() + seconds
    store = Store(models_dir)
    while (state := store.read_state()).get("live") != version:
        shown = state.get("versions", {}).get(version, {})
        if shown.get("state") == "failed" or time.monotonic() > until:
            raise BenchError(f"{version} did not come to live: {shown}")
        time.sleep(LOOK_SECONDS)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port
