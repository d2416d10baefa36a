"""Starts services quickly: each is a fork of this process, which has imported everything already.

    python -m tests.service.replicas.forked       reads JSON lines (environment, log), prints a pid for each

Without the fork, each of two hundred starts would take seconds of processor time. This process does not wait
for its children: the kernel collects them.
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Self

import orjson

from service import server  # noqa: F401  for its imports, as the next ones
from service.__main__ import main
from service.cli import check  # noqa: F401
from service.store.postgres import store  # noqa: F401
from tests.service.process import plain_environment

ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}


class Forked:
    """A process that `run` has started, with some methods of subprocess.Popen."""

    def __init__(self, pid: int) -> None:
        self.pid = pid

    def poll(self) -> int | None:
        return None if Path(f"/proc/{self.pid}").exists() else 0

    def send_signal(self, number: int) -> None:
        with suppress(ProcessLookupError):
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def wait(self) -> None:
        while self.poll() is None:
            time.sleep(0.005)


class Forge:
    """Runs the process that starts services. Leaving the context ends that process."""

    def __enter__(self) -> Self:
        command = [sys.executable, "-m", "tests.service.replicas.forked"]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=plain_environment(**ONE_THREAD)
        )
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate()

    def start(self, environment: Mapping[str, str], log: Path) -> Forked:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(orjson.dumps({"environment": environment, "log": str(log)}) + b"\n")
        self._process.stdin.flush()
        return Forked(int(self._process.stdout.readline()))


def run() -> None:
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    for line in sys.stdin.buffer:
        requested = orjson.loads(line)
        pid = os.fork()
        if pid == 0:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            os.environ.clear()
            os.environ.update(requested["environment"])
            log = os.open(requested["log"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
            for stream in (1, 2):
                os.dup2(log, stream)
            sys.argv = ["service"]
            main()
            os._exit(0)
        print(pid, flush=True)


if __name__ == "__main__":
    run()
