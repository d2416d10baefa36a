"""A version that is kept beside the live one, to be asked: opened and built like one that is to go live."""

import time
from collections.abc import Container

from models.store import DesiredVersion
from service.errors import Conflict


class Kept:
    """The one version that somebody keeps, and for how long."""

    def __init__(self) -> None:
        self._version = ""
        self._until = 0.0  # time.monotonic()

    def ask(self, version: str, seconds: float, on_its_way: str | None) -> None:
        """Keep `version` for so long from now on; 0 lets it go. on_its_way: a version that goes to live.

        Raises:
            Conflict: another version is on its way to live.

        """
        if on_its_way not in {None, version}:
            raise Conflict(
                f"{on_its_way} is on its way to live, and one version is built at a time. Ask again when "
                "it is live: GET /models shows how far it is."
            )
        if seconds:
            self._version, self._until = version, time.monotonic() + seconds
        elif version == self._version:
            self.end()

    def end(self) -> None:
        self._version = ""

    def target(self, live: str, published: Container[str]) -> DesiredVersion | None:
        """The version to keep; None when there is none, its time is over, it is live, or it has gone."""
        if self._version in {"", live} or time.monotonic() > self._until or self._version not in published:
            self.end()
            return None
        return DesiredVersion(self._version, "want", "")
