"""A training run in its folder: begun, watched, stopped, resumed and finished. The step itself is trainer.py.

    step ─▶ record ─▶ dev score, and the best kept ─▶ checkpoint ─▶ asked to stop? ─▶ step …

Imports torch; train.py is the door that does not.
"""

from __future__ import annotations

import math
import shutil
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import torch
from tqdm import tqdm

from models.source import read_source
from training.checkpoint import FILE_NAME as CHECKPOINT
from training.checkpoint import read_checkpoint, write_checkpoint
from training.corpus import Corpus
from training.dev import NAME, read_dev, spearman
from training.device import deterministic, enough_memory, open_device, use_bf16
from training.encoder import digest_of, load_encoder
from training.errors import NothingToLearn, TrainingError
from training.evaluation.data import Pairs
from training.interrupt import interruptible
from training.recipe import Recipe
from training.record import FILE_NAME as RECORD
from training.record import Record, machine, versions
from training.result import Result
from training.runfile import Identity, check, claim, write_run
from training.sources import SOURCES, steps_of_a_round
from training.trainer import Trainer


@dataclass(frozen=True)
class Options:
    """How a recipe is run; none of it is a part of the method."""

    steps: int | None  # None: each text once
    precision: str  # auto, bf16 or fp32
    device: str  # auto, or as torch names it
    threads: int | None
    eval_steps: int
    checkpoint_steps: int
    record_steps: int
    data: Path | None
    base_name: str
    version: str | None  # the published version that the base is
    resume: bool
    progress: bool
    say: Callable[[str], None]


def run(recipe: Recipe, corpus: Corpus, base: Path, out: Path, options: Options) -> Result:
    """Raise TrainingError or ModelError for what cannot be used; then nothing was written."""
    if len(corpus.texts) < 2:
        raise NothingToLearn("One text alone has no negatives: the corpus needs two or more.")
    if options.threads:
        torch.set_num_threads(options.threads)
    device = open_device(options.device)
    bf16 = use_bf16(options.precision, device)
    a_round = steps_of_a_round(len(corpus.texts), recipe.optim.batch)
    steps = a_round if options.steps is None else options.steps
    dev = read_dev(options.data)
    identity = _identity(recipe, corpus, base, options, steps, bf16=bf16)
    found = check(out, identity, resume=options.resume)
    if "finished" in found:
        options.say(f"{out} is finished already")
        return _result(out, found["finished"], interrupted=False, finished=True)
    if dev is None:
        unless = ", unless one was chosen before" if options.resume else ""
        options.say(f"no STS-B dev set was found, so best will be the last step{unless}")
    with enough_memory():
        trainer = _trainer(recipe, corpus, base, options, device, steps=steps, bf16=bf16)
        claim(out, identity, resume=options.resume)
        with Record(out / RECORD) as record:
            return _Run(trainer, record, identity, dev, out, options).loop()


def _trainer(
    recipe: Recipe,
    corpus: Corpus,
    base: Path,
    options: Options,
    device: torch.device,
    *,
    steps: int,
    bf16: bool,
) -> Trainer:
    options.say("tokenising")
    encoder, head = load_encoder(base, recipe, device)
    prompt = encoder.source.document_prompt  # a corpus is documents, and that is how they will be embedded
    source = SOURCES[recipe.source](
        [prompt + text for text in corpus.texts] if prompt else corpus.texts,
        encoder.tokenizer(recipe.max_length),
        batch=recipe.optim.batch,
        steps=steps,
        seed=recipe.seed,
        threads=torch.get_num_threads(),
    )
    if source.distinct() < 2:
        raise NothingToLearn(
            f"No two of the texts differ in their first {recipe.max_length} tokens: there are no negatives."
        )
    return Trainer(encoder, head, recipe, source, steps=steps, bf16=bf16)


