"""A model of 2.5 GB, published and served in 1.3 times as much memory: `python -m benchmarks.large`

    random weights ─▶ killed in the middle of publishing, several times ─▶ nothing half done
                   ─▶ published ─▶ served, three texts embedded

Each runs in a memory cgroup of 1.3 times the model's bytes, where this user may make one, so whatever the
kernel counts is within that. What is said are the peaks of the process over the model's bytes: of its own
memory (RssAnon), and with the pages of mapped files (VmHWM), which the kernel takes back when it needs them.
Three times the model's bytes of disk are needed.
"""

import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from benchmarks.machine import memory_mb
from benchmarks.places import arguments, say, scratch
from benchmarks.server import call, free_port
from benchmarks.workloads import PROJECT
from models.store import Store
from tests.models.large import large_source
from tests.service.one_gib import limited
from tests.service.process import plain_environment

MOST = 1.3  # times the bytes of the weights
KILLS = (0.15, 0.5, 0.85)  # of the time that publishing takes
READY_SECONDS = 600.0
LOOK_SECONDS = 0.02

Memory = dict[str, float]  # MiB, as `memory_mb` names them


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
            for name, seconds, most in _steps(folder, source, prefix):
                own, whole = (most[which] * 2**20 / size for which in ("own", "peak"))
                print(f"{name}: {seconds:.0f} s, own memory {own:.2f}, with mapped files {whole:.2f}")


def _steps(folder: Path, source: Path, prefix: Sequence[str]) -> Iterator[tuple[str, float, Memory]]:
    models = folder / "models"
    command = [*prefix, sys.executable, "-m", "models", "--models-dir", str(models), "import", str(source)]
    say("publishing")
    began = time.monotonic()
    with watched(command) as (publishing, most):
        assert publishing.wait() == 0, "publishing failed"
    took = time.monotonic() - began
    yield "published", took, most
    store = Store(models)
    [version] = store.names()
    store.want(version)
    yield _served(folder, models, prefix)
    shutil.rmtree(models)
    for share in KILLS:
        other = folder / "killed"
        say(f"killing after {share * took:.0f} s")
        elsewhere = [*command[:-3], str(other), *command[-2:]]
        with suppress(subprocess.TimeoutExpired), watched(elsewhere) as (killed, _):
            killed.wait(share * took)
        found = Store(other)
        assert not found.problems(), "something half done is there"
        for manifest in found.versions():  # it was quicker this time, and is whole
            found.verify(manifest.version)
    Store(other).sweep()
    assert not list(other.glob(".tmp-*")), "half a version is left"
    say(f"killed {len(KILLS)} times: nothing half done remains")


def _served(folder: Path, models: Path, prefix: Sequence[str]) -> tuple[str, float, Memory]:
    say("serving")
    port = free_port()
    places = {"SIMILE_DATA_DIR": str(folder / "data"), "SIMILE_MODELS_DIR": str(models)}
    began = time.monotonic()
    command = [*prefix, sys.executable, "-m", "service"]
    with watched(command, SIMILE_PORT=str(port), SIMILE_LOG_LEVEL="warning", **places) as (process, most):
        while True:
            with suppress(Exception):
                call(port, "GET", "/ready")
                break
            assert process.poll() is None, "the service ended"
            assert time.monotonic() - began < READY_SECONDS, "the service does not start"
            time.sleep(0.5)
        seconds = time.monotonic() - began
        for _ in range(12):  # lone texts, which may open the graph once more
            call(port, "POST", "/embed", {"inputs": "where is the river"})
        found = call(port, "POST", "/embed", {"inputs": ["river " * length for length in (1, 40, 120)] * 8})
        assert len(found) == 24
        time.sleep(5)
        process.terminate()
        process.wait(60)
    return "started and served", seconds, most


@contextmanager
def watched(command: Sequence[str], **settings: str) -> Iterator[tuple[subprocess.Popen[bytes], Memory]]:
    """A process, killed at the end, and the most memory that it has had."""
    most, ended = {"own": 0.0, "peak": 0.0}, threading.Event()

    def look() -> None:
        while not ended.wait(LOOK_SECONDS):
            with suppress(OSError, KeyError):  # it has ended
                found = memory_mb(process.pid)
                most.update({name: max(size, found[name]) for name, size in most.items()})

    with subprocess.Popen(command, cwd=PROJECT, env=plain_environment(**settings)) as process:
        thread = threading.Thread(target=look)
        thread.start()
        try:
            yield process, most
        finally:
            process.kill()
            ended.set()
            thread.join()


if __name__ == "__main__":
    main()
