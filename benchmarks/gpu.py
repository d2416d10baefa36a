"""Measure every figure of a GPU in one run, which continues after failures: `python -m benchmarks.gpu`.

    stage ─▶ a process of its own, with a time limit ─▶ each figure is a line of the output file at once
    stage ─▶ …                                                                  the tables are printed last

The stages are in gpu_stages.py, in order of importance. A stage that fails or exceeds its limit leaves a line
with the reason, and the next stage begins. Models and texts are made by a seed, so a machine without a
network needs only the package of the default model. `--device cpu` rehearses the command; its figures mean
nothing. Needs the extra gpu; torch and sentence-transformers for the comparisons.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from pathlib import Path
from typing import Any

from benchmarks.command import (
    PROJECT,
    RESULTS,
    append_row,
    build_parser,
    format_table,
    progress,
    scratch_folder,
)
from benchmarks.gpu_stages import STAGES, Job, Unavailable

LOG_TAIL = 600  # characters of a failed stage's log
MARK = "GPU_BENCHMARK_STAGE"  # environment variable of a stage and of every program that it starts
TIMED_OUT = "stopped at its limit"


def main() -> None:
    parser = build_parser("gpu", __doc__, quick=True)
    parser.add_argument("--device", default="cuda", help="cuda or cpu (a rehearsal)")
    parser.add_argument("--seconds", type=float, default=10.0, help="of each measurement")
    parser.add_argument("--stages", nargs="+", choices=tuple(STAGES), default=tuple(STAGES))
    parser.add_argument("--output", type=Path, default=RESULTS / "gpu.jsonl")
    parser.add_argument("--total", type=float, default=3600.0, help="seconds of all stages")
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    job = Job(options.folder or Path(), options.device, options.seconds, options.quick)
    output: Path = options.output.absolute()
    if options.folder:
        (stage,) = options.stages
        run_stage(stage, job, output)
        return
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_text("", encoding="utf-8")
    ends = time.monotonic() + options.total
    with scratch_folder() as folder:
        for stage in options.stages:
            limit = min(STAGES[stage].limit(job), ends - time.monotonic())
            _run_bounded(stage, job._replace(folder=folder), output, limit)
    print(summarize(output))


def run_stage(name: str, job: Job, output: Path) -> None:
    """Run a stage in this process. Write a line for each figure, and for the reason if the stage fails."""
    stage = STAGES[name]
    try:
        for row in stage.measure(job):
            append_row(output, {"stage": name, **row})
    except Unavailable as error:
        append_row(output, {"stage": name, "skipped": str(error)})
    except Exception as error:  # noqa: BLE001  the reason belongs in the output file, whatever it is
        traceback.print_exc()
        append_row(output, {"stage": name, "failed": f"{type(error).__name__}: {error}"[:LOG_TAIL]})


def _run_bounded(stage: str, job: Job, output: Path, limit: float) -> None:
    """Run a stage in a process of its own, and kill it with all its children after `limit` seconds."""
    if limit <= 0:
        append_row(output, {"stage": stage, "skipped": "no time is left"})
        return
    progress(f"{stage}, {limit:.0f} s at most")
    command = [sys.executable, "-m", "benchmarks.gpu", f"--stages={stage}", f"--folder={job.folder}"]
    command += [f"--device={job.device}", f"--seconds={job.seconds}", f"--output={output}"]
    command += ["--quick"] * job.quick
    mark = f"{job.folder.name}-{stage}"
    began = time.monotonic()
    with tempfile.TemporaryFile("w+", errors="replace") as log:
        environment = os.environ | {MARK: mark}
        process = subprocess.Popen(command, cwd=PROJECT, env=environment, stdout=log, stderr=log)
        try:
            status = process.wait(limit)
            reason = f"ended with status {status}" if status else ""
        except subprocess.TimeoutExpired:
            reason = TIMED_OUT
        _kill_marked(f"{MARK}={mark}")
        process.wait()
        log.seek(0)
        tail = log.read()[-LOG_TAIL:]
    seconds = round(time.monotonic() - began, 1)
    failure = {"failed": reason, "log": tail} if reason else {}
    append_row(output, {"stage": stage, "seconds": seconds, **failure})


def _kill_marked(mark: str) -> None:
    """Kill every process whose environment contains `mark`, even if its parent has ended."""
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and mark.encode() in (entry / "environ").read_bytes().split(b"\0"):
                os.kill(int(entry.name), signal.SIGKILL)
        except OSError:  # the process has ended, or belongs to another user
            continue


def read_rows(output: Path) -> list[dict[str, Any]]:
    """Return the lines of an output file. A line that was cut off by a stop is left out."""
    rows = []
    for line in output.read_text(encoding="utf-8").splitlines():
        try:
            rows.append(json.loads(line))
        except json.JSONDecodeError:
            continue
    return rows


def summarize(output: Path) -> str:
    """Return a table for each stage, with its duration, and the reason if it was skipped or failed."""
    rows = read_rows(output)
    paragraphs = []
    for stage in dict.fromkeys(row["stage"] for row in rows):
        found = [row for row in rows if row["stage"] == stage]
        figures = [
            {key: value for key, value in row.items() if key != "stage"} for row in found if "figure" in row
        ]
        others = [row for row in found if "figure" not in row]
        notes = [f"{key}: {row[key]}" for row in others for key in ("skipped", "failed") if key in row]
        seconds = sum(row.get("seconds", 0.0) for row in others)
        columns = list(dict.fromkeys(key for row in figures for key in row))
        table = format_table(columns, [[row.get(key, "") for key in columns] for row in figures])
        paragraphs += [f"## {stage} ({seconds:.0f} s)", table if figures else "", "\n".join(notes)]
    return "\n\n".join(filter(None, paragraphs))


if __name__ == "__main__":
    main()
