"""The stages of `python -m benchmarks.gpu`, in order of importance. Start at `STAGES`.

Each stage yields its figures as rows. `figure` names a row; the other keys are numbers or short texts. A
stage finds the files of earlier stages in `Job.folder`: models, and the speed of matrix products. Texts have
an exact number of tokens, because their words are single tokens.
"""

import argparse
import json
import os
import random
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from functools import partial
from importlib.metadata import version as package_version
from importlib.util import find_spec
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load_file, save_file

from benchmarks import machine, raw
from benchmarks.command import PROJECT, BenchError
from benchmarks.load import Generator, Load, post_request
from benchmarks.peer_engines import Library, export, peer_environment
from benchmarks.processes import Server, call
from benchmarks.raw import RawEngine
from benchmarks.rounds import Scenario
from benchmarks.workloads import Workload, exact_lengths
from models.encoder import Encoder
from models.engines.cuda import CudaEngine
from models.engines.form import Form, Place, Precision
from models.engines.nvidia import Provider, cuda_provider, open_session
from models.graph.nodes import save
from models.manifest import ONNX
from models.publishing.default import default_source, publish_default
from models.publishing.publish import prepare
from models.sources.folder import read_source
from models.store import ModelStore
from models.tokens.tokenizer import FILE_NAME, Tokenizer

Row = dict[str, Any]
Vectors = NDArray[np.float32]

LENGTHS, SHORT_LENGTHS = (17, 65, 128, 512), (17, 65)  # tokens of a text, special tokens included
BUDGETS, SMALL_BUDGETS = (8_192, 16_384, 32_768, 65_536), (256, 512)  # tokens of a batch
CALLERS = 2  # calls at once: the copy of a batch overlaps the computation of another
TRIAL_SECONDS = 1.0  # allowance for the trials before a measurement
SIZES = (32, 256, 1024)  # batch sizes of sentence-transformers, in texts
SHAPES = {"default": (6, 384), "base": (12, 768)}  # layers and width of the two models
LOADS, SMALL_LOADS = ((64, 1), (16, 32), (8, 256)), ((4, 1), (2, 8))  # clients and texts of a request
WORKERS = (0, 2, 4)  # 0 is the default
SERVED_TOKENS = 65
WARM_TEXTS, SMALL_WARM_TEXTS = 4000, 32  # answered before a window
PEAK_SIZE, SMALL_PEAK_SIZE = 8192, 512
BATCHES, SMALL_RUN_BATCHES = 4000, 20  # random batches
POOL = 512  # texts of the random batches
SEED = 20261127
PEAKS = "peaks.json"  # teraflops of matrix products by precision, in the folder of the run
CPU = Provider("CPUExecutionProvider", {}, "cpu")


class Unavailable(Exception):
    """A stage cannot run here. The message gives the reason."""


class Job(NamedTuple):
    """The settings of a run, which every stage receives.

    Attributes:
        folder: Folder of the run, with the files of earlier stages.
        device: "cuda", or "cpu" for a rehearsal.
        seconds: Length of a measurement.
        quick: True for small sizes.

    """

    folder: Path
    device: str
    seconds: float
    quick: bool

    @property
    def on_gpu(self) -> bool:
        return self.device != "cpu"

    @property
    def place(self) -> Place:
        return Place("cuda") if self.on_gpu else Place("cpu")

    @property
    def provider(self) -> Provider:
        return cuda_provider(self.place) if self.on_gpu else CPU

    @property
    def lengths(self) -> tuple[int, ...]:
        return SHORT_LENGTHS if self.quick else LENGTHS

    def graph(self, model: str) -> Path:
        return self._existing(self.folder / model / ONNX)

    def source(self, model: str) -> Path:
        return self._existing(self.folder / "sources" / model)

    def version(self) -> Path:
        """Return the folder of the published default model. Raises Unavailable."""
        store = ModelStore(self._existing(self.folder / "models"))
        return store.folder(store.versions()[0].version)

    def tokenizer(self) -> Tokenizer:
        return Tokenizer(self.version() / FILE_NAME, 512)

    def _existing(self, path: Path) -> Path:
        if not path.exists():
            raise Unavailable(f"{path.name} was not made by the stage `models`")
        return path


