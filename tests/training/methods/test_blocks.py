"""The building blocks against numbers worked out by hand or in numpy."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch

from models.graph.backbone import Backbone, read_backbone
from models.graph.reference import embed
from models.publishing.from_torch.pooling import DenseLayer, pool
from models.sources.folder import read_source
from tests.tiny import ROUNDING
from tests.tiny import tiny_source as make_tiny_source
from training.methods.loading import load_encoder
from training.methods.objectives import Reps
from training.methods.recipe import Recipe
from training.model.encoder import TrainedEncoder
from training.text.tokens import Tokens, join, tokens_of


def tokens(*rows: list[int]) -> Tokens:
    return tokens_of(rows)


ROWS = tokens([2, 90, 91, 92, 3], [2, 95, 3], [2, 100, 101, 3])


def encoder_of(folder: Path, recipe: Recipe) -> TrainedEncoder:
    return load_encoder(folder, recipe, torch.device("cpu"))[0]


def test_a_view_does_not_change_what_it_is_given() -> None:
    ids, starts = ROWS.ids.clone(), ROWS.starts.clone()
    joined = join([ROWS, ROWS])
    joined.ids[:] = 0
    assert torch.equal(ROWS.ids, ids)
    assert torch.equal(ROWS.starts, starts)


def test_joined_views_stand_below_each_other() -> None:
    ids, mask = join([tokens([1, 2], [3]), tokens([4, 5, 6], [7])]).padded(0)
    assert ids.tolist() == [[1, 2, 0], [3, 0, 0], [4, 5, 6], [7, 0, 0]]
    assert mask.tolist() == [[1, 1, 0], [1, 0, 0], [1, 1, 1], [1, 0, 0]]


def test_the_encoder_computes_what_numpy_does(tiny_source: Path, recipe: Recipe) -> None:
    source = read_source(tiny_source)
    backbone = Backbone.from_config(source.config)
    weights = read_backbone(source.weights, backbone)
    rows = [[2, 90, 91, 92, 3], [2, 95, 3], [2, 100, 101, 3]]
    found = (
        torch.nn.functional.normalize(encoder_of(tiny_source, recipe)(ROWS).pooled, dim=-1).detach().numpy()
    )
    assert np.abs(found - embed(backbone, weights, source.head, rows)).max() < 1e-5


def test_two_dropout_views_differ_and_without_dropout_they_do_not(tiny_source: Path, recipe: Recipe) -> None:
    encoder = encoder_of(tiny_source, recipe)
    with torch.no_grad():
        first, second = encoder(join([ROWS, ROWS]), dropout=0.1).pooled.unflatten(0, (2, 3))
        assert ((first - second).abs().amax(1) > 1e-3).all()
        for none in (0.0, 1e-9):  # the argument decides, not what config.json says
            first, second = encoder(join([ROWS, ROWS]), dropout=none).pooled.unflatten(0, (2, 3))
            assert (first - second).abs().max() < 5 * ROUNDING  # components reach 5


def test_the_poolings_are_those_of_the_published_head() -> None:
    hidden = torch.tensor([[[1.0, -4.0], [3.0, -2.0], [9.0, 9.0]]])
    mask = torch.tensor([[1, 1, 0]])
    root = math.sqrt(2)
    for mode, expected in {
        "cls": [1, -4],
        "max": [3, -2],
        "mean": [2, -3],
        "mean_sqrt_len_tokens": [4 / root, -6 / root],
    }.items():
        assert pool(hidden, mask, [mode])[0].tolist() == pytest.approx(expected), mode
    assert pool(hidden, mask, ["mean", "cls"])[0].tolist() == [2, -3, 1, -4]


def test_a_base_keeps_its_own_pooling_and_a_raw_backbone_takes_the_recipe_s(
    tmp_path: Path, recipe: Recipe
) -> None:
    folder = make_tiny_source(tmp_path / "base", pooling="max")
    encoder, head = load_encoder(folder, recipe, torch.device("cpu"))
    assert encoder.source.head.pooling == ("max",)
    assert isinstance(head, torch.nn.Identity)
    for name in ("modules.json", "sentence_bert_config.json"):
        (folder / name).unlink()
    encoder, head = load_encoder(folder, recipe, torch.device("cpu"))
    assert encoder.source.head.pooling == ("cls",)
    assert isinstance(head, DenseLayer)
    assert head.linear.weight.std().item() == pytest.approx(0.02, rel=0.1)
    assert len(encoder.dense) == 0, "a head that is not kept must not be published"


def test_a_mean_over_tokens_is_of_all_processes_and_a_guest_s_text_counts_nothing() -> None:
    """One of three processes holds 2 tokens of loss 3 together, another 4 of loss 5, the third is a guest."""
    z, texts = torch.zeros(2, 1, 1), torch.zeros(2, 1, dtype=torch.int64)
    counts = {"own": 2.0, "other": 4.0}

    def total(count: torch.Tensor) -> torch.Tensor:
        return count + sum(counts.values()) - (counts["own"] if count else 0.0)

    own = Reps(z, texts, total=total).mean(torch.tensor(3.0), torch.tensor(2.0))
    assert own.item() == pytest.approx(3 / 6)
    losses = torch.tensor(7.0, requires_grad=True)
    guest = Reps(z, texts, total=total, guest=True).mean(losses, torch.tensor(9.0))
    assert guest.item() == 0
    assert torch.autograd.grad(guest, losses)[0].item() == 0, "there is a graph, and nothing flows"
    alone = Reps(z, texts).mean(torch.tensor(3.0), torch.tensor(0.0))
    assert alone.item() == 3, "nothing was masked: no division by 0"
