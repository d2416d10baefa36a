"""`python -m benchmarks.gpu`: what a GPU gives, in one run: the engine, the service, sentence-transformers.

    raw       ONNX Runtime with everything done beforehand: tokenised, sorted, padded; the best batch of three
    service   over HTTP on loopback: one process with 1, 2 and 4 workers, and two processes on the one GPU
    library   sentence-transformers in fp16, in a process of its own, where it is installed beside the service

Everybody computes the default model on the same texts, in turns (turns.py); the table shows medians, and
beside each speed the least cosine to the vectors that the CPU gives in fp32. Needs the extra gpu and a GPU;
without them it says so and ends with status 2. `--rehearse` tries the command itself, on the CPU: no figure
of it counts.
"""

import argparse
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from benchmarks import accuracy, engines, workloads
from benchmarks.contestant import Embedder, Measured, Scenario, Vectors
from benchmarks.environments import environment
from benchmarks.library import Library
from benchmarks.places import arguments, scratch
from benchmarks.raw import RawEngine
from benchmarks.results import Results, cells
from benchmarks.served import OURS, WARM_TEXTS, Served
from benchmarks.server import Server
from benchmarks.tables import conclude, table
from benchmarks.turns import Job, Turns
from benchmarks.workloads import Workload
from models.encoder import ONNX
from models.engines.cuda import CudaEngine
from models.engines.form import Precision
from models.engines.nvidia import Provider, cuda_provider, require_cuda
from models.engines.place import place_of
from models.errors import DeviceUnavailable
from models.publishing.default import publish_default
from models.store import Store
from models.tokens.tokenizer import FILE_NAME, Tokenizer

CHECKED = 64  # texts whose vectors are compared with the CPU's
PASSAGE = 8  # sentences
BUDGETS = (4096, 16_384, 65_536)  # padded tokens of one raw batch
SIZES = (32, 256, 1024)  # texts of the library's batches
CALLS = 2  # of the raw engine at once: the copy of one batch overlaps the computing of another
SERVICES = ((1, 1), (2, 1), (4, 1), (2, 2))  # workers and processes
MINUTES = 60.0
_FEW = 128
_ON_CPU = Provider("CPUExecutionProvider", {}, "cpu")


def main() -> None:
    options = _options()
    try:
        runs_on = "the CPU" if options.rehearse else require_cuda(place_of(options.device))
    except DeviceUnavailable as error:
        print(f"Nothing was measured: {error}", file=sys.stderr)
        sys.exit(2)
    with scratch() as folder, ExitStack() as stack:
        gpu = runs_on if options.rehearse else _gpu()
        kept = {"runs_on": runs_on, "gpu": gpu} | measure(stack, options, folder)
        kept["gpu_at_the_end"] = "" if options.rehearse else _gpu()
    conclude("gpu", kept, _text(kept), [])


