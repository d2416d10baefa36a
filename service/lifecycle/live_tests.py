"""Live tests: clicks on hits of two versions decide which version is better. Start at `LiveTests.look`.

    start ─▶ some searches have a rival ─▶ events name the side of a hit ─▶ evidence ─▶ activate, or keep
      └─ build the vectors of another encoder

A candidate has another ranking, other search settings, or another encoder. If it has another encoder, the
controller keeps its generation loaded, but must not activate it yet (`find_loaded`). The state is stored as
a fact, so replicas share one test, and a restart resumes it. Each replica checks the outcomes. The replica
that is the first to replace the state ends the test.
"""

import asyncio
import contextlib
import logging
import math
import time
from collections import deque
from collections.abc import Callable
from contextlib import ExitStack
from statistics import median
from typing import Literal, NamedTuple
from uuid import uuid4

from pydantic import BaseModel, ConfigDict

from models.errors import Damaged, ModelError, UnknownVersion, WrongKind
from models.manifest import Manifest, read_manifest, require_kind
from models.messages import amount
from models.search.passages import passage_tokens
from models.store import ModelStore
from service.active import Generation
from service.auth.audit import audit
from service.corpus.corpus import Corpus
from service.corpus.interleaving import Coins, Side
from service.errors import Conflict, NotFound, ServiceError
from service.lifecycle.controller import Controller
from service.lifecycle.sequential import ALPHA, Outcome, Standing, decide, select
from service.lifecycle.swap import READY
from service.observability.logs import safe_message
from service.observability.metrics import LIVE_TEST_SIDES, Metrics
from service.ranking import Rankings, read_rankings
from service.settings import Settings
from service.store.values import FAILED, Verdict

log = logging.getLogger(__name__)

LOOK_SECONDS = 1.0  # Other replicas notice the start or end of a test within this time.
MAX_DAYS = 28.0
DAY = 86_400.0
# A candidate is rejected if its median time is more than MAX_SLOWER times that of the active version, over
# the last TIMED searches of one process. People do not notice medians below SLOW_SECONDS.
MAX_SLOWER, TIMED, SLOW_SECONDS = 2.0, 100, 0.05

State = Literal["preparing", "running", "accepted", "rejected", "stopped"]


class LiveTest(BaseModel):
    """The state of the last live test, as it is stored.

    Attributes:
        id: Random, because it decides which hits a visitor sees.
        active: The version that was active at the start.
        candidate: The version that is compared with `active`.
        collections: Collections whose searches differ between the two versions.
        started: Unix time. It is set again when the preparation ends.
        builds: True if the candidate has its own vectors.
        state: Preparing: the candidate's vectors are not complete. Accepted: the candidate was requested, or
            will be. Stopped: the test ended without a verdict.
        reason: The reason why the test ended, or empty.
        ended: Unix time, or None.
        wins: Counted outcomes for the candidate at the end.
        decided: All counted outcomes at the end.
        requested: True if the accepted candidate was requested.
    """

    model_config = ConfigDict(frozen=True)

    id: str
    active: str
    candidate: str
    collections: list[str]
    started: float
    builds: bool = False
    state: State = "running"
    reason: str = ""
    ended: float | None = None
    wins: int = 0
    decided: int = 0
    requested: bool = False


class _Candidate(NamedTuple):
    test: LiveTest
    manifest: Manifest
    rankings: Rankings


