"""The work of one process in test_processes.py, for runs with several processes.

    python -m torch.distributed.run --nproc-per-node 2 tests/training/world_process.py FOLDER

FOLDER/base is a tiny backbone. Each process writes FOLDER/CASE.RANK.safetensors (`found_by`) and
FOLDER/RANK.json (`refusals`). Not a test by itself.
"""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from tests.training.recipe_cases import WORDS, corpus_for
from training.__main__ import main
from training.errors import TrainingError
from training.methods.loading import load_encoder
from training.methods.recipe import Recipe, load_recipe
from training.methods.sources import Given
from training.papers.spans import DocumentSpans
from training.runs.processes import World, join_world
from training.runs.step import Trainer

STEPS = 3
# Without dropout every process draws the same; a large epsilon keeps AdamW from blowing up the rounding of
# gradients near 0; a gradient that is not clipped shows its length.
_EXACT: dict[str, Any] = {"dropout": 0.0, "optim.epsilon": 1e-2, "optim.clip": 1e6, "optim.lr": 1e-3}
_MLM = (
    "--set",
    'views=["same", "same", {name="mask", rate=0.5}, {name="mask", rate=0.5}]',
    "--set",
    'objectives=[{name="info_nce", tau=0.05}, "mlm"]',
)
ROWS = 11  # in batches of 5: shares of 2 and 3, and a last batch of 1, where one process has no share
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "simcse-unsup": ("simcse-unsup", {}),
    "simcse-sup": ("simcse-sup", {}),
    "diffcse": ("diffcse", {}),
    "esimcse": ("esimcse", {}),
    "noise": ("gs-infonce", {}),
    "mlm beside": ("simcse-unsup-mlm", {}),
    "mlm alone": ("mlm", {}),
    "promptbert": ("promptbert", {}),
    "tsdae": ("tsdae", {}),
    "declutr": ("declutr", {}),
    "sbert-nli": ("sbert-nli", {}),
    "ct": ("ct", {}),
    "sg-opt": ("sg-opt", {"head": "none"}),
    "is-bert": ("is-bert", {}),
    "cross-encoder": ("cross-encoder", {"optim.warmup": 0.0}),  # all first losses are equal
    "listwise": ("cross-encoder", {"objectives": ["list_softmax"], "optim.warmup": 0.0}),
    "decayed": ("simcse-unsup", {"pool": "static", "optim.weight_decay": 0.5}),
}


def recipe_of(name: str, changes: dict[str, Any], *, batch: int = 5) -> Recipe:
    recipe = load_recipe(name, _EXACT | {"optim.batch": batch} | changes)
    if isinstance(recipe.source, DocumentSpans):
        return replace(recipe, source=replace(recipe.source, shortest=8, longest=30), max_length=40)
    return recipe


def trainer_for(
    base: Path, recipe: Recipe, *, rows: int = ROWS, chunk: int | None = None, world: World | None = None
) -> Trainer:
    encoder, head = load_encoder(base, recipe, torch.device("cpu"))
    whole = recipe.source.whole
    tokenizer = encoder.tokenizer(1 << 20 if whole else recipe.max_length, whole=whole)
    given = Given(corpus_for(recipe, rows), tokenizer, recipe.optim.batch, STEPS, recipe.seed)
    given = given._replace(pairs=encoder.pairs)
    source = recipe.source.build(given)
    return Trainer(encoder, head, recipe, source, steps=10, bf16=False, chunk=chunk, world=world or World())


def found_by(trainer: Trainer) -> dict[str, Tensor]:
    """Returns the loss and all gradients of each step, and the weights after the last step."""
    found = {}
    for number in range(STEPS):
        found[f"loss.{number}"] = torch.tensor(trainer.step(number).loss)
        for name, parameter in trainer.model.named_parameters():
            if parameter.grad is not None:
                found[f"gradient.{number}.{name}"] = parameter.grad.clone()
    return found | {f"weight.{name}": tensor.clone() for name, tensor in trainer.model.state_dict().items()}


def refusals(folder: Path, world: World) -> dict[str, Any]:
    """Provokes errors, which must end the work of all processes. Returns exit statuses and messages."""
    answers: dict[str, Any] = {"agree": world.agree("the same"), "differ": world.agree(str(world.rank))}
    for who in range(world.size):
        try:
            with world.together():
                _refuse_if(world.rank == who, f"{who} alone")
        except TrainingError as error:
            answers[f"fails {who}"] = str(error)
    for name in ("texts", "alike", f"own{world.rank}"):
        given = ["train", "simcse-unsup", "--corpus", str(folder / f"{name}.txt"), "--data", str(folder)]
        given += ["--base", str(folder / "base"), "--precision", "fp32", "--steps", "2"]
        out = folder / f"out-{name.strip('01')}"
        answers[out.name] = main([*given, "--out", str(out)])
        answers[f"{out.name} left"] = _left(out, world)
    out = folder / "out-texts"
    answers["again"] = main([*given, "--out", str(out)])
    given[3] = str(folder / "texts.txt")
    answers["finished"] = main([*given, "--out", str(out), "--resume"])
    (folder / "nobody").touch()
    answers["no folder"] = main([*given, "--out", str(folder / "nobody" / "out")])
    answers["no chunks"] = main([*given, "--out", str(folder / "out-mlm"), "--chunk", "2", *_MLM])
    answers["out-mlm left"] = _left(folder / "out-mlm", world)
    return answers


def _refuse_if(wrong: bool, words: str) -> None:
    if wrong:
        raise TrainingError(words)


def _left(out: Path, world: World) -> bool:
    """Waits for all processes. Then returns True if `out` exists."""
    with world.together():
        pass
    return out.exists()


def corpora(folder: Path) -> None:
    """Writes the files that `refusals` reads."""
    (folder / "texts.txt").write_text("\n".join(WORDS))
    (folder / "alike.txt").write_text("\n".join("cat " * 40 + word for word in WORDS))
    for rank in (0, 1):
        (folder / f"own{rank}.txt").write_text("\n".join(WORDS[rank:]))


if __name__ == "__main__":
    work = Path(sys.argv[1])
    torch.set_num_threads(1)
    mine = join_world(torch.device("cpu"))
    for case, (recipe_name, changed) in CASES.items():
        trained = trainer_for(work / "base", recipe_of(recipe_name, changed), world=mine)
        save_file(found_by(trained), work / f"{case}.{mine.rank}.safetensors")
    with mine.together():
        if mine.leads:
            corpora(work)
    (work / f"{mine.rank}.json").write_text(json.dumps(refusals(work, mine)))
