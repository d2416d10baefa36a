"""Peers: other projects' engines that the benchmark compares with Simile.

`make bench-peers` creates a virtual environment for each peer from the pins in peers/NAME.txt. Peers that are
not installed or do not start are reported with the reason. Servers are measured over HTTP. Libraries run in a
separate process (peers/encode.py) and get all texts in one call.
"""

import base64
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.command import PROJECT, BenchError, progress
from benchmarks.machine import Watch, memory_mb
from benchmarks.processes import Process, free_port
from benchmarks.rounds import Measured, Scenario, Vectors
from benchmarks.served import OPENAI, ServedModel

PEERS = PROJECT / "benchmarks" / "peers"
REFERENCE = "sentence-transformers, torch"  # the vectors of all contestants are compared with these
LIBRARIES = {  # name: environment and engine in peers/encode.py
    REFERENCE: ("sentence-transformers", "torch"),
    "fastembed": ("fastembed", "fastembed"),
}
BATCH_SIZES = (8, 32, 128)  # texts of a library's batch, to choose from
TRIAL_TEXTS = 128
MIN_TEXTS = 128  # texts of one measurement

# infinity's own warm-up makes the start longer and, with ONNX Runtime, the memory larger by gigabytes.
# Its ONNX engine ignores the model's pooling and takes the first token's vector, so the pooling is given.
INFINITY = (
    *("--device", "cpu", "--batch-size", "64", "--pooling-method", "mean"),
    *("--no-model-warmup", "--served-model-name", "bench"),
    # This version of optimum's optimizer rejects infinity's call, and infinity then continues without it.
    # ONNX Runtime's own fusions are faster, and they run when the file is opened.
    *("--engine", "optimum", "--onnx-disable-optimize"),
    *("--log-level", "warning", "--host", "127.0.0.1"),
)
INFINITY_NAME = "infinity, ONNX"
INFINITY_SECONDS = 180.0
RECONNECTS = 256  # allowed reconnects in one measurement
EXPORT_SECONDS = 300


@dataclass
class Peers:
    """The running peers, and the reason for each missing one."""

    servers: list[ServedModel] = field(default_factory=list)
    libraries: list["Library"] = field(default_factory=list)
    missing: dict[str, str] = field(default_factory=dict)


class Library(Process):
    """A library that encodes texts in a separate process. The process runs until `close`."""

    def __init__(
        self,
        name: str,
        engine: str,
        python: Path,
        folder: Path,
        environment: dict[str, str],
        sizes: tuple[int, ...] = BATCH_SIZES,
    ) -> None:
        """Start the process, which then loads the model in the background.

        Args:
            name: Name of the library in the report.
            engine: Name of the engine in peers/encode.py.
            python: Python interpreter of the peer's virtual environment.
            folder: Folder of the model.
            environment: Environment variables of the process.
            sizes: Batch sizes to try, in texts.

        """
        # With -P, imports do not find the modules next to the script.
        command: list[str | Path] = [python, "-P", PEERS / "encode.py", engine, folder]
        super().__init__(name, command, env=environment, piped=True)
        self._sizes = sizes
        self._packages: dict[str, Any] = {}
        self._chosen: dict[str, tuple[int, int]] = {}  # texts of a batch and of a measurement, by workload

    def wait_until_loaded(self) -> None:
        """Wait until the model is loaded. Raises BenchError if the process ended."""
        self._packages = self.answer()["packages"]

    def about(self) -> dict[str, Any]:
        """Return package versions, chosen batch sizes and memory in MiB."""
        sizes = {name: size for name, (size, _) in self._chosen.items()}
        return {"packages": self._packages, "texts_of_a_batch": sizes, "memory_mb": memory_mb(self.pid)}

    def vectors(self, texts: Sequence[str]) -> Vectors:
        """Return the vectors of texts, shape (n, dimension). Raises BenchError if the process ended."""
        answer = self.order(texts=list(texts), size=self._sizes[1], vectors=True)
        found = np.frombuffer(base64.b64decode(answer["vectors"]), np.float32)
        return found.reshape(len(texts), -1)

    def measure(self, scenario: Scenario, turn: int) -> Measured:
        """Encode texts for about `scenario.seconds`. Each turn uses other texts."""
        workload = scenario.workload
        if workload.name not in self._chosen:
            self._chosen[workload.name] = self._choose(scenario)
        size, count = self._chosen[workload.name]
        rows = [(turn * count + at) % len(workload.texts) for at in range(count)]
        watch = Watch({"peer": self.pid})
        answer = self.order(texts=[workload.texts[row] for row in rows], size=size, vectors=False)
        window = watch.window()
        texts = sum(len(workload.ids[row]) for row in rows) / workload.mean_tokens
        cpu_ms = 1000 * window.cpu_seconds["peer"] / texts
        return Measured(texts / answer["seconds"], window.foreign, cpu_ms)

    def _choose(self, scenario: Scenario) -> tuple[int, int]:
        """Return the fastest batch size, and the number of texts to encode in `scenario.seconds`."""
        some = scenario.workload.texts[:TRIAL_TEXTS]
        seconds, best = min(
            (self.order(texts=some, size=size, vectors=False)["seconds"], size) for size in self._sizes * 2
        )
        count = int(scenario.seconds * len(some) / seconds)
        return best, min(max(count, MIN_TEXTS), len(scenario.workload.texts))


