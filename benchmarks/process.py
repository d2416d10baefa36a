"""A program beside the bench: started with its output in a log, waited for, given orders, and ended."""

import contextlib
import json
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.places import BenchError

LOOK_SECONDS = 0.05
TAIL = 2000  # characters of a log that are told


class Process:
    """Starting, from the moment it is made; down after `close`."""

    def __init__(
        self,
        name: str,
        command: Sequence[str | Path],
        *,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        piped: bool = False,
    ) -> None:
        """piped: stdin and stdout are for orders, and only stderr goes into its log."""
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
                start_new_session=True,  # Ctrl-C is for the bench, which ends it
            )
        except OSError as error:
            self._log.close()
            raise BenchError(f"{name} does not start: {error}") from None

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def ended(self) -> bool:
        return self._process.poll() is not None

    def wait_for(self, url: str, seconds: float) -> float:
        """The seconds from its start until `url` answers; a program that does not come so far is ended."""
        with contextlib.ExitStack() as ending:
            ending.callback(self.close, patience=0)
            while not self._answers(url):
                if time.perf_counter() > self._started + seconds:
                    raise self._failed(f"was not ready within {seconds:.0f} seconds")
            ending.pop_all()
        return time.perf_counter() - self._started

    def _answers(self, url: str) -> bool:
        if self.ended:
            raise self._failed("ended")
        try:
            with urllib.request.urlopen(url, timeout=5):
                return True
        except (urllib.error.URLError, OSError):
            time.sleep(LOOK_SECONDS)
            return False

    def order(self, **order: Any) -> dict[str, Any]:
        """Send a line of JSON, and return the one that answers it."""
        self.send(**order)
        return self.answer()

    def send(self, **order: Any) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):  # it has ended; the answer says how
            print(json.dumps(order), file=self._process.stdin, flush=True)

    def end_orders(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()

    def answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise self._failed("ended")
        found: dict[str, Any] = json.loads(line)
        return found

    def close(self, patience: float = 10.0) -> None:
        """Ask it to end, and kill it after so many seconds."""
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

    def _failed(self, how: str) -> BenchError:
        self._log.seek(0)
        return BenchError(f"{self.name} {how}:\n{self._log.read()[-TAIL:]}")
