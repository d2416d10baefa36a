"""Agreements of replicas in the database: leases, candidates, roll calls before swaps, requests, jobs."""

import asyncio
import json
import logging
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from math import inf
from typing import Self

import pytest

from models.store import RequestedVersion
from service.errors import Conflict, StartupError
from service.store.postgres import generations, replicas, vectors
from service.store.postgres.connection import Connection
from service.store.postgres.generations import Answer
from service.store.postgres.schema import MIGRATIONS
from service.store.sql.generations import verdicts
from service.store.values import (
    FAILED,
    Activation,
    Active,
    Document,
    Embedding,
    Last,
    Moved,
    Unembedded,
    Verdict,
)
from tests import postgres
from tests.service.fakes import until
from tests.waiting import until as wait_until

pytest.importorskip("psycopg", reason="needs the extra postgres")

import psycopg

from service.store.postgres.store import PostgresStore
from service.store.sql.generations import judge
from tests.parts.stores import DIMENSION, Place, manifest, unit


@pytest.fixture
def place() -> Iterator[Place]:
    made = Place()
    yield made
    made.store.close()


def begin(place: Place, replica: str, version: str = "b") -> int:
    number = place.write(lambda it: generations.begin(it, replica, manifest(version), "fp32"))
    place.write(lambda it: generations.list_lacking(it, number))
    place.write(lambda it: vectors.make_index(it, number, DIMENSION))
    return number


def call(place: Place, replica: str, number: int, requested: str = "", *, rollback: bool = False) -> Answer:
    activation = Activation(generation=number, requested=requested, rollback=rollback)
    return place.write(lambda it: generations.roll_call(it, replica, activation))


def swap(place: Place, number: int, replica: str = "a", last: Last = lambda _: None) -> Answer:
    activation = Activation(generation=number, last=last)
    return place.write(lambda it: generations.make_active(it, replica, activation))


def take(place: Place, replica: str, number: int, limit: int = 8) -> int:
    """Takes up to `limit` documents without a vector for `replica`. Returns their number."""
    found = place.write(lambda it: generations.take_lacking(it, replica, number, limit, 1 << 20))
    return len(found.documents)


def run(place: Place, sql: str) -> None:
    place.write(lambda it: it.execute(sql))


def state(place: Place, number: int) -> str:
    rows = place.read(
        lambda it: it.execute("SELECT state FROM generations WHERE number = ?", (number,)).fetchall()
    )
    return str(rows[0][0])


def end_lease(place: Place, replica: str) -> None:
    run(place, f"UPDATE replicas SET until = now() - interval '1 second' WHERE id = '{replica}'")


def test_a_swap_waits_for_those_that_live_and_for_nobody_else(place: Place) -> None:
    number = begin(place, "a")
    assert begin(place, "b") == number, "all make the same generation"
    assert call(place, "a", number) is Answer.WAIT
    assert call(place, "a", number) is Answer.WAIT
    assert call(place, "b", number) is Answer.NOW
    place.write(lambda it: replicas.stand(it, "c", None))
    assert call(place, "b", number) is Answer.WAIT
    end_lease(place, "c")
    assert call(place, "b", number) is Answer.NOW
    assert swap(place, number, "b") is Answer.NOW
    assert call(place, "a", number) is Answer.ACTIVATED


