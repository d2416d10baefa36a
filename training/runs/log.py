"""The record of a run: JSON lines that are only ever appended, so that it tells of interruptions as well.

    {"event": "start", "recipe": {…}, "corpus": …, "seed": …, "versions": {…}, "machine": {…}}
    {"event": "step", "step": 10, "loss": 1.25, "lr": 2.9e-05, "sentences_per_second": 61.3}
    {"event": "dev", "step": 125, "stsb_dev": 0.7712}
    {"event": "resume", "step": 300, "steps": 500}
    {"event": "end", "step": 500, …}

A run that ended by an alarm has `saturated` (nothing left to learn) or `diverged` (a loss that is no number)
in the place of `end`. A step is counted from 1 here: after step 10, ten are done. Steps after a resumption
supersede those of the same number before it.
"""

from __future__ import annotations

import json
import os
import platform
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

from training.runs.options import Told

FILE_NAME = "record.jsonl"
ALARMS = ("saturated", "diverged")  # the last event of a run that one of them ended


class Record:
    def __init__(self, file: Path | None, told: Told) -> None:
        """file: None writes nothing. told: hears every line that is written."""
        self._file, self._told = file.open("a", encoding="utf-8") if file else None, told

    @property
    def empty(self) -> bool:
        """True if nothing was ever written; False without a file, where there is nothing to write."""
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
    packages = ("simile", "torch", "transformers", "tokenizers", "numpy")
    return {"python": platform.python_version()} | {name: metadata.version(name) for name in packages}


def machine(device: torch.device) -> dict[str, Any]:
    cuda = device.type == "cuda"
    name = torch.cuda.get_device_name(device) if cuda else platform.processor() or platform.machine()
    return {"device": name, "threads": torch.get_num_threads(), "cpus": len(os.sched_getaffinity(0))}
