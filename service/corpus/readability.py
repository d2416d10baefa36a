"""A look at the first texts of each version: one line in the log when its vocabulary cannot read them."""

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
        self._counts: dict[str, Count] = {}
        self._lock = threading.Lock()

    def knows(self, version: str) -> bool:
        """True if enough words were looked at."""
        found = self._counts.get(version)
        return found is not None and found.words >= ENOUGH

    def look(self, encoder: Encoder, texts: Sequence[str]) -> None:
        """Count these as well, and tell once what is to be told."""
        version = encoder.manifest.version
        started = [text[:_CHARACTERS] for text in texts[:_TEXTS]]
        seen = count(started, lambda rows: [[piece.id for piece in encoder.pieces(row)] for row in rows])
        with self._lock:
            if self.knows(version):
                return
            found = self._counts[version] = self._counts.get(version, Count()) + seen
            if found.words >= ENOUGH and (reason := found.unreadable()):
                log.warning(
                    "%s cannot read the documents: %s. Search by words, or teach it: docs/RETRAINING.md",
                    version,
                    reason,
                )
