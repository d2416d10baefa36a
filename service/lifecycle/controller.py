"""Activates the requested version, reports the progress, and cleans up after a swap.

Start reading at `Controller.look`, which runs every half second, and immediately after a request over HTTP:

- It reads which version is requested, then builds and activates that version. A build is dropped if another
  version is requested.
- It closes old generations after a grace period, and deletes the vectors of dropped generations.
- It copies the state to MODELS_DIR/state.json for `simile models` and training.
"""

import asyncio
import contextlib
import errno
import logging
import time
from collections.abc import Awaitable, Callable, Container
from dataclasses import dataclass, field
from functools import partial
from math import inf
from typing import Any

from models.engines.form import read_form
from models.errors import ModelError, Unreadable
from models.manifest import Manifest, read_manifest
from models.store import REQUESTED, Kind, ModelStore, RequestedVersion
from service.active import ActiveGeneration, Generation
from service.corpus.corpus import Corpus
from service.errors import Conflict, ServiceError, Storage, machine_error
from service.lifecycle.model_loader import ModelLoader, read_when_there
from service.lifecycle.swap import READY, RETRY_SECONDS, Swap, find_shortage
from service.observability.metrics import Metrics
from service.settings import Settings
from service.store.values import FAILED, Active, Known

log = logging.getLogger(__name__)

POLL_SECONDS = 0.5
BUSY_SECONDS = 0.05  # pause between two iterations while vectors are being deleted
# A generation that was active still follows writes for this time, for searches that began on it.
LINGER_SECONDS = 5.0

_BY_FILE = "@"  # joins the version and the file's time to an id, for a request without one
_READING, _FOLLOWING = "reading the models folder", "following the request"  # steps of an iteration