class _Run:
    def __init__(
        self,
        trainer: Trainer,
        record: Record,
        identity: Identity,
        dev: Pairs | None,
        out: Path,
        options: Options,
    ) -> None:
        self._trainer, self._record, self._identity = trainer, record, identity
        self._dev, self._out, self._options = dev, out, options
        self._steps: int = identity["steps"]
        self._state: dict[str, Any] = {"done": 0, "loss": math.nan, "dev": {}}
        self._seconds, self._texts = 0.0, 0  # of the steps since the last line of the record

    def loop(self) -> Result:
        options = self._options
        first = self._begin()
        with interruptible() as stop, deterministic(), self._bar(first) as bar:
            for number in range(first, self._steps):
                self._step(number, bar)
                done = number + 1
                if done % options.record_steps == 0 or done == self._steps:
                    self._note()
                if done % options.eval_steps == 0 or done == self._steps:
                    self._evaluate()
                if done % options.checkpoint_steps == 0 and done < self._steps:
                    self._checkpoint()
                if stop() and done < self._steps:
                    self._pause()
                    return _result(self._out, self._state, interrupted=True, finished=False)
            self._finish()
            return _result(self._out, self._state, interrupted=stop(), finished=True)

    def _begin(self) -> int:
        """How many steps are done already."""
        if not self._options.resume:
            about = {"versions": versions(), "machine": machine(self._trainer.encoder.device)}
            self._record.write("start", **self._identity, **about)
        elif (self._out / CHECKPOINT).exists():
            self._state = read_checkpoint(self._out / CHECKPOINT, self._trainer)
        if self._options.resume:
            self._record.write("resume", step=self._state["done"])
            self._options.say(f"resuming after step {self._state['done']}")
        done: int = self._state["done"]
        return done

    def _step(self, number: int, bar: Any) -> None:
        began = time.perf_counter()
        loss, texts = self._trainer.step(number)
        self._seconds += time.perf_counter() - began
        if not math.isfinite(loss):
            raise TrainingError(
                f"The loss is {loss} at step {number + 1}. Lower the recipe's lr, or use fp32."
            )
        self._texts += texts
        self._state |= {"done": number + 1, "loss": loss}
        bar.set_postfix_str(f"loss {loss:.4f}, {self._rate():.0f} sentences/s", refresh=False)
        bar.update()

    def _rate(self) -> float:
        return self._texts / self._seconds if self._seconds else 0.0

    def _note(self) -> None:
        done = self._state["done"]
        self._record.write(
            "step",
            step=done,
            loss=self._state["loss"],
            lr=self._trainer.rate(done - 1),
            sentences_per_second=round(self._rate(), 1),
        )
        self._seconds, self._texts = 0.0, 0

    def _evaluate(self) -> None:
        if self._dev is None:
            return
        score = spearman(self._trainer.encoder.encode, self._dev)
        done, dev = self._state["done"], self._state["dev"]
        better = math.isfinite(score) and all(before is None or score > before for before in dev.values())
        with tqdm.external_write_mode(file=sys.stderr):
            self._options.say(f"step {done}: {NAME} {score:.4f}{', the best so far' if better else ''}")
        dev[str(done)] = score if math.isfinite(score) else None  # NaN is no JSON
        self._record.write("dev", step=done, **{NAME: dev[str(done)]})
        if better:
            self._save("best")

    def _checkpoint(self) -> None:
        write_checkpoint(self._out / CHECKPOINT, self._trainer, self._state)

    def _pause(self) -> None:
        self._checkpoint()
        self._record.write("pause", step=self._state["done"])

    def _finish(self) -> None:
        self._save("last")
        if all(score is None for score in self._state["dev"].values()):  # no step was ever chosen
            self._save("best")
        self._record.write("end", step=self._steps, loss=self._state["loss"], dev=self._state["dev"])
        write_run(self._out, self._identity | {"finished": self._state})
        (self._out / CHECKPOINT).unlink(missing_ok=True)

    def _save(self, name: str) -> None:
        """Whole or not at all: a reader finds the old folder, the new one, or for a moment none."""
        target, temporary = self._out / name, self._out / f".{name}"
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir()
        self._trainer.encoder.save(temporary)
        shutil.rmtree(target, ignore_errors=True)
        temporary.rename(target)

    def _bar(self, first: int) -> Any:
        rare = 0.5 if sys.stderr.isatty() else 30.0  # seconds; a log file takes a line, not a moving bar
        return tqdm(
            total=self._steps,
            initial=first,
            unit="step",
            mininterval=rare,
            file=sys.stderr,
            disable=not self._options.progress,
        )


def _identity(
    recipe: Recipe, corpus: Corpus, base: Path, options: Options, steps: int, *, bf16: bool
) -> Identity:
    return {
        "method": recipe.name,
        "recipe": recipe.digest(),
        "described": recipe.described(),
        "corpus": corpus.digest,
        "texts": len(corpus.texts),
        "base": digest_of(read_source(base)),
        "base_name": options.base_name,
        "parent": options.version,
        "seed": recipe.seed,
        "steps": steps,
        "precision": "bf16" if bf16 else "fp32",
        "code": metadata.version("simile"),
    }


def _result(out: Path, state: dict[str, Any], *, interrupted: bool, finished: bool) -> Result:
    dev = {int(step): score for step, score in state["dev"].items()}
    return Result(
        out, steps=state["done"], interrupted=interrupted, loss=state["loss"], dev=dev, finished=finished
    )
