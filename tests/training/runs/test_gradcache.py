"""A batch in chunks is the batch whole: the same loss and gradients, with dropout on."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.training.conftest import Run
from tests.training.recipe_cases import raw_source
from tests.training.world_process import found_by, recipe_of, trainer_for
from training.errors import TrainingError
from training.methods.catalogue import load_recipe
from training.methods.objectives import info_nce
from training.methods.start import load_encoder
from training.model.encoder import TrainedEncoder
from training.runs import forward
from training.runs.forward import backward_in_chunks
from training.text.tokens import Tokens, tokens_of

ROWS = tokens_of([[2, *range(60 + row, 64 + 2 * row), 3] for row in range(12)])
PARTS = [ROWS.select(part) for part in torch.split(torch.arange(12), 5)]  # 5, 5 and 2
DEVICES = [
    "cpu",
    pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")),
]


def loss_of(vectors: Tensor) -> Tensor:
    """Of all rows together: each finds the one six places on. Dropout here as well, as a head might have."""
    kept = nn.functional.dropout(vectors, 0.1)
    none = torch.zeros(6, len(kept) - 6, device=kept.device)
    return info_nce(kept[:6], kept[6:], tau=0.05, same_NM=none.bool(), bonus_NM=none)


def gradients_of(
    encoder: TrainedEncoder, backward: Callable[[Callable[[Tokens], Tensor]], Tensor]
) -> tuple[float, dict[str, Tensor]]:
    """backward: from the forward of one chunk, with dropout, to the loss."""
    encoder.zero_grad()
    torch.manual_seed(3)
    loss = backward(lambda rows: encoder(rows, 0.3).pooled)
    return loss.item(), {
        name: parameter.grad.clone()
        for name, parameter in encoder.named_parameters()
        if parameter.grad is not None
    }


def in_chunks(encode: Callable[[Tokens], Tensor]) -> Tensor:
    return backward_in_chunks(encode, PARTS, loss_of)


def kept_whole(encode: Callable[[Tokens], Tensor]) -> Tensor:
    """The same forwards in the same order, with the graph of all of them in memory."""
    loss = loss_of(torch.cat([encode(part) for part in PARTS]))
    loss.backward()  # type: ignore[no-untyped-call]
    return loss


@pytest.fixture
def encoder(tmp_path: Path, request: pytest.FixtureRequest) -> TrainedEncoder:
    device = torch.device(getattr(request, "param", "cpu"))
    return load_encoder(raw_source(tmp_path / "raw"), load_recipe("first-last"), device)[0]


@pytest.mark.parametrize("encoder", DEVICES, indirect=True)
def test_the_gradient_in_chunks_is_that_of_the_same_forward_kept_whole(encoder: TrainedEncoder) -> None:
    loss, found = gradients_of(encoder, in_chunks)
    after = torch.rand(1)
    expected_loss, expected = gradients_of(encoder, kept_whole)
    assert loss == pytest.approx(expected_loss, rel=1e-6)
    assert found.keys() == expected.keys()
    for name, gradient in expected.items():
        scale = max(1.0, gradient.abs().max().item())
        assert (found[name] - gradient).abs().max() < 1e-5 * scale, name
    assert torch.equal(after, torch.rand(1)), "what is drawn afterwards is what would have been"


@pytest.mark.parametrize("encoder", DEVICES, indirect=True)
def test_without_the_replay_of_its_random_numbers_the_gradient_is_another(
    encoder: TrainedEncoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, expected = gradients_of(encoder, kept_whole)
    monkeypatch.setattr(forward, "set_random_state", lambda state: None)
    _, found = gradients_of(encoder, in_chunks)
    name = "backbone.encoder.layer.0.output.dense.weight"
    cosine = nn.functional.cosine_similarity(found[name].flatten(), expected[name].flatten(), dim=0)
    assert cosine < 0.99


def test_a_loss_that_reads_no_vectors_is_an_error() -> None:
    constant = nn.Parameter(torch.ones(1))
    with pytest.raises(ValueError, match="does not depend on the vectors"):
        backward_in_chunks(lambda part: torch.ones(len(part), 2), PARTS, lambda vectors: constant.sum())


CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "a head that normalises the batch": ("simcse-unsup", {"head": "bn"}),
    "a queue": ("esimcse", {}),
    "hard negatives": ("simcse-sup", {}),
    "templates less their bias": ("promptbert", {}),
    "spans": ("declutr", {"views": ["same"] * 3, "objectives": [{"name": "nt_xent", "tau": 0.05}]}),
}


@pytest.mark.parametrize("case", CASES)
def test_steps_in_chunks_are_the_steps_of_the_whole_batch(tmp_path: Path, case: str) -> None:
    base = raw_source(tmp_path / "raw")
    recipe = recipe_of(*CASES[case], batch=9)
    whole = found_by(trainer_for(base, recipe, rows=27))
    assert any(name.startswith("gradient.2.") for name in whole)
    for size in (2, 7):
        parts = found_by(trainer_for(base, recipe, rows=27, chunk=size))
        assert parts.keys() == whole.keys()
        for name, expected in whole.items():
            if expected.numel():
                scale = max(1.0, expected.abs().max().item())
                # Chunks are summed in another order: a cosine of 32 terms is off by up to 32 x eps / 2,
                # and the temperature of 0.05 makes 20 times that, 4e-5.
                assert (parts[name] - expected).abs().max() < 5e-5 * scale, (size, name)


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("simcse-unsup-mlm", {}),
        ("mlm", {}),
        ("diffcse", {}),
        ("tsdae", {}),
        ("simcse-unsup", {"fixed_mask": True}),
    ],
)
def test_what_reads_more_than_vectors_refuses_chunks_and_leaves_nothing(
    run: Run, tmp_path: Path, name: str, changes: dict[str, Any]
) -> None:
    given = {"recipe": load_recipe(name, changes), "base": raw_source(tmp_path / "raw")}
    with pytest.raises(
        TrainingError,
        match=f"The recipe {name} reads more than vectors, or encodes view by view: its batch cannot",
    ):
        run("out", **given, chunk=2)
    assert not (tmp_path / "out").exists()
