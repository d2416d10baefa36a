"""The training step, as the papers write it.

    views ─▶ one forward of all rows of all views ─▶ head ─▶ Σ weight · objective ─▶ backward ─▶ clip ─▶ AdamW
                                                                                           └▶ twin, negatives

Every random number of a step follows from the seed and the number of the step, so a checkpoint needs none.
Not here: how often anything is reported, evaluated or saved (loop.py).
"""

# ruff: noqa: N803, N806  shapes live in names
from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from training.errors import TrainingError
from training.evaluation.encoding import Choose, Encode
from training.methods.fit import column_of_each_view
from training.methods.negatives import Rows
from training.methods.objectives import Materials, Reps
from training.methods.recipe import Recipe
from training.methods.sources import Batch, Source
from training.methods.token_objectives import word_table
from training.methods.views import Template, stands_aside
from training.model.encoder import Encoded, TrainedEncoder
from training.runs.gradcache import backward_in_chunks, random_state, set_random_state
from training.runs.processes import World
from training.text.tokens import Tokens, join

_STEPS = 1  # beside the seed: sources.py draws its order from 0 and its spans from 2


class Step(NamedTuple):
    loss: float
    texts: int  # that it saw, over all processes
    uniformity: float  # of the first view's vectors before the head: 0 when all are one


