"""The two contestants of training.py: Simile's trainer in this process, the peer's in one of its own."""

import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from benchmarks.contestant import Measured, Scenario
from benchmarks.machine import Watch
from benchmarks.places import BenchError
from benchmarks.process import Process
from benchmarks.workloads import PROJECT
from models.publishing.default import ORIGIN
from training.methods.recipe import Recipe
from training.runs.device import deterministic
from training.runs.options import Options
from training.runs.processes import World
from training.runs.setup import build_trainer
from training.text.corpus import Corpus

SCRIPT = PROJECT / "benchmarks" / "peers" / "train.py"
OURS, PEER = "Simile", "sentence-transformers"


class Ours:
    """Simile's trainer, in this process; a step is what `loop.py` does for each."""

    name = OURS

    def __init__(
        self, recipe: Recipe, corpus: Corpus, base: Path, out: Path, job: dict[str, Any], pids: dict[str, int]
    ) -> None:
        """Begin, and do the first steps. pids: of both sides."""
        steps = job["warmup"] + job["steps"] * job["repeats"]
        options = Options(
            steps=steps,
            precision=job["precision"],
            device="cpu",
            threads=job["threads"],
            eval_steps=steps + 1,
            checkpoint_steps=steps + 1,
            record_steps=steps + 1,
            base_name=ORIGIN,
        )
        bf16, cpu = job["precision"] == "bf16", torch.device("cpu")
        self._trainer = build_trainer(
            recipe, corpus, base, out, options, cpu, World(), steps=steps, bf16=bf16
        )
        self._done, self._steps, self._pids = 0, job["steps"], pids
        self._go(job["warmup"])

    def measure(self, scenario: Scenario, turn: int) -> Measured:
        return _measured(self.name, self._pids, lambda: self._go(self._steps))

    def _go(self, steps: int) -> int:
        """Sentences trained."""
        begin, self._done = self._done, self._done + steps
        with deterministic():
            return sum(self._trainer.step(number).texts for number in range(begin, self._done))


class Peer(Process):
    """The other trainer; down after `close`."""

    def __init__(self, python: Path, job: dict[str, Any], folder: Path) -> None:
        self.sizes = {"texts": 0, "tokens": 0, "padded": 0}
        file = folder / "peer.json"
        file.write_text(json.dumps(job), encoding="utf-8")
        environment = os.environ | {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": str(job["threads"])}
        # -P: else its imports would find the modules beside the script
        command: list[str | Path] = [python, "-P", SCRIPT, f"--job={file}"]
        super().__init__(PEER, command, env=environment, piped=True)

    def ready(self, dropout: float) -> dict[str, Any]:
        """Wait for its first steps: its account of itself. Raise BenchError if it trains otherwise."""
        about = self.answer()
        if about["dropout"] != [dropout]:
            raise BenchError(f"The peer's dropout is {about['dropout']} and not {dropout}")
        return about

    @property
    def pids(self) -> dict[str, int]:
        """The sum of both sides."""
        return {OURS: os.getpid(), PEER: self.pid}

    def measure(self, scenario: Scenario, turn: int) -> Measured:
        return _measured(self.name, self.pids, self._go)

    def _go(self) -> int:
        """Sentences trained: each was encoded twice."""
        found = self.order()
        for name in self.sizes:
            self.sizes[name] += found[name]
        return int(found["texts"]) // 2


def _measured(name: str, pids: Mapping[str, int], go: Callable[[], int]) -> Measured:
    """Sentences a second of `go`, which returns their number; the waiting side is not foreign."""
    watch = Watch(pids)
    sentences = go()
    window = watch.window()
    cpu_ms = 1000 * window.cpu_seconds[name] / sentences
    return Measured(sentences / window.seconds, window.foreign, cpu_ms)