class Stage(NamedTuple):
    """A function that yields rows. Its limit is `fixed` seconds plus the time of all `measurements`."""

    measure: Callable[[Job], Iterator[Row]]
    fixed: float
    measurements: int

    def limit(self, job: Job) -> float:
        return self.fixed + self.measurements * (job.seconds + TRIAL_SECONDS)


# The machine


def peak(job: Job) -> Iterator[Row]:
    """Yield the machine, the packages, and the speed of torch's matrix products on the device."""
    described = machine.describe(job.folder)
    yield {"figure": "machine", "cpu": described["cpu"], "processors": described["usable_processors"]}
    yield {"figure": "packages", "python": described["python"], **described["packages"]}
    if job.on_gpu:
        yield {"figure": "gpu", "is": query_gpu("name,driver_version,memory.used,memory.total,clocks.sm")}
    torch = _torch()
    size = SMALL_PEAK_SIZE if job.quick or not job.on_gpu else PEAK_SIZE
    torch.backends.cuda.matmul.allow_tf32 = False
    wait = torch.cuda.synchronize if job.on_gpu else lambda: None
    peaks = {}
    for name, kind in (("fp16", torch.float16), ("fp32", torch.float32)):
        if name == "fp16" and not job.on_gpu:
            continue  # a processor emulates it
        a, b = (torch.randn(size, size, device=job.device, dtype=kind) for _ in range(2))
        done, seconds = _repeat(partial(torch.matmul, a, b), 1, min(1.0, job.seconds), wait)
        peaks[name] = 2 * size**3 * done / seconds / 1e12
        yield {"figure": f"peak {name}", "tflops": peaks[name]}
    (job.folder / PEAKS).write_text(json.dumps(peaks), encoding="utf-8")
    yield {"figure": "torch", "version": torch.__version__, "cuda": str(torch.version.cuda)}


