"""Several processes that train one model: who has which texts, and how vectors and gradients meet.

    each process encodes its share ─▶ gather: all vectors everywhere ─▶ the loss of all / processes
                                      ◀─ the gradients of all processes, summed ─▶ each encoder's own share

So a batch means the same on any number of processes: negatives are those of all, and the sum of the
processes' gradients is the gradient of one that had seen everything. A gather without gradient, or a loss of
a process's own rows alone, would not be that.
"""

from __future__ import annotations

import atexit
import contextlib
import hashlib
import os
from collections.abc import Iterable, Iterator
from datetime import timedelta
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from training.errors import TrainingError

_PATIENCE = timedelta(hours=12)  # others wait while one tokenises; torchrun sees when one has died


class World(NamedTuple):
    rank: int = 0
    size: int = 1

    @property
    def leads(self) -> bool:
        """True for the process that writes files and speaks."""
        return self.rank == 0

    def share(self, count: int) -> slice:
        """The places of this process's share of `count` texts: as even as can be, in order."""
        return slice(count * self.rank // self.size, count * (self.rank + 1) // self.size)

    def gather(self, own: Tensor, count: int) -> Tensor:
        """(share, …) of each process -> (count, …) everywhere; its gradient comes back from everywhere."""
        if self.size == 1:
            return own
        gathered: Tensor = _Gather.apply(own, count, self)  # type: ignore[no-untyped-call]
        return gathered

    def total(self, number: Tensor) -> Tensor:
        """The sum over all processes, without gradient."""
        if self.size == 1:
            return number
        number = number.detach().clone()
        dist.all_reduce(number)
        return number

    def any(self, asked: bool) -> bool:
        """True if any process says so, so that all do the same."""
        if self.size == 1:
            return asked
        return bool(self.total(torch.tensor(float(asked), device=_device())))

    def sum_gradients(self, parameters: Iterable[torch.nn.Parameter]) -> None:
        if self.size == 1:
            return
        for parameter in parameters:
            if parameter.grad is not None:  # the same ones everywhere, as all have the same graph
                dist.all_reduce(parameter.grad)

    @contextlib.contextmanager
    def together(self) -> Iterator[None]:
        """All come to the end of this, or none: what one process raises ends the others as well.

        Not within itself. Without it, those that wait for one that has refused would wait for ever.
        """
        failed = True
        try:
            yield
            failed = False
        finally:
            elsewhere = self.any(failed)
        if elsewhere:
            raise TrainingError("Another process of this run cannot go on, and says why.")

    def agree(self, words: str) -> bool:
        """True if all processes say the same."""
        if self.size == 1:
            return True
        own = torch.tensor(list(hashlib.sha256(words.encode()).digest()), device=_device())
        return not self.any(not torch.equal(self.total(own), own * self.size))


def own_device(name: str) -> str:
    """The device that is meant: each of several processes on a machine has a GPU of its own."""
    if name in ("auto", "cuda") and "LOCAL_RANK" in os.environ and torch.cuda.is_available():
        return f"cuda:{os.environ['LOCAL_RANK']}"
    return name


def join_world(device: torch.device) -> World:
    """The processes, by torchrun's environment (RANK, WORLD_SIZE, MASTER_ADDR); alone without it."""
    size = int(os.environ.get("WORLD_SIZE", "1"))
    if size == 1 or "RANK" not in os.environ:
        return World()
    if device.type == "cuda":
        torch.cuda.set_device(device)
    if not dist.is_initialized():
        dist.init_process_group("nccl" if device.type == "cuda" else "gloo", timeout=_PATIENCE)
        atexit.register(dist.destroy_process_group)  # its threads; with them an exit may be an abort
    return World(dist.get_rank(), dist.get_world_size())


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, own: Tensor, count: int, world: World) -> Tensor:
        ctx.share = world.share(count)
        largest = -(-count // world.size)
        padded = own.new_zeros((largest, *own.shape[1:]))
        padded[: len(own)] = own
        parts = [torch.empty_like(padded) for _ in range(world.size)]
        dist.all_gather(parts, padded)
        shares = (World(rank, world.size).share(count) for rank in range(world.size))
        sizes = (share.stop - share.start for share in shares)
        return torch.cat([part[:size] for part, size in zip(parts, sizes, strict=True)])

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        total = gradients[0].contiguous().clone()
        dist.all_reduce(total)
        return total[ctx.share], None, None


def _device() -> torch.device:
    return torch.device("cuda" if dist.get_backend() == "nccl" else "cpu")
