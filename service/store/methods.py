"""Methods that both stores have: each is one query, or one job in a transaction."""

import logging
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, Concatenate, ParamSpec, TypeAlias, TypeVar

from service.store import events, feedback, generations, records
from service.store.field_sample import field_sample
from service.store.filters.predicate import Predicate
from service.store.selected import delete_some, forget
from service.store.turns import ReadingThreads

log = logging.getLogger(__name__)

P = ParamSpec("P")
T = TypeVar("T")
Method: TypeAlias = Callable[Concatenate[Any, P], Coroutine[Any, Any, T]]


def reading(query: Callable[Concatenate[Any, P], T]) -> Method[P, T]:
    """A method that runs `query` among the clients' reads. One that scans leaves threads for the others."""

    def read(store: "CommonMethods", /, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, T]:
        heavy = any(isinstance(given, Predicate) and not given.indexed for given in args)
        return store.readers.read(lambda snapshot: query(snapshot, *args, **kwargs), heavy=heavy)

    return read


def reading_itself(query: Callable[Concatenate[Any, P], T]) -> Method[P, T]:
    """A method that runs `query` for the service itself, never behind a client's read."""

    def read(store: "CommonMethods", /, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, T]:
        return store.readers.own(lambda snapshot: query(snapshot, *args, **kwargs))

    return read


def writing(job: Callable[Concatenate[Any, P], T]) -> Method[P, T]:
    """A method that runs `job` in a transaction, and returns once that is on disk."""

    def write(store: Any, /, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, T]:
        done: Coroutine[Any, Any, T] = store.writer.run(lambda given: job(given, *args, **kwargs))
        return done

    return write


class CommonMethods:
    """Methods of the tables that both stores keep alike; `readers` and `writer` are each store's own."""

    readers: ReadingThreads
    damage: str | None = None  # what the store lacks, as a sentence

    def _note_damage(self, found: str | None) -> None:
        """Keep what a check of the store found, and log it when it changes."""
        if found is not None and found != self.damage:
            log.error("%s", found)
        elif found is None and self.damage is not None:
            log.info("The store is whole again")
        self.damage = found

    def search(self, work: Callable[[Any], T], *, heavy: bool = False) -> Coroutine[Any, Any, T]:
        return self.readers.read(work, heavy=heavy)

    def after_writes(self: Any, work: Callable[[], None]) -> None:
        self.writer.submit(lambda _: None).add_done_callback(lambda _: work())

    has_collection = reading(records.has_collection)
    document = reading(records.get)
    page = reading(records.page)
    sample = reading(records.sample)
    field_sample = reading(field_sample)

    judgements = reading(feedback.page)
    count_judgements = reading(feedback.count)
    sum_up_judgements = reading(feedback.summary)
    forget_judgements = writing(partial(forget, "feedback"))
    drop_judgements = writing(partial(delete_some, "feedback", "collection = ?"))

    list_events = reading(events.page)
    count_events = reading(events.count)
    forget_events = writing(partial(forget, "events"))
    expire_events = writing(partial(delete_some, "events", "at < ?"))

    known = reading_itself(generations.known)
    keep_decision = writing(generations.handled)
    keep_verdict = writing(generations.judge)
    keep_canary = writing(generations.remember_canary)
    examples_wanted = reading_itself(generations.examples_wanted)
    examples_loaded = writing(generations.examples_loaded)
