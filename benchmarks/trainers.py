"""The two sides of training.py: Simile's trainer in this process, the peer's in one of its own."""

import json
import os
import subprocess
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import torch

from benchmarks.places import BenchError
from benchmarks.workloads import PROJECT
from models.publishing.default import ORIGIN
from models.publishing.publish import silent
from training.methods.recipe import Recipe
from training.runs.device import deterministic
from training.runs.processes import World
from training.runs.setup import Options, build_trainer
from training.text.corpus import Corpus


class PeerError(BenchError):
    """The peer did not do its part, or does something else than Simile."""


class Ours:
    """Simile's trainer, in this process; a step is what `loop.py` does for each."""

    def __init__(self, recipe: Recipe, corpus: Corpus, base: Path, out: Path, job: dict[str, Any]) -> None:
        steps = job["warmup"] + job["steps"] * job["repeats"]
        options = Options(
            steps=steps,
            precision=job["precision"],
            device="cpu",
            threads=job["threads"],
            eval_steps=steps + 1,
            checkpoint_steps=steps + 1,
            record_steps=steps + 1,
            data=None,
            base_name=ORIGIN,
            version=None,
            resume=False,
            progress=False,
            say=silent,
        )
        bf16, cpu = job["precision"] == "bf16", torch.device("cpu")
        self._trainer = build_trainer(
            recipe, corpus, base, out, options, cpu, World(), steps=steps, bf16=bf16
        )
        self._done = 0

    def go(self, steps: int) -> int:
        """Sentences trained."""
        begin, self._done = self._done, self._done + steps
        with deterministic():
            return sum(self._trainer.step(number).texts for number in range(begin, self._done))


class Peer:
    """The other trainer; up between `with` and its end."""

    def __init__(self, python: Path, job: dict[str, Any], folder: Path) -> None:
        self.sizes = {"texts": 0, "tokens": 0, "padded": 0}
        file = folder / "peer.json"
        file.write_text(json.dumps(job), encoding="utf-8")
        self._log = (folder / "peer.log").open("w+")
        try:
            self._process = subprocess.Popen(
                # -P: else its imports would find the modules beside the script
                [python, "-P", PROJECT / "benchmarks" / "peer_training.py", "--job", file],
                env=os.environ | {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": str(job["threads"])},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._log,
                text=True,
            )
        except OSError as error:
            self._log.close()
            raise PeerError(f"The peer's Python does not start: {error}") from None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.kill()
        self._process.wait()
        self._log.close()

    @property
    def pid(self) -> int:
        return self._process.pid

    def ready(self, dropout: float) -> dict[str, Any]:
        """Wait for its first steps; what it says of itself. Raise PeerError when it trains otherwise."""
        about = self._answer()
        if about["dropout"] != [dropout]:
            raise PeerError(f"The peer's dropout is {about['dropout']} and not {dropout}")
        return about

    def go(self) -> int:
        """Sentences trained: each was encoded twice."""
        assert self._process.stdin
        self._process.stdin.write("go\n")
        self._process.stdin.flush()
        found = self._answer()
        for name in self.sizes:
            self.sizes[name] += found[name]
        return int(found["texts"]) // 2

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout
        line = self._process.stdout.readline()
        if not line:
            self._log.seek(0)
            raise PeerError(f"The peer ended:\n{self._log.read()}")
        found: dict[str, Any] = json.loads(line)
        return found
