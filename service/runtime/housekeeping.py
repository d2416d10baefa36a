"""Background tasks on stored documents: delete old events, add missing checksums, and compute maps."""

import asyncio
import contextlib
import importlib.util
import logging
import os
import sys
import time
from pathlib import Path

import orjson

from service.corpus.corpus import Corpus
from service.errors import ServiceError
from service.settings import MAP_MIN_DOCUMENTS, MAX_PLAIN, PREFIX, Settings
from service.store.protocol import DocumentStore

log = logging.getLogger(__name__)

PERIOD_SECONDS = 3600.0
SAY_SECONDS = 5.0
PAUSE_SECONDS = 0.01  # Between two steps, so that other writes come first.

LOOK_SECONDS = 60.0  # Between two checks for maps. No map is computed while the collection grows.
LONGEST_SECONDS = 900.0  # limit for one map
MAX_COLLECTIONS = 20  # Only this many collections get maps, the largest ones first.
GROWN = 2  # A collection that grew or shrank by this factor gets a new map.
_NICE = 19  # Priority of the process: searches go first.


async def keep_expiring(store: DocumentStore, seconds: float) -> None:
    """Deletes old events immediately, and again every hour.

    The events are deleted in steps, and other writes may run between the steps.

    Args:
        store: The document store.
        seconds: Maximum age of an event.

    """
    while True:
        try:
            while await store.expire_events(time.time() - seconds):
                pass
        except ServiceError as error:  # A full disk may have space an hour later.
            log.warning("Old events could not be deleted: %s", error.message)
        await asyncio.sleep(PERIOD_SECONDS)


async def keep_filling(store: DocumentStore) -> None:
    """Computes missing checksums of documents immediately, and again every hour.

    Older versions of Simile did not store checksums.
    """
    while True:
        try:
            await _fill(store)
        except ServiceError as error:
            log.warning("Checksums of documents could not be stored: %s", error.message)
        await asyncio.sleep(PERIOD_SECONDS)


async def _fill(store: DocumentStore) -> None:
    total, done = await store.without_checksums(), 0
    said = time.monotonic()
    while total and (step := await store.fill_checksums()):
        done += step
        if time.monotonic() - said > SAY_SECONDS:
            said = time.monotonic()
            log.info("Computing checksums of stored documents: %d of %d are done", done, total)
        await asyncio.sleep(PAUSE_SECONDS)
    if done:
        log.info("Checksums of %d stored documents were computed", done)


class MapMaker:
    """Background task that computes maps. It runs `python -m service map` in a separate process.

    Collections of up to SIMILE_MAP_DOCUMENTS documents get a map, and without umap-learn those of up to
    MAX_PLAIN. A map of 20,000 documents takes about a minute.
    """

    def __init__(self, corpus: Corpus, settings: Settings) -> None:
        self._corpus, self._settings = corpus, settings
        umap = importlib.util.find_spec("umap") is not None
        self._most = settings.map_documents if umap else min(settings.map_documents, MAX_PLAIN)
        self._counted: dict[str, int] = {}  # documents of each collection at the last check
        self._mapped: dict[Path, int] = {}  # documents of each collection when its map was made or failed

    async def run(self) -> None:
        """Checks every minute whether maps must be computed. Runs until it is cancelled."""
        while True:
            await self.look()
            await asyncio.sleep(LOOK_SECONDS)

    async def look(self) -> None:
        """Computes missing maps, and maps of collections that grew or shrank a lot.

        Computes one map at a time.
        """
        if not self._corpus.active.generation.is_complete:
            return
        before, self._counted = self._counted, dict(await self._corpus.store.collections())
        self._mapped = {file: count for file, count in self._mapped.items() if file.stem in self._counted}
        sizes = {
            name: count
            for name, count in self._counted.items()
            if MAP_MIN_DOCUMENTS <= count <= self._most and before.get(name) == count
        }
        for name in sorted(sizes, key=lambda name: -sizes[name])[:MAX_COLLECTIONS]:
            file = self._settings.maps_dir / self._corpus.active.generation.version / f"{name}.json"
            if file not in self._mapped:
                self._mapped[file] = await asyncio.to_thread(_count_points, file)
            if not self._mapped[file] / GROWN < sizes[name] < self._mapped[file] * GROWN:
                await self._make(name)
                self._mapped[file] = sizes[name]  # A failed map is tried again after the collection grows.

    async def _make(self, collection: str) -> None:
        command = [sys.executable, "-m", "service", "map", "--collection", collection]
        places = {"DATA_DIR": self._settings.data_dir, "MODELS_DIR": self._settings.models_dir}
        child = await asyncio.create_subprocess_exec(
            *command,
            env=os.environ | {PREFIX + name: str(place.absolute()) for name, place in places.items()},
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
        )
        try:
            with contextlib.suppress(OSError):  # The process has already ended.
                os.setpriority(os.PRIO_PROCESS, child.pid, _NICE)
            async with asyncio.timeout(LONGEST_SECONDS):
                _, said = await child.communicate()
        except TimeoutError:
            said = f"it took longer than {LONGEST_SECONDS:.0f} s".encode()
        finally:
            if child.returncode is None:
                child.kill()
                await child.wait()
        if child.returncode:
            last = said.decode(errors="replace").strip().rpartition("\n")[2]
            log.warning("No map of the collection %s could be made: %s", collection, last)
        else:
            log.info("The collection %s has a new map", collection)


def _count_points(file: Path) -> int:
    """Returns the number of documents on a map, or 0 if the file is missing or cannot be read."""
    try:
        return len(orjson.loads(file.read_bytes())["ids"])
    except (OSError, ValueError, KeyError, TypeError):
        return 0
