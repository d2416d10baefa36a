"""Engine, service and sentence-transformers on a GPU, in one run: `python -m benchmarks.gpu`.

    raw       ONNX Runtime on texts tokenized, sorted and padded beforehand, in the best of three batch sizes
    service   over HTTP on loopback: one process with 1, 2 and 4 workers, and two processes on the same GPU
    library   sentence-transformers in fp16, in a process of its own, if it is installed next to the service

All contestants compute the default model on the same texts, in turns (rounds.py). The table shows medians,
and the least cosine to the CPU's vectors in fp32. Needs the extra gpu and a GPU. Without them the command
prints the reason and ends with status 2. `--rehearse` tests the command itself on the CPU; its figures mean
nothing.
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

from benchmarks import raw, workloads
from benchmarks.command import build_parser, format_table, report, scratch_folder
from benchmarks.peer_engines import Library, peer_environment
from benchmarks.processes import Server
from benchmarks.raw import RawEngine
from benchmarks.rounds import Embedder, Job, Measured, Results, Scenario, Turns, Vectors, compare_vectors
from benchmarks.served import OURS, WARM_TEXTS, ServedModel
from benchmarks.workloads import Workload
from models.encoder import ONNX
from models.engines.cuda import CudaEngine
from models.engines.form import Precision, parse_place
from models.engines.nvidia import Provider, cuda_provider, require_cuda
from models.errors import DeviceUnavailable
from models.publishing.default import publish_default
from models.store import ModelStore
from models.tokens.tokenizer import FILE_NAME, Tokenizer

CHECKED = 64  # texts whose vectors are compared with the CPU's
PASSAGE = 8  # sentences
BUDGETS = (4096, 16_384, 65_536)  # padded tokens of one raw batch
SIZES = (32, 256, 1024)  # texts of the library's batches
CALLS = 2  # of the raw engine in parallel: the copy of a batch overlaps the computation of another
SERVICES = ((1, 1), (2, 1), (4, 1), (2, 2))  # workers and processes
LOADS, REHEARSAL_LOADS = ((64, 1), (256, 1), (16, 32)), ((2, 1), (4, 1), (2, 4))  # clients and texts
MINUTES = 60.0
TEXTS, SHORT_RUN_TEXTS = 16_384, 128
CPU = Provider("CPUExecutionProvider", {}, "cpu")


def main() -> None:
    options = _parse_options()
    try:
        device = "the CPU" if options.rehearse else require_cuda(parse_place(options.device))
    except DeviceUnavailable as error:
        print(f"Nothing was measured: {error}", file=sys.stderr)
        sys.exit(2)
    with scratch_folder() as folder, ExitStack() as stack:
        gpu = device if options.rehearse else _query_gpu()
        results, figures = measure(stack, options, folder)
        figures |= {"runs_on": device, "gpu": gpu, "cells": results.to_json()}
        figures["gpu_at_the_end"] = "" if options.rehearse else _query_gpu()
    report("gpu", figures, [_table(results, figures), f"{gpu}; texts per second, medians"], [])


def _parse_options() -> argparse.Namespace:
    parser = build_parser("gpu", __doc__, quick=True)
    parser.add_argument("--device", default="cuda:0", help="cuda:N")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=5.0, help="of each load over HTTP")
    parser.add_argument("--rehearse", action="store_true", help="test the command on the CPU")
    return parser.parse_args()


class ServerGroup:
    """Servers that share one GPU and get requests at the same time."""

    def __init__(self, name: str, servers: Sequence[ServedModel]) -> None:
        self.name = name
        self._servers = servers

    def measure(self, scenario: Scenario, turn: int) -> Measured:
        """Measure all servers at the same time. Raises BenchError."""
        part = replace(scenario, clients=scenario.clients // len(self._servers))
        with ThreadPoolExecutor(len(self._servers)) as pool:
            found = list(pool.map(lambda one: one.measure(part, turn), self._servers))
        # Each server counts the others as foreign, so the foreign share is unknown.
        return Measured(sum(one.rate for one in found), foreign=0.0)

    def vectors(self, texts: Sequence[str]) -> Vectors:
        """Return the vectors of the first server."""
        return self._servers[0].vectors(texts)

    def about(self) -> dict[str, Any]:
        """Return the facts of each server."""
        return {one.name: one.about() for one in self._servers}


def measure(stack: ExitStack, options: argparse.Namespace, folder: Path) -> tuple[Results, dict[str, Any]]:
    """Return the measurements, and the cosines and facts of all contestants."""
    store = ModelStore(folder / "models")
    published = publish_default(store)
    store.request(published.version)
    version_folder = store.folder(published.version)
    tokenizer = Tokenizer(version_folder / FILE_NAME, published.max_length)
    given = list(_workloads(tokenizer, SHORT_RUN_TEXTS if options.quick or options.rehearse else TEXTS))
    calls, inputs = raw.onnx_runtime_calls(version_folder / ONNX, 1)
    exact = RawEngine("fp32 on the CPU", calls, inputs, tokenizer)
    contestants = list(_contestants(stack, options, store.root, version_folder, tokenizer))
    texts = [text for workload in given for text in workload.texts[: CHECKED // len(given)]]
    _, cosines = compare_vectors([exact, *contestants], exact.name, exact.name, texts)
    loads = REHEARSAL_LOADS if options.rehearse else LOADS
    turns = Turns(
        [
            Job(one, scenario, essential=True)
            for one in contestants
            for workload in given
            for scenario in _scenarios(one, workload, loads, options.seconds)
        ]
    )
    turns.run(options.repeats, MINUTES)
    return Results(turns.cells), {
        "workloads": [one.name for one in given],
        "loads": [f"{clients} x {count}" for clients, count in loads],
        "cosines": {name: float(each.min()) for name, each in cosines.items()},
        "about": {one.name: one.about() for one in contestants},
    }


def _scenarios(
    one: Embedder, workload: Workload, loads: Sequence[tuple[int, int]], seconds: float
) -> Iterator[Scenario]:
    if not isinstance(one, ServerGroup):
        yield Scenario(workload.name, workload, seconds=seconds)
        return
    for clients, texts in loads:
        yield Scenario(f"{workload.name}, {clients} x {texts}", workload, clients, texts, seconds)


def _contestants(
    stack: ExitStack, options: argparse.Namespace, models: Path, version_folder: Path, tokenizer: Tokenizer
) -> Iterator[Embedder]:
    provider = CPU if options.rehearse else cuda_provider(parse_place(options.device))
    precisions: tuple[Precision, ...] = ("fp32", "fp16")
    for precision in precisions:
        engine = CudaEngine(version_folder / ONNX, precision, provider, tokenizer.max_length)

        def call(feed: raw.Feed, engine: CudaEngine = engine) -> Vectors:
            return engine.run(feed, raw.OUTPUT)

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
            warm_texts = SHORT_RUN_TEXTS // 8 if options.rehearse else WARM_TEXTS
            one = f"{name}, {process}"
            servers.append(ServedModel(one, OURS, server.port, server.pid, warm_texts=warm_texts))
        yield ServerGroup(name, servers)
    if find_spec("sentence_transformers") and not options.rehearse:
        only = peer_environment() | {"CUDA_VISIBLE_DEVICES": str(parse_place(options.device).number)}
        library = Library(
            "sentence-transformers fp16", "cuda-fp16", Path(sys.executable), version_folder, only, SIZES
        )
        stack.callback(library.close)
        library.wait_until_loaded()
        yield library


def _workloads(tokenizer: Tokenizer, count: int) -> Iterator[Workload]:
    source = workloads.corpus()
    short = workloads.sentences(tokenizer, source, count)
    yield short
    long = [" ".join(short.texts[at : at + PASSAGE]) for at in range(0, count, PASSAGE)]
    yield Workload("passages", long, [list(row.ids) for row in tokenizer.tokenize(long)])
    yield workloads.mixture(tokenizer, source, count // 2)


def _query_gpu() -> str:
    query = "--query-gpu=name,driver_version,memory.used,memory.total"
    command = ["nvidia-smi", query, "--format=csv,noheader"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def _table(results: Results, figures: dict[str, Any]) -> str:
    names = figures["workloads"]
    rows = []
    for one in results.names:
        for load in ("", *figures["loads"]):
            found = [results.spread((one, f"{name}, {load}" if load else name)) for name in names]
            if any(found):
                rates = [f"{spread.median:,.0f}" if spread else "" for spread in found]
                row = f"{one}, {load}" if load else one
                rows.append([row, *rates, f"{figures['cosines'][one]:.6f}"])
    return format_table(["", *names, "least cosine"], rows)


if __name__ == "__main__":
    main()
