"""Records and weights of a run, and a way to stop it at a step."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import pytest
from safetensors.numpy import load_file

from training.runfile import Result
from training.runs.step import Step, Trainer
from training.text.corpus import Corpus


def events(out: Path, kind: str) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in (out / "record.jsonl").read_text().splitlines()]
    return [line for line in lines if line["event"] == kind]


def losses(result: Result) -> dict[int, float]:
    return {line["step"]: line["loss"] for line in events(result.out, "step")}


def weights(folder: Path) -> dict[str, bytes]:
    return {name: array.tobytes() for name, array in load_file(folder / "model.safetensors").items()}


def stop_after(monkeypatch: pytest.MonkeyPatch, step: int) -> None:
    """Sends SIGINT to this process at the beginning of a step, so the run stops after the step."""
    whole = Trainer.step

    def interrupted(self: Trainer, number: int) -> Step:
        if number + 1 == step:
            signal.raise_signal(signal.SIGINT)
        return whole(self, number)

    monkeypatch.setattr(Trainer, "step", interrupted)


def command(folder: Path, source: Path, corpus: Corpus, *more: str) -> list[str]:
    """Writes the corpus to a file. Returns the arguments of a training in fp32 without a dev set."""
    (folder / "corpus.txt").write_text("\n".join(corpus.texts), encoding="utf-8")
    given = ["train", "simcse-unsup", "--corpus", str(folder / "corpus.txt"), "--base", str(source)]
    return [*given, "--out", str(folder / "out"), "--data", str(folder), "--precision", "fp32", *more]