def test_a_swap_embeds_the_last_few_itself_and_no_more(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    place.put(*(Document(f"{at}", "text") for at in range(6)))
    number, requested = begin(place, "a"), []

    def last(lacking: Mapping[int, Unembedded]) -> Mapping[int, Embedding] | None:
        requested.append(len(lacking))
        if len(requested) == 1:
            return None
        return {revision: Embedding(unit(), truncated=False) for revision in lacking}

    assert place.write(lambda it: generations.take_lacking(it, "a", number, 2, 1 << 20)).closing
    monkeypatch.setattr(generations, "LAST_DOCUMENTS", 5)
    assert swap(place, number, last=last) is Answer.LACKS
    monkeypatch.setattr(generations, "LAST_DOCUMENTS", 6)
    assert swap(place, number, last=last) is Answer.LACKS, "it could not embed them in time"
    assert state(place, number) == "building"
    assert swap(place, number, last=last) is Answer.NOW
    assert requested == [6, 6]
    assert place.read(lambda it: generations.lacking(it, number, 0, 10)) == []
    assert place.read(lambda it: vectors.held(it)[number][0]) == 6


def test_what_an_update_left_listed_amid_the_listing_holds_up_no_swap(place: Place) -> None:
    number = begin(place, "a")
    gone = "INSERT INTO lacking (generation, revision) SELECT {}, r FROM generate_series({}, {}) r"
    run(place, gone.format(number, 1_000, 1_000 + generations.LAST_DOCUMENTS))
    assert call(place, "a", number) is Answer.LACKS
    looked = place.write(lambda it: generations.take_lacking(it, "a", number, 5, 1 << 20))
    assert (looked.documents, looked.left) == ({}, 0)
    run(place, gone.format(number, 2_000, 2_000))
    assert swap(place, number) is Answer.NOW
    assert place.read(lambda it: generations.lacking(it, number, 0, 10)) == []


def test_one_that_lives_and_is_never_ready_is_left_behind_after_a_while(place: Place) -> None:
    number = begin(place, "a")
    place.write(lambda it: replicas.stand(it, "b", None))
    assert call(place, "a", number) is Answer.WAIT
    waited = "UPDATE generations SET called = called - make_interval(secs => {})"
    run(place, waited.format(replicas.LEASE_SECONDS + 1))
    assert call(place, "a", number) is Answer.WAIT
    assert call(place, "a", number, rollback=True) is Answer.NOW, "a rollback is in a hurry"
    run(place, waited.format(replicas.PATIENCE_SECONDS))
    assert call(place, "a", number) is Answer.NOW


def test_another_form_of_the_live_version_waits_for_all(place: Place) -> None:
    number = place.write(lambda it: generations.begin(it, "a", manifest("a"), "bf16"))
    place.write(lambda it: generations.list_lacking(it, number))
    place.write(lambda it: vectors.make_index(it, number, DIMENSION))
    place.write(lambda it: replicas.stand(it, "b", None))
    assert call(place, "a", number) is Answer.WAIT
    run(place, "UPDATE generations SET called = now() - interval '1 day'")
    assert call(place, "a", number) is Answer.WAIT
    place.write(lambda it: replicas.leave(it, "b"))
    assert call(place, "a", number) is Answer.NOW


def test_one_that_slept_does_not_carry_out_what_is_not_wanted_any_more(place: Place) -> None:
    number = begin(place, "a")
    requested = RequestedVersion("b", "activate", "first")
    place.write(lambda it: replicas.keep_request(it, requested))
    assert call(place, "a", number, "first") is Answer.NOW
    place.write(lambda it: judge(it, "b", Verdict(FAILED, "elsewhere"), "first"))
    assert call(place, "a", number, "first") is Answer.WAIT, "it failed on another replica"
    assert call(place, "a", number, "second") is Answer.NOW, "a later decision counts"
    place.write(lambda it: replicas.keep_request(it, RequestedVersion("a", "rollback", "third")))
    assert call(place, "a", number, "second") is Answer.WAIT, "another version is wanted"
    assert "b" in place.read(verdicts)


def test_requests_stand_in_the_order_in_which_the_database_hears_of_them(place: Place) -> None:
    def keep(id: str, at: float = inf) -> str:
        requested = RequestedVersion(f"version-{id}", "activate", id)
        return place.write(lambda it: replicas.keep_request(it, requested, at)).id

    assert place.read(replicas.request) is None
    assert keep("b", time.time() + 10**8) == "b", "of a machine whose clock is ahead"
    assert keep("a", -inf) == "b", "a folder that was not told, and that was looked at before"
    assert keep("a", time.time() - 3600) == "b", "one that was never looked at, with an older file"
    assert keep("c") == "c", "a folder that has changed since the last look"
    assert keep("b") == "c", "a replica that read the folder before the change"
    assert keep("d", time.time() + 3600) == "d", "a folder that was never looked at, with a newer file"
    later = [RequestedVersion("v", "activate", f"{at}") for at in range(replicas.KEPT_REQUESTS)]
    place.write(lambda it: [replicas.keep_request(it, requested) for requested in later])
    assert keep("d", time.time() - 3600) == later[-1].id, "one that was forgotten long ago"
    counted = place.read(lambda it: it.execute("SELECT count(*) FROM requests").fetchone())
    assert counted == (replicas.KEPT_REQUESTS,)


def test_a_request_that_is_ignored_is_logged_once(place: Place, caplog: pytest.LogCaptureFixture) -> None:
    """Only a first read of the folder logs its older request. A request made after a read counts."""
    active = RequestedVersion("b", "activate", "first")
    requested = RequestedVersion("c", "rollback", "second")
    place.write(lambda it: replicas.keep_request(it, active))

    def look(at: float) -> RequestedVersion | None:
        return asyncio.run(place.store.requested(requested, at))

    assert (look(time.time() - 3600), look(-inf)) == (active, active)
    [said] = [record.getMessage() for record in caplog.records if "ignored" in record.getMessage()]
    assert said == (
        "The models folder names c (rollback), which is ignored: b was requested later, maybe on another "
        "replica. Activate c again if you want it."
    )
    assert look(inf) == requested


def test_a_request_of_the_future_is_healed_when_an_old_database_is_opened() -> None:
    url, ahead = postgres.new_database(), time.time() + 10**8
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(MIGRATIONS[0])
        connection.execute("CREATE TABLE simile_schema (version integer NOT NULL)")
        connection.execute("INSERT INTO simile_schema VALUES (1)")
        request = json.dumps(["b", "activate", "first", ahead])
        connection.execute("INSERT INTO facts VALUES ('wish', %s)", (request,))
    store = PostgresStore(url, [], connections=4, answer_seconds=20)
    store.start(lambda _: None, lambda _: None)
    first, second = RequestedVersion("b", "activate", "first"), RequestedVersion("c", "activate", "second")
    assert asyncio.run(store.requested(first, ahead)) == first, "as the folder still names it"
    found = asyncio.run(store.readers.own(replicas.request))
    assert found is not None
    assert found.at <= time.time() + 3600
    assert asyncio.run(store.requested(second, inf)) == second
    store.close()


AHEAD = "interval '1 hour'"


def test_no_lease_or_claim_lasts_longer_because_the_clock_was_set_back(place: Place) -> None:
    place.put(*(Document(f"{at}", "text") for at in range(8)))
    number = begin(place, "a")
    place.write(lambda it: replicas.stand(it, "b", number))

    assert (take(place, "a", number), take(place, "b", number)) == (8, 0)
    assert place.write(lambda it: replicas.claim(it, "job", "a")) == (True, None)
    run(place, f"UPDATE lacking SET taken_until = taken_until + {AHEAD}")
    assert take(place, "b", number) == 8, "the holder lives, and its clock is another one"
    run(place, f"UPDATE replicas SET until = until + {AHEAD}")
    assert place.read(lambda it: replicas.others(it, "c")) == 0
    assert place.write(lambda it: replicas.claim(it, "job", "b")) == (True, None)
    run(place, "DELETE FROM lacking")
    place.write(lambda it: replicas.stand(it, "c", None))
    run(place, "UPDATE replicas SET until = now() + make_interval(secs => 10) WHERE id = 'c'")
    run(place, f"UPDATE generations SET called = now() + {AHEAD}")
    assert call(place, "a", number) is Answer.WAIT
    run(place, f"UPDATE generations SET called = called - make_interval(secs => {replicas.PATIENCE_SECONDS})")
    assert call(place, "a", number) is Answer.NOW, "patience begins with the first look"


def test_what_another_one_builds_stays_until_its_lease_ends(place: Place) -> None:
    theirs = begin(place, "b", "b")
    mine = begin(place, "a", "c")
    place.write(lambda it: generations.abandon(it, "a"))
    assert (state(place, theirs), state(place, mine)) == ("building", "dropped")
    end_lease(place, "b")
    place.write(lambda it: generations.abandon(it, "a"))
    assert state(place, theirs) == "dropped"


def test_the_documents_of_one_that_died_are_taken_again(place: Place) -> None:
    place.put(*(Document(f"{at}", "text") for at in range(8)))
    number = begin(place, "a")
    place.write(lambda it: replicas.stand(it, "b", number))

    assert [take(place, name, number, 5) for name in "abb"] == [5, 3, 3]
    end_lease(place, "a")
    assert take(place, "b", number, 5) == 5


def test_a_table_is_dropped_once_nobody_serves_it_and_searches_of_it_are_sent_on(place: Place) -> None:
    place.put(Document("a", "text"))
    number = begin(place, "a")
    place.write(lambda it: replicas.stand(it, "a", None))
    run(place, "DELETE FROM lacking")
    run(place, f"UPDATE replicas SET serves = {place.active}")
    swap(place, number)
    assert state(place, place.active) == "standby"
    with pytest.raises(Moved):
        place.read(lambda it: it.require(place.active, kept=False))
    place.read(lambda it: it.require(place.active, kept=True))
    place.read(lambda it: it.require(number, kept=False))
    run(place, f"UPDATE generations SET state = 'dropped' WHERE number = {place.active}")
    with pytest.raises(Conflict):
        place.read(lambda it: it.require(place.active, kept=True))
    assert not place.write(generations.purge), "a replica has not heard of it yet"
    run(place, f"UPDATE replicas SET serves = {number}")
    assert place.write(generations.purge)
    assert not place.write(generations.purge)


def test_a_start_in_another_form_does_not_take_the_vectors_from_others(place: Place) -> None:
    place.write(lambda it: replicas.stand(it, "b", None))
    with pytest.raises(StartupError, match="SIMILE_PRECISION"):
        place.store.activate(manifest("a"), "bf16")
    place.write(lambda it: replicas.leave(it, "b"))
    assert place.store.activate(manifest("a"), "bf16") > place.active


class Two:
    """Two stores on one database. Each holds a lease and receives the notifications of the other."""

    def __init__(self) -> None:
        url = postgres.new_database()
        self.stores = [PostgresStore(url, [], connections=8, answer_seconds=20) for _ in range(2)]
        self.active = self.stores[0].activate(manifest("a"), "fp32")
        self.heard: list[list[int]] = [[], []]
        self.tasks: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Self:
        assert all(store.lost for store in self.stores)
        for store, heard in zip(self.stores, self.heard, strict=True):
            store.start(lambda _: None, lambda _: None)

            def follow(active: Active, heard: list[int] = heard) -> None:
                heard.append(active.number)

            self.tasks.append(asyncio.create_task(store.keep_in_touch(lambda: self.active, follow)))
        for store in self.stores:
            await store.joined()
            assert store.lost is None
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)
        for store in self.stores:
            await asyncio.to_thread(store.close)


