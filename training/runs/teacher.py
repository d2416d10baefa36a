"""A teacher's vectors of all texts of a run, computed once and kept in the run's folder.

    the base ─▶ each text of the shelf, as the student reads it ─▶ teacher.npy, float16 (texts, P), length 1

Half precision moves a cosine by less than 1e-6, and 200,000 texts of 384 dimensions are 154 MB. The student's
cut is the teacher's too, so both see the same words.
"""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from models.files.fsync import sync
from models.progress import Progress, silent, to_stderr
from training.model.encoder import TrainedEncoder
from training.model.packed import groups_of
from training.text.lexicon import Lexicon, surround
from training.text.tokens import Shelf

FILE_NAME = "teacher.npy"


def teach(
    teacher: TrainedEncoder, student: Lexicon, shelf: Shelf, out: Path, *, bf16: bool, progress: bool
) -> None:
    """Write the teacher's vectors of the shelf's texts, whole or not at all.

    student: whose tokenizer the shelf's tokens are of; it may put less around a text than the teacher's does.
    """
    count = len(shelf.starts) - 1
    temporary = out / f".{FILE_NAME}"
    table = np.lib.format.open_memmap(temporary, "w+", np.float16, (count, teacher.width))
    with temporary.open("rb+") as stream:  # else a full disk ends the process by a signal
        os.posix_fallocate(stream.fileno(), 0, temporary.stat().st_size)
    say = to_stderr if progress else silent
    with Progress("texts", count, "encoding by the teacher", say=say) as told, torch.inference_mode():
        for group in groups_of(shelf.starts.diff(), teacher.device):
            tokens = surround(shelf.take(group), student, *teacher.lexicon.affixes)
            with torch.autocast(teacher.device.type, torch.bfloat16, enabled=bf16):
                pooled = teacher(tokens).pooled
            table[group.numpy()] = nn.functional.normalize(pooled.float(), dim=-1).cpu().numpy()
            told.add(len(group))
    table.flush()
    sync(temporary)
    temporary.replace(out / FILE_NAME)


def taught(out: Path) -> Tensor:
    """The vectors that `teach` wrote, mapped: float16 (texts, P)."""
    return torch.from_numpy(np.load(out / FILE_NAME, mmap_mode="c"))


def clear(out: Path) -> None:
    """Take away what `teach` left."""
    (out / FILE_NAME).unlink(missing_ok=True)
