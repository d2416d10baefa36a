"""infinity-emb as a process of its own, in its own environment (peers/serve_infinity.py)."""

from pathlib import Path

from benchmarks.process import Process
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


class Infinity(Process):
    """Up when `ready` returns."""

    def __init__(self, name: str, python: Path, folder: Path, environment: dict[str, str]) -> None:
        self.port = free_port()
        command: list[str | Path] = [python, "-P", SCRIPT, "v2", "--model-id", folder]
        command += [*COMMON, *ENGINES[name], "--log-level", "warning"]
        command += ["--host", "127.0.0.1", "--port", str(self.port)]
        super().__init__(name, command, env=environment, cwd=folder.parent)

    def ready(self) -> float:
        """Wait until it answers: the seconds since its start. Raises ProcessError."""
        return self.wait_for(f"http://127.0.0.1:{self.port}/health", READY_SECONDS)
