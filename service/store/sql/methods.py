"""Methods that both stores share. Each method runs one query, or one job in a transaction."""

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any, Concatenate, ParamSpec, TypeAlias, TypeVar

import orjson

from service.errors import Storage, Timeout, Unhealthy
from service.store.filters.grammar import Predicate
from service.store.scheduling import ReadingThreads
from service.store.sql import feedback, generations, records, synonyms, tokens
from service.store.sql.connection import fact, note, unfinished_copy, visitor_secret
from service.store.sql.feedback import DELETED_ROWS, Table, forget
from service.store.values import (
    DEFAULT_COLLECTION,
    Active,
    Event,
    EventLimits,
    Record,
    Recorded,
    Selection,
    Step,
)

log = logging.getLogger(__name__)

P = ParamSpec("P")
T = TypeVar("T")
STEP_EVENTS = 512  # Events of one transaction. Other writes wait some tens of milliseconds for it.
Tell: TypeAlias = Callable[[Mapping[str, int]], None]
Overlap: TypeAlias = Mapping[str, Any]
Compare: TypeAlias = Callable[[], Awaitable[Overlap | None]]
Method: TypeAlias = Callable[Concatenate[Any, P], Coroutine[Any, Any, T]]


def reading(query: Callable[Concatenate[Any, P], T]) -> Method[P, T]:
    """Makes a method that runs `query` as a read of a client. With a filter that scans, it is a long read."""

    def read(store: "CommonMethods", /, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, T]:
        heavy = any(isinstance(given, Predicate) and not given.indexed for given in args)
        return store.readers.read(lambda snapshot: query(snapshot, *args, **kwargs), heavy=heavy)

    return read


def reading_itself(query: Callable[Concatenate[Any, P], T]) -> Method[P, T]:
    """Makes a method that runs `query` as a read of the service itself, which never waits for clients."""

    def read(store: "CommonMethods", /, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, T]:
        return store.readers.own(lambda snapshot: query(snapshot, *args, **kwargs))

    return read


def writing(job: Callable[Concatenate[Any, P], T], **how: bool) -> Method[P, T]:
    """Makes a method that runs `job` in a transaction, and returns after the commit.

    `how` is passed to `Writer.run`.
    """

    def write(store: Any, /, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, T]:
        done: Coroutine[Any, Any, T] = store.writer.run(lambda given: job(given, *args, **kwargs), **how)
        return done

    return write


def forgetting(table: Table) -> Callable[..., Coroutine[Any, Any, dict[str, int]]]:
    """Makes a method that deletes selected rows in steps, as `protocol.Feedback.forget_judgments` says."""

    async def forget_all(
        store: Any, selection: Selection, own: str | None = None, tell: Tell | None = None, /
    ) -> dict[str, int]:
        def report_deleted(done: Future[tuple[Counter[str], int]]) -> None:
            if tell is not None and not done.cancelled() and done.exception() is None:
                tell(done.result()[0])

        deleted, last = Counter[str](), None
        while True:
            under_way = store.writer.submit(lambda it, last=last: forget(table, it, selection, own, last))
            try:
                step, last = await asyncio.wrap_future(under_way)
            except (Storage, Timeout, Unhealthy) as error:
                said = f"{error.message} {deleted.total()} were deleted before that. Send it again."
                raise type(error)(said if deleted else error.message, headers=error.headers) from error
            finally:
                # `report_deleted` runs at once, or after the step if the caller was canceled meanwhile.
                under_way.add_done_callback(report_deleted)
            deleted += step
            if step.total() < DELETED_ROWS:
                return dict(deleted)

    return forget_all


