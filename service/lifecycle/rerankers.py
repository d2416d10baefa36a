"""Serves the requested reranker. Start reading at `Rerankers.look`, which runs every half second.

    requested ─▶ memory? ─▶ opened, verified ─▶ a trial pass ─▶ one assignment

The request is in MODELS_DIR/reranker.json. While a reranker is opened, and if it fails, the previous one
stays active. Requests in progress keep the reranker that they have borrowed. A reranker never changes
`/health` and `/ready`: searches go on without it.
"""

import asyncio
import contextlib
import logging
import time
from functools import partial
from pathlib import Path
from typing import Any

from models.errors import DamagedRequest, ModelError, UnknownVersion, Unreadable, Unsupported
from models.manifest import ModelKind, is_version, read_manifest
from models.reranker import Pair, Reranker
from models.store import RequestedReranker
from service.active import ActiveGeneration, OpenReranker
from service.batching.batcher import Batcher
from service.batching.request import Lane
from service.errors import Backend, Hung, ServiceError, machine_error
from service.lifecycle import capacity
from service.lifecycle.controller import Controller, as_state
from service.lifecycle.model_loader import ModelLoader
from service.observability.logs import safe_message
from service.observability.metrics import Metrics
from service.settings import Settings

log = logging.getLogger(__name__)

POLL_SECONDS = 0.5
RETRY_SECONDS = 5.0  # after a lack of memory, or a folder that cannot be read
TRIAL = Pair("When does the train leave?", "The train leaves at noon.")
MACHINE = Path("/")  # folder that contains `proc` and `sys`