class LiveTests:
    """Starts, follows and ends live tests.

    Args:
        store: The models folder.
        corpus: The documents and the active version.
        controller: Activates a candidate that wins.
        settings: The settings.
        metrics: The metrics.
        trusts: Returns whether the key with this name is trusted now.
    """

    def __init__(
        self,
        store: ModelStore,
        corpus: Corpus,
        controller: Controller,
        settings: Settings,
        metrics: Metrics,
        trusts: Callable[[str], bool],
    ) -> None:
        self._models = store
        self._corpus = corpus
        self._controller = controller
        self._settings = settings
        self._metrics = metrics
        self._trusts = trusts
        self._candidate: _Candidate | None = None  # Of the running test.
        self._changes = 0  # Changes of `_candidate`. A state that was read before a change may be outdated.
        self._seconds: deque[tuple[float, float]] = deque(maxlen=TIMED)
        self._complaint = ""
        controller.find_tested = self.find_loaded

    async def run(self) -> None:
        """Calls `look` every LOOK_SECONDS."""
        while True:
            try:
                await self.look()
                self._complaint = ""
            except (ServiceError, ModelError, OSError) as error:
                complaint = safe_message(error)
                if complaint != self._complaint:
                    log.warning("A look at the live test failed and is tried again: %s", complaint)
                self._complaint = complaint
            await asyncio.sleep(LOOK_SECONDS)

    def find_rival(
        self, generation: Generation, collection: str, visitor: str, query: str, borrowed: ExitStack
    ) -> tuple[Generation, Coins] | None:
        """Returns the candidate's side of a search, or None if the search is not tested.

        Later pages of the same query by the same visitor get the same answer. If the candidate has its own
        generation, `borrowed` releases it at the end.
        """
        running = self._candidate
        coins = self._toss(collection, visitor, query)
        if running is None or coins is None or generation.version != running.test.active:
            return None
        if running.test.state != "running" or self.find_pause(running.test):
            return None
        if not running.test.builds:
            return generation.replace_search(running.manifest, running.rankings), coins
        candidate = self._get_loaded(running.test)
        if candidate is None or candidate.fault or not candidate.enter():
            return None
        borrowed.callback(candidate.leave)
        return candidate, coins

    def find_pause(self, test: LiveTest) -> str:
        """Returns the reason why no search is tested now, or an empty string."""
        swap = self._controller.swap
        if test.ended or (not self._controller.builds and (not test.builds or self._get_loaded(test))):
            return ""
        waits = f" It waits: {swap.reason}" if swap is not None and swap.reason else ""
        if swap is None or not swap.total:
            return f"{test.candidate if swap is None else swap.version} is being opened.{waits}"
        return f"{swap.version} is being built: {swap.done:,} of {amount(swap.total, 'document')}.{waits}"

    def _get_loaded(self, test: LiveTest) -> Generation | None:
        """Returns the generation of a candidate with its own vectors, if it is complete."""
        swap = self._controller.swap
        is_ready = swap is not None and swap.version == test.candidate and swap.state == READY
        return swap.generation if swap is not None and is_ready else None

    async def find_loaded(self) -> str:
        """Returns the version that must be loaded for the test, or an empty string. The controller calls it.

        An accepted candidate stays loaded until it is requested. A candidate that cannot be used ends the
        test.
        """
        before, test = await self._read()
        if test is None or not test.builds or not self._settings.live_test:
            return ""
        if test.active != self._corpus.active.generation.version:
            return ""
        if test.ended is not None:
            return test.candidate if test.state == "accepted" and not test.requested else ""
        swap = self._controller.swap
        if swap is not None and swap.version == test.candidate and swap.state == FAILED:
            await self._end(before, test, "stopped", swap.reason or "", await self._measure(test))
            return ""
        return test.candidate

    def find_side(
        self, search_id: str, id: str, collection: str, visitor: str, query: str
    ) -> tuple[str, Side]:
        """Returns the id of the running test and the side that chose a hit, or "" and 0.

        Any replica may have answered the search.
        """
        coins = self._toss(collection, visitor, query) if self.is_running else None
        side: Side = 0 if coins is None else coins.find_side(search_id, id)
        return (coins.test, side) if coins is not None and side else ("", 0)

    @property
    def is_running(self) -> bool:
        """True if a running test shows hits of two versions."""
        return self._candidate is not None and self._candidate.test.state == "running"

    def _toss(self, collection: str, visitor: str, query: str) -> Coins | None:
        """Returns the coins for a visitor's query, or None if its searches are not tested."""
        running = self._candidate
        if running is None or collection not in running.test.collections:
            return None
        coins = Coins(running.test.id, visitor, collection, query)
        return None if coins.share >= self._settings.live_test else coins

    def note_seconds(self, seconds: tuple[float, float]) -> None:
        """Records the computing time in seconds of both sides of a search."""
        self._seconds.append(seconds)
        for side, taken in zip(LIVE_TEST_SIDES, seconds, strict=True):
            self._metrics.live_test_seconds.labels(side).observe(taken)

    async def start(self, version: str) -> LiveTest:
        """Starts a test of a version against the active version.

        Raises:
            Conflict: A test is running, tests are off, or the version cannot be tested. Or the version must
                be built, and another version is being built.
            Storage: The version must be built, and the memory does not suffice.
            ModelError: The version is unknown, or its manifest cannot be read.
        """
        if not self._settings.live_test or not self._settings.events:
            raise Conflict(
                "Live tests are off. Set SIMILE_LIVE_TEST to the share of searches to test, such as 0.5, and "
                "leave SIMILE_EVENTS on."
            )
        before, last = await self._read()
        if last is not None and last.ended is None:
            raise Conflict(
                f"{last.candidate} is being tested. DELETE /models/{last.candidate}/test ends that test."
            )
        active = self._corpus.active.generation
        manifest, rankings = await asyncio.to_thread(self._open, version)
        collections, builds = await self._compare(active, manifest, rankings)
        test = LiveTest(
            id=uuid4().hex,
            active=active.version,
            candidate=version,
            collections=collections,
            started=time.time(),
            builds=builds,
        )
        if builds and self._get_loaded(test) is None:
            await self._controller.require_room(manifest)
            test = test.model_copy(update={"state": "preparing"})
        if not await self._corpus.store.replace_live_test(before, test.model_dump_json()):
            raise Conflict("Another live test has just begun. GET it, or try again.")
        log.info("The live test of %s begins in %s", version, ", ".join(collections))
        self._follow(_Candidate(test, manifest, rankings))
        self._controller.poke()
        return test

    async def stop(self, version: str) -> LiveTest:
        """Stops the running test of a version without a verdict.

        Raises:
            NotFound: No test of this version is running.
        """
        ended: LiveTest | None = None
        while ended is None or ended.ended is None:  # Tries again if the test begins to run in the meantime.
            before, test = await self._read()
            if test is None or test.candidate != version or test.ended is not None:
                raise NotFound(f"No live test of {version[:100]!r} is running.")
            standing = await self._measure(test)
            ended = await self._end(before, test, "stopped", "An operator stopped it.", standing)
        return ended

    async def get(self, version: str) -> tuple[LiveTest, Standing]:
        """Returns the last test and its results so far.

        Raises:
            NotFound: The last test was not of this version.
        """
        found = await self.find_last()
        if found is None or found[0].candidate != version:
            raise NotFound(f"The last live test was not of {version[:100]!r}, or its results have expired.")
        return found

    async def find_last(self) -> tuple[LiveTest, Standing] | None:
        """Returns the last test and its results so far. None if no test ran or its results have expired."""
        _, test = await self._read()
        if test is None:
            return None
        if test.ended is None:
            return test, await self._measure(test)
        return test, Standing(test.wins, test.decided)

    async def look(self) -> None:
        """Follows the state in the store, and ends the test if it is decided or cannot continue."""
        changes = self._changes
        before, test = await self._read()
        if self._changes != changes:
            return
        if test is None or test.ended is not None:
            self._follow(None)
            if test is not None and test.state == "accepted" and not test.requested:
                await self._activate(before, test)
            if self._settings.activate == "test":
                await self._test_requested(test)
            return
        if reason := await self._find_end(test):
            await self._end(before, test, "stopped", reason, await self._measure(test))
            return
        is_followed = self._candidate is not None and self._candidate.test == test
        if not is_followed and not await self._resume(changes, before, test):
            return
        if test.state == "preparing":
            if self._get_loaded(test) is not None:
                running = test.model_copy(update={"state": "running", "started": time.time()})
                await self._corpus.store.replace_live_test(before, running.model_dump_json())
            return
        await self._decide(before, test)

    async def _resume(self, changes: int, before: str | None, test: LiveTest) -> bool:
        """Follows the stored test. Returns False if it ended, or if `_changes` differs from `changes`."""
        try:
            opened = await asyncio.to_thread(self._open, test.candidate)
        except (UnknownVersion, Damaged, WrongKind) as error:
            await self._end(before, test, "stopped", str(error), await self._measure(test))
            return False
        if self._changes != changes:
            return False
        self._follow(_Candidate(test, *opened))
        return True

    async def _decide(self, before: str | None, test: LiveTest) -> None:
        """Ends a running test if the evidence suffices, it takes too long, or the candidate is slow."""
        standing = await self._measure(test)
        if standing.decision is not None:
            await self._end(before, test, standing.decision, standing.why, standing)
        elif time.time() - test.started > self._max_seconds:
            days = f"{self._max_seconds / DAY:g}"
            reason = f"{days} days of searches did not show that it is better."
            await self._end(before, test, "rejected", reason, standing)
        elif self._is_slow():
            reason = f"Its searches take more than {MAX_SLOWER:g} times as long."
            await self._end(before, test, "rejected", reason, standing)

    async def _test_requested(self, last: LiveTest | None) -> None:
        """Starts a test of a requested version that waits for a decision, or marks it failed if rejected.

        A version that cannot be tested waits for an operator.
        """
        swap = self._controller.swap
        if swap is None or swap.kept or swap.state != READY or swap.requested.kind != "want":
            return
        if last is None or last.candidate != swap.version:
            with contextlib.suppress(Conflict):
                await self.start(swap.version)
        elif last.state == "rejected":
            verdict = Verdict(FAILED, f"Rejected by a live test. {last.reason}")
            await self._corpus.store.keep_verdict(swap.version, verdict, swap.requested.id)

    async def _read(self) -> tuple[str | None, LiveTest | None]:
        """Returns the stored state as text and as a test. The test is None if its events have expired."""
        text = await self._corpus.store.live_test()
        test = None if text is None else LiveTest.model_validate_json(text)
        if test is not None and test.ended and time.time() - test.ended > self._settings.events_seconds:
            test = None
        return text, test

    @property
    def _max_seconds(self) -> float:
        """Longest duration of a test, in seconds. Its first events must not expire before it ends."""
        return min(MAX_DAYS * DAY, self._settings.events_seconds)

    async def _measure(self, test: LiveTest) -> Standing:
        rows = map(Outcome._make, await self._corpus.store.list_outcomes(test.id))
        trusted = [row for row in rows if self._trusts(row.key)]
        return await asyncio.to_thread(lambda: decide(select(trusted)))

    async def _find_end(self, test: LiveTest) -> str:
        """Returns the reason why a test cannot continue, or an empty string."""
        now = self._corpus.active.generation.version
        if now != test.active:
            return f"{now} became active."
        loaded = self._get_loaded(test) if test.builds else None
        if loaded is not None and (loaded.retired or loaded.fault):
            return loaded.fault or f"The index of {test.candidate} could not follow a write."
        if test.state == "preparing" and time.time() - test.started > self._max_seconds:
            return f"Its vectors were not complete after {self._max_seconds / DAY:g} days."
        gone = {*test.collections} - {*await self._corpus.store.collection_names()}
        if gone:
            return f"The collection {min(gone)} was deleted."
        return ""

    async def _end(
        self, before: str | None, test: LiveTest, state: State, reason: str, standing: Standing
    ) -> LiveTest:
        ended = test.model_copy(
            update={
                "state": state,
                "reason": reason,
                "ended": time.time(),
                "wins": standing.wins,
                "decided": standing.decided,
            }
        )
        text = ended.model_dump_json()
        if await self._corpus.store.replace_live_test(before, text):
            log.info("The live test of %s ends: %s", test.candidate, describe(ended, standing))
            if state == "accepted":
                await self._activate(text, ended)
        else:  # Another replica replaced the state first.
            ended = (await self._read())[1] or ended
        self._changes += 1  # A look that has read the state of this test is outdated.
        if self._candidate is None or self._candidate.test.id == test.id:  # Another test may have begun.
            self._follow(None)
        self._controller.poke()
        return ended

    async def _activate(self, before: str | None, test: LiveTest) -> None:
        """Requests an accepted candidate, unless another version has become active."""
        if self._corpus.active.generation.version == test.active:
            await self._controller.request(test.candidate, "activate")
            audit("activate", version=test.candidate)
        done = test.model_copy(update={"requested": True})
        await self._corpus.store.replace_live_test(before, done.model_dump_json())

    def _follow(self, candidate: _Candidate | None) -> None:
        self._seconds.clear()
        self._candidate = candidate
        self._changes += 1

    def _is_slow(self) -> bool:
        if len(self._seconds) < TIMED:
            return False
        active, candidate = (median(side) for side in zip(*self._seconds, strict=True))
        return bool(candidate > max(SLOW_SECONDS, MAX_SLOWER * active))

    def _open(self, version: str) -> tuple[Manifest, Rankings]:
        """Reads the manifest and the rankings of a version.

        Raises:
            ModelError: The version is unknown, damaged, a reranker, or cannot be read.
        """
        folder = self._models.folder(version)
        manifest = require_kind(read_manifest(folder), "encoder")
        return manifest, read_rankings(folder, manifest)

    async def _compare(
        self, active: Generation, manifest: Manifest, rankings: Rankings
    ) -> tuple[list[str], bool]:
        """Returns the collections whose searches differ between the versions, and whether vectors differ.

        Raises:
            Conflict: The versions do not differ, or the candidate needs token vectors.
        """
        if manifest.version == active.version:
            raise Conflict(f"{manifest.version} is active. Name another version.")
        encodes = builds = _get_encoding(manifest) != _get_encoding(active.manifest)
        found = []
        for name in await self._corpus.store.collection_names():
            own, other = rankings[name], active.rankings[name]
            splits = passage_tokens(manifest, name) != passage_tokens(active.manifest, name)
            builds |= splits
            if own.late and (encodes or own.space != other.space):
                raise Conflict(
                    f"The ranking of {name} in {manifest.version} compares token vectors that the active "
                    "version does not have. Such a ranking cannot be tested live."
                )
            searches = own != other or manifest.search.get(name) != active.manifest.search.get(name)
            if encodes or splits or searches:
                found.append(name)
        if not found:
            raise Conflict(
                f"{manifest.version} searches every collection like the active version {active.version}, so "
                "nothing is there to compare."
            )
        return found, builds


