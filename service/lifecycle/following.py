"""Goes over to what another process on the same store made live."""

import asyncio
import logging
from collections.abc import Callable
from functools import partial

from models.engines.form import read_form
from service.lifecycle.away import read_when_there
from service.lifecycle.model_loader import ModelLoader
from service.live import Generation, Live
from service.observability.metrics import Metrics
from service.store.values import Active

log = logging.getLogger(__name__)


class Following:
    """Used on the event loop; `behind` is asked by other threads, too."""

    def __init__(
        self,
        loader: ModelLoader,
        live: Live,
        metrics: Metrics,
        went_over: Callable[[Generation | None], None],
    ) -> None:
        """went_over: told of the generation that is live now, None where it is yet to be opened."""
        self._loader = loader
        self._live = live
        self._metrics = metrics
        self._went_over = went_over
        self._ahead: Active | None = None  # what went live, and is not open here

    @property
    def behind(self) -> str | None:
        """The reason why nothing is answered here: another version is live, and it is not open yet."""
        ahead = self._ahead
        if ahead is None:
            return None
        return f"{ahead.version} went live, and this replica is still opening it. Send again."

    def follow(self, active: Active) -> None:
        """Go over to what is live in the store, unless it is live here; one that is ready goes at once."""
        if active.number == self._live.generation.number:
            self._ahead = None
            self._went_over(None)
            return
        for follower in self._live.followers:
            if follower.number == active.number:
                self._go_over(follower)
                return
        self._ahead = active
        self._went_over(None)

    async def open(self) -> None:
        """Open what is live, while this replica is behind it."""
        active = self._ahead
        if active is None:
            return
        log.warning("%s went live without this replica, which opens it now", active.version)
        store = self._loader.store
        opening = partial(self._loader.open, active.version, read_form(active.form))
        encoder = await read_when_there(store, active.version, opening, _wait)
        self._live.follow(self._live.generation.another(active.number, encoder))
        self.follow(self._ahead or active)

    def _go_over(self, generation: Generation) -> None:
        generation.is_loaded = generation.is_complete = True  # as the store says, which made it live
        self._live.replace(generation)
        self._ahead = None
        self._metrics.serve(generation.manifest, generation.encoder.form)
        self._went_over(generation)


async def _wait(reason: str, seconds: float) -> None:
    log.warning("What is live cannot be opened: %s", reason)
    await asyncio.sleep(seconds)