class Rerankers:
    """Makes the active reranker equal to the requested one. `run` is the background task.

    Args:
        loader: Opens versions.
        active: Has the active reranker, which this class replaces.
        batcher: Scores pairs.
        controller: Says how much memory the version needs that is being built.
        settings: The settings. `reranker` names the first one.
        metrics: The metrics.

    """

    def __init__(
        self,
        loader: ModelLoader,
        active: ActiveGeneration,
        batcher: Batcher,
        controller: Controller,
        settings: Settings,
        metrics: Metrics,
    ) -> None:
        self.requested = RequestedReranker()
        self.published: set[str] = set()  # the rerankers in the models folder
        self._loader = loader
        self._store = loader.store
        self._active = active.reranker
        self._batcher = batcher
        self._controller = controller
        controller.reranker_states = self.states
        self._settings = settings
        self._metrics = metrics
        self._failed: dict[str, str] = {}  # reasons, by version
        self._kinds: dict[str, ModelKind] = {}
        self._publishing: str | None = None  # the reranker of the settings, until it is requested
        self._first_trouble = ""  # why the reranker of the settings was not requested
        self._not_before = 0.0  # time.monotonic()
        self._poked = asyncio.Event()

    async def run(self) -> None:
        """Runs until it is cancelled."""
        self._active.opening = self._publishing = self._settings.reranker or None
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._publish_first())
            await self._follow()

    async def _follow(self) -> None:
        while True:
            try:
                await self.look()
            except DamagedRequest as error:
                self._wait(str(error))
            except (OSError, ServiceError) as error:
                self._wait(f"The models folder cannot be read now ({safe_message(error)}).")
            # As in Controller.run.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(POLL_SECONDS):
                    await self._poked.wait()
            self._poked.clear()

    def retry(self, version: str | None) -> None:
        """Looks at once, and tries a version again that has failed."""
        self._forget(version)
        if self._active.current is None:
            self._active.opening = version  # Clients send again from now on.
        self._poked.set()

    def _forget(self, version: str | None) -> None:
        """Forgets the faults of earlier requests: `version` is requested again or for the first time."""
        self._failed.pop(version or "", None)
        self._first_trouble = self._active.trouble = ""
        self._not_before = 0.0

    async def look(self) -> None:
        """Runs one iteration."""
        self._drop_hung()
        self.published = await asyncio.to_thread(self._list)
        requested = await asyncio.to_thread(self._store.requested_reranker)
        if self._poked.is_set():  # The request may be older than `retry`. The next look follows at once.
            return
        if (requested.version, requested.id) != (self.requested.version, self.requested.id):
            self._forget(requested.version)
        self.requested = requested
        version = requested.version
        failed = self._failed.get(version or "")
        if failed is not None or version == self._active.version:
            self._active.opening = self._publishing if version is None else None
            self._active.trouble = self._first_trouble if failed is None else _unusable(version, failed)
            if version is not None and version == self._active.version and not requested.served:
                await self._note_served(version)
            return
        if version is None:
            log.info("The reranker %s is closed: none is requested", self._active.version)
            self._active.replace(None)
            self._active.trouble = ""
            self._metrics.reranker.clear()
            return
        if time.monotonic() >= self._not_before:
            await self._open(version)

    def _list(self) -> set[str]:
        """Returns the published rerankers. Each manifest is read once, because versions do not change."""
        names = self._store.names()
        for name in names - self._kinds.keys():
            with contextlib.suppress(ModelError, OSError):
                self._kinds[name] = read_manifest(self._store.folder(name)).kind
        return {name for name in names if self._kinds.get(name) == "reranker"}

    async def _open(self, version: str) -> None:
        """Opens a version, and makes it active if a trial pass succeeds."""
        self._active.opening = version
        try:
            folder = await asyncio.to_thread(self._store.folder, version)
            look = partial(capacity.no_reranker, version, folder, self._controller.building_bytes, MACHINE)
            if self._settings.memory_check and (shortage := await asyncio.to_thread(look)) is not None:
                self._wait(shortage)
                return
            self._active.opening_bytes = await asyncio.to_thread(capacity.needed, [], 0, folder)
            reranker = await asyncio.to_thread(self._loader.open_reranker, version)
        except Unreadable as error:
            self._wait(str(error))
        except UnknownVersion as error:
            self._fail(version, str(error))
        except OSError as error:
            fault = machine_error(error)
            self._wait(str(error) if fault is None else fault.message)
        except Exception as error:  # noqa: BLE001  each runtime has its own errors
            self._fail(version, str(error) if isinstance(error, ModelError) else safe_message(error))
        else:
            await self._try(reranker)
        finally:
            self._active.opening_bytes = 0

    async def _try(self, reranker: Reranker) -> None:
        opened = OpenReranker(reranker, self._batcher.forget)
        try:
            await self._batcher.embed(reranker, [TRIAL], lane=Lane.CANDIDATE, bypass_cache=True)
        except (Backend, Hung) as error:
            opened.retire()
            self._fail(opened.version, error.message)
        except ServiceError as error:
            opened.retire()
            self._wait(error.message)
        except BaseException:  # The service stops.
            opened.retire()
            raise
        else:
            await self._note_served(opened.version)  # first, so that the next request knows it
            self._active.replace(opened)
            self._active.opening, self._active.trouble = None, ""
            self._metrics.rerank(reranker.manifest, reranker.form)
            log.info("%s is the active reranker", opened.version)

    async def _note_served(self, version: str) -> None:
        with contextlib.suppress(OSError, DamagedRequest):  # The next look tries it again.
            await asyncio.to_thread(self._store.note_served, version)

    def _drop_hung(self) -> None:
        """Closes the active reranker if one of its passes has hung."""
        current = self._active.current
        if current is not None and current.reranker in self._batcher.hung:
            self._active.replace(None)
            self._metrics.reranker.clear()
            self._fail(current.version, "A forward pass did not finish in time (SIMILE_HANG_SECONDS).")

    def _wait(self, reason: str) -> None:
        """Notes why the requested reranker waits. It is tried again later."""
        if self._active.trouble != reason:
            log.warning("The reranker waits: %s", reason)
        self._active.trouble = reason
        self._not_before = time.monotonic() + RETRY_SECONDS

    def _fail(self, version: str, reason: str) -> None:
        log.error("%s cannot be the reranker: %s", version, reason)
        self._failed[version] = reason
        if not self._poked.is_set():  # Otherwise another request follows.
            self._active.opening = None
        self._active.trouble = _unusable(version, reason)

    def states(self) -> dict[str, dict[str, Any]]:
        """Returns the states of rerankers by name, as `Controller.states`. Candidates are not included."""
        found = {version: as_state("failed", reason=reason) for version, reason in self._failed.items()}
        if self.requested.previous is not None:
            found.setdefault(self.requested.previous, as_state("retired"))
        if (opening := self._active.opening) is not None:
            found[opening] = as_state("building", reason=self._active.trouble or None)
        if (version := self._active.version) is not None:
            found[version] = as_state("active")
        return found

    async def _publish_first(self) -> None:
        """Publishes and requests the reranker of the settings, unless one was requested before."""
        source = self._settings.reranker
        try:
            if not source or await asyncio.to_thread(self._store.requested_reranker) != RequestedReranker():
                return
            version = source if is_version(source) else await asyncio.to_thread(self._publish, source)
            await asyncio.to_thread(partial(self._store.request_reranker, version, first=True))
        except (ModelError, OSError) as error:
            trouble = _unusable(f"SIMILE_RERANKER={source}", str(error))
            log.error("%s Correct it, and start the service again", trouble)  # noqa: TRY400
            if self.requested == RequestedReranker():  # Otherwise nobody waits for it.
                self._first_trouble = trouble
        finally:
            self._publishing = None
            self._poked.set()

    def _publish(self, source: str) -> str:
        # Importing the onnx package takes a third of a second.
        from models.publishing.default import locate  # noqa: PLC0415
        from models.publishing.limited import publish_limited  # noqa: PLC0415
        from models.sources.folder import find_kind  # noqa: PLC0415

        say = partial(log.info, "Publishing the reranker %s: %s", source)
        folder = None if source == "default" else locate(source, say=say).folder
        if folder is None or find_kind(folder) == "encoder":
            raise Unsupported("It is an encoder, and SIMILE_MODEL names encoders. Name a cross-encoder here.")
        if self._settings.memory_check and (
            shortage := capacity.no_publishing(folder, MACHINE, "SIMILE_RERANKER")
        ):
            raise ModelError(shortage)
        int8 = self._settings.calibrates_int8
        return publish_limited(self._store, source, say=say, torch=False, int8=int8).version


def _unusable(what: str | None, reason: str) -> str:
    return f"{what} cannot be used: {reason.rstrip('.')}."