def _get_encoding(manifest: Manifest) -> tuple[object, ...]:
    """Returns the parts of a manifest that decide the vectors. Equal parts mean the same vectors."""
    student = manifest.query_encoder and manifest.query_encoder.fingerprint
    prompts = manifest.prompts, manifest.search_prompt, manifest.document_prompt
    return manifest.fingerprint, student, *prompts


def describe(test: LiveTest, standing: Standing, pause: str = "") -> str:
    """Returns the state of a test as one or two sentences. `pause` is the result of `find_pause`."""
    won = f"{standing.wins:,} of {amount(standing.decided, 'decided search', 'decided searches')}"
    if test.state == "preparing":
        return pause or "The test is about to begin."
    if test.state == "running":
        return f"The candidate wins {won}; {_forecast(test, standing)}.{pause and f' Paused: {pause}'}"
    if test.state == "accepted":
        return f"The candidate won {won}, so it was activated."
    verdict = "was rejected" if test.state == "rejected" else "was not judged"
    return f"The candidate won {won} and {verdict}. {test.reason}"


def _forecast(test: LiveTest, standing: Standing) -> str:
    """Estimates when the evidence will suffice if it grows at the same rate as so far."""
    passed = (time.time() - test.started) / DAY
    if standing.evidence <= 0:
        return "so far, nothing shows that it is better"
    days = max(0.0, passed * (-math.log(ALPHA) / standing.evidence - 1))
    if days > MAX_DAYS:
        return "the difference is too small to say when that is certain enough"
    return f"certain enough {'within a day' if days < 1 else 'in about ' + amount(round(days), 'day')}"
