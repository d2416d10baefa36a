"""Set up a run: folder, identity, vectors of a teacher, and the trainer. Start reading at `build_trainer`.

The vectors of the teacher are computed once and stored in the folder of the run as teacher.npy: float16,
shape (texts, P), length 1. Half precision changes a cosine by less than 1e-6. 200,000 vectors of 384
dimensions take 154 MB. Texts are cut at the same word for the teacher and the student.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from models.files.fsync import sync
from models.manifest import TEACHER, Manifest
from models.progress import Progress, silent, to_stderr
from models.publishing.fingerprint import compute_fingerprint
from models.publishing.from_torch.export import prepare_trained
from models.sources.folder import read_source
from models.version import VERSION
from training.errors import NothingToLearn
from training.methods.loading import load_encoder
from training.methods.recipe import Recipe
from training.methods.sources import Given, Rows, Source
from training.methods.token_objectives import published_language
from training.methods.views import Repeat
from training.model.base import find_version
from training.model.encoder import TrainedEncoder, compute_digest
from training.model.packed import build_groups
from training.runfile import FILE_NAME as RUN
from training.runfile import Identity, claim
from training.runs.options import Options
from training.runs.processes import World
from training.runs.step import Trainer
from training.text.corpus import Corpus
from training.text.lexicon import Lexicon, surround
from training.text.tokens import Shelf, clear

VECTORS = "teacher.npy"
_WHOLE = 1 << 20  # tokens: longer documents are cut


def build_trainer(
    recipe: Recipe,
    corpus: Corpus,
    base: Path,
    out: Path,
    options: Options,
    device: torch.device,
    world: World,
    *,
    steps: int,
    bf16: bool,
) -> Trainer:
    """Builds a trainer that is ready for the first step.

    Raises:
        NothingToLearn: All texts are equal.
        TrainingError: The base does not fit the recipe.
    """
    options.say("tokenizing")
    with world.together():
        encoder, head = load_encoder(base, recipe, device)
        room = min(
            (view.room(encoder.source.max_length) for view in recipe.views if isinstance(view, Repeat)),
            default=_WHOLE,
        )
        length = _WHOLE if recipe.source.whole else min(recipe.max_length, room)
        given = Given(
            corpus,
            encoder.tokenizer(length, whole=recipe.source.whole),
            batch=recipe.optim.batch,
            steps=max(steps, 1),
            seed=recipe.seed,
            prompt=encoder.source.document_prompt,  # a corpus holds documents
            search_prompt=encoder.source.search_prompt,
            threads=torch.get_num_threads(),
            folder=out,
            longest=min(recipe.max_length, encoder.source.max_length),
            pairs=encoder.pairs,
        )
        # The first process writes the token files; the others only open them.
        source = recipe.source.build(given) if world.leads else None
    with world.together():
        if source is None:
            source = recipe.source.build(given)
        asks = recipe.reads("teacher") and not (out / VECTORS).is_file()
        if asks and world.leads and isinstance(source, Rows):
            teacher = load_encoder(base, replace(recipe, student=None), device)[0]
            teach(teacher, encoder.lexicon, source.shelf, out, bf16=bf16, progress=options.progress)
    with world.together():
        if source.distinct() < 2:
            raise NothingToLearn(
                f"No two of the texts differ in their first {recipe.max_length} tokens: there are no "
                "negatives."
            )
        trainer = Trainer(
            encoder,
            head,
            recipe,
            source,
            steps=steps,
            bf16=bf16,
            chunk=options.chunk,
            world=world,
            taught=taught(out) if recipe.reads("teacher") else None,
        )
    for words in _remarks(recipe, base, trainer, source):
        options.say(words)
    return trainer


def _remarks(recipe: Recipe, base: Path, trainer: Trainer, source: Source) -> Iterator[str]:
    """Yields messages for the user on behavior that the recipe alone does not show."""
    if (base / "modules.json").is_file() and recipe.result != "reranker":
        names = "+".join(trainer.encoder.source.head.names)
        yield f"the base keeps its own pooling ({names}); the recipe's pool and head are for raw ones"
    objectives: Any = trainer.model["objectives"]
    if any(not getattr(module, "stored", True) for module in objectives):
        yield "the base has no masked-language head: it begins at random"
    if source.remark:
        yield source.remark


def build_identity(
    recipe: Recipe, corpus: Corpus, base: Path, options: Options, steps: int, *, bf16: bool
) -> Identity:
    """Returns the identity of a run: all values on which the losses depend."""
    return {
        "method": recipe.name,
        "recipe": recipe.digest(),
        "described": recipe.described(),
        "corpus": corpus.digest,
        "rows": corpus.rows,
        "texts": len(corpus),
        "base": compute_digest(read_source(base)),
        "base_name": options.base_name,
        "parent": options.parent,
        "seed": recipe.seed,
        "steps": steps,
        "precision": "bf16" if bf16 else "fp32",
        "code": VERSION,
        "result": recipe.result,
    } | ({TEACHER: _fingerprint(base)} if recipe.reads("teacher") else {})


def _fingerprint(base: Path) -> str:
    """Returns the fingerprint of the vector space of a base."""
    if find_version(base):
        return Manifest.read(base).fingerprint
    return compute_fingerprint(prepare_trained(read_source(base)).space)


def teach(
    teacher: TrainedEncoder, student: Lexicon, shelf: Shelf, out: Path, *, bf16: bool, progress: bool
) -> None:
    """Computes the teacher's vectors of all texts, and writes them to teacher.npy.

    Args:
        teacher: The teacher.
        student: Lexicon of the student, whose tokenizer made `shelf`. It may add fewer special tokens than
            the tokenizer of the teacher.
        shelf: Token ids of the texts.
        out: Folder of the run.
        bf16: True to compute in bfloat16.
        progress: True to show a progress bar.
    """
    count = len(shelf.starts) - 1
    temporary = out / f".{VECTORS}"
    table = np.lib.format.open_memmap(temporary, "w+", np.float16, (count, teacher.width))
    with temporary.open("rb+") as stream:  # otherwise a full disk kills the process
        os.posix_fallocate(stream.fileno(), 0, temporary.stat().st_size)
    say = to_stderr if progress else silent
    with Progress("texts", count, "encoding by the teacher", say=say) as told, torch.inference_mode():
        for group in build_groups(shelf.starts.diff(), teacher.device):
            tokens = surround(shelf.take(group), student, *teacher.lexicon.affixes)
            with torch.autocast(teacher.device.type, torch.bfloat16, enabled=bf16):
                pooled = teacher(tokens).pooled
            table[group.numpy()] = nn.functional.normalize(pooled.float(), dim=-1).cpu().numpy()
            told.add(len(group))
    table.flush()
    sync(temporary)
    temporary.replace(out / VECTORS)


def taught(out: Path) -> Tensor:
    """Opens the vectors that `teach` wrote, memory-mapped: float16, shape (texts, P)."""
    return torch.from_numpy(np.load(out / VECTORS, mmap_mode="c"))


@contextlib.contextmanager
def claimed(out: Path, identity: Identity, world: World, *, resume: bool) -> Iterator[None]:
    """Claims the folder of a run. If the `with` block of a new run fails, all that was written is removed."""
    existed = out.exists()
    with world.together():
        if world.leads:
            claim(out, identity, resume=resume)
    try:
        yield
    except BaseException:
        if world.leads and not resume:
            clear(out)
            (out / VECTORS).unlink(missing_ok=True)
            (out / RUN).unlink(missing_ok=True)
            if not existed:
                out.rmdir()
        raise


def save(out: Path, name: str, trainer: Trainer, result: str) -> None:
    """Saves the encoder as the folder `name`. Readers see the old or the new folder, or briefly none."""
    target, temporary = out / name, out / f".{name}"
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir()
    if result == "backbone":
        trainer.encoder.save_backbone(temporary, published_language(trainer.model))
    else:
        trainer.encoder.save(temporary)
    shutil.rmtree(target, ignore_errors=True)
    temporary.rename(target)
