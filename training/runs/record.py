"""Write the record of a run as JSON lines, and read the curves of losses and dev scores from it.

    {"event": "start", "recipe": {…}, "corpus": …, "seed": …, "versions": {…}, "machine": {…}}
    {"event": "step", "step": 10, "loss": 1.25, "lr": 2.9e-05, "sentences_per_second": 61.3}
    {"event": "dev", "step": 125, "stsb_dev": 0.7712}
    {"event": "resume", "step": 300, "steps": 500}
    {"event": "end", "step": 500, …}

If an alarm stopped the run, the last event is `saturated` or `diverged`. Steps are counted from 1. After a
resumption, steps replace earlier steps with the same number. Imports no torch.
"""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

from models.version import VERSION
from training.runs.options import Told

if TYPE_CHECKING:
    import torch

FILE_NAME = "record.jsonl"
MAX_POINTS = 200  # points of each curve
_ABOUT = {"event", "time", "step"}


class Record:
    def __init__(self, file: Path | None, told: Told) -> None:
        """Opens a record.

        Args:
            file: File to append to. None: events are neither written nor passed to `told`.
            told: Function that is called with every event.

        """
        self._file, self._told = file.open("a", encoding="utf-8") if file else None, told

    @property
    def empty(self) -> bool:
        """True if the file has no lines. False if the record has no file."""
        return self._file is not None and self._file.tell() == 0

    def write(self, event: str, **fields: Any) -> None:
        if self._file is None:
            return
        when = datetime.now(UTC).isoformat(timespec="seconds")
        line = {"event": event, "time": when} | fields
        self._file.write(json.dumps(line, ensure_ascii=False, allow_nan=False) + "\n")
        self._file.flush()
        self._told(line)

    def close(self) -> None:
        if self._file is not None:
            self._file.close()


def versions() -> dict[str, str]:
    packages = ("torch", "transformers", "tokenizers", "numpy")
    ours = {"python": platform.python_version(), "simile": VERSION}
    return ours | {name: metadata.version(name) for name in packages}


def machine(device: torch.device) -> dict[str, Any]:
    import torch  # noqa: PLC0415  seconds

    cuda = device.type == "cuda"
    name = torch.cuda.get_device_name(device) if cuda else platform.processor() or platform.machine()
    return {"device": name, "threads": torch.get_num_threads(), "cpus": len(os.sched_getaffinity(0))}


class Curve:
    """Losses and dev scores by step, collected from the events of records.

    In a run of several stages, the step numbers of a stage continue after the previous stage.
    """

    def __init__(self) -> None:
        self._loss: dict[int, float] = {}
        self._dev: dict[int, float] = {}
        self._name = ""
        self._before = 0  # steps of earlier stages
        self.steps: int | None = None  # planned steps of this stage

    def add(self, event: Mapping[str, Any]) -> None:
        kind, step = event["event"], event.get("step", 0) + self._before
        if kind in {"start", "resume"}:
            self.steps = event.get("steps", self.steps)
            for line in (self._loss, self._dev):  # later steps were lost and are repeated
                for lost in [at for at in line if at > step]:
                    del line[lost]
        elif kind == "step":
            self._loss[step] = event["loss"]
        elif kind == "dev":
            [self._name] = event.keys() - _ABOUT
            if event[self._name] is not None:
                self._dev[step] = event[self._name]
        elif kind == "end":
            self._before = step

    def shown(self) -> dict[str, Any]:
        """Returns {"loss": [(10, 1.25), …], "dev": [(125, 0.7712), …], "dev_name": "stsb_dev"}."""
        return {"loss": _thinned(self._loss), "dev": _thinned(self._dev), "dev_name": self._name}


def read_curve(run: Path) -> dict[str, Any]:
    """Reads the curves of a run, or of all stages in the folder `run`. Without a record they are empty."""
    curve = Curve()
    for file in sorted(run.glob(f"**/{FILE_NAME}"), key=_place):
        for line in file.read_text(encoding="utf-8").splitlines():
            curve.add(json.loads(line))
    return curve.shown()


def _place(file: Path) -> tuple[int, str]:
    """Returns a sort key, which orders the folders of stages by number: 1-mlm, 2-triples, …, 10-…"""
    number = file.parent.name.partition("-")[0]
    return (int(number) if number.isdigit() else 0, file.parent.name)


def _thinned(line: Mapping[int, float]) -> Sequence[tuple[int, float]]:
    points = sorted(line.items())
    every = -(-len(points) // MAX_POINTS) or 1
    return points[::-1][::every][::-1]  # keeps the last point