def test_all_hear_of_a_swap_and_each_goes_over_once() -> None:
    async def both() -> None:
        async with Two() as two:
            numbers = [await store.begin(manifest("b"), "fp32") for store in two.stores]
            assert numbers[0] == numbers[1]
            assert await two.stores[0].build_index(numbers[0])
            done: list[int] = []

            def went(at: int, _last: int) -> None:
                done.append(at)

            swaps = [
                store.make_active(Activation(generation=numbers[0], then=partial(went, at)))
                for at, store in enumerate(two.stores)
            ]
            assert await asyncio.gather(*swaps) == [True, True]
            assert sorted(done) == [0, 1]
            await until(lambda: all(heard[-1] == numbers[0] for heard in two.heard))
            await until(lambda: [store.others for store in two.stores] == [1, 1])

    asyncio.run(both())


def test_one_does_a_job_for_all_and_another_takes_it_where_it_raises() -> None:
    async def both() -> None:
        async with Two() as two:
            first, second = two.stores
            started, go_on = asyncio.Event(), asyncio.Event()

            async def fails() -> str:
                started.set()
                await go_on.wait()
                raise ValueError

            async def works() -> str:
                return "done"

            failing = asyncio.create_task(first.once("job", fails))
            await started.wait()
            waiting = asyncio.create_task(second.once("job", works))
            go_on.set()
            with pytest.raises(ValueError):  # noqa: PT011  the error has no message
                await failing
            assert await waiting == "done"
            assert await first.once("job", fails) == "done"

    asyncio.run(both())


