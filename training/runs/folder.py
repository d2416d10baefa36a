"""A run's folder: claimed by one run, and the encoders that it keeps there.

Imports torch.
"""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator
from pathlib import Path

from training.methods.token_objectives import published_language
from training.runfile import FILE_NAME, Identity, claim
from training.runs import teacher
from training.runs.processes import World
from training.runs.step import Trainer
from training.text.tokens import clear


@contextlib.contextmanager
def claimed(out: Path, identity: Identity, world: World, *, resume: bool) -> Iterator[None]:
    """The folder, claimed while the run's trainer is built; nothing is left when that is refused."""
    existed = out.exists()
    with world.together():
        if world.leads:
            claim(out, identity, resume=resume)
    try:
        yield
    except BaseException:
        if world.leads and not resume:
            clear(out)
            teacher.clear(out)
            (out / FILE_NAME).unlink(missing_ok=True)
            if not existed:
                out.rmdir()
        raise


def save(out: Path, name: str, trainer: Trainer, result: str) -> None:
    """Whole or not at all: a reader finds the old folder, the new one, or for a moment none."""
    target, temporary = out / name, out / f".{name}"
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir()
    if result == "backbone":
        trainer.encoder.save_backbone(temporary, published_language(trainer.model))
    else:
        trainer.encoder.save(temporary)
    shutil.rmtree(target, ignore_errors=True)
    temporary.rename(target)
