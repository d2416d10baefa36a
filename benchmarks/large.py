"""A model of 2.5 GB, published and served in 1.3 times as much memory: `python -m benchmarks.large`

    random weights ─▶ killed in the middle of publishing, several times ─▶ nothing half done
                   ─▶ published ─▶ served, three texts embedded

Each runs in a memory cgroup of 1.3 times the model's bytes, where this user may make one, so whatever the
kernel counts is within that. What is said are the peaks of the process over the model's bytes: of its own
memory (RssAnon), and with the pages of mapped files (VmHWM), which the kernel takes back when it needs them.
Three times the model's bytes of disk are needed.
"""

import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Self

from benchmarks.places import arguments, say, scratch
from benchmarks.server import call, free_port
from benchmarks.workloads import PROJECT
from models.store import Store
from tests.models.large import large_source
from tests.service.one_gib import limited

MOST = 1.3  # times the bytes of the weights
KILLS = (0.15, 0.5, 0.85)  # of the time that publishing takes
READY_SECONDS = 600.0
LOOK_SECONDS = 0.02


def main() -> None:
    parser = arguments("large", __doc__)
    parser.add_argument("--layers", type=int, default=30, help="each has 50 MB")
    options = parser.parse_args()
    with scratch() as folder:
        say("writing random weights")
        source = large_source(folder / "source", layers=options.layers)
        size = (source / "model.safetensors").stat().st_size
        with limited(int(MOST * size)) as prefix:
            print(f"{size / 1e9:.2f} GB, {'limited' if prefix else 'NOT limited'} to {MOST} times that")
            for name, seconds, watched in _steps(folder, source, prefix):
                own, whole = watched.own / size, watched.whole / size
                print(f"{name}: {seconds:.0f} s, own memory {own:.2f}, with mapped files {whole:.2f}")


def _steps(folder: Path, source: Path, prefix: Sequence[str]) -> Iterator[tuple[str, float, "Watched"]]:
    models = folder / "models"
    command = [*prefix, sys.executable, "-m", "models", "--models-dir", str(models), "import", str(source)]
    say("publishing")
    began = time.monotonic()
    with Watched(command) as publishing:
        assert publishing.process.wait() == 0, "publishing failed"
    took = time.monotonic() - began
    yield "published", took, publishing
    store = Store(models)
    [version] = store.names()
    store.want(version)
    yield _served(folder, models, prefix)
    shutil.rmtree(models)
    for share in KILLS:
        other = folder / "killed"
        say(f"killing after {share * took:.0f} s")
        with Watched([*command[:-3], str(other), *command[-2:]]) as killed:
            with suppress(subprocess.TimeoutExpired):
                killed.process.wait(share * took)
            killed.process.send_signal(signal.SIGKILL)
        found = Store(other)
        assert not found.problems(), "something half done is there"
        for manifest in found.versions():  # it was quicker this time, and is whole
            found.verify(manifest.version)
    Store(other).sweep()
    assert not list(other.glob(".tmp-*")), "half a version is left"
    say(f"killed {len(KILLS)} times: nothing half done remains")


def _served(folder: Path, models: Path, prefix: Sequence[str]) -> tuple[str, float, "Watched"]:
    say("serving")
    port = free_port()
    settings = {
        "SIMILE_PORT": str(port),
        "SIMILE_DATA_DIR": str(folder / "data"),
        "SIMILE_MODELS_DIR": str(models),
        "SIMILE_LOG_LEVEL": "warning",
    }
    began = time.monotonic()
    with Watched([*prefix, sys.executable, "-m", "service"], settings) as watched:
        while True:
            with suppress(Exception):
                call(port, "GET", "/ready")
                break
            assert watched.process.poll() is None, "the service ended"
            assert time.monotonic() - began < READY_SECONDS, "the service does not start"
            time.sleep(0.5)
        seconds = time.monotonic() - began
        for _ in range(12):  # lone texts, which may open the graph once more
            call(port, "POST", "/embed", {"inputs": "where is the river"})
        found = call(port, "POST", "/embed", {"inputs": ["river " * length for length in (1, 40, 120)] * 8})
        assert len(found) == 24
        time.sleep(5)
        watched.process.send_signal(signal.SIGTERM)
        watched.process.wait(60)
    return "started and served", seconds, watched


class Watched:
    """A process and its children, with the most memory that they ever had together."""

    def __init__(self, command: Sequence[str], settings: Mapping[str, str] | None = None) -> None:
        environment = {name: value for name, value in os.environ.items() if not name.startswith("SIMILE_")}
        self.process = subprocess.Popen(command, cwd=PROJECT, env=environment | dict(settings or {}))
        self.own = self.whole = 0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._look)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self._ended.set()
        self._thread.join()

    def _look(self) -> None:
        while not self._ended.wait(LOOK_SECONDS):
            found = _memory(self.process.pid)
            self.own = max(self.own, found["RssAnon"])
            self.whole = max(self.whole, found["VmHWM"])


def _memory(pid: int) -> dict[str, int]:
    """Bytes by their names in the kernel's status; 0 of a process that has ended."""
    found = {"RssAnon": 0, "VmHWM": 0}
    with suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            name, _, value = line.partition(":")
            if name in found:
                found[name] = int(value.split()[0]) << 10
    return found


if __name__ == "__main__":
    main()
