"""PromptBERT's vectors, compared with those of transformers on padded rows with explicit positions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor

from models.publishing.from_torch.backbone import quiet
from tests.training.pretrained import CLS, MASK, PAD, SEP, trainer_of
from tests.training.recipe_cases import raw_source
from training.methods.loading import load_encoder
from training.methods.objectives import Reps
from training.methods.recipe import load_recipe
from training.runs.step import Trainer
from training.text.corpus import Corpus
from training.text.tokens import build_tokens

TEMPLATES = ("the {} means [MASK] .", "a {} in a garden is [MASK] .")


def trainer_with(folder: Path, **changes: Any) -> Trainer:
    views = [{"name": "template", "text": text} for text in TEMPLATES]
    given = {"views": views, "dropout": 0.0, "head": "none", "optim.batch": 6}
    words = "river stone market letter engine garden bridge paper".split()
    texts = [" ".join(words[at : at + 1 + at % 4]) for at in range(6)]
    return trainer_of(load_recipe("promptbert", given | changes), folder, Corpus.of(texts, "lengths"))


def vectors_of_a_step(trainer: Trainer, monkeypatch: pytest.MonkeyPatch) -> Tensor:
    """Runs a step, and returns the vectors that the objective receives, shape (N, V, D)."""
    seen: list[Tensor] = []
    module = trainer._objectives[0]
    forward = module.forward

    def watched(reps: Reps) -> Tensor:
        seen.append(reps.z.detach().clone())
        found: Tensor = forward(reps)
        return found

    monkeypatch.setattr(module, "forward", watched)
    trainer.step(0)
    return seen[0]


def by_transformers(folder: Path, texts: list[list[int]], template: tuple[list[int], list[int]]) -> Tensor:
    """Returns the vector at [MASK] of each text in the template, minus that of the empty template.

    In the empty template, the tokens after the gap keep the positions that they have after the text.
    """
    with quiet():
        backbone: Any = transformers.BertModel.from_pretrained(folder, attn_implementation="eager")
    before, after = template
    longest = len(before) + max(map(len, texts)) + len(after)

    def at_mask(rows: list[list[int]], places: list[list[int]]) -> Tensor:
        ids = torch.tensor([row + [PAD] * (longest - len(row)) for row in rows])
        positions = torch.tensor([row + [0] * (longest - len(row)) for row in places])
        mask = torch.tensor([[int(at < len(row)) for at in range(longest)] for row in rows])
        with torch.no_grad():
            found = backbone(input_ids=ids, attention_mask=mask, position_ids=positions).last_hidden_state
        return torch.stack([found[at, row.index(MASK)] for at, row in enumerate(rows)])

    whole = [before + text + after for text in texts]
    alone = [before + after for _ in texts]
    shifted = [
        [*range(len(before)), *(len(before) + len(text) + at for at in range(len(after)))] for text in texts
    ]
    return at_mask(whole, [list(range(len(row))) for row in whole]) - at_mask(alone, shifted)


def get_ids(trainer: Trainer, text: str) -> list[int]:
    (row,) = trainer.encoder.tokenizer(64).tokenize([text])
    return list(row.ids)[1:-1]


def test_the_vector_of_a_text_is_less_what_its_template_gives_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer = trainer_with(tmp_path / "raw")
    (column,) = trainer._source.batch(0).columns
    texts = [column.select(torch.tensor([row])).ids.tolist()[1:-1] for row in range(len(column))]
    assert len({len(text) for text in texts}) == 4, "texts of one length would all have one bias"
    z = vectors_of_a_step(trainer, monkeypatch)
    for view, template in enumerate(TEMPLATES):
        before, after = template.split("{}")
        around = (
            [CLS, *get_ids(trainer, before)],
            [*get_ids(trainer, after.split("[MASK]")[0]), MASK, *get_ids(trainer, "."), SEP],
        )
        expected = by_transformers(tmp_path / "raw", texts, around)
        assert torch.allclose(z[:, view], expected, atol=2e-5), view


def test_a_text_of_any_length_leaves_room_for_its_template(tmp_path: Path) -> None:
    recipe = load_recipe("promptbert", {"max_length": 4096})
    encoder, _ = load_encoder(raw_source(tmp_path / "raw"), recipe, torch.device("cpu"))
    (long,) = encoder.tokenizer(recipe.max_length).tokenize(["river " * 5000])
    view = recipe.views[0]
    tokens = view(build_tokens([long.ids]), torch.Generator(), encoder.lexicon)
    assert int(tokens.lengths) == encoder.source.max_length
    assert encoder(tokens).pooled.isfinite().all()
