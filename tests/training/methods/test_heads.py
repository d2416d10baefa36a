"""Heads and poolings compared with numpy, and the initial weights of heads."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from models.publishing.from_torch.pooling import DenseLayer, pool
from tests.tiny import tiny_source as make_tiny_source
from tests.training.pretrained import encoder_of, pretrained, trainer_of
from tests.training.recipe_cases import raw_source
from tests.training.vocabularies import seeded
from training.errors import TrainingError
from training.methods.components import BatchNorm, Gelu, Plain, Relu, Tanh, Transform
from training.methods.loading import load_encoder
from training.methods.recipe import Recipe, load_recipe

NO_BASE: Any = None  # these heads begin at random


def batch_norm(x: NDArray[Any]) -> NDArray[Any]:
    """Normalizes a batch as torch's BatchNorm does in training: the variance divides by n, not by n - 1."""
    normed: NDArray[Any] = (x - x.mean(0)) / np.sqrt(x.var(0) + 1e-5)
    return normed


def test_the_head_that_normalizes_batches_is_what_numpy_computes() -> None:
    head: Any = BatchNorm().build(NO_BASE, 6, seeded(5))
    with torch.no_grad():
        head.inner.weight.uniform_(0.5, 2, generator=seeded(5))
        head.inner.bias.normal_(generator=seeded(5))
    x = torch.randn(9, 6, generator=seeded(5))
    wide, narrow, scale, shift = (
        tensor.detach().numpy().astype(float)
        for tensor in (head.wide.weight, head.narrow.weight, head.inner.weight, head.inner.bias)
    )
    assert wide.shape == (12, 6)
    inner = np.maximum(scale * batch_norm(x.numpy() @ wide.T) + shift, 0)
    expected = batch_norm(inner @ narrow.T)
    assert np.abs(head(x).detach().numpy() - expected).max() < 1e-4
    assert {name for name, _ in head.named_parameters()} == {
        "wide.weight",
        "inner.weight",
        "inner.bias",
        "narrow.weight",
    }, "neither a bias nor weights of the last normalisation"


def test_batches_are_normalized_over_the_rows_of_all_views_together(tmp_path: Path) -> None:
    recipe = load_recipe("simcse-unsup", {"head": "bn", "optim.batch": 4})
    trainer = trainer_of(recipe, tmp_path / "raw")
    own = torch.randn(4, 2, 32, generator=seeded(5))
    own[:, 1] += 3  # alone, each view would be centred
    z = trainer._head(own).detach()
    assert z.mean((0, 1)).abs().max() < 1e-5
    assert z[:, 0].mean(0).abs().max() > 0.1
    rows = torch.cat([own[:, 0], own[:, 1]])
    expected = trainer.model["head"](rows).detach()
    assert torch.allclose(z[:, 0], expected[:4])
    assert torch.allclose(z[:, 1], expected[4:])


@pytest.mark.parametrize("kind", [Tanh(keep=False), BatchNorm()])
def test_a_head_begins_from_berts_spread_by_its_own_generator(kind: Tanh | BatchNorm) -> None:
    first, again = kind.build(NO_BASE, 256, seeded(5)), kind.build(NO_BASE, 256, seeded(5))
    linears = [module for module in first.modules() if isinstance(module, torch.nn.Linear)]
    for linear in linears:
        assert linear.weight.std().item() == pytest.approx(0.02, rel=0.02)
        assert linear.weight.mean().abs().item() < 3e-4
        assert linear.bias is None or not linear.bias.any()
    assert len(linears) == (1 if isinstance(kind, Tanh) else 2)
    for one, other in zip(first.parameters(), again.parameters(), strict=True):
        assert torch.equal(one, other)


def test_the_tanh_head_is_what_numpy_computes_and_no_head_changes_nothing() -> None:
    head = Tanh(keep=True).build(NO_BASE, 6, seeded(5))
    assert isinstance(head, DenseLayer)
    x = torch.randn(9, 6, generator=seeded(5))
    expected = np.tanh(x.numpy() @ head.linear.weight.detach().numpy().T)
    # Six terms of a size of up to 4 together, each rounded by eps / 2, here and there.
    assert np.abs(head(x).detach().numpy() - expected).max() < 6 * 4 * np.finfo(np.float32).eps
    assert torch.equal(Plain().build(NO_BASE, 6, seeded(5))(x), x)


def test_the_heads_of_two_layers_are_what_numpy_computes() -> None:
    x = torch.randn(9, 6, generator=seeded(5))
    relu: Any = Relu(width=4).build(NO_BASE, 6, seeded(5))
    first, second = (each.weight.detach().numpy() for each in relu if isinstance(each, torch.nn.Linear))
    assert np.abs(relu(x).detach().numpy() - np.maximum(x.numpy() @ first.T, 0) @ second.T).max() < 1e-6
    assert [name for name, _ in relu.named_parameters()] == ["0.weight", "2.weight"], "without biases"
    gelu: Any = Gelu(width=10).build(NO_BASE, 6, seeded(5))
    wide, square = (each.weight.detach() for each in gelu if isinstance(each, torch.nn.Linear))
    expected = torch.nn.functional.gelu(torch.nn.functional.gelu(x @ wide.T) @ square.T)
    assert (gelu(x) - expected).abs().max() < 1e-6


def test_the_transform_is_the_base_s_own_and_is_published(tmp_path: Path) -> None:
    theirs = pretrained(tmp_path / "raw")
    encoder = encoder_of(tmp_path / "raw")
    head = Transform(keep=True).build(encoder.source, 32, seeded(5))
    x = torch.randn(9, 32, generator=seeded(5))
    with torch.no_grad():
        assert (head(x) - theirs.cls.predictions.transform(x)).abs().max() < 1e-5
    bare = encoder_of(raw_source(tmp_path / "bare", language=False))
    with pytest.raises(TrainingError, match="`transform` is the base's masked-language head"):
        Transform(keep=True).build(bare.source, 32, seeded(5))


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