class CommonMethods:
    """Methods for the tables that both stores have. Each store has its own `readers` and `writer`."""

    readers: ReadingThreads
    damage: str | None = None
    _name: str  # For messages.

    def _note_damage(self, found: str | None) -> None:
        """Stores the result of a check of the tables, and logs the result if it has changed."""
        if found is not None and found != self.damage:
            log.error("%s", found)
        elif found is None and self.damage is not None:
            log.info("The store is whole again")
        self.damage = found

    # Used before the first write, on the thread that starts the service.

    def _now(self, job: Callable[[Any], T]) -> T:
        raise NotImplementedError

    def unfinished_copy(self) -> str | None:
        return self._now(lambda it: unfinished_copy(it, self._name))

    def active(self) -> Active | None:
        return self._now(generations.active)

    def visitor_secret(self) -> str:
        return self._now(visitor_secret)

    def indexed(self) -> tuple[list[str], set[int]]:
        return self._now(lambda it: (records.collections(it), generations.kept_numbers(it)))

    # While the service runs.

    def search(self, work: Callable[[Any], T], *, heavy: bool = False) -> Coroutine[Any, Any, T]:
        return self.readers.read(work, heavy=heavy)

    def after_writes(self: Any, work: Callable[[], None]) -> None:
        self.writer.submit(lambda _: None, last=True).add_done_callback(lambda _: work())

    async def delete_one(
        self: Any, id: str, collection: str, within: Predicate | None = None
    ) -> tuple[int, int]:
        step: Step = await self._delete_one(id, collection, within)
        while not step.done:
            step = await self._delete_one(id, collection, within)
        return step.deleted, step.sequence

    has_collection = reading(records.has_collection)
    collection_names = reading(records.collections)
    measure = reading(records.measure)
    without_checksums = reading_itself(records.count_without_checksums)
    page = reading(records.page)
    sample = reading(records.sample)
    field_sample = reading(records.field_sample)
    get_synonyms = reading(synonyms.get_synonyms)

    judgements = reading(feedback.list_judgments)
    judgment_state = reading_itself(feedback.judgment_state)
    judged_collections = reading_itself(feedback.judged_collections)
    remembered = reading_itself(feedback.remembered)
    count_judgments = reading(feedback.count_judgments)
    sum_up_judgments = reading(feedback.sum_up_judgments)
    forget_judgments = forgetting("feedback")
    drop_judgments = writing(feedback.drop_judgments)

    async def document(
        self, id: str, collection: str = DEFAULT_COLLECTION, where: Predicate | None = None
    ) -> Record | None:
        # Not by `reading`, because a filter on one document is no long read.
        return await self.readers.read(lambda snapshot: records.get(snapshot, id, collection, where))

    async def check_ids(self, ids: Sequence[str], collection: str, within: Predicate | None) -> None:
        if within is not None:
            await self.readers.read(lambda it: records.refuse_hidden(it, ids, collection, within))

    async def record_events(
        self: Any, given: Sequence[Event], limits: EventLimits, within: Predicate | None = None
    ) -> Recorded:
        """Stores events in steps, so that other writes can run between the steps.

        Raises:
            ServiceError: A step failed. The message says how many events were handled before.
        """
        found = Recorded([], {})
        for first in range(0, len(given), STEP_EVENTS):
            try:
                step = await self._record_some(given[first : first + STEP_EVENTS], limits, within)
            except (Storage, Timeout, Unhealthy) as error:
                said = f"{error.message} The first {first} of {len(given)} events were handled before that. "
                said += "Send all of them again: none is stored twice."
                raise type(error)(said if first else error.message, headers=error.headers) from error
            found.new.extend(first + at for at in step.new)
            found.refused.update({first + at: error for at, error in step.refused.items()})
        return found

    list_events = reading(feedback.list_events)
    count_events = reading(feedback.count_events)
    forget_events = forgetting("events")
    expire_events = writing(feedback.expire_events)

    live_test = reading_itself(partial(fact, name=feedback.LIVE_TEST))
    list_outcomes = reading_itself(feedback.list_outcomes)
    replace_live_test = writing(feedback.replace_live_test)

    lacking_tokens = reading_itself(tokens.lacking_tokens)
    forget_tokens = writing(tokens.forget_tokens)

    known = reading_itself(generations.known)
    keep_decision = writing(generations.handled)
    keep_verdict = writing(generations.judge)
    once: Callable[[str, Callable[[], Awaitable[str]]], Coroutine[Any, Any, str]]
    _keep_canary = writing(generations.remember_canary)
    _examples = reading_itself(partial(fact, name=generations.EXAMPLES))
    _examples_loaded = writing(partial(note, name=generations.EXAMPLES, value=generations.LOADED))

    async def compare_once(self, version: str, new: int, active: int, compare: Compare) -> Overlap | None:
        async def work() -> str:
            found = await compare()
            if found is not None:
                await self._keep_canary(version, found)
            return orjson.dumps(found).decode()

        overlap: Overlap | None = orjson.loads(await self.once(f"overlap of {new} and {active}", work))
        return overlap

    async def fill_with_examples(self, put: Callable[[], Awaitable[None]]) -> None:
        async def work() -> str:
            if await self._examples() != generations.NEEDED:
                return "not wanted"
            await put()
            await self._examples_loaded()
            return "loaded"

        await self.once("examples", work)
