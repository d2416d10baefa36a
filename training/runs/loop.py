"""Run a training in a folder, from the first step to the last. Start reading at `run`.

    step ─▶ record ─▶ dev score, and save the best step ─▶ checkpoint ─▶ stop requested? ─▶ step …
                                                                         after the last step: post-processors

Under torchrun, all processes run the same steps, and only the first process writes files. step.py has the
code of a step.
"""

from __future__ import annotations

import contextlib
import math
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

import torch

from models import cpus
from models.progress import Progress, silent, to_stderr
from training.errors import NothingToLearn, TrainingError
from training.evaluation.encoding import Choose
from training.methods.loading import load_encoder
from training.methods.recipe import Recipe
from training.methods.sources import Pieces, split_pieces, steps_of_a_round
from training.runfile import Identity, Result, check, read_run, write_run
from training.runs.alarms import Collapse, Saturation
from training.runs.checkpoint import FILE_NAME as CHECKPOINT
from training.runs.checkpoint import read_checkpoint, write_checkpoint
from training.runs.dev import Dev, build_dev
from training.runs.device import deterministic, enough_memory, open_device, use_bf16
from training.runs.mix import chosen_by, keep_share
from training.runs.options import Options
from training.runs.processes import World, join_world, own_device
from training.runs.record import FILE_NAME as RECORD
from training.runs.record import Record, machine, versions
from training.runs.setup import VECTORS, build_identity, build_trainer, claimed, save
from training.runs.step import Trainer, rate
from training.text.corpus import Corpus
from training.text.tokens import clear


class _Job(NamedTuple):
    """The arguments of a run, which do not change while it runs."""

    recipe: Recipe
    corpus: Corpus
    identity: Identity
    dev: Dev | None
    base: Path
    out: Path
    options: Options
    world: World


def run(recipe: Recipe, corpus: Corpus, base: Path, out: Path, options: Options) -> Result:
    """Runs a training in the folder `out`. If an argument is invalid, nothing is written.

    Raises:
        TrainingError: The recipe, corpus, folder or device cannot be used.
        ModelError: The base cannot be used.
    """
    if len(corpus) < 2:
        raise NothingToLearn("One text alone has no negatives: the corpus needs two or more.")
    if isinstance(recipe.source, Pieces):
        corpus = split_pieces(corpus)
    torch.set_num_threads(options.threads or min(torch.get_num_threads(), cpus.available()))
    device = open_device(own_device(options.device))
    world = join_world(device)
    if not world.leads:
        options = replace(options, say=silent, progress=False)
    a_round = steps_of_a_round(len(corpus), recipe.optim.batch)
    a_run = recipe.optim.epochs * a_round
    steps = (a_run if options.steps is None else options.steps) if recipe.objectives else 0
    with world.together():
        dev = build_dev(recipe, options.data, options.dev)
        bf16 = goes_in_bf16(out, options, device)
        identity = build_identity(recipe, corpus, base, options, steps, bf16=bf16)
        found = check(out, identity, resume=options.resume)
    if not world.agree(str(identity)):
        raise TrainingError("The processes do not have the same recipe, corpus and base.")
    if "finished" in found:
        options.say(f"{out} is finished already")
        return _result(out, found["finished"], interrupted=False, finished=True)
    if dev is None and options.choose is None and recipe.result == "encoder":
        unless = ", unless one was chosen before" if options.resume else ""
        missing = "dev searches were given" if recipe.source.searches else "STS-B dev set was found"
        options.say(f"no {missing}, so best will be the last step{unless}")
    job = _Job(recipe, corpus, identity, dev, base, out, options, world)
    with enough_memory():
        with claimed(out, identity, world, resume=options.resume):
            trainer = build_trainer(recipe, corpus, base, out, options, device, world, steps=steps, bf16=bf16)
        with closing(Record(out / RECORD if world.leads else None, options.told)) as record:
            return _Run(job, trainer, record).loop()


