"""Compare `python -m models embed` with the raw engine: `python -m benchmarks.bulk --corpus FILE`.

The raw engine (raw.py) gets texts that are already tokenized, sorted and padded. It runs before and after
each job, on a sample of the texts. The job reads a Parquet file and writes its parts. Its time includes the
start of Python and opening the version. Memory is sampled during the job.
"""

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.command import (
    PROJECT,
    BenchError,
    Verdict,
    build_parser,
    format_table,
    progress,
    report,
    scratch_folder,
)
from benchmarks.documents import draw_texts
from benchmarks.machine import Sample, memory_growth, take_sample
from benchmarks.raw import RawEngine, onnx_runtime_calls
from benchmarks.rounds import CONTENDED, Measured, Scenario
from benchmarks.workloads import Workload
from models import cpus
from models.engines.opening import INT8_NAME
from models.manifest import ONNX
from models.publishing.default import publish_default
from models.store import ModelStore
from models.tokens.tokenizer import FILE_NAME, Tokenizer

MIN_RATIO = 0.95  # promise: texts per second of the job, compared with the raw engine
MAX_GROWTH = 1.05  # promise: memory in the last third of the job, compared with the second third
SAMPLE = 5000  # texts of the raw engine
SAMPLE_SECONDS = 0.2
GROUP_ROWS = 20_000
GRAPHS = {"fp32": ONNX, "int8": str(Path(ONNX).with_name(INT8_NAME))}


def main() -> None:
    options = _parse_options()
    with scratch_folder(subprocess.CalledProcessError) as folder:
        texts = draw_texts(options.corpus, options.texts)
        pq.write_table(pa.table({"text": texts}), folder / "in.parquet", row_group_size=GROUP_ROWS)
        store = ModelStore(folder / "models")
        progress("publishing the default model")
        version = publish_default(store, int8=True).version
        found = {precision: measure(store, version, precision, texts, folder) for precision in GRAPHS}
    rows = [[precision, *figures.values()] for precision, figures in found.items()]
    verdicts = []
    for precision, figures in found.items():
        busy = figures["foreign"] > CONTENDED
        verdicts += [
            Verdict(
                f"{precision}: job / raw engine", figures["ratio"], MIN_RATIO, at_least=True, contended=busy
            ),
            Verdict(f"{precision}: growth of memory", figures["growth"], MAX_GROWTH),
        ]
    table = format_table(("precision", *next(iter(found.values()))), rows)
    title = f"Embedding {len(texts):,} texts on {cpus.available()} processors."
    report("bulk", {"texts": len(texts), "found": found}, [title, table], verdicts)


def _parse_options() -> argparse.Namespace:
    parser = build_parser("bulk", __doc__, corpus=True, quick=True)
    parser.add_argument("--texts", type=int, help="200000; 3000 with --quick")
    options = parser.parse_args()
    options.texts = options.texts or (3000 if options.quick else 200_000)
    return options


def measure(
    store: ModelStore, version: str, precision: str, texts: list[str], folder: Path
) -> dict[str, float]:
    """Return the figures of one precision, with the raw engine before and after the job."""
    published = store.folder(version)
    calls, inputs = onnx_runtime_calls(published / GRAPHS[precision], cpus.available())
    manifest = store.verify(version)
    tokenizer = Tokenizer(published / FILE_NAME, manifest.max_length)
    sample = random.Random(0).sample(texts, min(SAMPLE, len(texts)))
    ids = [[*tokens.ids] for tokens in tokenizer.tokenize(sample)]
    raw = RawEngine("raw", calls, inputs, tokenizer)
    scenario = Scenario("bulk", Workload("bulk", sample, ids))
    raw.choose_budget(scenario.workload)
    progress(f"{precision}: the raw engine, the job, the raw engine")
    before = raw.measure(scenario, 0)
    job, memory = embed(store, version, precision, len(texts), folder)
    after = raw.measure(scenario, 1)
    rate = statistics.mean([before.rate, after.rate])
    cpu_ms = statistics.mean([before.cpu_ms or 0.0, after.cpu_ms or 0.0])
    return {
        "texts/s": job.rate,
        "raw texts/s": rate,
        "ratio": job.rate / rate,
        "raw spread": abs(before.rate - after.rate) / rate,
        "ratio of processor time": cpu_ms / (job.cpu_ms or 1.0),
        "foreign": max(each.foreign for each in (before, job, after)),
        **memory,
    }


def embed(
    store: ModelStore, version: str, precision: str, count: int, folder: Path
) -> tuple[Measured, dict[str, float]]:
    """Run the job in a process of its own. Return its speed, and its memory in MiB and growth."""
    out = folder / precision
    command = ["models", "embed", str(folder / "in.parquet"), str(out), "--model", version]
    command += ["--models-dir", str(store.root), "--precision", precision]
    used, busy, started = os.times(), _busy_seconds(), time.monotonic()
    process = subprocess.Popen([sys.executable, "-m", *command], cwd=PROJECT, stdout=subprocess.DEVNULL)
    samples: list[Sample] = []
    while process.poll() is None:
        with suppress(OSError, KeyError):  # The process ends at this moment.
            samples.append(take_sample(process.pid))
        time.sleep(SAMPLE_SECONDS)
    seconds = time.monotonic() - started
    if process.returncode:
        raise BenchError(f"the job ended with status {process.returncode}")
    done = json.loads((out / "done.json").read_text("ascii"))
    if done["documents"] != count:
        raise BenchError(f"the job embedded {done['documents']} of {count} texts")
    now = os.times()
    own = now.children_user + now.children_system - used.children_user - used.children_system
    foreign = max(0.0, (_busy_seconds() - busy - own) / (seconds * (os.cpu_count() or 1)))
    memory = {"peak MiB": max(sample.rss_mb for sample in samples), "growth": memory_growth(samples)}
    return Measured(count / seconds, foreign, 1000 * own / count), memory


def _busy_seconds() -> float:
    """Return the seconds in which the processors of this machine worked."""
    values = [int(value) for value in Path("/proc/stat").read_text("ascii").split("\n", 1)[0].split()[1:]]
    return (sum(values) - values[3] - values[4]) / os.sysconf("SC_CLK_TCK")


if __name__ == "__main__":
    main()
