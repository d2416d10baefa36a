"""A look at the first texts of each collection: one line in the log where a version cannot read them."""

import logging
import threading
from collections.abc import Sequence

from models.encoder import Encoder
from models.tokens.reading import ENOUGH, Count, count

_TEXTS, _CHARACTERS = 16, 500  # of one write: what takes a few milliseconds

log = logging.getLogger(__name__)


class Readability:
    """Thread safe."""

    def __init__(self) -> None:
        self._counts: dict[tuple[str, str], Count] = {}  # by version and collection
        self._lock = threading.Lock()

    def knows(self, version: str, collection: str) -> bool:
        """True if enough words were looked at."""
        found = self._counts.get((version, collection))
        return found is not None and found.words >= ENOUGH

    def look(self, encoder: Encoder, texts: Sequence[str], collections: Sequence[str]) -> None:
        """Count these as well, and tell once of each collection what is to be told."""
        version = encoder.manifest.version
        both = zip(texts, collections, strict=True)
        looked = [(text, name) for text, name in both if not self.knows(version, name)][:_TEXTS]
        for collection in dict.fromkeys(name for _, name in looked):
            started = [text[:_CHARACTERS] for text, name in looked if name == collection]
            seen = count(started, lambda rows: [[piece.id for piece in encoder.pieces(row)] for row in rows])
            with self._lock:
                if self.knows(version, collection):
                    continue
                known = self._counts.get((version, collection), Count())
                found = self._counts[version, collection] = known + seen
                if found.words >= ENOUGH and (reason := found.unreadable()):
                    log.warning(
                        "%s cannot read the documents of the collection %s: %s. Search by words, or teach "
                        "it: docs/RETRAINING.md",
                        version,
                        collection,
                        reason,
                    )
