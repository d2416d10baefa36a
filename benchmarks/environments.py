"""The peers that are installed, opened: each environment is a folder with pins in peers/NAME.txt.

`make bench-peers` makes the environments. A peer that has none, or does not start, is named with the reason.
"""

import os
import subprocess
import sys
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.library import Library
from benchmarks.places import BenchError, say
from benchmarks.process import Process
from benchmarks.served import OPENAI, Served
from benchmarks.server import free_port
from benchmarks.workloads import PROJECT

RECONNECTS = 256  # of a peer in one measurement
PINS = PROJECT / "benchmarks" / "peers"
REFERENCE = "sentence-transformers, torch"  # whose vectors all others are compared with
LIBRARIES = {  # of a name: the environment, and the way of peers/encode.py
    REFERENCE: ("sentence-transformers", "torch"),
    "sentence-transformers, OpenVINO": ("sentence-transformers", "openvino"),
    "sentence-transformers, OpenVINO bf16": ("sentence-transformers", "openvino-bf16"),
    "fastembed": ("fastembed", "fastembed"),
}
SHOWN = ("infinity_emb", "optimum", "onnxruntime", "torch", "transformers")
EXPORT_SECONDS = 300
INFINITY_SECONDS = 180.0
# Not its own warm-up: it makes the start longer and, with ONNX Runtime, memory larger by gigabytes.
# The pooling is named, since its ONNX engine does not read the model's and takes the first token's vector.
INFINITY = (
    *("--device", "cpu", "--batch-size", "64", "--pooling-method", "mean"),
    *("--no-model-warmup", "--served-model-name", "bench"),
    *("--log-level", "warning", "--host", "127.0.0.1"),
)
ENGINES = {
    # Without optimum's optimizer: this version of it refuses infinity's call, and infinity goes on without.
    # ONNX Runtime's own fusions, which are the faster ones, happen when the file is opened.
    "infinity, ONNX": ("--engine", "optimum", "--onnx-disable-optimize"),
    "infinity, torch": ("--engine", "torch", "--dtype", "float32", "--no-bettertransformer", "--no-compile"),
}


@dataclass
class Peers:
    """The peers that run, and the reason for each that does not."""

    servers: list[Served] = field(default_factory=list)
    libraries: list[Library] = field(default_factory=list)
    missing: dict[str, str] = field(default_factory=dict)


def opened(stack: ExitStack, environments: Path, version: Path, folder: Path) -> Peers:
    """Start all that are installed and wait for them; `stack` ends them.

    Args:
        stack: closed by the caller.
        environments: the folder of environments.
        version: the published version that everybody serves.
        folder: where the peers' files go.

    """
    found = Peers()
    wanted = dict.fromkeys(ENGINES, "infinity") | {name: env for name, (env, _) in LIBRARIES.items()}
    environments = environments.absolute()  # peers run in folders of their own
    pythons = {name: environments / env / "bin" / "python" for name, env in wanted.items()}
    for name, python in pythons.items():
        if not python.exists():
            found.missing[name] = f"not installed in {environments}; `make bench-peers` does"
    there = [name for name in wanted if name not in found.missing]
    if not there:
        return found
    say("exporting the model for the peers")
    exported = folder / "peers" / "model"
    exported.parent.mkdir(parents=True)
    try:
        _export(version, exported)
    except BenchError as error:
        found.missing |= dict.fromkeys(there, str(error))
        return found
    for name in there:  # one after the other: several exports at once would need much memory
        say(f"starting {name}")
        try:
            _open(found, stack, name, pythons[name], exported)
        except BenchError as error:
            found.missing[name] = str(error)
    return found


def _open(found: Peers, stack: ExitStack, name: str, python: Path, folder: Path) -> None:
    if name in LIBRARIES:
        library = Library(name, LIBRARIES[name][1], python, folder, environment())
        stack.callback(library.close)
        library.ready()
        found.libraries.append(library)
        return
    port = free_port()
    command: list[str | Path] = [python, "-P", PINS / "serve_infinity.py", "v2", "--model-id", folder]
    command += [*INFINITY, *ENGINES[name], "--port", str(port)]
    server = Process(name, command, env=environment(), cwd=folder.parent)
    stack.callback(server.close)
    ready = server.wait_for(f"http://127.0.0.1:{port}/health", INFINITY_SECONDS)
    told = {"packages": pins("infinity"), "ready_seconds": ready}
    # uvicorn closes a connection on which nothing came for five seconds, also when its own loop stood still
    # so long; any client opens another one then. Of our service it would be a fault.
    served = Served(name, OPENAI, port, server.pid, told, reconnects=RECONNECTS)
    found.servers.append(served)


def environment() -> dict[str, str]:
    """A peer's: without our limits of threads, which it would take for its own, and without a network."""
    ours = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS")
    kept = {
        name: value
        for name, value in os.environ.items()
        if name not in ours and not name.startswith(("SIMILE_", "PYTHON"))
    }
    return kept | {"HF_HUB_OFFLINE": "1", "DO_NOT_TRACK": "1"}


def pins(name: str) -> dict[str, str]:
    """The packages of a peer worth naming, by its pins."""
    lines = (line.partition("#")[0].strip() for line in (PINS / f"{name}.txt").read_text().splitlines())
    pairs = dict(line.split("==", 1) for line in lines if line)
    return {package: pairs[package] for package in SHOWN if package in pairs}


def _export(version: Path, folder: Path) -> None:
    """By this process's Python, which has torch; in a process of its own, which gives the memory back."""
    try:
        subprocess.run(
            [sys.executable, "-P", PINS / "export.py", version, folder],
            check=True,
            capture_output=True,
            text=True,
            timeout=EXPORT_SECONDS,
        )
    except subprocess.CalledProcessError as error:
        raise BenchError(f"the model was not exported: {error.stderr[-1000:]}") from None
    except subprocess.TimeoutExpired as error:
        raise BenchError(f"the model was not exported: {error}") from None
