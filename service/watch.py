"""Follows what is wanted, tells how far it is, and tidies up behind a swap.

Every half second, or at once when somebody asks over HTTP: read the wish, aim at it, drop the build in hand
when another version is wanted, close the generation whose grace is over, delete vectors that nobody needs,
and copy the state to MODELS_DIR/state.json, where `python -m models` and training read it.
"""

import asyncio
import contextlib
import logging
import sqlite3
import time
from dataclasses import dataclass
from typing import Any

from models.errors import ModelError
from models.seal import read_manifest
from models.store import Store
from service.choice import aim
from service.documents import fact
from service.errors import ServiceError
from service.generations import (
    FAILED,
    HANDLED,
    Verdict,
    abandon,
    past,
    previous,
    purge,
    verdicts,
)
from service.library import Library
from service.live import Generation
from service.metrics import Metrics
from service.settings import Settings
from service.swap import Swap

log = logging.getLogger(__name__)

POLL_SECONDS = 0.5
BUSY_SECONDS = 0.05  # between two looks while vectors are being deleted
LINGER_SECONDS = 5.0  # a generation that left goes on following for the searches that began on it


@dataclass(frozen=True, slots=True)
class Known:
    """What the database says about versions, of one moment."""

    verdicts: dict[str, Verdict]
    past: set[str]
    previous: str | None
    handled: str | None


def known(connection: sqlite3.Connection, published: set[str]) -> Known:
    return Known(
        verdicts(connection), past(connection), previous(connection, published), fact(connection, HANDLED)
    )


class Watcher:
    """One per service. `run` is its task; `poke` makes it look at once."""

    def __init__(self, store: Store, library: Library, settings: Settings, metrics: Metrics) -> None:
        self.swap: Swap | None = None
        self.published: set[str] = set()
        self._store = store
        self._library = library
        self._settings = settings
        self._metrics = metrics
        self._task: asyncio.Task[None] | None = None
        self._poked = asyncio.Event()
        self._expiry: dict[Generation, float] = {}  # time.monotonic() at which a follower may leave
        self._written: dict[str, Any] = {}

    def poke(self) -> None:
        self._poked.set()

    async def run(self) -> None:
        """Until cancelled; then the build in hand stops where it is and goes on at the next start."""
        try:
            while True:
                busy = False
                try:
                    busy = await self.look()
                except (ServiceError, OSError) as error:  # a full disk, a folder that went: look again later
                    log.warning("Looking after versions failed: %s", error)
                except Exception:
                    log.exception("Looking after versions failed")
                # Not wait_for: in Python 3.11 it loses a cancellation that comes together with the poke.
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(BUSY_SECONDS if busy else POLL_SECONDS):
                        await self._poked.wait()
                self._poked.clear()
        finally:
            await self._stop_swap()

    async def look(self) -> bool:
        """One look. True when there is more to tidy up."""
        self.published = await asyncio.to_thread(self._store.names)
        await self._follow()
        self._expire(await self._known())
        await self._write_state()
        if self.swap is not None:  # deleting can wait
            return False
        return await self._library.writer.run(purge)

    async def _follow(self) -> None:
        wish = await asyncio.to_thread(self._store.wish)
        facts = await self._known()
        target = aim(
            wish,
            live=self._library.live.generation.version,
            handled=facts.handled,
            judged=facts.verdicts,
            refused=wish is not None and await asyncio.to_thread(self._refused, wish.version),
        )
        if self.swap is not None:
            assert self._task is not None  # noqa: S101  they are set together
            if target is not None and target.version == self.swap.version and not self._task.done():
                self.swap.renew(target)
                return
            if not self._task.done():
                log.info("%s is not wanted any more; its build is dropped", self.swap.version)
                self._metrics.swaps.labels("dropped").inc()
            await self._stop_swap()
            await self._library.writer.run(abandon)
            self.poke()  # what was found out above may have changed with the task's end
            return
        if target is not None:
            log.info("%s is wanted", target.version)
            self.swap = Swap(target, self._store, self._library, self._settings, self._metrics)
            self._task = asyncio.create_task(self.swap.run())
            self._task.add_done_callback(lambda _: self.poke())

    def _refused(self, version: str) -> bool:
        """Whether a promotion gate refused it. A manifest that cannot be read is the swap's matter."""
        try:
            gate = read_manifest(self._store.folder(version)).gate
        except ModelError:
            return False
        return gate is not None and gate.verdict == "refused"

    async def _stop_swap(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        self._task = self.swap = None

    async def _known(self) -> Known:
        return await self._library.documents.read(lambda connection: known(connection, self.published))

    def _expire(self, facts: Known) -> None:
        """Let followers go: the one to go back to after its grace, any other but the build's own soon."""
        now = time.monotonic()
        live = self._library.live
        kept: dict[Generation, float] = {}
        for follower in live.followers:
            if self.swap is not None and follower is self.swap.generation:
                continue
            back = follower.version == facts.previous
            follower.kept = back
            seconds = max(self._settings.grace_seconds, LINGER_SECONDS) if back else LINGER_SECONDS
            expiry = min(self._expiry.get(follower, now + seconds), now + seconds)
            if now < expiry:
                kept[follower] = expiry
            else:
                log.info("%s is closed; its vectors stay for a rollback", follower.version)
                live.leave(follower)
        self._expiry = kept

    async def previous(self) -> str | None:
        """What a rollback would go to now."""
        return (await self._known()).previous

    async def states(self) -> dict[str, dict[str, Any]]:
        """State, done, total and reason of each version that has any but `candidate`."""
        facts = await self._known()
        found: dict[str, dict[str, Any]] = {version: _state("retired") for version in facts.past}
        for version, verdict in facts.verdicts.items():
            state = "failed" if verdict.state == FAILED else "retired"
            found[version] = _state(state, reason=verdict.reason)
        if self.swap is not None:
            swap = self.swap
            found[swap.version] = _state(swap.state, swap.done, swap.total, swap.reason)
        live = self._library.live.generation
        found[live.version] = _state("active")
        return found

    async def _write_state(self) -> None:
        """Copy for readers; the database wins."""
        facts = await self._known()
        state = {
            "live": self._library.live.generation.version,
            "previous": facts.previous,
            "versions": await self.states(),
        }
        if state != self._written:
            await asyncio.to_thread(self._store.write_state, state)
            self._written = state


def _state(
    state: str, done: int | None = None, total: int | None = None, reason: str | None = None
) -> dict[str, Any]:
    return {"state": state, "done": done, "total": total, "reason": reason}
