"""Train one model with several processes, which exchange vectors and gradients.

    each process encodes its share of the texts ─▶ gather all vectors in all processes ─▶ loss / processes
                                                ◀─ sum of the gradients of all processes

The result does not depend on the number of processes. A text has the texts of all processes as negatives, and
the sum of all gradients equals the gradient of a single process with the whole batch. Therefore `gather` must
pass gradients back, and every process computes the loss over the whole batch.
"""

from __future__ import annotations

import atexit
import contextlib
import hashlib
import os
from collections.abc import Iterable, Iterator
from datetime import timedelta
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.nn.functional import all_gather

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
        """Returns the slice of a batch of `count` texts that this process encodes."""
        return slice(count * self.rank // self.size, count * (self.rank + 1) // self.size)

    def gather(self, own: Tensor, count: int) -> Tensor:
        """Concatenates tensors of all processes. The backward pass sums the gradients of all processes.

        Args:
            own: Tensor of this process, shape (share, …).
            count: Number of rows in all processes together.

        Returns:
            The rows of all processes, shape (count, …).
        """
        if self.size == 1:
            return own
        shares = [World(rank, self.size).share(count) for rank in range(self.size)]
        sizes = [share.stop - share.start for share in shares]
        missing = max(sizes) - len(own)  # all processes send equally many rows
        parts = all_gather(torch.cat([own, own.new_zeros((missing, *own.shape[1:]))]))  # type: ignore[no-untyped-call]
        return torch.cat([part[:size] for part, size in zip(parts, sizes, strict=True)])

    def total(self, number: Tensor) -> Tensor:
        """Returns the sum of a tensor over all processes, without gradient."""
        if self.size == 1:
            return number
        number = number.detach().clone()
        dist.all_reduce(number)
        return number

    def any(self, requested: bool) -> bool:
        """Returns True in all processes if `requested` is True in any of them."""
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
        """Waits at the end of the `with` block for all processes, and fails in all if one has failed.

        The block must not itself wait for other processes. So blocks cannot be nested.

        Raises:
            TrainingError: The block failed in another process. The process where it failed raises its own
                error.
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
        """Returns True if the string `words` is equal in all processes."""
        if self.size == 1:
            return True
        own = torch.tensor(list(hashlib.sha256(words.encode()).digest()), device=_device())
        return not self.any(not torch.equal(self.total(own), own * self.size))


def own_device(name: str) -> str:
    """Returns the device for `name`.

    Under torchrun, `auto` and `cuda` mean a different GPU in each process.
    """
    if name in ("auto", "cuda") and "LOCAL_RANK" in os.environ and torch.cuda.is_available():
        return f"cuda:{os.environ['LOCAL_RANK']}"
    return name


def join_world(device: torch.device) -> World:
    """Connects to the other processes, which torchrun describes in RANK, WORLD_SIZE and MASTER_ADDR."""
    size = int(os.environ.get("WORLD_SIZE", "1"))
    if size == 1 or "RANK" not in os.environ:
        return World()
    if device.type == "cuda":
        torch.cuda.set_device(device)
    if not dist.is_initialized():
        dist.init_process_group("nccl" if device.type == "cuda" else "gloo", timeout=_PATIENCE)
        atexit.register(dist.destroy_process_group)  # else its threads may abort the exit
    return World(dist.get_rank(), dist.get_world_size())


def _device() -> torch.device:
    return torch.device("cuda" if dist.get_backend() == "nccl" else "cpu")