def open_peers(stack: ExitStack, environments: Path, version: Path, folder: Path) -> Peers:
    """Start all installed peers and wait until they are ready.

    Args:
        stack: Stops the peers when it closes.
        environments: Folder with the peers' virtual environments.
        version: Folder of the published version that all contestants serve.
        folder: Folder for the peers' files.

    """
    found = Peers()
    names = {INFINITY_NAME: "infinity"} | {name: env for name, (env, _) in LIBRARIES.items()}
    environments = environments.absolute()  # peers run in folders of their own
    pythons = {name: environments / env / "bin" / "python" for name, env in names.items()}
    for name, python in pythons.items():
        if not python.exists():
            found.missing[name] = f"not installed in {environments}; `make bench-peers` installs it"
    installed = [name for name in names if name not in found.missing]
    if not installed:
        return found
    progress("exporting the model for the peers")
    exported = folder / "peers" / "model"
    exported.parent.mkdir(parents=True)
    try:
        export(version, exported)
    except BenchError as error:
        found.missing |= dict.fromkeys(installed, str(error))
        return found
    for name in installed:  # one by one, because parallel starts would need much memory
        progress(f"starting {name}")
        try:
            _open(found, stack, name, pythons[name], exported)
        except BenchError as error:
            found.missing[name] = str(error)
    return found


def _open(found: Peers, stack: ExitStack, name: str, python: Path, folder: Path) -> None:
    if name in LIBRARIES:
        library = Library(name, LIBRARIES[name][1], python, folder, peer_environment())
        stack.callback(library.close)
        library.wait_until_loaded()
        found.libraries.append(library)
        return
    port = free_port()
    command: list[str | Path] = [python, "-P", PEERS / "serve_infinity.py", "v2", "--model-id", folder]
    command += [*INFINITY, "--port", str(port)]
    server = Process(name, command, env=peer_environment(), cwd=folder.parent)
    stack.callback(server.close)
    ready = server.wait_for(f"http://127.0.0.1:{port}/health", INFINITY_SECONDS)
    facts = {"ready_seconds": ready}
    # uvicorn closes connections after five idle seconds, even if its own loop stalled for that time. Clients
    # of a peer then reconnect. In a measurement of our service, a closed connection is a failure.
    served = ServedModel(name, OPENAI, port, server.pid, facts, reconnects=RECONNECTS)
    found.servers.append(served)


def open_libraries(
    stack: ExitStack, engines: Mapping[str, str], python: str, folder: Path, missing: dict[str, str]
) -> Iterator[Library]:
    """Start libraries, and yield those that load the model. The reason for each other is added to `missing`.

    Args:
        stack: Stops the libraries when it closes.
        engines: Names of the engines in peers/encode.py, by the library's name in the report.
        python: Python interpreter of all libraries.
        folder: Folder of the model.
        missing: The reason for each missing contestant.

    """
    for name, engine in engines.items():
        progress(f"starting {name}")
        try:
            library = Library(name, engine, Path(python), folder, peer_environment())
            stack.callback(library.close)
            library.wait_until_loaded()
        except BenchError as error:
            missing[name] = str(error).strip().rpartition("\n")[2]
        else:
            yield library


def peer_environment() -> dict[str, str]:
    """Return environment variables for a peer: offline mode, and none of our thread limits."""
    ours = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS")
    kept = {
        name: value
        for name, value in os.environ.items()
        if name not in ours and not name.startswith(("SIMILE_", "PYTHON"))
    }
    return kept | {"HF_HUB_OFFLINE": "1", "DO_NOT_TRACK": "1"}


def export(version: Path, folder: Path) -> None:
    """Export the model in a separate process, so that the memory is free afterwards. Raises BenchError."""
    command: list[str | Path] = [sys.executable, "-P", PEERS / "export.py", version, folder]
    try:
        subprocess.run(command, check=True, capture_output=True, text=True, timeout=EXPORT_SECONDS)
    except subprocess.SubprocessError as error:
        output = getattr(error, "stderr", None) or error
        raise BenchError(f"the model was not exported: {str(output)[-1000:]}") from None