def goes_in_bf16(out: Path, options: Options, device: torch.device) -> bool:
    """Returns True if the run computes in bfloat16. With `auto`, a resumed run keeps its precision."""
    here = use_bf16(options.precision, device)
    if options.precision != "auto" or not options.resume:
        return here
    begun = read_run(out)["precision"]
    if (begun == "bf16") != here:
        options.say(f"the run was begun in {begun} and goes on in it; a new one would not, on this machine")
    return bool(begun == "bf16")


class _Run:
    def __init__(self, job: _Job, trainer: Trainer, record: Record) -> None:
        self._job, self._trainer, self._record = job, trainer, record
        self._out, self._options = job.out, job.options
        self._steps: int = job.identity["steps"]
        self._choose = chosen_by(job.options.choose, job.recipe, self._steps)
        self._collapse, self._saturation = Collapse(), Saturation(job.recipe, self._steps)
        self._state: dict[str, Any] = {"done": 0, "loss": math.nan, "dev": {}}
        self._seconds, self._texts = 0.0, 0  # since the last line of the record

    def loop(self) -> Result:
        options = self._options
        first = self._begin()
        say = to_stderr if options.progress else silent
        self._progress = Progress("steps", self._steps, "training", first=first, say=say)
        with interruptible() as stop, deterministic(), self._progress:
            for number in range(first, self._steps):
                self._step(number)
                done = number + 1
                if done % options.record_steps == 0 or done == self._steps:
                    self._note()
                if done % options.eval_steps == 0 or done == self._steps:
                    self._evaluate()
                if done % options.checkpoint_steps == 0 and done < self._steps:
                    self._checkpoint()
                if self._job.world.any(stop()) and done < self._steps:
                    self._checkpoint()
                    self._record.write("pause", step=done)
                    return _result(self._out, self._state, interrupted=True, finished=False)
            self._finish()
            stopped = self._job.world.any(stop())
            return _result(self._out, self._state, interrupted=stopped, finished=True)

    def _begin(self) -> int:
        """Starts or resumes the run and returns the number of finished steps."""
        if self._record.empty:  # The run is new, or was killed before its first step.
            about = {"versions": versions(), "machine": machine(self._trainer.encoder.device)}
            self._record.write("start", **self._job.identity, **about)
        if self._options.resume and (self._out / CHECKPOINT).exists():
            self._state = read_checkpoint(self._out / CHECKPOINT, self._trainer)
        if self._options.resume:
            self._record.write("resume", step=self._state["done"], steps=self._steps)
            self._options.say(f"resuming after step {self._state['done']}")
        done: int = self._state["done"]
        return done

    def _step(self, number: int) -> None:
        began = time.perf_counter()
        step = self._trainer.step(number)
        self._seconds += time.perf_counter() - began
        if not math.isfinite(step.loss):
            self._record.write("diverged", step=number + 1)
            raise TrainingError(
                f"The loss is {step.loss} at step {number + 1}. Lower the recipe's lr, or use fp32."
            )
        try:
            self._saturation.seen(number + 1, step.loss)
        except NothingToLearn:
            self._record.write("saturated", step=number + 1, loss=step.loss)
            raise
        self._texts += step.texts
        self._state |= {"done": number + 1, "loss": step.loss}
        warning = self._collapse.seen(step)
        if warning and self._job.recipe.result == "encoder":  # others train no vectors
            self._say(warning)
            self._record.write("collapse", step=number + 1, uniformity=step.uniformity)
        self._progress.add(more=f"loss {step.loss:.4f}, {self._rate():.0f} texts/s")

    def _rate(self) -> float:
        return self._texts / self._seconds if self._seconds else 0.0

    def _note(self) -> None:
        done = self._state["done"]
        self._record.write(
            "step",
            step=done,
            loss=self._state["loss"],
            lr=rate(self._job.recipe.optim, self._steps, done - 1),
            sentences_per_second=round(self._rate(), 1),
            uniformity=self._collapse.newest,
        )
        self._seconds, self._texts = 0.0, 0

    def _evaluate(self) -> None:
        if self._job.dev is None or self._choose or self._job.recipe.result != "encoder":
            return  # `choose` chooses the share of the training at its end, not a step
        name, compute_score = self._job.dev
        score = compute_score(self._trainer.encoder)
        done, dev = self._state["done"], self._state["dev"]
        better = math.isfinite(score) and all(before is None or score > before for before in dev.values())
        self._say(f"step {done}: {name} {score:.4f}{', the best so far' if better else ''}")
        dev[str(done)] = score if math.isfinite(score) else None  # JSON has no NaN
        self._record.write("dev", step=done, **{name: dev[str(done)]})
        # The first of several processes decides, because scores may differ in the last bit.
        better = self._job.world.any(self._job.world.leads and better)
        if better and not self._job.recipe.post:
            self._save("best")

    def _say(self, words: str) -> None:
        self._progress.end()
        self._options.say(words)

    def _checkpoint(self) -> None:
        with self._job.world.together():
            if self._job.world.leads:
                write_checkpoint(self._out / CHECKPOINT, self._trainer, self._state)

    def _finish(self) -> None:
        """Finishes the run.

        1. fits the post-processors of the recipe to the encoder of the last step
        2. saves the encoder as `last`
        3. mixes its weights with the base, if the run has `choose` (`_mix`)
        4. saves the encoder as `best` if no step was chosen
        """
        recipe = self._job.recipe
        if recipe.post:
            self._options.say("fitting " + " and ".join(type(each).__name__ for each in recipe.post))
            for post in recipe.post:
                post.apply(self._trainer.encoder, self._job.corpus.texts)
        if recipe.post or not self._steps:
            self._evaluate()
        self._save("last")
        if self._choose:
            self._mix(self._choose)
        if recipe.post or self._choose or all(score is None for score in self._state["dev"].values()):
            self._save("best")  # no step was chosen
        with self._job.world.together():
            if self._job.world.leads:
                loss = self._state["loss"] if self._steps else None
                self._record.write("end", step=self._steps, loss=loss, dev=self._state["dev"])
                chosen = {"dev_name": self._job.dev.name} if self._job.dev else {}
                finished = {"finished": self._state | {"loss": loss}}
                write_run(self._out, self._job.identity | chosen | finished)
                (self._out / CHECKPOINT).unlink(missing_ok=True)
                clear(self._out)
                (self._out / VECTORS).unlink(missing_ok=True)

    def _mix(self, choose: Choose) -> None:
        """Interpolates the trained weights with the base (mix.py)."""
        with self._job.world.together():
            if self._job.world.leads:
                encoder = self._trainer.encoder
                base = load_encoder(self._job.base, self._job.recipe, encoder.device)[0]
                share, means = keep_share(encoder, base, self._trainer.quickly(choose), self._say)
                self._state |= {"share": share, "shares": means}
                figures = ", ".join(f"{mean:.3f} with {float(part):.0%}" for part, mean in means.items())
                self._say(f"{share:.0%} of the training is kept: nDCG@10 is {figures}")
                self._record.write("share", share=share, shares=means)

    def _save(self, name: str) -> None:
        with self._job.world.together():
            if self._job.world.leads:
                save(self._out, name, self._trainer, self._job.recipe.result)


def _result(out: Path, state: dict[str, Any], *, interrupted: bool, finished: bool) -> Result:
    dev = {int(step): score for step, score in state["dev"].items()}
    loss = math.nan if state["loss"] is None else state["loss"]
    return Result(out, state["done"], interrupted, loss, dev, finished)


_SIGNALS = (signal.SIGINT, signal.SIGTERM)


@contextlib.contextmanager
def interruptible() -> Iterator[Callable[[], bool]]:
    """Handles Ctrl-C and SIGTERM inside the `with` block. A second signal ends the program at once.

    Yields:
        A function that returns True after the first signal. Outside the main thread it always returns False.
    """
    requested = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield requested.is_set
        return

    def ask(number: int, frame: FrameType | None) -> None:
        if requested.is_set():
            raise KeyboardInterrupt
        requested.set()

    before = {number: signal.signal(number, ask) for number in _SIGNALS}
    try:
        yield requested.is_set
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
