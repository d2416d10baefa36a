"""The flow: its likelihood, its fit, and its layers as they are published."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from models.graph.head import Dense
from models.sources.folder import read_source
from models.store import ModelStore
from tests.training.recipe_cases import build_corpus, raw_source
from training.methods.loading import load_encoder
from training.methods.recipe import load_recipe
from training.model.encoder import Affine
from training.papers.flow import Flow, FlowStep, negative_log_likelihood
from training.runs.command import train
from training.runs.export import export_run
from training.runs.options import Options
from training.text.corpus import TEXTS

RANDOM = np.random.default_rng(0)
# A bend that no affine map can take out: the second number is the square of the first.
FIRST = RANDOM.normal(size=(600, 1))
BENT = np.concatenate([FIRST, FIRST**2 + 0.1 * RANDOM.normal(size=(600, 1)), RANDOM.normal(size=(600, 3))], 1)
BENT = (BENT @ np.linalg.qr(RANDOM.normal(size=(5, 5)))[0] * 3 + 7).astype(np.float32)


def shaken(width: int = 5) -> list[FlowStep]:
    generator = torch.Generator().manual_seed(3)
    flow = [FlowStep(width, 8, generator) for _ in range(2)]
    for step in flow:
        for tensor in step.parameters():
            torch.nn.init.normal_(tensor, std=0.5, generator=generator)
    return flow


def through(layers: list[Affine], x: np.ndarray) -> np.ndarray:
    for weight, bias, activation in layers:
        x = x @ weight + bias
        x = np.maximum(x, 0) if activation == "relu" else x
    return x


def test_the_published_layers_are_the_flow() -> None:
    flow = shaken()
    x = torch.from_numpy(BENT[:50])
    z = x
    for step in flow:
        z = step(z)
    found = through([layer for step in flow for layer in step.layers()], BENT[:50].astype(float))
    assert np.abs(found - z.detach().numpy()).max() < 1e-4


def test_the_likelihood_has_the_determinant_of_the_map() -> None:
    """Compares with autograd's Jacobian at one point. The coupling's own determinant is 1."""
    flow = shaken()
    x = torch.from_numpy(BENT[:1])

    def whole(point: torch.Tensor) -> torch.Tensor:
        for step in flow:
            point = step(point)
        return point

    jacobian = torch.autograd.functional.jacobian(whole, x)[0, :, 0]  # type: ignore[no-untyped-call]
    expected = whole(x).square().sum() / 2 - torch.linalg.slogdet(jacobian).logabsdet
    assert negative_log_likelihood(flow, x).item() == pytest.approx(expected.item(), rel=1e-4)


def test_fitting_raises_the_likelihood() -> None:
    """The Jacobian's determinant is the same at all points, so finite differences at one point are enough."""

    def loss(layers: list[Affine]) -> float:
        x = BENT.astype(float)
        steps = np.eye(5) * 1e-4
        jacobian = (through(layers, x[:1] + steps) - through(layers, x[:1] - steps)) / 2e-4
        return float((through(layers, x) ** 2).sum(1).mean() / 2 - np.linalg.slogdet(jacobian)[1])

    began, fitted = (Flow(steps=4, hidden=16, epochs=epochs, lr=5e-3).fit(BENT) for epochs in (1, 40))
    assert loss(fitted) < loss(began) - 0.5
    assert np.array_equal(began[0].weight, Flow(steps=4, hidden=16, epochs=1, lr=5e-3).fit(BENT)[0].weight)


@pytest.mark.long
def test_a_flow_is_published_as_dense_layers(tmp_path: Path) -> None:
    base, corpus = raw_source(tmp_path / "raw"), build_corpus(TEXTS)
    flowing = load_recipe("bert-flow", {"post": [{"name": "flow", "epochs": 3, "lr": 1e-2}]})
    result = train(
        flowing, corpus, base, tmp_path / "run", Options(precision="fp32", device="cpu", threads=1)
    )
    store = ModelStore(tmp_path / "models")
    encoder = store.open(export_run(result.out, store).version)
    after = encoder.forward([tokens.ids for tokens in encoder.tokenize(corpus.texts)], normalize=False)
    plain = load_recipe("bert-flow", {"post": []})
    before = load_encoder(base, plain, torch.device("cpu"))[0].pooled(corpus.texts).numpy()
    layers = [layer for layer in read_source(result.best).head.layers if isinstance(layer, Dense)]
    assert [layer.activation for layer in layers] == ["relu", "identity"] * 3
    made = [
        Affine(layer.weight.T.astype(float), np.array(layer.bias, float), layer.activation)
        for layer in layers
    ]
    assert np.abs(through(made, before.astype(float)) - after).max() < 1e-4
    assert np.abs(after.mean(0)).max() < 0.2, "centred, and not where it was"
