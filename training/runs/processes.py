"""Several processes that train one model: shares of texts, and exchanges of vectors and gradients.

    each process encodes its share ─▶ gather: all vectors everywhere ─▶ the loss of all / processes
                                      ◀─ the gradients of all processes, summed ─▶ each encoder's own share

So a batch means the same on any number of processes. Negatives are those of all processes, and the sum of
their gradients is the gradient of a single process with the whole batch. A gather without gradient, or a loss
over a process's own rows, would change the result.
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

_PATIENCE = timedelta(hours=12)  # others wait while one tokenizes; torchrun notices a dead process


class World(NamedTuple):
    rank: int = 0
    size: int = 1

    @property
    def leads(self) -> bool:
        """True for the process that writes files and prints."""
        return self.rank == 0

    def share(self, count: int) -> slice:
        """Returns the slice of `count` texts that this process encodes. Shares are even and in order."""
        return slice(count * self.rank // self.size, count * (self.rank + 1) // self.size)

    def gather(self, own: Tensor, count: int) -> Tensor:
        """(share, …) of each process -> (count, …) in all; the gradient is the sum over all processes."""
        if self.size == 1:
            return own
        gathered: Tensor = _Gather.apply(own, count, self)  # type: ignore[no-untyped-call]
        return gathered

    def total(self, number: Tensor) -> Tensor:
        """Returns the sum over all processes, without gradient."""
        if self.size == 1:
            return number
        number = number.detach().clone()
        dist.all_reduce(number)
        return number

    def any(self, requested: bool) -> bool:
        """Returns True in all processes if `asked` is True in any of them."""
        if self.size == 1:
            return requested
        return bool(self.total(torch.tensor(float(requested), device=_device())))

    def sum_gradients(self, parameters: Iterable[torch.nn.Parameter]) -> None:
        if self.size == 1:
            return
        for parameter in parameters:
            if parameter.grad is not None:  # all processes have the same graph
                dist.all_reduce(parameter.grad)

    @contextlib.contextmanager
    def together(self) -> Iterator[None]:
        """Ends the block in all processes if it fails in any, so that none waits forever. Must not be nested.

        Raises:
            TrainingError: The block failed in another process.
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
        """Returns True if `words` are equal in all processes."""
        if self.size == 1:
            return True
        own = torch.tensor(list(hashlib.sha256(words.encode()).digest()), device=_device())
        return not self.any(not torch.equal(self.total(own), own * self.size))


def own_device(name: str) -> str:
    """Returns the device for `name`. Each of several processes on a machine uses its own GPU."""
    if name in ("auto", "cuda") and "LOCAL_RANK" in os.environ and torch.cuda.is_available():
        return f"cuda:{os.environ['LOCAL_RANK']}"
    return name


def join_world(device: torch.device) -> World:
    """Joins the processes that torchrun's environment describes (RANK, WORLD_SIZE, MASTER_ADDR)."""
    size = int(os.environ.get("WORLD_SIZE", "1"))
    if size == 1 or "RANK" not in os.environ:
        return World()
    if device.type == "cuda":
        torch.cuda.set_device(device)
    if not dist.is_initialized():
        dist.init_process_group("nccl" if device.type == "cuda" else "gloo", timeout=_PATIENCE)
        atexit.register(dist.destroy_process_group)  # else its threads may abort the exit
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
