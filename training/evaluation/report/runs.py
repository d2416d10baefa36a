"""Read the records of training runs for a report. Start at `read_runs`."""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

from models.files.bounded import parse_json
from training.arguments import expanded
from training.errors import TrainingError

_FILE_NAME = "record.jsonl"  # described in training/runs/record.py
_DEV = "stsb_dev"


def add_runs(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--run",
        metavar="FOLDER",
        action="append",
        dest="runs",
        default=[],
        help="of `train --out`: the report shows its dev scores; may be given again",
    )


class Course(NamedTuple):
    name: str
    method: str
    seed: int | None
    base: str
    planned: int | None  # steps
    done: int  # steps
    finished: bool
    dev: dict[int, float | None]  # score after so many steps; None if it was not finite
    fitted: bool  # True if a post-processor was fitted, which makes the last step the best
    seconds: float  # of work, without interruptions
    rate: float | None  # median sentences per second
    device: str

    @property
    def best(self) -> int | None:
        """The step whose weights are in best/: the first with the highest dev score. None without scores."""
        scored = {step: score for step, score in self.dev.items() if score is not None}
        if not scored:
            return None
        return max(scored) if self.fitted else max(scored, key=lambda step: (scored[step], -step))


def read_runs(folders: Sequence[str]) -> list[Course]:
    """Reads the records of runs. A run is named like its folder, or by the given path if names repeat.

    Raises:
        TrainingError: A folder has no readable record.
    """
    names = [expanded(given).resolve().name for given in folders]
    if len(set(names)) < len(names):
        names = list(folders)
    return [_course(name, expanded(given)) for name, given in zip(names, folders, strict=True)]


def _course(name: str, folder: Path) -> Course:
    events = list(_events(folder / _FILE_NAME))
    if not events or events[0]["event"] != "start":
        raise TrainingError(f"{folder / _FILE_NAME} does not tell how the run began.")
    start, *after = events
    dev: dict[int, float | None] = {}
    done, rates = 0, []
    for event in after:
        kind, step = event["event"], event.get("step", done)
        if kind == "resume":  # later steps were lost and are repeated
            dev = {at: score for at, score in dev.items() if at <= step}
            done = step
        if kind == "step" and event.get("sentences_per_second"):
            rates += [event["sentences_per_second"]]
        if kind == "dev":
            dev.pop(step, None)
            dev[step] = event.get(_DEV)
        done = max(done, step)
    return Course(
        name=name,
        method=str(start.get("method", "")),
        seed=start.get("seed"),
        base=str(start.get("base_name", "")),
        planned=start.get("steps"),
        done=done,
        finished=events[-1]["event"] == "end",
        dev=dict(sorted(dev.items())),
        fitted=bool(start.get("described", {}).get("post")),
        seconds=_worked(events),
        rate=statistics.median(rates) if rates else None,
        device=str(start.get("machine", {}).get("device", "")),
    )


def _events(file: Path) -> Iterator[dict[str, Any]]:
    """Yields the events of a record. Ignores an incomplete last line, which a running training may write.

    Raises:
        TrainingError: A line is not an event. The message names the line.
    """
    try:
        lines = file.read_bytes().split(b"\n")
    except (FileNotFoundError, NotADirectoryError):
        raise TrainingError(f"{file.parent} holds no record of `python -m training train`.") from None
    for number, line in enumerate(lines[:-1], 1):
        try:
            event = parse_json(line)
            datetime.fromisoformat(event["time"])
            known = isinstance(event["event"], str) and isinstance(event.get("step", 0), int)
            figures = (event.get(_DEV), event.get("sentences_per_second"))
            known = known and all(value is None or isinstance(value, int | float) for value in figures)
        except (ValueError, KeyError, TypeError):
            known = False
        if not known:
            raise TrainingError(f"{file}, line {number}: it is no event of a training run.")
        yield event


def _worked(events: Sequence[dict[str, Any]]) -> float:
    """Returns the seconds that a run worked, without the pauses before it was resumed."""
    times = [datetime.fromisoformat(event["time"]) for event in events]
    spans = zip(times, times[1:], events[1:], strict=False)
    return sum((then - now).total_seconds() for now, then, event in spans if event["event"] != "resume")
