"""Several processes that train one model: who has which texts, and how vectors and gradients meet.

    each process encodes its share ─▶ gather: all vectors everywhere ─▶ the loss of all / processes
                                      ◀─ the gradients of all processes, summed ─▶ each encoder's own share

So a batch means the same on any number of processes: negatives are those of all, and the sum of the
processes' gradients is the gradient of one that had seen everything. A gather without gradient, or a loss of
a process's own rows alone, would not be that.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor


class World(NamedTuple):
    rank: int = 0
    size: int = 1

    @property
    def leads(self) -> bool:
        """Whether this process writes files and speaks."""
        return self.rank == 0

    def share(self, count: int) -> slice:
        """Which of `count` texts are this process's: as even as can be, in order."""
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
        """Whether any process says so, so that all do the same."""
        if self.size == 1:
            return asked
        return bool(self.total(torch.tensor(float(asked), device=_device())))

    def sum_gradients(self, parameters: Iterable[torch.nn.Parameter]) -> None:
        if self.size == 1:
            return
        for parameter in parameters:
            if parameter.requires_grad:
                if parameter.grad is None:
                    parameter.grad = torch.zeros_like(parameter)
                dist.all_reduce(parameter.grad)

    def wait(self) -> None:
        """Until all are here."""
        if self.size > 1:
            dist.barrier()


def join_world(device_type: str) -> World:
    """What torchrun says in the environment (RANK, WORLD_SIZE, MASTER_ADDR); alone without it."""
    size = int(os.environ.get("WORLD_SIZE", "1"))
    if size == 1 or "RANK" not in os.environ:
        return World()
    if not dist.is_initialized():
        dist.init_process_group("nccl" if device_type == "cuda" else "gloo")
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
        sizes = [
            (count * (rank + 1) // world.size) - (count * rank // world.size) for rank in range(world.size)
        ]
        return torch.cat([part[:size] for part, size in zip(parts, sizes, strict=True)])

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        total = gradients[0].contiguous().clone()
        dist.all_reduce(total)
        return total[ctx.share], None, None


def _device() -> torch.device:
    return torch.device("cuda" if dist.get_backend() == "nccl" else "cpu")
