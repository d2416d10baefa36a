"""A training step: views, forward pass, objectives, AdamW and learning rate. Start at `Trainer.step`.

    views ─▶ one forward of all rows of all views ─▶ head ─▶ Σ weight · objective ─▶ backward ─▶ clip ─▶ AdamW
                                                                                           └▶ twin, negatives

All random numbers of a step depend only on the seed and the number of the step, so checkpoints store no
random state. loop.py decides when to report, evaluate and save.
"""

# ruff: noqa: N803, N806  shapes live in names
from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from training.errors import TrainingError
from training.evaluation.encoding import Choose, Encode
from training.methods.components import Ema
from training.methods.objectives import Extra, Materials, Reps
from training.methods.recipe import Optim, Recipe, column_of_each_view
from training.methods.sources import Batch, Source
from training.methods.token_objectives import word_table
from training.methods.views import stands_aside
from training.model.encoder import TrainedEncoder
from training.runs.forward import Forward, Rates, backward_in_chunks
from training.runs.processes import World
from training.text.tokens import Tokens

# A second seed. sources.py draws its order from 0 and its spans from 2.
_STEPS = 1
_RATIO = 32  # highest rate / lowest rate (Howard and Ruder 2018, section 3.2; AllenNLP's default)


class Step(NamedTuple):
    loss: float
    texts: int  # texts of all processes
    uniformity: float  # of the first view's vectors before the head: 0 when all are equal


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
        taught: Tensor | None = None,
    ) -> None:
        """Builds the modules and the optimizer.

        Args:
            encoder: Encoder to train.
            head: Head that is used in training only.
            recipe: Recipe to train.
            source: Source of the batches.
            steps: Number of steps of the whole run, on which the learning rate depends.
            bf16: True to compute in bfloat16 by autocast.
            chunk: Number of rows to encode at once, for batches that do not fit into memory.
            world: The processes that train together.
            taught: Vectors of a teacher, as in `Materials`.

        Raises:
            TrainingError: The recipe cannot be computed in chunks.
        """
        self.encoder = encoder
        self._recipe, self._source, self._world = recipe, source, world
        self._steps, self._chunk = steps, chunk
        self._device = encoder.device
        self._contrasted = sum(not stands_aside(view) for view in recipe.views)
        self._columns = column_of_each_view(recipe)
        generator, width = torch.Generator().manual_seed(recipe.seed), encoder.width
        materials = Materials(encoder, width, generator, taught)
        self._objectives = [objective.build(materials) for objective in recipe.objectives]
        self._negatives = [negatives.build(width, recipe.optim.batch) for negatives in recipe.negatives]
        self.model = self._modules(head)
        twin: Any = self.model["twin"] if recipe.twin else encoder
        self._forward = Forward(recipe, encoder, twin, bf16=bf16)
        if chunk and (recipe.reads("hidden") or recipe.reads("aside") or self._forward.one_by_one):
            raise TrainingError(
                f"The recipe {recipe.name} reads more than vectors, or encodes view by view: its batch "
                "cannot be computed in chunks. Leave out --chunk."
            )
        table = word_table(encoder) if recipe.optim.table_lr else None
        self.optimizer = adamw(self.model, recipe.optim, table)

    def step(self, number: int) -> Step:
        """Runs step `number`, counted from 0. If the loss is not finite, the weights are not changed."""
        generator = self._seed(number)
        batch = self._source.batch(number)
        pairs = zip(self._recipe.views, self._columns, strict=True)
        views = [view(batch.columns[at], generator, self.encoder.lexicon) for view, at in pairs]
        texts = len(views[0])
        share = self._world.share(texts)
        own = tuple(view.select(torch.arange(texts)[_or_first(share)]) for view in views)
        extra = self._extra(generator)
        self.optimizer.zero_grad()
        rates = self._forward.rates(generator)
        loss, pooled = self._backward(own, batch, share, extra, rates)
        self._world.sum_gradients(self.model.parameters())
        norm = nn.utils.clip_grad_norm_(self.model.parameters(), self._recipe.optim.clip)
        total = self._world.total(loss).item()
        if not math.isfinite(total) or not norm.isfinite():
            # The weights are still good. A head's averages over batches have moved, but nothing reads them.
            return Step(math.nan, texts, math.nan)
        for group in self.optimizer.param_groups:
            group["lr"] = rate(self._recipe.optim, self._steps, number, group.get("highest"))
        self.optimizer.step()
        self._follow(own[0], batch, share)
        return Step(total, texts, _uniformity(pooled))

    def _backward(
        self, own: tuple[Tokens, ...], batch: Batch, share: slice, extra: Extra | None, rates: list[Rates]
    ) -> tuple[Tensor, Tensor]:
        """Returns this process's share of the loss and the first view's vectors, shape (N, D).

        Accumulates gradients.
        """
        rows, bias = self._forward.rows(own)
        size = share.stop - share.start
        seen: list[Tensor] = []

        def compute_loss(pooled: Tensor, hidden: tuple[Tensor, ...] = ()) -> Tensor:
            own_nVD = self._forward.vectors(pooled, own, bias)
            all_NVD = self._world.gather(own_nVD[:size], len(batch.texts))
            seen.append(all_NVD[:, 0].detach())
            reps = Reps(
                z=self._head(all_NVD),
                pooled=all_NVD,
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
            with self._forward.autocast():
                losses = [objective.weight * module(reps) for objective, module in pairs]
            # The losses of all processes are summed later. A loss over vectors is that of the whole batch in
            # each process, so it is divided by `size`. A loss over tokens is a process's own sum; `total`
            # divides the count by `size`, so the loss counts in full.
            return torch.stack(losses).sum() / self._world.size

        if self._chunk and len(rows) > self._chunk:
            chunks = [rows.select(part) for part in torch.split(torch.arange(len(rows)), self._chunk)]
            loss = backward_in_chunks(lambda part: self._forward.encode(part).pooled, chunks, compute_loss)
        else:
            loss = compute_loss(*self._forward.all(rows, own, rates))
            loss.backward()  # type: ignore[no-untyped-call]
        return loss.detach(), seen[0]

    def quickly(self, choose: Choose) -> Choose:
        """Wraps `choose` so that it encodes in the precision of the training.

        bf16 was 2.6 times as fast as fp32, and the cosine of bf16 and fp32 vectors was 0.99998.
        """

        def figures(encode_queries: Encode, encode_documents: Encode) -> NDArray[np.float64]:
            # A new context for each call, because autocast caches the weights that it has cast.
            with self._forward.autocast():
                return choose(encode_queries, encode_documents)

        return figures

    def _head(self, all_NVD: Tensor) -> Tensor:
        """Applies the head to the vectors of all views together. Returns shape (N, V, P)."""
        z: Tensor = self.model["head"](all_NVD.transpose(0, 1).flatten(0, 1))
        return z.reshape(all_NVD.shape[1], len(all_NVD), -1).transpose(0, 1)

    def _extra(self, generator: torch.Generator) -> Extra | None:
        found = [negatives.rows(generator) for negatives in self._negatives]
        if not found:
            return None
        rows, texts = (torch.cat(each).to(self._device) for each in zip(*found, strict=True))
        return Extra(rows, texts)

    @torch.no_grad()
    def _follow(self, first: Tokens, batch: Batch, share: slice) -> None:
        """Updates a twin of type Ema, and adds the twin's vectors of this batch to the queue of negatives."""
        twin = self._recipe.twin
        if not isinstance(twin, Ema):
            return
        twin.follow(self.model["twin"], self.encoder)
        own = self._forward.by_twin(first)[: share.stop - share.start]
        z = self.model["head"](self._world.gather(own, len(batch.texts)))
        for negatives in self._negatives:
            negatives.push(Extra(z, batch.texts[:, 0]))

    def _seed(self, number: int) -> torch.Generator:
        """Seeds dropout, with another seed in each process. Returns the random generator for views."""
        entropy = np.random.SeedSequence([self._recipe.seed, _STEPS, number]).generate_state(2, np.uint64)
        torch.manual_seed((int(entropy[0]) + self._world.rank) % (1 << 64))
        return torch.Generator().manual_seed(int(entropy[1]))

    def _modules(self, head: nn.Module) -> nn.ModuleDict:
        """Returns all modules that a checkpoint stores."""
        modules: dict[str, nn.Module] = {"encoder": self.encoder, "head": head}
        modules["objectives"] = nn.ModuleList(self._objectives)
        modules["negatives"] = nn.ModuleList(self._negatives)
        if self._recipe.twin is not None:
            modules["twin"] = self._recipe.twin.build(self.encoder)
        return nn.ModuleDict(modules).to(self._device)


def _or_first(share: slice) -> slice:
    """Returns a process's share of a batch, or the first text if the share is empty.

    A batch may have fewer texts than there are processes. A process without a share still needs a text,
    because all processes must compute the same graph and take part in every exchange.
    """
    return share if share.start < share.stop else slice(0, 1)


@torch.no_grad()
def _uniformity(z_ND: Tensor) -> float:
    """Returns the uniformity of a batch's vectors (Wang and Isola 2020). NaN for a single text."""
    unit = nn.functional.normalize(z_ND.float(), dim=-1)
    above = torch.triu_indices(len(unit), len(unit), 1, device=unit.device)
    cosines = (unit @ unit.T)[above[0], above[1]]
    return (4 * cosines - 4).exp().mean().log().item()


def adamw(model: nn.ModuleDict, optim: Optim, table: Tensor | None) -> torch.optim.AdamW:
    """Returns AdamW without weight decay for biases and normalizations.

    A parameter group with a separate learning rate (of the head or the word embeddings) has that rate under
    the key `highest`.

    Args:
        model: Modules to train.
        optim: Settings of the optimizer.
        table: The word embeddings if they have a separate learning rate, or else None.
    """
    heads: list[Tensor] = (
        [*model["head"].parameters(), *model["objectives"].parameters()] if optim.head_lr else []
    )
    apart = {id(tensor) for tensor in [*heads, *([] if table is None else [table])]}
    others: list[Tensor] = [tensor for tensor in model.parameters() if id(tensor) not in apart]
    groups = [*_groups(others, optim), *_groups(heads, optim, highest=optim.head_lr)]
    groups += [] if table is None else _groups([table], optim, highest=optim.table_lr)
    return torch.optim.AdamW(groups, eps=optim.epsilon, fused=True)


def _groups(tensors: list[Tensor], optim: Optim, **more: Any) -> list[dict[str, Any]]:
    trained = [tensor for tensor in tensors if tensor.requires_grad]
    matrices = [tensor for tensor in trained if tensor.ndim > 1]
    vectors = [tensor for tensor in trained if tensor.ndim <= 1]
    decays = ((matrices, optim.weight_decay), (vectors, 0.0))
    return [{"params": part, "weight_decay": decay, **more} for part, decay in decays if part]


def rate(optim: Optim, steps: int, number: int, highest: float | None = None) -> float:
    """Returns the learning rate of a step: a warmup, followed by the schedule `optim.decay`.

    The rate falls to 0 after the last step if the schedule is `linear`, and stays if it is `constant`. With
    `slanted`, the rate rises from 1/32 of the highest rate and falls back to 1/32.

    Args:
        optim: Settings of the optimizer.
        steps: Number of steps of the whole run.
        number: Number of the step, counted from 0.
        highest: Highest rate. None means `optim.lr`.
    """
    lr = optim.lr if highest is None else highest
    warmup = round(optim.warmup * steps)
    share = number / warmup if number < warmup else (steps - number) / (steps - warmup)
    if optim.decay == "slanted":
        return lr * (1 + share * (_RATIO - 1)) / _RATIO
    return lr if optim.decay == "constant" and number >= warmup else lr * share
