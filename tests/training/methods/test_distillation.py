"""The distance from a teacher's list, against numbers worked out by hand."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest
import torch

from training.methods.objectives import KlTeacher, Reps, kl_teacher, vector_mse

EAST = [1.0, 0.0]


def at(cosine: float, length: float = 1.0) -> list[float]:
    """A vector with that cosine to EAST."""
    return [length * cosine, length * math.sqrt(1 - cosine**2)]


def softmax(scores: Sequence[float], tau: float) -> list[float]:
    powers = [math.exp(score / tau) for score in scores]
    return [power / sum(powers) for power in powers]


def divergence(teacher: Sequence[float], student: Sequence[float]) -> float:
    return sum(p * math.log(p / q) for p, q in zip(teacher, student, strict=True))


def loss_of(cosines: list[list[float]], scores: list[list[float]], tau: float) -> torch.Tensor:
    queries = torch.tensor([[7 * x for x in EAST]] * len(cosines))  # lengths say nothing
    documents = torch.tensor([[at(cosine, 3) for cosine in row] for row in cosines])
    return kl_teacher(queries, documents, torch.tensor(scores), tau=tau)


def test_it_is_the_mean_divergence_of_the_lists() -> None:
    cosines, scores = [[0.6, 0.2, 0.5], [0.1, 0.9, 0.3]], [[0.7, 0.6, 0.1], [1.2, 0.9, -0.3]]
    expected = [
        divergence(softmax(told, 0.5), softmax(own, 0.5)) for own, told in zip(cosines, scores, strict=True)
    ]
    assert loss_of(cosines, scores, 0.5).item() == pytest.approx(sum(expected) / 2, abs=1e-6)


def test_two_documents_by_hand() -> None:
    # Teacher: a difference of τ ln 3, so 3/4 and 1/4. Student: none, so 1/2 each.
    expected = 0.75 * math.log(1.5) + 0.25 * math.log(0.5)
    assert loss_of([[0.4, 0.4]], [[0.1 * math.log(3), 0.0]], 0.1).item() == pytest.approx(expected, abs=1e-6)


def test_a_model_that_ranks_as_the_teacher_has_nothing_to_learn() -> None:
    """Only differences count: the same list with another number added to all of it is the same."""
    assert loss_of([[0.6, 0.2]], [[0.6, 0.2]], 0.05).item() == pytest.approx(0, abs=1e-6)
    assert loss_of([[0.6, 0.2]], [[0.9, 0.5]], 0.05).item() == pytest.approx(0, abs=1e-6)


def test_the_module_reads_the_query_its_documents_and_their_scores() -> None:
    z = torch.tensor([[EAST, at(0.6), at(0.2)], [EAST, at(0.1), at(0.9)]], requires_grad=True)
    scores = torch.tensor([[0.2, 0.6], [0.1, 0.9]])
    loss = KlTeacher(tau=0.1).loss(Reps(z, torch.arange(6).reshape(2, 3), labels=scores))
    expected = divergence(softmax([0.2, 0.6], 0.1), softmax([0.6, 0.2], 0.1)) / 2
    assert loss.item() == pytest.approx(expected, abs=1e-5)
    loss.backward()  # type: ignore[no-untyped-call]
    assert z.grad is not None
    assert z.grad[0].norm() > 100 * z.grad[1].norm()  # the second list is as the teacher's already


def test_bfloat16_does_not_reach_the_loss() -> None:
    with torch.autocast("cpu", torch.bfloat16):
        assert loss_of([[0.6, 0.59]], [[0.5, 0.7]], 0.05).dtype == torch.float32
        inside = loss_of([[0.6, 0.59]], [[0.5, 0.7]], 0.05)
    assert inside.item() == loss_of([[0.6, 0.59]], [[0.5, 0.7]], 0.05).item()


def test_the_distance_to_the_teachers_vectors_by_hand() -> None:
    """|z - t|² of unit vectors is 2 - 2 cos: 0.8 at a cosine of 0.6, and 0 at 1; lengths say nothing."""
    z, teacher = torch.tensor([[5.0, 0.0], [0.0, 2.0]]), torch.tensor([at(0.6, 3), [0.0, 1.0]])
    assert vector_mse(z, teacher).item() == pytest.approx(0.4, abs=1e-6)
    assert vector_mse(z, teacher.half()).dtype == torch.float32


def test_the_gradient_is_that_of_finite_differences() -> None:
    random = torch.Generator().manual_seed(0)
    z, teacher = (torch.randn(5, 4, generator=random) for _ in range(2))
    z.requires_grad_()
    (gradient,) = torch.autograd.grad(vector_mse(z, teacher), z)
    way = gradient / gradient.norm()
    with torch.no_grad():
        difference = (vector_mse(z + 1e-2 * way, teacher) - vector_mse(z - 1e-2 * way, teacher)).item() / 2e-2
    assert difference == pytest.approx(gradient.norm().item(), rel=1e-2)
