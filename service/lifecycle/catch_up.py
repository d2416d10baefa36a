"""Fills in, behind the writes, what the versions that follow the one in service did not have in time.

    a write leaves a gap ─▶ note() ─▶ one task for each follower that was whole: embed what it lacks, store it

No write waits for any of this. A follower that is still being built has its builder, and needs no task.
"""

import asyncio
import logging

from service.corpus.corpus import Corpus
from service.errors import Hung, ServiceError
from service.lifecycle.builder import Builder
from service.live import Generation, Retired

log = logging.getLogger(__name__)

RETRY_SECONDS, MOST_SECONDS = 0.5, 60.0  # after a failure: a full queue, a full disk, a model that fails


class CatchUp:
    """The tasks that fill gaps. Used on the event loop."""

    def __init__(self, corpus: Corpus) -> None:
        self._corpus = corpus
        self._behind: set[Generation] = set()
        self._tasks: dict[Generation, asyncio.Task[None]] = {}
        self._stopped = False

    def note(self) -> None:
        """Start a task for each follower: one of them lacks a vector."""
        for follower in self._corpus.live.followers:
            if not follower.is_complete or follower.fault is not None or self._stopped:
                continue
            self._behind.add(follower)
            if follower not in self._tasks:
                self._tasks[follower] = asyncio.create_task(self._fill(follower))

    async def stop(self) -> None:
        """Stop all tasks. The next builder of a version finds what is left."""
        self._stopped = True
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _fill(self, follower: Generation) -> None:
        """Embed until the follower has everything, or follows no longer."""
        builder, pause = Builder(self._corpus, follower, lambda *_: None), RETRY_SECONDS
        try:
            while follower in self._behind:
                self._behind.discard(follower)
                try:
                    with follower.held():
                        await builder.embed()
                    pause = RETRY_SECONDS
                except Hung:
                    log.exception("%s follows no longer", follower.version)
                    self._corpus.live.leave(follower)
                except ServiceError as error:
                    log.warning("%s lacks documents: %s", follower.version, error.message)
                    self._behind.add(follower)
                    await asyncio.sleep(pause)
                    pause = min(2 * pause, MOST_SECONDS)
        except Retired:
            log.debug("%s follows no longer", follower.version)
        except Exception:  # a bug of ours; the next write tries again
            log.exception("%s could not be caught up", follower.version)
        finally:
            self._behind.discard(follower)
            del self._tasks[follower]