class Controller:
    """Loop that makes the active version equal to the requested version.

    `run` is the background task. `poke` starts the next iteration immediately.
    """

    def __init__(self, loader: ModelLoader, corpus: Corpus, settings: Settings, metrics: Metrics) -> None:
        self.swap: Swap | None = None
        self.published: set[str] = set()
        self._loader = loader
        self._store = loader.store
        self._corpus = corpus
        self._settings = settings
        self._metrics = metrics
        self._task: asyncio.Task[None] | None = None
        self._poked = asyncio.Event()
        self._expiry: dict[Generation, float] = {}  # time.monotonic() when a follower may leave
        self._written: dict[str, Any] = {}
        self._complaints: dict[str, str] = {}  # last failure of each step
        self._more_to_purge = False
        self._form_failed = False  # The active version cannot be served in the requested form.
        self._not_before = 0.0  # time.monotonic() before which no swap begins
        self._kept = ""  # version that is kept loaded on request
        self._kept_until = 0.0  # time.monotonic()
        self._requesting = asyncio.Lock()  # keeps the same order of requests in the store and the folder
        self._reported: str | None = None  # id of the last request in the models folder
        self._by_file: str | None = None  # id of the last request that only the file `wanted` named
        self.reranker_states: Callable[[], dict[str, dict[str, Any]]] = dict  # of Rerankers
        self.find_tested: Callable[[], Awaitable[str]] = _find_none  # of LiveTests
        self._tested = ""  # version that a live test needs loaded
        self.following = Following(loader, corpus.active, metrics, self._went_over)

    @property
    def waits(self) -> bool:
        """True if the candidate waits for memory, a disk, a queue, or a decision of an operator."""
        swap = self.swap
        return swap is not None and (swap.reason is not None or (swap.state == READY and not swap.kept))

    @property
    def builds(self) -> bool:
        """True if a version is being opened or built.

        This needs memory that is free again when the version is ready.
        """
        swap = self.swap  # Other threads read it.
        return swap is not None and swap.state != READY

    @property
    def building_bytes(self) -> int:
        """Estimated memory that the version that is being opened or built will still take, or 0."""
        swap = self.swap
        return 0 if swap is None else swap.coming_bytes

    @property
    def trouble(self) -> str | None:
        """The reason why the models folder or the request in it cannot be read now, or None."""
        return self._complaints.get(_READING) or self._complaints.get(_FOLLOWING)

    def poke(self) -> None:
        self._poked.set()

    def _went_over(self, generation: Generation | None) -> None:
        """Starts the next iteration. Called after the active version of the store may have changed.

        Args:
            generation: The active generation, or None if it did not change or is not open yet.

        """
        swap = self.swap
        if generation is not None and swap is not None and swap.generation is generation:
            swap.mark_activated(generation)
        self.poke()

    async def run(self) -> None:
        """Runs until it is cancelled. A build in progress then stops, and continues at the next start."""
        try:
            while True:
                busy = await self.look()
                # Python 3.11's wait_for loses a cancellation that comes at the same moment as the poke.
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(BUSY_SECONDS if busy else POLL_SECONDS):
                        await self._poked.wait()
                self._poked.clear()
        finally:
            await self._stop_swap()

    async def look(self) -> bool:
        """Runs one iteration. If a step fails, the next steps still run.

        Returns:
            True if the store has more old rows to delete.

        """
        await self._step("opening the active version", self._open_active)
        await self._step(_READING, self._read_folder)
        await self._step(_FOLLOWING, self._follow)
        await self._step("closing generations", self._expire)
        await self._step("writing state.json", self._write_state)
        await self._step("deleting old vectors", self._purge)
        return self._more_to_purge

    async def _step(self, name: str, work: Callable[[], Awaitable[None]]) -> None:
        """Runs one step of an iteration and logs a failure.

        A failure that repeats is logged only once, because iterations are frequent.
        """
        try:
            await work()
        except (ServiceError, OSError) as error:
            # The whole text would differ each time, because it names temporary files.
            fault = machine_error(error)
            complaint = f"{type(error).__name__}: {getattr(error, 'strerror', None) or error}"
            if self._complaints.get(name) != complaint:
                why = f"{type(error).__name__}: {error}" if fault is None else fault.message
                log.warning("%s failed and is tried again: %s", name.capitalize(), why)
            self._complaints[name] = complaint
        except Exception as error:
            if name not in self._complaints:
                log.exception("%s failed and is tried again", name.capitalize())
            self._complaints[name] = type(error).__name__
        else:
            self._complaints.pop(name, None)

    async def _open_active(self) -> None:
        if self.following.behind is not None:
            await self._stop_swap()
            await self.following.open()

    async def _read_folder(self) -> None:
        """Reads the list of published versions.

        If the folder does not contain the active version, the folder is probably not mounted. Then the last
        list stays.

        Raises:
            FileNotFoundError: The folder does not contain the active version.

        """
        published = await asyncio.to_thread(self._store.names)
        if self._corpus.active.generation.version not in published:
            raise FileNotFoundError(errno.ENOENT, "The active version is not there", str(self._store.root))
        self.published = published

    async def _purge(self) -> None:
        """Deletes a few rows of old generations, unless a build is running."""
        self._more_to_purge = False
        if self.swap is None or self.swap.state == READY:
            self._more_to_purge = await self._corpus.store.tidy()

    async def _follow(self) -> None:
        finished = self._task is not None and self._task.done()  # So `find_tested` sees how the swap ended.
        # Before the request, because the candidate of a test stays loaded until it is requested.
        self._tested = await self.find_tested()
        requested = await self.requested()
        facts = await self._known()
        if requested is None:  # The folder cannot be read, or contains no request. A build continues.
            return
        if facts.active != self._corpus.active.generation.version:  # A swap is in progress.
            if self.following.behind is None:
                self.poke()
            return
        target, kept = await self._choose(requested, facts)
        if self.swap is not None:
            await self._go_on(self.swap, target, facts.active, kept=kept, finished=finished)
        elif target is not None:
            self._begin(target, kept=kept)
        elif facts.building:  # The process ended during a swap.
            await self._corpus.store.abandon()
        if requested.version == facts.active and requested.id not in {"", facts.handled}:
            await self._corpus.store.keep_decision(requested.id)

    async def _choose(
        self, requested: RequestedVersion, facts: Known
    ) -> tuple[RequestedVersion | None, bool]:
        """Returns the version to build, if any, and whether it must only be kept loaded."""
        target = choose_requested(
            requested,
            active=facts.active,
            handled=facts.handled,
            judged=facts.verdicts,
            refused=await asyncio.to_thread(was_refused, self._store, requested.version),
        )
        form = self._corpus.active.generation.encoder.form
        if target is None and not self._form_failed and form != self._loader.get_form(facts.active):
            # A changed precision counts as a decision.
            target = RequestedVersion(facts.active, "activate", "")
        tested = self._tested
        if tested and target is not None and target.kind == "want" and self._settings.activate != "auto":
            target = target if target.version == tested else None  # It waits until the test ends.
        if target is not None:
            return target, False
        return RequestedVersion(tested, "want", "") if tested else self._kept_target(facts.active), True

    async def requested(self) -> RequestedVersion | None:
        """Passes the request in the models folder to the store. Returns the request in effect, or None."""
        in_folder, at = await asyncio.to_thread(self._requested)
        standing = await self._corpus.store.requested(in_folder, at)
        if in_folder is not None:
            self._reported = in_folder.id
        if standing is not None and _BY_FILE in standing.id:
            return standing._replace(id="")
        return standing

    def _requested(self) -> tuple[RequestedVersion | None, float]:
        """Reads the request in the models folder.

        Also returns when it was made, as `protocol.Replicas.requested` expects.

        A request in the old format has no id and consists only of the file `wanted`. It is accepted if two
        iterations see the same request. `write_request` replaces two files, and an iteration in between sees
        one new file and one old file.
        """
        locked = self._store.is_locked()
        in_folder = self._store.read_request()
        reported = self._reported or self._store.read_state().get(REQUESTED)
        if in_folder is not None and not in_folder.id:
            in_folder = in_folder._replace(id=f"{in_folder.version}{_BY_FILE}{self._store.requested_at()}")
            seen, self._by_file = self._by_file, in_folder.id
            if in_folder.id != reported and (locked or in_folder.id != seen):
                return None, -inf
        if in_folder is None or reported is None:
            return in_folder, self._store.requested_at()
        return in_folder, -inf if in_folder.id == reported else inf

    async def request(self, version: str, kind: Kind) -> None:
        """Requests a version. When this method returns, the request is in effect.

        Raises:
            ModelError: The version is unknown, or its manifest cannot be read.
            OSError: The models folder cannot be written.

        """
        async with self._requesting:
            in_folder = await asyncio.to_thread(self._store.new_request, version, kind)
            await self._corpus.store.request(in_folder)
            await asyncio.to_thread(self._store.write_request, in_folder)
        self.poke()

    def keep(self, version: str, seconds: float) -> bool:
        """Keeps a version loaded without activating it.

        Only one version is kept loaded. A later call, or a live test of another encoder, replaces it.

        Args:
            version: The version.
            seconds: How long to keep the version loaded. 0 closes the version.

        Returns:
            True if the version is loaded already.

        Raises:
            Conflict: Another version is being built for activation, or is tested.

        """
        self._require_no_other(version)
        if self._tested not in {"", version}:
            raise Conflict(
                f"{self._tested} is being tested with its own encoder, and one more version is loaded at a "
                f"time. DELETE /models/{self._tested}/test ends the test."
            )
        if seconds:
            self._kept, self._kept_until = version, time.monotonic() + seconds
        elif version == self._kept:
            self._kept = ""
        self.poke()
        return any(one.version == version and one.is_complete for one in self._corpus.active.generations)

    def _require_no_other(self, version: str) -> None:
        """Raises Conflict if another version is being built for activation."""
        swap = self.swap
        if swap is not None and not (swap.kept or swap.swapped) and swap.version != version:
            raise Conflict(
                f"{swap.version} is being activated, and one version is built at a time. Ask again when it "
                "is active: GET /models shows its progress."
            )

    async def require_room(self, manifest: Manifest) -> None:
        """Rejects a version that cannot be built now.

        Raises:
            Conflict: Another version is being built for activation.
            Storage: The memory is too small.

        """
        self._require_no_other(manifest.version)
        if not self._settings.memory_check or any(
            one.version == manifest.version for one in self._corpus.active.generations
        ):
            return
        shortage = await find_shortage(manifest, self._loader, self._corpus)
        if shortage is not None:
            raise Storage(f"{manifest.version} does not fit beside the active version. {shortage}")

    def _kept_target(self, active: str) -> RequestedVersion | None:
        """Returns the version that must be kept loaded, or None.

        The result is None if the time has passed, or if the version is active or deleted.
        """
        if (
            self._kept in {"", active}
            or time.monotonic() > self._kept_until
            or self._kept not in self.published
        ):
            self._kept = ""
            return None
        return RequestedVersion(self._kept, "want", "")

    def _begin(self, target: RequestedVersion, *, kept: bool) -> None:
        if time.monotonic() < self._not_before:
            return
        log.info("%s is built to be %s", target.version, "kept loaded" if kept else "activated")
        self.swap = Swap(target, self._loader, self._corpus, self._settings, self._metrics, kept=kept)
        self._task = asyncio.create_task(self.swap.run())
        self._task.add_done_callback(lambda _: self.poke())

    async def _go_on(
        self, swap: Swap, target: RequestedVersion | None, active: str, *, kept: bool, finished: bool
    ) -> None:
        """Decides what happens to the current swap.

        A swap to the target version continues. A finished swap is cleaned up, and any other swap is dropped.

        Args:
            swap: The current swap.
            target: The version to build, if any.
            active: The active version.
            kept: Whether the target version must only be kept loaded.
            finished: Whether the task of the swap is done.

        """
        assert self._task is not None  # noqa: S101  they are set together
        if finished:
            self._form_failed |= swap.state == FAILED and swap.version == active
            self._kept = ""  # The version is active now, or cannot be opened.
            if self._task.exception() is not None:  # The task could not even store its failure.
                log.error("The swap to %s failed", swap.version, exc_info=self._task.exception())
                self._not_before = time.monotonic() + RETRY_SECONDS
        elif target is not None and target.version == swap.version:
            swap.renew(target, kept=kept)
            return
        await self._stop_swap()
        await self._corpus.store.abandon()
        if not finished and not swap.swapped and not swap.kept:
            log.info("%s is no longer requested. Its build is dropped", swap.version)
            self._metrics.swaps.labels("dropped").inc()
        self.poke()  # The end of the task may have changed the state.

    async def _stop_swap(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        self._task = self.swap = None

    async def _known(self) -> Known:
        return await self._corpus.store.known(self.published)

    async def _expire(self) -> None:
        """Closes followers whose time is over.

        The previous version stays open for the grace period, and other followers for a few seconds. The
        candidate of the current swap is not closed.
        """
        facts = await self._known()
        now = time.monotonic()
        active = self._corpus.active
        if facts.active != active.generation.version:
            return
        kept: dict[Generation, float] = {}
        for follower in active.followers:
            if self.swap is not None and follower is self.swap.generation:
                continue
            back = follower.version == facts.previous
            if back and not follower.is_rollback_target:
                self._expiry.pop(follower, None)  # The grace period begins.
            follower.is_rollback_target = back
            seconds = max(self._settings.grace_seconds, LINGER_SECONDS) if back else LINGER_SECONDS
            expiry = min(self._expiry.get(follower, now + seconds), now + seconds)
            if now < expiry:
                kept[follower] = expiry
            else:
                log.info("%s is closed. Its vectors stay for a rollback", follower.version)
                active.leave(follower)
        self._expiry = kept

    async def previous(self) -> str | None:
        """Returns the version that a rollback would activate now, or None."""
        return (await self._known()).previous

    async def states(self) -> dict[str, dict[str, Any]]:
        """Returns the states of versions, by name.

        Versions that were never active, never failed and are not being built are not included.
        """
        facts = await self._known()
        found = {version: as_state("retired") for version in facts.past}
        for version, verdict in facts.verdicts.items():
            state = "failed" if verdict.state == FAILED else "retired"
            found[version] = as_state(state, reason=verdict.reason)
        active, swap = self._corpus.active.generation.version, self.swap
        found[active] = as_state("active")
        if swap is not None:
            state = "active" if swap.version == active else swap.state  # It may be built in another form.
            found[swap.version] = as_state(
                state, done=swap.done, total=swap.total, eta_seconds=swap.eta_seconds, reason=swap.reason
            )
        for version, shown in found.items():
            shown["canary"] = facts.canaries.get(version)
        return found

    async def _write_state(self) -> None:
        """Writes the state of all versions to state.json.

        If the models folder is missing, it is not created.
        """
        if _READING in self._complaints:
            return
        facts = await self._known()
        if facts.active != self._corpus.active.generation.version:
            return
        state = {
            "live": facts.active,
            "previous": facts.previous,
            "reranker": self._corpus.active.reranker.version,
            "versions": await self.states() | self.reranker_states(),
            REQUESTED: self._reported,
        }
        if state != self._written:
            await asyncio.to_thread(self._store.write_state, state, make=False)
            self._written = state


@dataclass(eq=False)
class Following:
    """Makes this process serve the version that is active in the store.

    Any process may have activated that version. Use the methods on the event loop. Other threads may read
    `behind`.
    """

    _loader: ModelLoader
    _active: ActiveGeneration
    _metrics: Metrics
    _went_over: Callable[[Generation | None], None]  # Called with the active generation. None: not open yet.
    _ahead: Active | None = field(default=None, init=False)  # The active generation until it is open here.

    @property
    def behind(self) -> str | None:
        """The reason why this process cannot answer, or None.

        The reason is that the active version is not open here yet.
        """
        ahead = self._ahead
        if ahead is None:
            return None
        return f"{ahead.version} is active, and this replica is still opening it. Send again."

    def follow(self, active: Active) -> None:
        """Switches to the store's active generation if it is open in this process.

        Otherwise `open` must open it.
        """
        if active.number == self._active.generation.number:
            self._ahead = None
            self._went_over(None)
            return
        for follower in self._active.followers:
            if follower.number == active.number:
                self._go_over(follower)
                return
        self._ahead = active
        self._went_over(None)

    async def open(self) -> None:
        """Opens the store's active version, unless it is open in this process."""
        active = self._ahead
        if active is None:
            return
        log.warning("Another replica activated %s. It is opened now", active.version)
        store = self._loader.store
        opening = partial(self._loader.open, active.version, read_form(active.form))
        encoder = await read_when_there(store, active.version, opening, _log_and_wait)
        self._active.follow(self._active.generation.another(active.number, encoder))
        self.follow(self._ahead or active)

    def _go_over(self, generation: Generation) -> None:
        generation.is_loaded = generation.is_complete = True  # The store has checked both.
        self._active.replace(generation)
        self._ahead = None
        self._metrics.serve(generation.manifest, generation.encoder.form)
        self._went_over(generation)


async def _find_none() -> str:
    return ""


async def _log_and_wait(reason: str, seconds: float) -> None:
    log.warning("The active version cannot be opened: %s", reason)
    await asyncio.sleep(seconds)


def choose_requested(
    requested: RequestedVersion | None,
    *,
    active: str,
    handled: str | None,
    judged: Container[str],
    refused: bool,
) -> RequestedVersion | None:
    """Returns the request to carry out, or None if nothing must be done.

    A version that failed, that was rolled back, or that a promotion gate refused is activated only by an
    explicit decision of an operator. Each decision counts once.

    Args:
        requested: The request.
        active: The active version.
        handled: The id of the last request that was carried out or failed. This request no longer counts as a
            decision.
        judged: Versions that failed or were rolled back.
        refused: Whether a promotion gate refused the version.

    """
    if requested is None or requested.version == active:
        return None
    if requested.kind != "want" and requested.id == handled:
        requested = requested._replace(kind="want")
    if requested.kind == "want" and (requested.version in judged or refused):
        return None
    return requested


def was_refused(store: ModelStore, version: str) -> bool:
    """Returns whether a promotion gate refused the version.

    The result is False if the manifest is damaged. The swap reports this later.

    Raises:
        OSError: The manifest cannot be read now.

    """
    try:
        gate = read_manifest(store.folder(version)).gate
    except Unreadable as error:
        raise OSError(str(error)) from error
    except ModelError:
        return False
    return gate is not None and gate.verdict == "refused"


def as_state(state: str, **known: float | str | None) -> dict[str, Any]:
    """Returns the state of a version in the format of `GET /models` and state.json."""
    return {"state": state, **dict.fromkeys(("done", "total", "eta_seconds", "reason", "canary")), **known}