def test_one_that_cannot_renew_its_lease_says_that_it_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    async def both() -> None:
        async with Two() as two:
            run_sql = two.stores[1].writer.run

            def cut(connection: Connection) -> None:
                connection.execute(
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                    "WHERE application_name = 'simile lease' AND datname = current_database()"
                )

            heard = len(two.heard[0])
            await run_sql(cut)
            await until(lambda: len(two.heard[0]) > heard)  # The store connects again.
            monkeypatch.setattr("service.store.postgres.replicas.LEASE_SECONDS", 0.0)
            assert "lost touch" in (two.stores[0].lost or "")

    asyncio.run(both())


def test_a_start_waits_for_another_one_longer_than_a_statement_may_take(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The other start may take minutes, because it may publish a model."""
    answer_seconds = 0.2
    url = postgres.new_database()
    first, second = (PostgresStore(url, [], connections=4, answer_seconds=answer_seconds) for _ in range(2))

    def start() -> bool:
        with second.starting():
            return True

    waits = (
        "SELECT 1 FROM pg_stat_activity WHERE wait_event = 'advisory' AND datname = current_database() "
        f"AND now() - query_start > {2 * answer_seconds} * interval '1 second'"
    )
    with ThreadPoolExecutor(1) as pool, caplog.at_level(logging.INFO), first.pool.connection() as raw:
        with first.starting():
            starting = pool.submit(start)
            wait_until(lambda: starting.done() or raw.execute(waits.encode()).fetchone())
            assert not starting.done()
        assert starting.result()
    assert "Another replica is starting" in caplog.text
    first.close()
    second.close()
