"""infinity-emb as a process of its own, in its own environment (peers/serve_infinity.py)."""

import subprocess
import time
import urllib.error
import urllib.request
from pathlib import Path

from benchmarks.contestant import ContestantError
from benchmarks.server import free_port
from benchmarks.workloads import PROJECT

SCRIPT = PROJECT / "benchmarks" / "peers" / "serve_infinity.py"
READY_SECONDS = 180.0
# Not its own warm-up: it makes the start longer and, with ONNX Runtime, memory larger by gigabytes.
# The pooling is named, since its ONNX engine does not read the model's and takes the first token's vector.
COMMON = (
    *("--device", "cpu", "--batch-size", "64", "--pooling-method", "mean"),
    *("--no-model-warmup", "--served-model-name", "bench"),
)
ENGINES = {
    # Without optimum's optimizer: this version of it refuses infinity's call, and infinity goes on without.
    # ONNX Runtime's own fusions, which are the faster ones, happen when the file is opened.
    "infinity, ONNX": ("--engine", "optimum", "--onnx-disable-optimize"),
    "infinity, torch": ("--engine", "torch", "--dtype", "float32", "--no-bettertransformer", "--no-compile"),
}


class Infinity:
    """Starting, from the moment it is made; up when `ready` returns; down after `close`."""

    def __init__(self, name: str, python: Path, folder: Path, environment: dict[str, str]) -> None:
        self.name = name
        self.port = free_port()
        self.ready_seconds = 0.0
        self._log = (folder.parent / f"{name.replace(', ', '-')}.log").open("w+")
        self._started = time.perf_counter()
        command: list[str | Path] = [python, "-P", SCRIPT, "v2", "--model-id", folder]
        command += [*COMMON, *ENGINES[name], "--log-level", "warning"]
        command += ["--host", "127.0.0.1", "--port", str(self.port)]
        self._process = subprocess.Popen(
            command, env=environment, stdout=self._log, stderr=subprocess.STDOUT, cwd=folder.parent
        )

    @property
    def pid(self) -> int:
        return self._process.pid

    def ready(self) -> None:
        """Wait until it answers. Raises ContestantError."""
        while time.perf_counter() < self._started + READY_SECONDS:
            if self._process.poll() is not None:
                self._log.seek(0)
                raise ContestantError(f"{self.name} ended:\n{self._log.read()[-2000:]}")
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/health", timeout=5):
                    self.ready_seconds = time.perf_counter() - self._started
                    return
            except (urllib.error.URLError, OSError):
                time.sleep(0.1)
        raise ContestantError(f"{self.name} was not ready within {READY_SECONDS:.0f} seconds.")

    def close(self) -> None:
        self._process.terminate()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._log.close()