class Several:
    """Servers with one GPU between them, asked at the same time."""

    def __init__(self, name: str, servers: Sequence[Served]) -> None:
        self.name = name
        self._servers = servers

    def measure(self, scenario: Scenario, turn: int) -> Measured:
        """Raises BenchError."""
        part = replace(scenario, clients=scenario.clients // len(self._servers))
        with ThreadPoolExecutor(len(self._servers)) as pool:
            found = list(pool.map(lambda one: one.measure(part, turn), self._servers))
        return Measured(sum(one.rate for one in found), foreign=0.0)  # each is foreign to the others

    def vectors(self, texts: Sequence[str]) -> Vectors:
        """The vectors of the first."""
        return self._servers[0].vectors(texts)

    def about(self) -> dict[str, Any]:
        return {one.name: one.about() for one in self._servers}


def measure(stack: ExitStack, options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """The rounds, the cosines, and the names of the workloads."""
    store = Store(folder / "models")
    published = publish_default(store)
    store.want(published.version)
    version_folder = store.folder(published.version)
    tokenizer = Tokenizer(version_folder / FILE_NAME, published.max_length)
    given = list(_workloads(tokenizer, _FEW if options.quick or options.rehearse else 16_384))
    calls, inputs = engines.onnx_runtime(version_folder / ONNX, 1)
    exact = RawEngine("fp32 on the CPU", calls, inputs, tokenizer)
    everybody = list(_contestants(stack, options, store.root, version_folder, tokenizer))
    texts = [text for workload in given for text in workload.texts[: CHECKED // len(given)]]
    near = accuracy.compared([exact, *everybody], exact.name, texts)
    loads = ((2, 1), (4, 1), (2, 4)) if options.rehearse else ((64, 1), (256, 1), (16, 32))
    turns = Turns(
        [
            Job(one, scenario, essential=True)
            for one in everybody
            for workload in given
            for scenario in _scenarios(one, workload, loads, options.seconds)
        ]
    )
    turns.run(options.repeats, MINUTES)
    kept = {"workloads": [one.name for one in given], "cosines": near["rows"], "cells": cells(turns.cells)}
    return kept | {"about": {one.name: one.about() for one in everybody}}


def _scenarios(
    one: Embedder, workload: Workload, loads: Sequence[tuple[int, int]], seconds: float
) -> Iterator[Scenario]:
    if not isinstance(one, Several):
        yield Scenario(workload.name, workload, seconds=seconds)
        return
    for clients, texts in loads:
        yield Scenario(f"{workload.name}, {clients} x {texts}", workload, clients, texts, seconds)


def _contestants(
    stack: ExitStack, options: argparse.Namespace, models: Path, version_folder: Path, tokenizer: Tokenizer
) -> Iterator[Embedder]:
    provider = _ON_CPU if options.rehearse else cuda_provider(place_of(options.device))
    precisions: tuple[Precision, ...] = ("fp32", "fp16")
    for precision in precisions:
        engine = CudaEngine(version_folder / ONNX, precision, provider, tokenizer.max_length)

        def call(feed: engines.Feed, engine: CudaEngine = engine) -> Vectors:
            return engine.run(feed, engines.OUTPUT)

        yield RawEngine(f"raw {precision}", [call] * CALLS, engine.inputs, tokenizer, BUDGETS)
    chosen = {"SIMILE_DEVICE": options.device, "SIMILE_PRECISION": "fp16", "SIMILE_MAX_QUEUE_SECONDS": "0"}
    if options.rehearse:
        chosen |= {"SIMILE_DEVICE": "cpu", "SIMILE_PRECISION": "fp32"}
    for workers, processes in SERVICES:
        name = f"service, {processes} process{'es' if processes > 1 else ''}, {workers} workers"
        servers = []
        for process in range(processes):
            home = models.parent / f"served-{workers}-{processes}-{process}"
            shutil.copytree(models, home / "models")
            settings = {"SIMILE_MODELS_DIR": str(home / "models"), "SIMILE_WORKERS": str(workers), **chosen}
            server = stack.enter_context(Server(home / "data", settings=settings))
            warm_texts = _FEW // 8 if options.rehearse else WARM_TEXTS
            one = f"{name}, {process}"
            servers.append(Served(one, OURS, server.port, server.pid, warm_texts=warm_texts))
        yield Several(name, servers)
    if find_spec("sentence_transformers") and not options.rehearse:
        only = environment() | {"CUDA_VISIBLE_DEVICES": str(place_of(options.device).number)}
        library = Library(
            "sentence-transformers fp16", "cuda-fp16", Path(sys.executable), version_folder, only, SIZES
        )
        stack.callback(library.close)
        library.ready()
        yield library


def _workloads(tokenizer: Tokenizer, count: int) -> Iterator[Workload]:
    source = workloads.corpus()
    short = workloads.sentences(tokenizer, source, count)
    yield short
    long = [" ".join(short.texts[at : at + PASSAGE]) for at in range(0, count, PASSAGE)]
    yield Workload("passages", long, [list(row.ids) for row in tokenizer.tokenize(long)])
    yield workloads.mixture(tokenizer, source, count // 2)


def _gpu() -> str:
    query = "--query-gpu=name,driver_version,memory.used,memory.total"
    asked = ["nvidia-smi", query, "--format=csv,noheader"]
    return subprocess.run(asked, capture_output=True, text=True, check=True).stdout.strip()


def _text(kept: dict[str, Any]) -> list[str]:
    results, names = Results(kept), kept["workloads"]
    loads = dict.fromkeys(cell["scenario"].partition(", ")[2] for cell in kept["cells"])
    rows = []
    for one in results.names:
        for load in loads:
            found = [results.spread((one, f"{name}, {load}" if load else name)) for name in names]
            if any(found):
                rates = [f"{spread.median:,.0f}" if spread else "" for spread in found]
                row = f"{one}, {load}" if load else one
                rows.append([row, *rates, f"{kept['cosines'][one]['least']:.6f}"])
    return [f"{kept['gpu']}; texts per second, medians", table(["", *names, "least cosine"], rows)]


def _options() -> argparse.Namespace:
    parser = arguments("gpu", __doc__, quick=True)
    parser.add_argument("--device", default="cuda:0", help="cuda:N")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=5.0, help="of each load over HTTP")
    parser.add_argument("--rehearse", action="store_true", help="on the CPU: does the command run?")
    return parser.parse_args()


if __name__ == "__main__":
    main()
