"""Maps are made when a version has come to live, by `python -m service map` in a process of its own.

Only where its library is installed, and of collections of up to SIMILE_MAP_DOCUMENTS documents: 20,000 take
about a minute. A map is made anew when there are twice as many documents as on it, or half.
"""

import asyncio
import contextlib
import importlib.util
import logging
import os
import sys
from pathlib import Path

import orjson

from service.corpus.corpus import Corpus
from service.settings import MAP_LEAST, MAP_LIBRARY, PREFIX, Settings

log = logging.getLogger(__name__)

LOOK_SECONDS = 60.0  # between two looks; a collection that grew meanwhile is waited for
LONGEST_SECONDS = 900.0
MOST_COLLECTIONS = 20  # the largest of those that are small enough
GROWN = 2
_NICE = 19  # searching goes first


def installed() -> bool:
    """True where maps can be made."""
    return importlib.util.find_spec(MAP_LIBRARY) is not None


class MapMaker:
    """`run` is its task."""

    def __init__(self, corpus: Corpus, settings: Settings) -> None:
        self._corpus, self._settings = corpus, settings
        self._counted: dict[str, int] = {}  # documents of each collection at the last look
        self._mapped: dict[Path, int] = {}  # documents on a map, or that it failed with

    async def run(self) -> None:
        """Run until cancelled."""
        while True:
            await self.look()
            await asyncio.sleep(LOOK_SECONDS)

    async def look(self) -> None:
        """Make the maps that are missing or stale, one after another."""
        if not self._corpus.live.generation.is_complete:
            return
        before, self._counted = self._counted, dict(await self._corpus.store.collections())
        self._mapped = {file: count for file, count in self._mapped.items() if file.stem in self._counted}
        sizes = {
            name: count
            for name, count in self._counted.items()
            if MAP_LEAST <= count <= self._settings.map_documents and before.get(name) == count
        }
        for name in sorted(sizes, key=lambda name: -sizes[name])[:MOST_COLLECTIONS]:
            file = self._settings.maps_dir / self._corpus.live.generation.version / f"{name}.json"
            if file not in self._mapped:
                self._mapped[file] = await asyncio.to_thread(_points_of, file)
            if not self._mapped[file] / GROWN < sizes[name] < self._mapped[file] * GROWN:
                await self._make(name)
                self._mapped[file] = sizes[name]  # one that failed is not tried again before it grows

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
            with contextlib.suppress(OSError):  # it has ended already
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


def _points_of(file: Path) -> int:
    """The number of documents on a map; 0 without one that can be read."""
    try:
        return len(orjson.loads(file.read_bytes())["ids"])
    except (OSError, ValueError, KeyError, TypeError):
        return 0
