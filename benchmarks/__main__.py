"""`make bench`: measure the service against the raw engine, and what one more document costs.

    publish ─▶ raw, server, raw, server … ─▶ stop ─▶ fill the store ─▶ start ─▶ add documents ─▶ report

Everything happens in a temporary folder of the checkout, on the same disk. The figures are worth something on
a quiet machine; what others used is measured too, and spoilt repeats are left out.
"""

import argparse
import json
import sys
import tempfile
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchmarks import documents, machine, report, workloads
from benchmarks.load import LoadError
from benchmarks.raw import RawEngine
from benchmarks.server import Server, ServerError
from benchmarks.throughput import Bench, Scenario, in_turns
from models.tokenizer import FILE_NAME, Tokenizer

SCRATCH = workloads.PROJECT / ".benchmarks"
RESULTS = workloads.PROJECT / "benchmarks" / "results" / "latest.json"
SENTENCE_CLIENTS = 64
MIXTURE_CLIENTS = 32


def main() -> None:
    options = _options()
    if not Path("/proc/stat").exists():
        sys.exit("make bench needs /proc, so Linux.")
    SCRATCH.mkdir(exist_ok=True)
    try:
        with tempfile.TemporaryDirectory(dir=SCRATCH) as folder:
            result, text = run(options, Path(folder))
    except (LoadError, ServerError) as error:
        sys.exit(f"The bench failed: {error}")
    options.json.parent.mkdir(parents=True, exist_ok=True)
    options.json.write_text(json.dumps(result, indent=2) + "\n")
    print(text)
    print(f"\nAll of it is in {options.json}.")
    if options.check and not all(verdict.kept for verdict in report.verdicts(result)):
        sys.exit(1)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make bench BENCH_ARGS=…", description=__doc__.split("\n", 1)[0])
    parser.add_argument("--repeats", type=int, help="clean repeats wanted (5; 2 with --quick)")
    parser.add_argument("--quick", action="store_true", help="fewer texts and repeats: a look, not a figure")
    parser.add_argument("--check", action="store_true", help="exit with 1 when a floor is missed")
    parser.add_argument(
        "--wait",
        type=float,
        default=0.0,
        metavar="SECONDS",
        help="before each repeat, wait up to so long for the machine to be quiet",
    )
    parser.add_argument("--json", type=Path, default=RESULTS, help="where the figures go")
    parser.add_argument(
        "--program",
        type=Path,
        default=workloads.PROJECT,
        help="another checkout whose service to measure, for trying a change",
    )
    options = parser.parse_args()
    options.repeats = options.repeats or (2 if options.quick else 5)
    return options


def run(options: argparse.Namespace, folder: Path) -> tuple[dict[str, Any], str]:
    """Everything, in `folder`: the figures, and the report of them."""
    share = 4 if options.quick else 1
    data_dir = folder / "data"
    data_dir.mkdir()
    result: dict[str, Any] = {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "quick": options.quick,
        "machine": machine.describe(folder),
    }
    say("publishing the default model and starting the service")
    with Server(data_dir, options.program) as server:
        info = server.info()
        version = data_dir / "models" / info["model_version"]
        source = workloads.corpus()
        tokenizer = Tokenizer(version / FILE_NAME, info["max_input_length"])
        sentences = workloads.sentences(tokenizer, source, 4096 // share)
        mixture = workloads.mixture(tokenizer, source, 2048 // share)
        say(f"choosing the raw engine's batch size ({source.source})")
        engine = RawEngine(version / "onnx" / "model.onnx", info["threads"])
        benches = [
            Bench(Scenario(sentences, SENTENCE_CLIENTS, 16 / share), engine, server),
            Bench(Scenario(mixture, MIXTURE_CLIENTS, 16 / share), engine, server),
        ]
        in_turns(benches, options.repeats, options.wait, say)
        memory = machine.memory_mb(server.pid)
    result |= {
        "model": info["model_version"],
        "threads": info["threads"],
        "texts": source.source,
        "throughput": [report.throughput(bench) for bench in benches],
        "server_memory_mb": memory,
        "documents": _documents(data_dir, sentences.texts, 60 if options.quick else 200, options.program),
    }
    return result, report.text(result, benches)


def _documents(data_dir: Path, texts: list[str], pairs: int, program: Path) -> dict[str, Any]:
    say(f"storing {documents.DOCUMENTS} documents")
    fill_seconds = documents.fill(data_dir, texts, documents.DOCUMENTS)
    say("starting the service on them")
    with Server(data_dir, program) as server:
        say("adding documents one by one")
        alone = documents.alone(server, texts[:pairs])
        say("adding documents while a client searches")
        searched = documents.while_searching(server, texts[:pairs])
        return {
            "stored": documents.DOCUMENTS,
            "fill_seconds": fill_seconds,
            "ready_seconds": server.ready_seconds,
            "alone": report.added(alone),
            "while_searching": report.added(searched),
            "server_memory_mb": machine.memory_mb(server.pid),
        }


def say(progress: str) -> None:
    print(f"bench: {progress} …", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
