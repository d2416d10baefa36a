"""A task that starts later, unless it is cancelled before."""

import asyncio
from collections.abc import Awaitable, Callable


class Deferred:
    """Start a task after some seconds, unless cancelled before: then it has cost one timer."""

    def __init__(self, seconds: float, start: Callable[[], Awaitable[None]]) -> None:
        self._task: asyncio.Future[None] | None = None
        self._start = start
        self._timer = asyncio.get_running_loop().call_later(seconds, self._begin)

    def _begin(self) -> None:
        self._task = asyncio.ensure_future(self._start())

    def cancel(self) -> None:
        self._timer.cancel()
        if self._task is not None:
            self._task.cancel()
