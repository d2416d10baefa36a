"""Loss and dev score of a run by step, as its record has them, for a drawing.

    {"loss": [[10, 1.25], …], "dev": [[125, 0.7712], …], "dev_name": "stsb_dev"}

Stages follow each other: the steps of one are counted on from the one before. Imports no torch.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

MOST = 200  # points of each line: as many as a drawing shows
_RECORD = "record.jsonl"  # training/runs/log.py says what is in it
_ABOUT = {"event", "time", "step"}


class Curve:
    """`add` takes the events of a record one by one."""

    def __init__(self) -> None:
        self._loss: dict[int, float] = {}
        self._dev: dict[int, float] = {}
        self._name = ""
        self._before = 0  # steps of earlier stages
        self.steps: int | None = None  # of this stage, as planned

    def add(self, event: Mapping[str, Any]) -> None:
        kind, step = event["event"], event.get("step", 0) + self._before
        if kind in {"start", "resume"}:
            self.steps = event.get("steps", self.steps)
            for line in (self._loss, self._dev):  # what came after it was lost, and is done again
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
        """As JSON; every so many of the points where they are more than `MOST`."""
        return {"loss": _thinned(self._loss), "dev": _thinned(self._dev), "dev_name": self._name}


def read_curve(run: Path) -> dict[str, Any]:
    """The curve of a run, or of the stages in its folder; empty lines where there is no record."""
    curve = Curve()
    for file in sorted(run.glob(f"**/{_RECORD}"), key=_place):
        for line in file.read_text(encoding="utf-8").splitlines():
            curve.add(json.loads(line))
    return curve.shown()


def _place(file: Path) -> tuple[int, str]:
    """Stages are numbered: 1-mlm, 2-triples, …, 10-…"""
    number = file.parent.name.partition("-")[0]
    return (int(number) if number.isdigit() else 0, file.parent.name)


def _thinned(line: Mapping[int, float]) -> Sequence[tuple[int, float]]:
    points = sorted(line.items())
    every = -(-len(points) // MOST) or 1
    return points[::-1][::every][::-1]  # the last one stays
