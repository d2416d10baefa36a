"""Negatives from queues and noise, and the twin encoder that computes some of them."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F  # noqa: N812  its usual name
from torch import Tensor

from tests.training.pretrained import trainer_of
from tests.training.recipe_cases import corpus_for, raw_source
from training.methods.components import Ema, Noise, NoiseRows, Queue, QueueBuffer, Rows
from training.methods.loading import load_encoder
from training.methods.objectives import Extra, InfoNCE, Reps
from training.methods.recipe import Recipe, load_recipe
from training.methods.sources import Given
from training.runs.step import Trainer

NONE = torch.Generator()


def numbered(*numbers: int) -> Extra:
    """Returns a vector for each text number. Text 7 has (7, 7)."""
    return Extra(torch.tensor([[float(number)] * 2 for number in numbers]), torch.tensor(numbers))


def held(queue: Rows) -> list[int]:
    z, texts = queue.rows(NONE)
    assert texts.tolist() == z[:, 0].tolist(), "each vector has the number of its text"
    return texts.tolist()


def test_a_queue_has_the_newest_first_grows_and_then_stays_as_long() -> None:
    queue = Queue(batches=2.5).build(2, 2)
    assert isinstance(queue, QueueBuffer)
    found = [held(queue)]
    for at in range(4):
        queue.push(numbered(10 * at, 10 * at + 1))
        found.append(held(queue))
    assert found == [[], [0, 1], [10, 11, 0, 1], [20, 21, 10, 11, 0], [30, 31, 20, 21, 10]]
    queue.push(numbered(*range(50, 57)))  # a batch longer than the queue
    assert held(queue) == [50, 51, 52, 53, 54]


def test_a_queue_is_in_every_checkpoint() -> None:
    queue, other = Queue(batches=2).build(2, 3), Queue(batches=2).build(2, 3)
    queue.push(numbered(1, 2, 3, 4))
    other.load_state_dict(queue.state_dict())
    assert held(other) == [1, 2, 3, 4]


def test_a_queue_keeps_no_graph() -> None:
    queue = Queue(batches=2).build(2, 3)
    queue.push(Extra(torch.ones(2, 2, requires_grad=True), torch.arange(2)))
    assert not queue.rows(NONE).z.requires_grad


def test_a_text_s_own_earlier_vector_is_none_of_its_negatives() -> None:
    """The batch and the queue have the texts 5 and 6. All terms of the loss are written out."""
    z = torch.tensor([[[1.0, 0], [1, 0]], [[0, 1], [0, 1]]])
    texts = torch.tensor([[5, 5], [6, 6]])
    extra = Extra(torch.tensor([[1.0, 0], [1, 0], [-1, 0]]), torch.tensor([5, 7, 6]))
    found = InfoNCE(tau=1.0).loss(Reps(z, texts, extra=extra)).item()
    e = math.e
    first = math.log((e + 1 + e + 1 / e) / e)  # itself, the other text, texts 7 and 6; not text 5 again
    second = math.log((e + 1 + 1 + 1) / e)  # itself, the other text, texts 5 and 7; not text 6 again
    assert found == pytest.approx((first + second) / 2, rel=1e-6)


def test_noise_is_gaussian_and_follows_its_generator() -> None:
    noise = Noise(batches=3.0).build(16, 64)
    assert isinstance(noise, NoiseRows)
    first, again, other = (noise.rows(torch.Generator().manual_seed(seed)).z for seed in (1, 1, 2))
    assert first.shape == (192, 16)
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert first.std().item() == pytest.approx(1, rel=0.05)
    assert first.mean().abs().item() < 0.05


def test_the_noise_of_a_step_is_its_own_and_comes_again_with_the_step(tmp_path: Path) -> None:
    recipe = load_recipe("gs-infonce", {"optim.batch": 4})
    trainer = trainer_of(recipe, tmp_path / "raw")
    drawn = [extra.z for step in (3, 4, 3) if (extra := trainer._extra(trainer._seed(step)))]
    assert [rows.shape for rows in drawn] == [(12, 32)] * 3
    assert torch.equal(drawn[0], drawn[2])
    assert not torch.equal(drawn[0], drawn[1])


def still(batch: int = 8) -> Recipe:
    """Returns ESimCSE without randomness, so a test can repeat a step from the weights before the step."""
    changes = {"views": ["same", "same"], "dropout": 0.0, "optim.batch": batch, "optim.lr": 1e-2}
    recipe = load_recipe("esimcse", changes | {"negatives": [{"name": "queue", "batches": 1.5}]})
    return replace(recipe, twin=Ema(momentum=0.75))


def first_vectors(trainer: Trainer, step: int, encoder: str) -> Tensor:
    """Returns the head's output for a step's texts. The module `encoder` or `twin` encodes them."""
    (column,) = trainer._source.batch(step).columns
    with torch.no_grad():
        found: Tensor = trainer.model["head"](trainer.model[encoder](column).pooled)
    return found


def loss_by_hand(z: Tensor, kept: Tensor) -> float:
    """Returns InfoNCE at τ = 0.05 with the negatives `kept`. In both views, text n has the vector z[n]."""
    keys = F.normalize(torch.cat([z, kept]), dim=-1)
    scores = F.normalize(z, dim=-1) @ keys.T / 0.05
    rows = [math.log(sum(math.exp(x - row[n]) for x in row)) for n, row in enumerate(scores.tolist())]
    return sum(rows) / len(rows)


def test_a_step_sees_the_batches_before_it_and_then_its_own_is_kept(tmp_path: Path) -> None:
    trainer = trainer_of(still(), tmp_path / "raw")
    queue = trainer._negatives[0]
    before = queue.rows(NONE).z.clone()
    for step in range(4):
        z = first_vectors(trainer, step, "encoder")
        assert trainer.step(step).loss == pytest.approx(loss_by_hand(z, before), rel=1e-4), step
        after = queue.rows(NONE).z.clone()
        assert torch.equal(after[: len(z)], first_vectors(trainer, step, "twin")), step
        assert torch.equal(after[len(z) :], before[: 12 - len(z)]), "older ones stay as they were"
        before = after
    assert len(before) == 12


def test_the_twin_begins_as_the_encoder_and_follows_it_by_its_momentum(tmp_path: Path) -> None:
    trainer = trainer_of(still(), tmp_path / "raw")
    encoder, twin = trainer.model["encoder"], trainer.model["twin"]
    begun = encoder.state_dict()
    assert twin.state_dict().keys() == begun.keys()
    for name, tensor in twin.state_dict().items():
        assert torch.equal(tensor, begun[name]), name
        assert tensor.data_ptr() != begun[name].data_ptr(), "a copy and not the same"
    for step in range(3):
        before = {name: tensor.detach().clone() for name, tensor in twin.named_parameters()}
        trainer.step(step)
        moved = 0.0
        for name, tensor in encoder.named_parameters():
            expected = 0.75 * before[name] + 0.25 * tensor
            assert torch.allclose(dict(twin.named_parameters())[name], expected, atol=1e-6), name
            moved = max(moved, (tensor - before[name]).abs().max().item())
        assert moved > 1e-4
    assert all(tensor.grad is None and not tensor.requires_grad for tensor in twin.parameters())
    optimized = {id(tensor) for group in trainer.optimizer.param_groups for tensor in group["params"]}
    assert not optimized & {id(tensor) for tensor in twin.parameters()}


def test_a_twin_computes_in_the_precision_of_the_encoder(tmp_path: Path) -> None:
    """Before the first step, twin and encoder compute identical vectors."""
    recipe = still()
    encoder, head = load_encoder(raw_source(tmp_path / "raw"), recipe, torch.device("cpu"))
    given = Given(corpus_for(recipe, 40), encoder.tokenizer(32), batch=8, steps=2, seed=recipe.seed)
    trainer = Trainer(encoder, head, recipe, recipe.source.build(given), steps=2, bf16=True)
    (column,) = trainer._source.batch(0).columns
    with torch.no_grad():
        expected = trainer._forward.encode(column).pooled
        assert torch.equal(trainer._forward.by_twin(column), expected)
        assert not torch.equal(encoder(column).pooled, expected), "bfloat16 is seen"
