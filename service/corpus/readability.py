"""Logs a warning if a version cannot read the language of a collection, judged by its first texts."""

import logging
import threading
from collections.abc import Sequence

from models.encoder import Encoder
from models.tokens.reading import ENOUGH, Count, count

_TEXTS, _CHARACTERS = 16, 500  # checked per write, which takes a few milliseconds

log = logging.getLogger(__name__)


class Readability:
    """Counts readable words. Thread safe."""

    def __init__(self) -> None:
        self._counts: dict[tuple[str, str], Count] = {}  # by version and collection
        self._lock = threading.Lock()

    def knows(self, version: str, collection: str) -> bool:
        found = self._counts.get((version, collection))
        return found is not None and found.words >= ENOUGH

    def look(self, encoder: Encoder, texts: Sequence[str], collections: Sequence[str]) -> None:
        """Counts words of `texts`, and logs at most one warning per collection."""
        version = encoder.manifest.version
        pairs = zip(texts, collections, strict=True)
        checked = [(text, name) for text, name in pairs if not self.knows(version, name)][:_TEXTS]
        for collection in dict.fromkeys(name for _, name in checked):
            starts = [text[:_CHARACTERS] for text, name in checked if name == collection]
            seen = count(starts, lambda rows: [[piece.id for piece in encoder.pieces(row)] for row in rows])
            with self._lock:
                if self.knows(version, collection):
                    continue
                known = self._counts.get((version, collection), Count())
                found = self._counts[version, collection] = known + seen
                if found.words >= ENOUGH and (reason := found.unreadable()):
                    log.warning(
                        "%s cannot read the documents of the collection %s: %s. Use keyword search, or "
                        "retrain it (docs/RETRAINING.md).",
                        version,
                        collection,
                        reason,
                    )