class Trainer:
    def __init__(
        self,
        encoder: TrainedEncoder,
        head: nn.Module,
        recipe: Recipe,
        source: Source,
        *,
        steps: int,
        bf16: bool,
        chunk: int | None = None,
        world: World = World(),  # noqa: B008  a value
    ) -> None:
        """steps: of the whole run, which the learning rate follows. bf16: compute in bfloat16 by autocast.

        chunk: rows that are encoded at once, for batches that memory does not hold. Raise TrainingError when
        the recipe does not allow it.
        """
        self.encoder = encoder
        self._recipe, self._source, self._world = recipe, source, world
        self._steps, self._bf16, self._chunk = steps, bf16, chunk
        self._device = encoder.device
        self._contrasted = sum(not stands_aside(view) for view in recipe.views)
        self._columns = column_of_each_view(recipe)
        if chunk and (recipe.reads("hidden") or recipe.reads("aside") or recipe.fixed_mask):
            raise TrainingError(
                f"The recipe {recipe.name} reads more than vectors: its batch cannot be computed in chunks."
            )
        self._table = word_table(encoder) if recipe.optim.table_lr else None
        self._objectives, self._negatives = self._build()
        self.model = self._modules(head)
        self.optimizer = torch.optim.AdamW(
            [
                {"params": list(self._parameters(matrices=True)), "weight_decay": recipe.optim.weight_decay},
                {"params": list(self._parameters(matrices=False)), "weight_decay": 0.0},
                *self._table_group(),
            ],
            eps=recipe.optim.epsilon,
            fused=True,
        )

    def step(self, number: int) -> Step:
        """Make step `number`, counted from 0."""
        generator = self._seed(number)
        batch = self._source.batch(number)
        views = self._views(batch, generator)
        texts = len(views[0])
        share = self._world.share(texts)
        own = tuple(view.select(torch.arange(texts)[_or_first(share)]) for view in views)
        extra = self._extra(generator)
        self.optimizer.zero_grad()
        loss, pooled = self._backward(own, batch, share, extra)
        self._world.sum_gradients(self.model.parameters())
        nn.utils.clip_grad_norm_(self.model.parameters(), self._recipe.optim.clip)
        for group in self.optimizer.param_groups:
            group["lr"] = self.rate(number, group.get("highest"))
        self.optimizer.step()
        self._follow(own[0], share, texts)
        return Step(self._world.total(loss).item(), texts, _uniformity(pooled))

    def _backward(
        self, own: tuple[Tokens, ...], batch: Batch, share: slice, extra: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """The loss, as far as it is this process's, and (N, D) of the first view; gradients are added."""
        rows, bias = self._rows(own)
        size = share.stop - share.start
        seen: list[Tensor] = []

        def loss_of(pooled: Tensor, hidden: tuple[Tensor, ...] = ()) -> Tensor:
            own_nVD = self._less_bias(pooled, len(own[0]), bias)
            all_NVD = self._world.gather(own_nVD[:size], len(batch.texts))
            seen.append(all_NVD[:, 0].detach())
            reps = Reps(
                z=self._head(all_NVD),
                texts=batch.texts[:, self._columns[: self._contrasted]].to(self._device),
                labels=None if batch.labels is None else batch.labels.to(self._device),
                extra=extra,
                views=own,
                hidden=hidden,
                share=_or_first(share),
                dropout=self._recipe.dropout,
                total=lambda count: self._world.total(count).clamp(min=1) / self._world.size,
                guest=not size,
            )
            pairs = zip(self._recipe.objectives, self._objectives, strict=True)
            with self._autocast():
                losses = [objective.weight * module(reps) for objective, module in pairs]
            # The processes' losses are summed in the end. One over vectors is the whole batch's in each of
            # them, so it counts as a part of `size`; one over tokens is a process's own sum over the count of
            # all, which `total` divides by `size` so that it counts in full.
            return torch.stack(losses).sum() / self._world.size

        if self._chunk and len(rows) > self._chunk:
            chunks = [rows.select(part) for part in torch.split(torch.arange(len(rows)), self._chunk)]
            loss = backward_in_chunks(lambda part: self._encode(part)[0], chunks, loss_of)
        else:
            loss = loss_of(*self._encode_all(rows, own))
            loss.backward()  # type: ignore[no-untyped-call]
        return loss.detach(), seen[0]

    def _views(self, batch: Batch, generator: torch.Generator) -> tuple[Tokens, ...]:
        lexicon = self.encoder.lexicon
        return tuple(
            view(batch.columns[column], generator, lexicon)
            for view, column in zip(self._recipe.views, self._columns, strict=True)
        )

    def _rows(self, own: tuple[Tokens, ...]) -> tuple[Tokens, list[Tensor]]:
        """Views to encode: the contrasted views, those aside if they are read, the templates' biases."""
        encoded = list(own if self._recipe.reads("hidden") else own[: self._contrasted])
        which: list[Tensor] = []
        for view, tokens in zip(self._recipe.views, own, strict=True):
            if isinstance(view, Template) and view.less_bias:
                empty, of_text = view.bias(tokens, self.encoder.lexicon)
                encoded.append(empty)
                which.append(of_text)
        return join(encoded), which

    def _encode_all(self, rows: Tokens, own: tuple[Tokens, ...]) -> tuple[Tensor, tuple[Tensor, ...]]:
        """The vector of each row, and the token vectors of each encoded view."""
        if self._recipe.fixed_mask:
            state = random_state()
            pooled = []
            for view in own[: self._contrasted]:
                set_random_state(state)
                pooled.append(self._encode(view)[0])
            return torch.cat(pooled), ()
        pooled_R, hidden = self._encode(rows)
        if not self._recipe.reads("hidden"):
            return pooled_R, ()
        sizes = [len(view.ids) for view in own]
        return pooled_R, torch.split(hidden[: sum(sizes)], sizes)

    def _encode(self, rows: Tokens) -> Encoded:
        with self._autocast():
            encoded: Encoded = self.encoder(rows, self._recipe.dropout)
            return encoded

    def quickly(self, choose: Choose) -> Choose:
        """`choose` in the precision of the training: bf16 was 2.6 times as fast, at cosines of 0.99998."""

        def figures(encode_queries: Encode, encode_documents: Encode) -> NDArray[np.float64]:
            # Anew each time: autocast keeps the weights that it has cast, and several are asked about.
            with self._autocast():
                return choose(encode_queries, encode_documents)

        return figures

    def _autocast(self) -> torch.autocast:
        return torch.autocast(self._device.type, torch.bfloat16, enabled=self._bf16)

    def _less_bias(self, pooled: Tensor, texts: int, bias: list[Tensor]) -> Tensor:
        """(rows, D) -> (texts of this process, V, D)."""
        V = self._contrasted
        vectors = pooled[: V * texts].reshape(V, texts, -1)
        if bias:  # of each view the empty templates' vectors stand behind all others (_rows)
            counts = [int(which.max()) + 1 for which in bias]
            parts = torch.split(pooled[len(pooled) - sum(counts) :], counts)
            vectors = vectors - torch.stack(
                [part[which.to(part.device)] for part, which in zip(parts, bias, strict=True)]
            )
        return vectors.transpose(0, 1)

    def _head(self, all_NVD: Tensor) -> Tensor:
        """(N, V, P). A head that normalises batches sees the rows of all views together."""
        z: Tensor = self.model["head"](all_NVD.transpose(0, 1).flatten(0, 1))
        return z.reshape(self._contrasted, len(all_NVD), -1).transpose(0, 1)

    def _extra(self, generator: torch.Generator) -> Tensor | None:
        rows = [negatives.rows(generator).to(self._device) for negatives in self._negatives]
        return torch.cat(rows) if rows else None

    @torch.no_grad()
    def _follow(self, first: Tokens, share: slice, texts: int) -> None:
        """The twin follows, and its vectors of this batch, without dropout, are negatives of later ones."""
        twin = self._recipe.twin
        if twin is None:
            return
        twin.follow(self.model["twin"], self.encoder)
        own = self.model["twin"](first, 0.0).pooled[: share.stop - share.start]
        pooled = self._world.gather(own, texts)
        z = self.model["head"](pooled)
        for negatives in self._negatives:
            negatives.push(z)

    def rate(self, number: int, highest: float | None = None) -> float:
        """The learning rate of a step: up over the warmup, then down to 0 after the last, or flat.

        highest: instead of the recipe's lr.
        """
        optim = self._recipe.optim
        lr = optim.lr if highest is None else highest
        warmup = round(optim.warmup * self._steps)
        if number < warmup:
            return lr * number / warmup
        return lr * ((self._steps - number) / (self._steps - warmup) if optim.decay == "linear" else 1)

    def _seed(self, number: int) -> torch.Generator:
        """Dropout draws from torch's own generators, other numbers in each process; views from the answer."""
        entropy = np.random.SeedSequence([self._recipe.seed, _STEPS, number]).generate_state(2, np.uint64)
        torch.manual_seed((int(entropy[0]) + self._world.rank) % (1 << 64))
        return torch.Generator().manual_seed(int(entropy[1]))

    def _build(self) -> tuple[list[nn.Module], list[Rows]]:
        """Modules beside the encoder: objectives with weights of their own, and kept negatives."""
        recipe, width = self._recipe, self.encoder.width
        generator = torch.Generator().manual_seed(recipe.seed)
        materials = Materials(self.encoder, self.encoder.lexicon, width, generator)
        objectives = [objective.build(materials) for objective in recipe.objectives]
        return objectives, [negatives.build(width, recipe.optim.batch) for negatives in recipe.negatives]

    def _modules(self, head: nn.Module) -> nn.ModuleDict:
        """All that a checkpoint has to keep."""
        modules: dict[str, nn.Module] = {"encoder": self.encoder, "head": head}
        modules["objectives"] = nn.ModuleList(self._objectives)
        modules["negatives"] = nn.ModuleList(self._negatives)
        if self._recipe.twin is not None:
            modules["twin"] = self._recipe.twin.build(self.encoder)
        return nn.ModuleDict(modules).to(self._device)

    def _table_group(self) -> list[dict[str, Any]]:
        """The word table, where it has a rate of its own."""
        optim = self._recipe.optim
        if self._table is None:
            return []
        return [{"params": [self._table], "weight_decay": optim.weight_decay, "highest": optim.table_lr}]

    def _parameters(self, *, matrices: bool) -> Iterator[nn.Parameter]:
        return (
            tensor
            for tensor in self.model.parameters()
            if tensor.requires_grad and (tensor.ndim > 1) == matrices and tensor is not self._table
        )


def _or_first(share: slice) -> slice:
    """A process without a share of a small batch encodes its first text for nothing, as a guest.

    So that it has the same graph as the others, and meets them in every exchange.
    """
    return share if share.start < share.stop else slice(0, 1)


@torch.no_grad()
def _uniformity(z_ND: Tensor) -> float:
    """Wang and Isola 2020 over the pairs of one batch; NaN for a single text."""
    unit = nn.functional.normalize(z_ND.float(), dim=-1)
    above = torch.triu_indices(len(unit), len(unit), 1, device=unit.device)
    cosines = (unit @ unit.T)[above[0], above[1]]
    return (4 * cosines - 4).exp().mean().log().item()
