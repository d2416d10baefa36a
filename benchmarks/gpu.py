"""`python -m benchmarks.gpu`: what a GPU gives, in one run: the engine, the service, sentence-transformers.

    raw       ONNX Runtime with everything done beforehand: tokenised, sorted, padded; the best batch of three
    service   over HTTP on loopback: one process with 1, 2 and 4 workers, and two processes on the one GPU
    library   sentence-transformers in fp16, in this process, where it is installed beside the service

Everybody computes the default model on the same texts, in turns; the table shows medians, and beside each
speed the least cosine to the vectors that the CPU gives in fp32. Needs the extra gpu and a GPU; without them
it says so and ends with status 2. `--rehearse` tries the command itself, on the CPU: no figure of it counts.
"""

import argparse
import json
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import workloads
from benchmarks.gpu_contestants import Contestant, Library, Raw, Served, Workload
from benchmarks.server import Server
from models.encoder import Encoder
from models.engines.form import Precision
from models.engines.nvidia import Provider, cuda_provider, require_cuda
from models.engines.place import place_of
from models.errors import DeviceUnavailable
from models.publishing.default import publish_default
from models.store import Store
from models.tokens.tokenizer import Tokenizer

PACKAGES = ("onnxruntime-gpu", "torch", "sentence-transformers", "transformers", "tokenizers", "numpy")
CHECKED = 64  # texts whose vectors are compared with the CPU's
PASSAGE = 8  # sentences
_FEW = 128
_ON_CPU = Provider("CPUExecutionProvider", {}, "cpu")
_FP16 = {"SIMILE_PRECISION": "fp16"}


def main() -> None:
    options = _options()
    try:
        runs_on = "the CPU" if options.rehearse else require_cuda(place_of(options.device))
    except DeviceUnavailable as error:
        print(f"Nothing was measured: {error}", file=sys.stderr)
        sys.exit(2)
    with tempfile.TemporaryDirectory() as folder:
        gpu = runs_on if options.rehearse else _gpu()
        kept = {"runs_on": runs_on, "gpu": gpu, "packages": _packages(), **measure(options, Path(folder))}
    options.json.write_text(json.dumps(kept, indent=2) + "\n")
    print(_table(kept))


def measure(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Median texts per second of everybody on every workload, and the least cosine of each."""
    store = Store(folder / "models")
    store.want(publish_default(store).version)
    version_folder = store.folder(store.wanted() or "")
    encoder = Encoder.open(version_folder)
    loads = list(_workloads(version_folder, encoder, _FEW if options.quick or options.rehearse else 16_384))
    texts = [text for load in loads for text in load.texts[: CHECKED // len(loads)]]
    expected = encoder.encode(texts).vectors
    figures: dict[str, dict[str, list[float]]] = {}
    cosines: dict[str, float] = {}
    with ExitStack() as stack:
        everybody = list(_contestants(stack, options, store.root, version_folder, encoder))
        for one in everybody:
            cosines[one.name] = float(np.sum(one.vectors(texts) * expected, axis=1).min())
        for repeat in range(options.repeats):
            for one in everybody:
                for load in loads:
                    rate = one.measure(load)
                    figures.setdefault(one.name, {}).setdefault(load.name, []).append(rate)
            print(f"repeat {repeat + 1} of {options.repeats}", file=sys.stderr)
        after = "" if options.rehearse else _gpu()
    return {"texts_per_second": figures, "least_cosine": cosines, "gpu_at_the_end": after}


def _contestants(
    stack: ExitStack, options: argparse.Namespace, models: Path, version_folder: Path, encoder: Encoder
) -> Iterator[Contestant]:
    provider = _ON_CPU if options.rehearse else cuda_provider(place_of(options.device))
    served = {"SIMILE_DEVICE": "cpu"} if options.rehearse else {"SIMILE_DEVICE": options.device, **_FP16}
    precisions: tuple[Precision, ...] = ("fp32", "fp16")
    for precision in precisions:
        yield Raw(version_folder, encoder, precision, provider)
    loads = ((2, 1), (4, 1), (2, 4)) if options.rehearse else ((64, 1), (256, 1), (16, 32))
    for workers, processes in ((1, 1), (2, 1), (4, 1), (2, 2)):
        servers = []
        for process in range(processes):
            home = models.parent / f"served-{workers}-{processes}-{process}"
            shutil.copytree(models, home / "models")
            settings = {
                "SIMILE_MODELS_DIR": str(home / "models"),
                **served,
                "SIMILE_WORKERS": str(workers),
                "SIMILE_MAX_QUEUE_SECONDS": "0",
            }
            servers.append(stack.enter_context(Server(home / "data", settings=settings)))
        name = f"service, {processes} process{'es' if processes > 1 else ''}, {workers} workers"
        for clients, texts in loads:
            yield Served(name, servers, clients, texts, options.seconds)
    if find_spec("sentence_transformers") and not options.rehearse:
        yield Library(version_folder, options.device)


def _workloads(folder: Path, encoder: Encoder, count: int) -> Iterator[Workload]:
    source = workloads.corpus()
    tokenizer = Tokenizer(folder / "tokenizer.json", encoder.max_length)
    short = workloads.sentences(tokenizer, source, count)
    yield Workload("sentences", short.texts, short.ids)
    long = [" ".join(short.texts[at : at + PASSAGE]) for at in range(0, count, PASSAGE)]
    yield Workload("passages", long, [list(row.ids) for row in encoder.tokenize(long)])
    mixed = workloads.mixture(tokenizer, source, count // 2)
    yield Workload("mixture", mixed.texts, mixed.ids)


def _gpu() -> str:
    asked = [
        "nvidia-smi",
        "--query-gpu=name,driver_version,memory.used,memory.total",
        "--format=csv,noheader",
    ]
    return subprocess.run(asked, capture_output=True, text=True, check=True).stdout.strip()


def _packages() -> dict[str, str]:
    found = {}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def _table(kept: dict[str, Any]) -> str:
    names = list(next(iter(kept["texts_per_second"].values())))
    lines = [
        f"{kept['gpu']}; texts per second, medians",
        "",
        "| | " + " | ".join(names) + " | least cosine |",
        "|---|" + "---|" * (len(names) + 1),
    ]
    for one, rates in kept["texts_per_second"].items():
        cells = " | ".join(f"{statistics.median(rates[name]):,.0f}" for name in names)
        lines.append(f"| {one} | {cells} | {kept['least_cosine'][one]:.6f} |")
    return "\n".join(lines)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu", description=__doc__.split("\n", 1)[0])
    parser.add_argument("--device", default="cuda:0", help="cuda:N")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=5.0, help="of each load over HTTP")
    parser.add_argument("--quick", action="store_true", help="few texts: a look, not a figure")
    parser.add_argument("--rehearse", action="store_true", help="on the CPU: does the command run?")
    parser.add_argument("--json", type=Path, default=Path("gpu.json"), help="where the figures go")
    return parser.parse_args()


if __name__ == "__main__":
    main()
