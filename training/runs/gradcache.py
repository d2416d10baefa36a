"""Exact large batches in small memory: GradCache (Gao et al. 2021), with the random numbers replayed.

    1. each chunk of rows ─▶ vectors, without a graph; where its random numbers began is remembered
    2. all vectors ─▶ loss ─▶ the gradient of every vector
    3. each chunk again, from the same random numbers, with a graph ─▶ its part of the encoder's gradient

Without the replay dropout would be another one in step 3 and the gradient wrong, silently.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from training.text.tokens import Tokens


def backward_in_chunks(
    encode: Callable[[Tokens], Tensor], chunks: Sequence[Tokens], loss_of: Callable[[Tensor], Tensor]
) -> Tensor:
    """The loss of all rows' vectors, with its gradient added to every weight that took part.

    encode: rows -> (rows, D), with dropout. loss_of: (all rows, D) -> a scalar.
    """
    states, parts = [], []
    with torch.no_grad():
        for chunk in chunks:
            states.append(random_state())
            parts.append(encode(chunk))
    vectors = torch.cat(parts).requires_grad_()
    loss = loss_of(vectors)
    loss.backward()  # type: ignore[no-untyped-call]
    after = random_state()
    gradients = vectors.grad
    if gradients is None:
        raise ValueError("the loss does not depend on the vectors")
    for chunk, state, gradient in zip(
        chunks, states, torch.split(gradients, [len(part) for part in parts]), strict=True
    ):
        set_random_state(state)
        encode(chunk).backward(gradient)  # type: ignore[no-untyped-call]
    set_random_state(after)
    return loss.detach()


def random_state() -> tuple[Tensor, list[Tensor]]:
    """Random states of the CPU and of every GPU: dropout draws from the one that it runs on."""
    return torch.get_rng_state(), torch.cuda.get_rng_state_all() if torch.cuda.is_available() else []


def set_random_state(state: tuple[Tensor, list[Tensor]]) -> None:
    torch.set_rng_state(state[0])
    if state[1]:
        torch.cuda.set_rng_state_all(state[1])