def query_gpu(fields: str) -> str:
    command = ["nvidia-smi", f"--query-gpu={fields}", "--format=csv,noheader,nounits", "--id=0"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def _torch() -> Any:
    if find_spec("torch") is None:
        raise Unavailable("torch is not installed")
    import torch  # noqa: PLC0415  an extra

    return torch


def _repeat(
    work: Callable[[], object], count: int, seconds: float, wait: Callable[[], object] = lambda: None
) -> tuple[int, float]:
    """Repeat `work`, which does `count` units per call. Return the number of units and the seconds taken."""
    for _ in range(3):  # kernels are loaded and chosen
        work()
    wait()
    done, began = 0, time.perf_counter()
    while time.perf_counter() < began + seconds:
        for _ in range(4):
            work()
        done += 4 * count
        wait()
    return done, time.perf_counter() - began


# Models and texts


def models(job: Job) -> Iterator[Row]:
    """Make the default model and a random BERT of base size, each as a source folder and a graph."""
    for name, (layers, width) in SHAPES.items():
        began = time.perf_counter()
        source = job.folder / "sources" / name
        with default_source() as folder:
            shutil.copytree(folder, source)
        if name != "default":
            _randomize(source, layers, width)
        graph = job.folder / name / ONNX
        graph.parent.mkdir(parents=True)
        shutil.copyfile(source / "config.json", graph.parents[1] / "config.json")
        prepared = prepare(read_source(source))
        save(prepared.model, graph, prepared.aside)
        yield {"figure": name, "layers": layers, "width": width, "seconds": time.perf_counter() - began}
    began = time.perf_counter()
    store = ModelStore(job.folder / "models")
    store.request(publish_default(store).version)
    yield {"figure": "published default", "seconds": time.perf_counter() - began}


def _randomize(source: Path, layers: int, width: int) -> None:
    """Replace the weights of a folder by random weights of another depth and width."""
    config = json.loads((source / "config.json").read_bytes())
    factor = width // config["hidden_size"]
    known = load_file(source / "model.safetensors")
    chance = np.random.default_rng(SEED)
    made: dict[str, NDArray[Any]] = {}

    def grow(name: str, array: NDArray[Any]) -> NDArray[Any]:
        if not np.issubdtype(array.dtype, np.floating):
            return array
        fixed = {config["vocab_size"], config["max_position_embeddings"], config["type_vocab_size"]}
        shape = [size if size in fixed else size * factor for size in array.shape]
        if name.endswith("LayerNorm.weight"):
            return np.ones(shape, np.float32)
        scale = 0.0 if name.endswith("bias") else 0.02  # BERT's own initializer
        return scale * chance.standard_normal(shape, np.float32)

    for name, array in known.items():
        if ".layer." not in name:
            made[name] = grow(name, array)
        elif ".layer.0." in name:
            for layer in range(layers):
                made[name.replace(".layer.0.", f".layer.{layer}.")] = grow(name, array)
    save_file(made, source / "model.safetensors", metadata={"format": "pt"})
    config |= {"num_hidden_layers": layers, "hidden_size": width}
    config["intermediate_size"] *= factor
    config["num_attention_heads"] = width // 64
    (source / "config.json").write_text(json.dumps(config), encoding="utf-8")


# The engine


def engine(job: Job) -> Iterator[Row]:
    """Yield the speed of the engine alone, on token ids, and its share of the matrix products' speed."""
    precisions: tuple[Precision, ...] = ("fp16", "fp32")
    for precision, model in product(precisions, SHAPES):
        opened = CudaEngine(job.graph(model), precision, job.provider, 512)
        run = partial(opened.run, output=raw.OUTPUT)
        for length in job.lengths:
            yield _timed(job, run, opened.inputs, model, precision, length)
        opened.close()


def _timed(job: Job, call: raw.Call, inputs: Sequence[str], model: str, precision: str, length: int) -> Row:
    """Return a row with texts per second in the fastest of several batch sizes, with `CALLERS` callers."""
    budgets = BUDGETS if job.on_gpu and not job.quick else SMALL_BUDGETS
    texts = raw.TRIAL_STRIDE * CALLERS * max(1, max(budgets) // length)
    ids = np.random.default_rng(SEED).integers(2000, 12_000, (texts, length)).tolist()
    measured = RawEngine(model, [call] * CALLERS, inputs, job.tokenizer(), budgets)
    all_texts = Scenario("", Workload("", [], ids))
    measured.choose_budget(all_texts.workload)
    passes, began = 0, time.perf_counter()
    while not passes or time.perf_counter() < began + job.seconds:
        measured.measure(all_texts, passes)
        passes += 1
    rate = passes * texts / (time.perf_counter() - began)
    layers, width = SHAPES[model]
    # The operations of a token: 12 d² weights of a layer, and attention to `length` tokens.
    teraflops = rate * length * layers * (24 * width**2 + 4 * length * width) / 1e12
    row: Row = {"figure": f"{model} {precision} {length}", "texts_per_second": rate, "tflops": teraflops}
    peaks = job.folder / PEAKS
    if peaks.exists() and precision in (known := json.loads(peaks.read_bytes())):
        row["share_of_peak"] = teraflops / known[precision]
    return row | {"tokens_of_a_batch": measured.about()["tokens_of_a_batch"][""]}


def optimizer(job: Job) -> Iterator[Row]:
    """Yield the speed of the same models, exported by torch and fused by ONNX Runtime's own optimizer."""
    _torch()
    if find_spec("transformers") is None or find_spec("onnxruntime.transformers") is None:
        raise Unavailable("transformers or onnxruntime.transformers is not installed")
    from onnxruntime.transformers import optimizer as fusing  # noqa: PLC0415
    from onnxruntime.transformers.fusion_options import FusionOptions  # noqa: PLC0415

    for model, (_, width) in SHAPES.items():
        folder = job.folder / f"{model}-exported"
        export(job.source(model), folder)
        heads = json.loads((folder / "config.json").read_bytes())["num_attention_heads"]
        options = FusionOptions("bert")
        fused = fusing.optimize_model(str(folder / "model.onnx"), "bert", heads, width, options, opt_level=0)
        fused.convert_float_to_float16(keep_io_types=False)
        operators = fused.get_fused_operator_statistics()
        session = open_session(fused.model.SerializeToString(), job.provider)
        yield {"figure": f"{model} fused operators", "operators": json.dumps(operators)}
        inputs = [given.name for given in session.get_inputs()]

        run = partial(_bound, job, session, "last_hidden_state")
        for length in job.lengths:
            yield _timed(job, run, inputs, model, "fp16", length)


def _bound(job: Job, session: Any, output: str, feed: raw.Feed) -> Any:
    """Compute a batch whose output stays on the device, so that only the model is measured."""
    import onnxruntime  # noqa: PLC0415

    binding = session.io_binding()
    for name, array in feed.items():
        binding.bind_ortvalue_input(
            name, onnxruntime.OrtValue.ortvalue_from_numpy(array, job.provider.device, 0)
        )
    binding.bind_output(output, job.provider.device, 0)
    session.run_with_iobinding(binding)
    return binding


# sentence-transformers


def library(job: Job) -> Iterator[Row]:
    """Yield sentence-transformers' speed in fp16: its forward pass on ids, and `encode` on texts."""
    torch = _torch()
    if find_spec("sentence_transformers") is None:
        raise Unavailable("sentence-transformers is not installed")
    from sentence_transformers import SentenceTransformer  # noqa: PLC0415

    yield {"figure": "sentence-transformers", "version": package_version("sentence-transformers")}
    kind = torch.float16 if job.on_gpu else torch.float32
    for model in SHAPES:
        options = {"attn_implementation": "sdpa", "dtype": kind}
        opened = SentenceTransformer(str(job.source(model)), device=job.device, model_kwargs=options)

        def run(feed: raw.Feed, opened: Any = opened) -> Any:
            features = {name: torch.from_numpy(array).to(job.device) for name, array in feed.items()}
            with torch.inference_mode():
                return opened(features)[raw.OUTPUT].float().cpu()

        inputs = ["input_ids", "attention_mask", "token_type_ids"]
        for length in job.lengths:
            yield _timed(job, run, inputs, model, "fp16", length)
    engine = "cuda-fp16" if job.on_gpu else "torch"
    peer = Library("encode", engine, Path(sys.executable), job.source("default"), peer_environment(), SIZES)
    with closing(peer):
        peer.wait_until_loaded()
        for length in job.lengths:
            workload = exact_lengths(job.tokenizer(), length, 256 if job.quick else 4096)
            rate = peer.measure(Scenario(workload.name, workload, seconds=job.seconds), 0).rate
            yield {"figure": f"encode {length}", "texts_per_second": rate}


# The service


class Answering(NamedTuple):
    path: str
    accept: str
    body: Callable[[list[str]], Any]


RAW = "octet-stream"
ANSWERS = {
    "json": Answering("/embed", "", lambda texts: {"inputs": texts}),
    "base64": Answering(
        "/v1/embeddings",
        "",
        lambda texts: {"input": texts, "model": "default", "encoding_format": "base64"},
    ),
    RAW: Answering("/embed", "application/octet-stream", lambda texts: {"inputs": texts}),
}
SECONDS_OF = {"tokenizing": "simile_tokenize_seconds_sum", "engine": "simile_inference_seconds_sum"}


def service(job: Job) -> Iterator[Row]:
    """Yield the speed of the service over HTTP, and its processor time by part."""
    tokenizer = job.tokenizer()
    texts = exact_lengths(tokenizer, SERVED_TOKENS, 512 if job.quick else 8192).texts
    precision = "fp16" if job.on_gpu else "fp32"
    for workers in WORKERS:
        settings = {
            "SIMILE_MODELS_DIR": str(job.folder / "models"),
            "SIMILE_DEVICE": job.device,
            "SIMILE_PRECISION": precision,
            **({"SIMILE_WORKERS": str(workers)} if workers else {}),
            "SIMILE_MAX_QUEUE_SECONDS": "0",
        }
        with Server(job.folder / f"served-{workers}", settings=settings) as server:
            info = server.info()
            name = f"{info['threads']} workers"
            yield {"figure": name, "form": info["form"], "ready_seconds": server.ready_seconds}
            for clients, count in SMALL_LOADS if job.quick else LOADS:
                for answer in ANSWERS if not workers else (RAW,):
                    measured = _load(server, texts, clients, count, ANSWERS[answer], job)
                    yield {"figure": f"{name}, {clients} x {count}, {answer}", **measured}
            for length in job.lengths if not workers else ():
                some = exact_lengths(tokenizer, length, len(texts) // 2).texts
                clients, count = (SMALL_LOADS if job.quick else LOADS)[-1]
                measured = _load(server, some, clients, count, ANSWERS[RAW], job)
                yield {"figure": f"{name}, {length} tokens, {clients} x {count}, {RAW}", **measured}


def _load(server: Server, texts: list[str], clients: int, count: int, answering: Answering, job: Job) -> Row:
    requests = [
        post_request(answering.path, answering.body(texts[at : at + count]), answering.accept)
        for at in range(0, len(texts) - count + 1, count)
    ]
    before, loop_before = _series(server), machine.main_thread_seconds(server.pid)
    warm = max(2 * clients, (SMALL_WARM_TEXTS if job.quick else WARM_TEXTS) // count)
    load = Load(server.port, requests, clients, job.seconds, warm=warm, pids={"server": server.pid})
    began = time.monotonic()
    answers = Generator(load).finish()
    wall = time.monotonic() - began  # includes the warm-up, like the differences of the metrics below
    after, loop_after = _series(server), machine.main_thread_seconds(server.pid)
    embedded = max(1.0, after["texts"] - before["texts"])
    window, embedded_rate = answers.window, answers.rate * count
    shares = {
        f"{name}_us_a_text": 1e6 * (after[name] - before[name]) / embedded
        for name in ("tokenizing", "engine")
    }
    return {
        "texts_per_second": embedded_rate,
        "p50_ms": float(np.median(answers.milliseconds)) if len(answers.milliseconds) else None,
        "server_cpu": window.cpu_seconds["server"] / window.seconds,
        "load_cpu": window.cpu_seconds["load"] / window.seconds,
        "loop_cpu": (loop_after - loop_before) / wall,
        "texts_a_batch": embedded / max(1.0, after["batches"] - before["batches"]),
        **shares,
    }


def _series(server: Server) -> dict[str, float]:
    """Return the sum over all labels of each metric that `_load` uses."""
    names = SECONDS_OF | {"texts": "simile_batch_texts_sum", "batches": "simile_batch_texts_count"}
    found = dict.fromkeys(names, 0.0)
    for line in call(server.port, "GET", "/metrics").splitlines():
        for name, metric in names.items():
            if line.startswith(metric + "{"):
                found[name] += float(line.rsplit(" ", 1)[1])
    return found


# Exactness and memory


def exactness(job: Job) -> Iterator[Row]:
    """Yield how close vectors are to those of fp32, how close batches are to single texts, and GPU memory."""
    precision: Precision = "fp16" if job.on_gpu else "fp32"
    encoder = _open(job, precision)
    chance = random.Random(SEED)
    lengths = [chance.randint(3, 256 if not job.quick else 32) for _ in range(POOL)]
    ids = np.random.default_rng(SEED).integers(2000, 12_000, (POOL, max(lengths)))
    rows = [[101, *ids[at, : length - 2].tolist(), 102] for at, length in enumerate(lengths)]
    published = _open(job, "fp32")
    exact = np.concatenate([published.forward([row]) for row in rows[:64]])
    published.close()
    alone = np.concatenate([encoder.forward([row]) for row in rows])
    cosines = np.sum(alone[:64] * exact, axis=1)
    yield {"figure": "alone, cosine to fp32", "least": float(cosines.min())}
    batches = SMALL_RUN_BATCHES if job.quick or not job.on_gpu else BATCHES
    least, most, early = 1.0, 0.0, 0
    began = time.perf_counter()
    for done in range(1, batches + 1):
        at = chance.sample(range(POOL), chance.randint(1, 256))
        found = encoder.forward([rows[one] for one in at])
        least = min(least, float(np.sum(found * alone[at], axis=1).min()))
        most = max(most, float(np.abs(found - alone[at]).max()))
        if job.on_gpu and done == batches // 4:
            early = int(query_gpu("memory.used"))
    row: Row = {"figure": f"{batches} random batches", "least_cosine_to_alone": least}
    row |= {"largest_difference": most, "seconds": time.perf_counter() - began}
    yield row
    if job.on_gpu:
        used = int(query_gpu("memory.used"))
        yield {"figure": "memory, MiB", "after_a_quarter": early, "at_the_end": used}


def _open(job: Job, precision: Precision) -> Encoder:
    runtime = "onnxruntime-cuda" if job.on_gpu else "onnxruntime"
    form = Form(precision, runtime)  # type: ignore[arg-type]
    return Encoder.open(job.version(), form=form, place=job.place)


def exhaustion(job: Job) -> Iterator[Row]:
    """Yield the accuracy on a GPU that is nearly full, so that batches must be computed in halves."""
    if not job.on_gpu:
        raise Unavailable("only a GPU's memory can be filled")
    torch = _torch()
    encoder = _open(job, "fp16")
    rows = [[101, *range(2000, 2254), 102]] * 8192
    expected = encoder.forward(rows[:1])
    free, _ = torch.cuda.mem_get_info()
    filling = torch.empty(max(0, free - 400 * 2**20), dtype=torch.uint8, device="cuda")
    free_after, _ = torch.cuda.mem_get_info()
    began = time.perf_counter()
    found = encoder.forward(rows)
    cosine = float((found @ expected[0]).min())
    row: Row = {"figure": "8192 x 256 tokens", "free_mb": free_after / 2**20, "least_cosine": cosine}
    yield row | {"seconds": time.perf_counter() - began}
    del filling
    torch.cuda.empty_cache()
    again = encoder.forward(rows[:64])
    yield {"figure": "afterwards", "least_cosine": float((again @ expected[0]).min())}


# Search, training and bulk


def search(job: Job) -> Iterator[Row]:
    """Yield the speed of one index of a million vectors on the card and on the processor."""
    import faiss  # noqa: PLC0415

    if not hasattr(faiss, "StandardGpuResources"):
        raise Unavailable("this FAISS has no GPU support")
    from service.index.gpu import open_gpu  # noqa: PLC0415

    count, dimension, lists = (20_000, 384, 64) if job.quick else (1_000_000, 384, 4096)
    chance = np.random.default_rng(SEED)
    centers = chance.standard_normal((lists, dimension), np.float32)
    vectors = centers[chance.integers(0, lists, count)]
    vectors += 0.5 * chance.standard_normal((count, dimension), np.float32)
    faiss.normalize_L2(vectors)
    built = faiss.index_factory(dimension, f"IVF{lists},SQ8", faiss.METRIC_INNER_PRODUCT)
    built.train(vectors[: 40 * lists])
    built.add(vectors)
    queries = vectors[chance.integers(0, count, 4096)]
    gpu = open_gpu(job.device)
    placed = gpu.place(built) if gpu else None
    swig: Any = faiss
    probes = swig.SearchParametersIVF(nprobe=64)
    for at_once in (1, 32, 256):
        some = queries[:at_once]
        works: dict[str, Callable[[], object]] = {}
        works["processor"] = partial(built.search, some, 100, params=probes)
        if placed is not None:
            works["card"] = partial(placed.candidates, some, 100, 64)
        for name, work in works.items():
            done, seconds = _repeat(work, at_once, job.seconds)
            yield {"figure": f"{name}, {at_once} queries", "queries_per_second": done / seconds}


def training(job: Job) -> Iterator[Row]:
    """Yield trained sentences a second: Simile's trainer and sentence-transformers' own."""
    for package in ("torch", "datasets", "sentence_transformers"):
        if find_spec(package) is None:
            raise Unavailable(f"{package} is not installed")
    from benchmarks import training as trained  # noqa: PLC0415  it needs torch
    from training.methods.recipe import load_recipe  # noqa: PLC0415  as above
    from training.text.corpus import Corpus  # noqa: PLC0415  as above

    texts = exact_lengths(job.tokenizer(), 24, 2048 if job.quick else 65_536).texts
    corpus = Corpus.of(texts, "made by a seed")
    options = argparse.Namespace(
        peer_python=Path(sys.executable),
        repeats=1 if job.quick else 3,
        steps=2 if job.quick else 60,
        threads=min(8, os.cpu_count() or 1),
        device=job.device,
    )
    for precision in reversed(trained.PRECISIONS) if job.on_gpu else ("fp32",):
        recipe, folder = load_recipe(trained.RECIPE), job.folder / f"training-{precision}"
        about, results = trained.measure(recipe, corpus, job.source("default"), folder, options, precision)
        yield {"figure": f"{precision}, peer", **about}
        for name in (trained.OURS, trained.PEER):
            spread = results.spread((name, precision))
            yield {"figure": f"{precision}, {name}", "sentences_per_second": spread and spread.text()}


def reranker(job: Job) -> Iterator[Row]:
    """Yield the training steps a second of a cross-encoder, without its start, of 16 pairs of 65 tokens.

    The start is the time of few steps, the least of two runs.
    """
    if find_spec("torch") is None:
        raise Unavailable("torch is not installed")
    texts, chance = exact_lengths(job.tokenizer(), 33, 4096).texts, random.Random(SEED)
    file = job.folder / "pairs.tsv"
    rows = ((*chance.sample(texts, 2), f"{5 * chance.random():.2f}") for _ in range(8192))
    lines = map("\t".join, [("sentence1", "sentence2", "score"), *rows])
    file.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    few, many = (1, 9) if job.quick else (20, 620)
    for precision in ("bf16", "fp32") if job.on_gpu else ("fp32",):
        command = ["training", "train", "cross-encoder-scores", "--base", str(job.source("default"))]
        command += ["--corpus", str(file), "--device", job.device, "--precision", precision]
        seconds = []
        for number, steps in enumerate((few, few, many)):
            out = job.folder / f"reranker-{precision}-{number}"
            seconds.append(_run([*command, "--steps", str(steps), "--out", str(out)]))
        taken = seconds[2] - min(seconds[:2])
        if taken <= 0:
            raise BenchError(f"{many} steps took no longer than {few}")
        yield {"figure": f"cross-encoder, {precision}", "steps_per_second": (many - few) / taken}


def bulk(job: Job) -> Iterator[Row]:
    """Yield texts a second of `simile embed`, with its start, from Parquet to Parquet."""
    if find_spec("pyarrow") is None:
        raise Unavailable("pyarrow is not installed")
    import pyarrow as pa  # noqa: PLC0415  of the extra bulk
    import pyarrow.parquet as pq  # noqa: PLC0415  as above

    count = 2000 if job.quick else 400_000
    texts = exact_lengths(job.tokenizer(), 65, min(count, 65_536)).texts
    ids = [str(at) for at in range(count)]
    file, version = job.folder / "texts.parquet", job.version()
    pq.write_table(pa.table({"id": ids, "text": [texts[at % len(texts)] for at in range(count)]}), file)
    for precision in ("fp16", "fp32") if job.on_gpu else ("fp32",):
        command = ["models", "embed", str(file), str(job.folder / f"vectors-{precision}")]
        command += ["--model", version.name, "--models-dir", str(version.parent)]
        seconds = _run([*command, "--device", job.device, "--precision", precision])
        yield {"figure": f"embed, {precision}, 65 tokens", "texts_per_second": count / seconds}


def _run(command: Sequence[str]) -> float:
    """Run a module of the project in a process of its own. Return the seconds that it took."""
    began = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-m", *command], cwd=PROJECT, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise BenchError(f"{command[1]} ended with status {done.returncode}: {done.stderr[-300:]}")
    return time.perf_counter() - began


def unbuilt(job: Job) -> Iterator[Row]:
    """Yield the figures that cannot be measured yet, with the reasons."""
    yield {"figure": "cross-encoder against sentence-transformers", "skipped": "no peer is written"}


STAGES = {
    "peak": Stage(peak, 60, 2),
    "models": Stage(models, 180, 0),
    "engine": Stage(engine, 120, 2 * 2 * 4 * 4),
    "service": Stage(service, 180, 3 * (3 + 1 + 1)),
    "library": Stage(library, 120, 4 * 2 * 4),
    "optimizer": Stage(optimizer, 120, 2 * 4 * 4),
    "exactness": Stage(exactness, 180, 0),
    "exhaustion": Stage(exhaustion, 90, 0),
    "training": Stage(training, 240, 0),
    "search": Stage(search, 240, 6),
    "bulk": Stage(bulk, 180, 0),
    "reranker": Stage(reranker, 240, 0),
    "unbuilt": Stage(unbuilt, 10, 0),
}
