"""The forward pass of a step, which encodes the texts of all views, at once or in chunks.

    views ─▶ all tokens as one sequence ─▶ encoder ─▶ (texts, V, D) ─▶ minus the bias of a template, plus the
                                                                       layers of a frozen twin as views

Usually one pass encodes the texts of all views. Each view has a separate pass if the views need different
encoders (the twin `clone`), different dropout rates (`dropouts`) or the same dropout masks (`fixed_mask`).

`backward_in_chunks` is GradCache (Gao et al. 2021), which computes exact large batches in small memory:

    1. encode each chunk of texts without a graph, and store the random state before each chunk
    2. compute the loss over all vectors, and the gradient of every vector
    3. encode each chunk again with a graph, from the stored random state, and add the gradient of the weights

Without the stored random state, dropout in step 3 would differ and the gradient would be wrong.
"""

# ruff: noqa: N806  shapes live in names
from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from training.methods.components import Clone, Frozen
from training.methods.recipe import Recipe
from training.methods.views import Template, stands_aside
from training.model.dropout import find_dropouts
from training.model.encoder import Encoded, TrainedEncoder
from training.text.tokens import Tokens, join

Rates = float | list[float]


class Forward:
    def __init__(self, recipe: Recipe, encoder: TrainedEncoder, twin: TrainedEncoder, *, bf16: bool) -> None:
        """Stores the encoders. If the recipe has no twin, `twin` is the encoder itself."""
        self._recipe, self._encoder, self._twin, self._bf16 = recipe, encoder, twin, bf16
        self._contrasted = sum(not stands_aside(view) for view in recipe.views)
        self._cloned = isinstance(recipe.twin, Clone)
        self.one_by_one = recipe.fixed_mask or bool(recipe.dropouts) or self._cloned

    def autocast(self) -> torch.autocast:
        return torch.autocast(self._encoder.device.type, torch.bfloat16, enabled=self._bf16)

    def rows(self, own: tuple[Tokens, ...]) -> tuple[Tokens, list[Tensor]]:
        """Collects the token sequences to encode.

        These are the contrasted views, the other views if an objective reads them, and the empty templates.

        Returns:
            The sequences, which are called rows. And for each view with `less_bias`, the place of each text's
            empty template among the empty templates of the view.
        """
        encoded = list(own if self._recipe.reads("hidden") else own[: self._contrasted])
        which: list[Tensor] = []
        for view, tokens in zip(self._recipe.views, own, strict=True):
            if isinstance(view, Template) and view.less_bias:
                empty, of_text = view.bias(tokens, self._encoder.lexicon)
                encoded.append(empty)
                which.append(of_text)
        return join(encoded), which

    def all(
        self, rows: Tokens, own: tuple[Tokens, ...], rates: list[Rates]
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Returns the vector of each row, and the token vectors of each view if an objective reads them."""
        if self.one_by_one:
            return torch.cat(self._each(own[: self._contrasted], rates)), ()
        pooled_R, hidden = self.encode(rows)
        if not self._recipe.reads("hidden"):
            return pooled_R, ()
        sizes = [len(view.ids) for view in own]
        return pooled_R, torch.split(hidden[: sum(sizes)], sizes)

    def _each(self, views: tuple[Tokens, ...], rates: list[Rates]) -> list[Tensor]:
        """Encodes each view in a separate pass. Returns one tensor of shape (texts, D) for each view."""
        state = random_state()
        pooled = []
        for place, (view, rate) in enumerate(zip(views, rates, strict=True)):
            if self._recipe.fixed_mask:
                set_random_state(state)
            encoder = self._twin if self._cloned and not place else self._encoder
            with self.autocast():
                pooled.append(encoder(view, rate).pooled)
        return pooled

    def encode(self, rows: Tokens) -> Encoded:
        with self.autocast():
            encoded: Encoded = self._encoder(rows, self._recipe.dropout)
            return encoded

    def rates(self, generator: torch.Generator) -> list[Rates]:
        """Returns the dropout of each contrasted view: one rate, or one for each dropout module."""
        dropouts = self._recipe.dropouts
        if not dropouts:
            return [self._recipe.dropout] * self._contrasted
        places = len(find_dropouts(self._encoder.backbone))
        drawn = torch.randint(len(dropouts), (self._contrasted, places), generator=generator)
        return [[dropouts[at] for at in view] for view in drawn.tolist()]

    def vectors(self, pooled: Tensor, own: tuple[Tokens, ...], bias: list[Tensor]) -> Tensor:
        """Arranges the vectors of rows, shape (rows, D), by text and view: (texts of this process, V, D).

        Subtracts the biases of templates. Appends the layers of a frozen twin as further views.
        """
        V, texts = self._contrasted, len(own[0])
        vectors = pooled[: V * texts].reshape(V, texts, -1)
        if bias:  # `rows` puts the vectors of the empty templates last
            counts = [int(which.max()) + 1 for which in bias]
            parts = torch.split(pooled[len(pooled) - sum(counts) :], counts)
            vectors = vectors - torch.stack(
                [part[which.to(part.device)] for part, which in zip(parts, bias, strict=True)]
            )
        vectors = vectors.transpose(0, 1)
        if isinstance(self._recipe.twin, Frozen):
            # The mean of each twin layer over the tokens, without dropout: (texts, layers, D).
            with torch.no_grad(), self.autocast():
                layers = self._twin.layers(own[0])
            vectors = torch.cat([vectors, layers], dim=1)
        return vectors

    @torch.no_grad()
    def by_twin(self, view: Tokens) -> Tensor:
        """Encodes a view with the second encoder of the method, without dropout. Returns shape (texts, D)."""
        with self.autocast():
            pooled: Tensor = self._twin(view, 0.0).pooled
        return pooled


def backward_in_chunks(
    encode: Callable[[Tokens], Tensor], chunks: Sequence[Tokens], compute_loss: Callable[[Tensor], Tensor]
) -> Tensor:
    """Returns the loss over the vectors of all rows. Accumulates the gradient of the loss in the weights.

    Args:
        encode: Function that encodes rows with dropout, and returns shape (rows, D).
        chunks: The rows of all texts, in chunks.
        compute_loss: Function from the vectors of all rows, shape (rows, D), to the loss, a scalar.
    """
    states, parts = [], []
    with torch.no_grad():
        for chunk in chunks:
            states.append(random_state())
            parts.append(encode(chunk))
    vectors = torch.cat(parts).requires_grad_()
    loss = compute_loss(vectors)
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
    """Returns the random states of the CPU and of every GPU. Dropout uses the state of its device."""
    return torch.get_rng_state(), torch.cuda.get_rng_state_all() if torch.cuda.is_available() else []


def set_random_state(state: tuple[Tensor, list[Tensor]]) -> None:
    torch.set_rng_state(state[0])
    if state[1]:
        torch.cuda.set_rng_state_all(state[1])
