"""A store with one owner: nobody to wait for, and nobody to hear of."""

from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager, nullcontext

from models.store import DesiredVersion
from service.store.values import Active


class Alone:
    """What `protocol.Replicas` promises, where there are no others."""

    lost: str | None = None
    others = 0

    async def keep_in_touch(self, _serves: Callable[[], int], _follow: Callable[[Active], None], /) -> None:
        """Nobody asks."""

    async def joined(self) -> None:
        """It always has."""

    def starting(self) -> AbstractContextManager[None]:
        return nullcontext()

    async def wish(self, desired: DesiredVersion | None, _at: float, /) -> DesiredVersion | None:
        return desired

    async def once(self, _name: str, work: Callable[[], Awaitable[str]], /) -> str:
        return await work()
