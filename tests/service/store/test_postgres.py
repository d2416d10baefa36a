"""The PostgreSQL store behaves like the SQLite store: scores, filters, numbers and concurrent writes."""

import asyncio
import json
import random
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import orjson
import pytest
from hypothesis import HealthCheck, given, settings

from models.search.terms import Weights, parse_query
from service.__main__ import parser, run
from service.errors import NotFound, Validation
from service.store.filters.grammar import compile_in
from service.store.sql import feedback
from service.store.sql.records import page
from service.store.sqlite import fulltext as sqlite_fulltext
from service.store.sqlite import schema, secondary_indexes
from service.store.sqlite.postings import PostingCache
from service.store.values import (
    Activation,
    Document,
    Embedding,
    Event,
    EventLimits,
    Judgment,
    Limits,
    NeedsVectors,
    Passage,
    Selection,
    build_row_name,
    encode_json,
    get_revisions,
)
from tests import postgres
from tests.parts.bm25 import WEIGHTED, WORDS, check, rank
from tests.service.filtering import cases, matches
from tests.service.process import Service
from tests.service.store.test_field_index import FIELDS, FILTERS, ROWS

pytest.importorskip("psycopg", reason="needs the extra postgres")

from service.store.postgres import documents, filters, fulltext, generations, replicas, vectors, writes
from service.store.postgres.connection import Connection, Raw
from service.store.postgres.filters import JsonbDialect
from service.store.postgres.generations import Answer
from service.store.postgres.reader import Snapshot
from service.store.postgres.schema import migrate
from service.store.postgres.writer import in_turn
from tests.parts.stores import DIMENSION, Place, hold_commits, manifest, unit, until_waiting, waiting
from tests.waiting import until

T = TypeVar("T")


@pytest.fixture
def place() -> Iterator[Place]:
    made = Place()
    yield made
    made.store.close()


TEXTS = [
    "Searching is what a searcher does; he searched and searches.",
    "The searcher found nothing. Nothing at all, at night.",
    "東京都の図書館で本を読む。東京は大きい",
    "도서관에서 책을 읽는다, 책 두 권",
    "京都の古い寺",
    "to be or not to be",
    "Café au lait, café crème",
    "word " * 300,
    "x" * 600 + " is a word that is too long for an index",
    "",
]
QUERIES = [*"nothing 東京 京 책 word cafe".split(), "searching searches", "to be", "x" * 600, "search 東"]


@pytest.mark.parametrize("folded", [False, True])
def test_words_have_the_numbers_of_fts5_also_after_updates_and_deletes(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, folded: bool
) -> None:
    schema.migrate(tmp_path / "simile.db")
    sqlite = schema.connect(tmp_path / "simile.db")
    place.put(*(Document(f"{at}", text, title=f"title {at}") for at, text in enumerate(TEXTS)))
    place.put(Document("0", "Now he searches elsewhere"), Document("5", "2b or not 2b"))
    place.write(lambda connection: writes.delete_one(connection, "1", "default"))
    stored = place.read(lambda it: it.execute("SELECT revision, id, title, text FROM documents").fetchall())
    for row in stored:
        sqlite.execute(
            "INSERT INTO documents (revision, collection, id, title, text, metadata) "
            "VALUES (?, 'default', ?, ?, ?, '{}')",
            row,
        )
        secondary_indexes.add(sqlite, row[0])
    monkeypatch.setattr(fulltext, "FOLDED", (0, 1 << 30))
    if folded:
        monkeypatch.setattr(fulltext, "TOGETHER", 2)
        assert place.write(fulltext.fold)
    for query in QUERIES:
        for depth in (1, 3, 20):
            expected = sqlite_fulltext.nearest(sqlite, PostingCache(), query, depth, None, "default")
            ask = partial(
                fulltext.nearest,
                cache=fulltext.BlockCache(),
                query=query,
                depth=depth,
                allowed=None,
                collection="default",
            )
            found = place.read(ask)
            assert found[0].tolist() == expected[0].tolist(), query
            np.testing.assert_allclose(found[1], expected[1], rtol=1e-6)
    place.write(lambda connection: writes.delete_some(connection, [row[0] for row in stored], "default"))
    assert place.write(fulltext.fold)
    left = place.read(lambda it: it.execute("SELECT count(*) FROM term_postings").fetchone())
    assert left == (0,), "no term of a deleted document stays"
    sqlite.close()


@pytest.mark.parametrize("seed", range(2))
def test_over_random_writes_and_folds_words_have_the_scores_of_each_moment(
    place: Place, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    monkeypatch.setattr(fulltext, "FOLDED", (0, 1 << 30))
    monkeypatch.setattr(fulltext, "OPEN", 20)  # Larger blocks are cached.
    monkeypatch.setattr(fulltext, "FULL", 60)
    rng, cache = random.Random(seed), fulltext.BlockCache()
    with place.store.pool.connection() as raw:
        old = Snapshot(raw)
        old.begin()
        for step in range(25):
            some = rng.sample(range(40), rng.choice([1, 3, 9]))
            place.put(*(Document(f"{at}", " ".join(rng.choices(WORDS, k=rng.choice([2, 9])))) for at in some))
            if rng.random() < 0.4:
                place.write(partial(writes.delete_one, id=str(rng.choice(some)), collection="default"))
            if rng.random() < 0.4:
                place.write(fulltext.fold)
            if step % 5 == 4:
                old.renew()
            for query, weights in rng.sample(WEIGHTED, 4):

                def compare(snapshot: Snapshot, query: str = query, weights: Weights = weights) -> None:
                    stored = snapshot.execute("SELECT revision, text FROM documents").fetchall()
                    expected = rank(dict(stored), parse_query(query), weights)
                    for depth in (2, 100):
                        found = fulltext.nearest(snapshot, cache, query, depth, None, "default", weights)
                        check(found, expected, depth)

                place.read(compare)
                compare(old)
        raw.rollback()
    assert cache.nbytes > 0


class Everything:
    """Declared fields that contain any name."""

    def __contains__(self, _: object) -> bool:
        return True


@pytest.fixture(scope="module")
def filtered() -> Iterator[Place]:
    made = Place()
    for at, row in enumerate(ROWS):
        made.put(Document(f"{at}", "a", encode_json(row)))
    with made.store.pool.connection() as raw:
        filters.keep_field_indexes(raw, FIELDS)
        raw.execute("SELECT pg_advisory_unlock_all()")
    yield made
    made.store.close()


@pytest.mark.parametrize("declared", [[], FIELDS])
def test_filters_pass_what_they_say(filtered: Place, declared: list[str]) -> None:
    for filter in FILTERS:
        expected = [at + 1 for at, row in enumerate(ROWS) if matches(filter, row)]
        where = compile_in(JsonbDialect(declared), filter)
        with filtered.store.pool.connection() as raw, raw.transaction():
            raw.execute(f"SET LOCAL enable_seqscan = {'off' if declared else 'on'}")
            found = documents.matching_revisions(Connection(raw), where, "default")[0]
        assert found == expected, filter
        assert filtered.read(partial(documents.count, where=where)) == len(expected)


@pytest.mark.parametrize(
    "filter", [{"n": 7}, {"tags": "odd"}, {"n": {"$gte": 10, "$lt": 20}}, {"at.x": {"$gt": "a"}}]
)
def test_a_declared_field_is_looked_up(filtered: Place, filter: dict[str, Any]) -> None:
    where = compile_in(JsonbDialect(FIELDS), filter)
    assert where.indexed
    with filtered.store.pool.connection() as raw, raw.transaction():
        raw.execute("SET LOCAL enable_seqscan = off; SET LOCAL enable_indexscan = off")
        sql = f"EXPLAIN SELECT 1 FROM documents WHERE collection = 'default' AND {where.sql}"
        plan = Connection(raw).execute(sql, where.parameters).fetchall()
    assert any("field_" in line for (line,) in plan), plan


def test_an_index_follows_what_is_declared_and_one_half_built_is_built_anew(place: Place) -> None:
    def names() -> list[str]:
        sql = "SELECT indexname FROM pg_indexes WHERE starts_with(indexname, 'field_') ORDER BY 1"
        return [name for (name,) in place.read(lambda it: it.execute(sql).fetchall())]

    with place.store.pool.connection() as raw:
        filters.keep_field_indexes(raw, ["a", "b.c?"])
        both = names()
        raw.execute(
            f"UPDATE pg_index SET indisvalid = FALSE WHERE indexrelid = '{both[0]}'::regclass".encode()
        )
        filters.keep_field_indexes(raw, ["a", "b.c?"])
        assert names() == both
        invalid = raw.execute("SELECT count(*) FROM pg_index WHERE NOT indisvalid").fetchone()
        assert invalid == (0,)
        filters.keep_field_indexes(raw, ["a"])
        assert len(names()) == len(both) / 2 == 5
        place.put(Document("long", "text", encode_json({"a": "x" * 60_000})))
        filters.keep_field_indexes(raw, [])
        assert names() == []
        raw.execute("SELECT pg_advisory_unlock_all()")


def test_the_nearest_by_comparing_all_and_by_the_index(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both ways rank a document by its best row, also with a filter or with first passages only."""
    embeddings = [
        Embedding(unit(), truncated=False, end=5, others=(Passage(unit(), 5, 9),))
        if at % 3 == 0
        else Embedding(unit(), truncated=False)
        for at in range(200)
    ]
    given = [Document(f"{at:03}", f"text {at}", encode_json({"n": at})) for at in range(200)]
    place.put(*given, embeddings=embeddings)
    revision = {id: number for number, id in place.read(lambda it: it.get_ids(range(1, 201))).items()}
    where = compile_in(JsonbDialect(()), {"n": {"$gte": 100}})
    query = unit()
    for few in (10_000, 0):
        monkeypatch.setattr(vectors, "EXACT_DOCUMENTS", few)
        for filter, heads_only in ((None, False), (None, True), (where, False)):
            scores: dict[int, tuple[float, int]] = {}
            for at, embedding in enumerate(embeddings):
                for number, passage in enumerate(embedding.passages):
                    row = (float(passage.vector @ query), -build_row_name(revision[f"{at:03}"], number))
                    if (filter is None or at >= 100) and not (heads_only and number):
                        best = scores.get(revision[f"{at:03}"], (-2.0, 0))
                        scores[revision[f"{at:03}"]] = max(best, row)
            expected = sorted(scores.values(), reverse=True)[:10]

            def search(it: Snapshot, filter: Any = filter, heads_only: bool = heads_only) -> Any:
                allowed = None if filter is None else it.matching(filter, "default")
                return it.nearest(place.active, query[None], 10, allowed, "default", heads_only=heads_only)

            [(found, names)] = place.read(search)
            assert names.tolist() == [-row for _, row in expected]
            np.testing.assert_allclose(found, [score for score, _ in expected], atol=1e-6)
            assert len({*get_revisions(names).tolist()}) == 10


def test_a_filter_that_was_wide_and_is_narrow_finds_what_passes(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(vectors, "EXACT_DOCUMENTS", 10)
    given = {f"{at:02}": unit() for at in range(60)}
    place.put(
        *(Document(id, "text", encode_json({"half": int(id) % 2})) for id in given),
        embeddings=[Embedding(vector, truncated=False) for vector in given.values()],
    )
    where, query = compile_in(JsonbDialect(()), {"half": 1}), unit()

    def found(it: Snapshot) -> list[str]:
        allowed = it.matching(where, "default")
        assert allowed.revisions is None, "it is not looked up again"
        [(_, names)] = it.nearest(place.active, query[None], 5, allowed, "default", heads_only=False)
        ids = it.get_ids(get_revisions(names).tolist())
        return [ids[revision] for revision in get_revisions(names).tolist()]

    def best() -> list[str]:
        return sorted((id for id in given if int(id) % 2), key=lambda name: -float(given[name] @ query))[:5]

    with place.store.pool.connection() as raw:
        assert found(Snapshot(raw)) == best()
        for name in list(given)[7:]:
            place.write(partial(writes.delete_one, id=name, collection="default"))
            del given[name]
        assert found(Snapshot(raw)) == best()
        assert len(best()) == 3


@pytest.mark.parametrize(("depth", "limit"), [(20, 36), (40, 40), (41, 57)])
def test_a_search_for_as_many_as_the_index_finds_at_once_asks_for_no_more(
    place: Place, monkeypatch: pytest.MonkeyPatch, depth: int, limit: int
) -> None:
    monkeypatch.setattr(vectors, "EXACT_DOCUMENTS", 10)
    monkeypatch.setattr(vectors, "SEARCHED", (10, 40))
    given = {f"{at:02}": unit() for at in range(60)}
    place.put(
        *(Document(id, "text") for id in given),
        embeddings=[Embedding(vector, truncated=False) for vector in given.values()],
    )
    requested, execute, query = [], Connection.execute, unit()

    def spy(self: Connection, sql: str, parameters: Any = ()) -> Any:
        if "LIMIT ?" in sql:
            requested.append(parameters[-2])
        return execute(self, sql, parameters)

    monkeypatch.setattr(Connection, "execute", spy)
    [(scores, _)] = place.read(
        lambda it: it.nearest(place.active, query[None], depth, None, "default", heads_only=False)
    )
    best = sorted((float(vector @ query) for vector in given.values()), reverse=True)[:depth]
    assert requested == [limit]
    np.testing.assert_allclose(scores, best, atol=1e-6)


def test_a_generation_that_begins_amid_writes_lists_each_gap_once(place: Place) -> None:
    place.put(*(Document(f"{at}", "text") for at in range(10)))
    number = place.write(lambda it: generations.begin(it, "me", manifest("b"), "fp32"))
    place.write(lambda connection: replicas.stand(connection, "you", number, ready=True))
    place.put(Document("new", "text"))
    place.write(lambda connection: generations.list_lacking(connection, number))
    take = generations.take_lacking
    assert len(place.read(lambda it: generations.lacking(it, number, 0, 100))) == 11

    activation = Activation(generation=number)
    swap = partial(generations.make_active, replica="me", swap=activation)
    assert place.write(swap) is Answer.LACKS
    mine = place.write(lambda connection: take(connection, "me", number, 6, 1 << 20))
    others = place.write(lambda connection: take(connection, "you", number, 100, 1 << 20))
    assert (len(mine.documents), len(others.documents)) == (6, 5)
    assert mine.documents.keys().isdisjoint(others.documents)
    assert (mine.left, others.left) == (5, 6)
    again = place.write(lambda connection: take(connection, "me", number, 100, 1 << 20))
    assert again.documents.keys() == mine.documents.keys(), "one's own are taken again after a failure"
    place.write(
        lambda connection: connection.execute("UPDATE lacking SET taken_until = now() - interval '1 second'")
    )
    rows = {
        revision: Embedding(unit(), truncated=False)
        for revision in place.write(lambda it: take(it, "you", number, 100, 1 << 20)).documents
    }
    assert len(rows) == 11, "whose time is over, another one takes"
    assert place.write(lambda connection: generations.add_vectors(connection, number, rows)) == 11
    call = partial(generations.roll_call, replica="me", swap=activation)
    assert place.write(call) is Answer.LACKS, "without an index nothing is found fast"
    with place.store.pool.connection() as raw:
        assert vectors.build_index(raw, number, DIMENSION)
    place.write(lambda connection: replicas.leave(connection, "you"))
    assert place.write(swap) is Answer.NOW
    with pytest.raises(NeedsVectors):
        place.put(Document("later", "text"))  # with a vector of the previous version only


@pytest.mark.parametrize("kilobytes", [1024, 4096])
def test_a_build_of_the_vector_index_without_enough_memory_says_so(
    place: Place, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, kilobytes: int
) -> None:
    monkeypatch.setattr(vectors, "GRAPH_BYTES", 1 << 20)
    place.put(Document("a", "river"), Document("b", "stone"))
    with place.store.pool.connection() as raw:
        vectors.drop_index(Connection(raw), place.active)
        raw.commit()
        raw.execute(f"SET maintenance_work_mem = {kilobytes}".encode())
        assert vectors.build_index(raw, place.active, DIMENSION)
    warned = [each.message for each in caplog.records if "maintenance_work_mem" in each.message]
    assert len(warned) == (kilobytes == 1024)
    assert all("needs 2 MB and the database's maintenance_work_mem is 1 MB" in text for text in warned)


def test_writes_of_the_same_documents_in_any_order_all_come_through(place: Place) -> None:
    def write(seed: int) -> None:
        order = np.random.default_rng(seed).permutation(12)
        place.put(*(Document(f"{at}", f"text {seed}") for at in order))

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(write, range(40)))
    records, more = place.read(lambda it: page(it, "", 100, None))
    assert len(records) == 12
    assert not more
    assert len({record.text_json for record in records}) == 1, "each write is whole"
    assert place.read(documents.counts) == [("default", 12)]
    kept = place.read(lambda it: it.execute(f"SELECT count(*) FROM vectors_{place.active}").fetchone())
    assert kept == (12,)


def test_a_delete_beside_an_update_deletes_the_document(place: Place) -> None:
    place.put(Document("a", "old"))
    with ThreadPoolExecutor(1) as pool, place.store.pool.connection() as raw:
        with raw.transaction():
            rows = {place.active: {0: Embedding(unit(), truncated=False)}}
            writes.put(Connection(raw), [Document("a", "new")], rows)
            deleting = pool.submit(asyncio.run, place.store.delete_one("a", "default"))
            until_waiting(raw, 1)
        assert deleting.result()[0] == 1
    assert place.read(documents.counts) == [("default", 0)]


def _judge(connection: Connection, judgements: Sequence[Judgment]) -> object:
    return in_turn(feedback.store_judgments)(connection, judgements, "default", "key", Limits(per_key=1))


def test_judgments_of_two_writers_at_once_keep_to_the_limit(place: Place) -> None:
    """Two connections write, as two replicas would. The second write waits for the first."""
    place.put(Document("a", "text"))
    given = [Judgment(query, "a", relevant=True) for query in ("first", "second")]
    with ThreadPoolExecutor(2) as pool, place.store.pool.connection() as gate:
        hold_commits(gate, "feedback")
        both = [pool.submit(place.write, partial(_judge, judgements=[each])) for each in given]
        until_waiting(gate, 2)
        gate.execute("SELECT pg_advisory_unlock(1)")
        errors = [each.exception() for each in both]
    assert sorted(type(error).__name__ for error in errors) == ["Conflict", "NoneType"]


EVENT = Event(search_id="s", query="q", id="a", type="click", event_id="1", at=0.0)


def until_it_waits(future: Future[Any], raw: Raw, count: int) -> None:
    until(lambda: future.done() or waiting(raw) == count, pause=0)


def events_left(place: Place) -> int:
    return asyncio.run(place.store.count_events(Selection()))


def test_a_delete_finds_the_event_that_is_being_stored(place: Place) -> None:
    place.put(Document("a", "text"))
    with ThreadPoolExecutor(2) as pool, place.store.pool.connection() as gate:
        hold_commits(gate, "events")
        storing = pool.submit(asyncio.run, place.store.record_events([EVENT], EventLimits()))
        until_it_waits(storing, gate, 1)
        deleting = pool.submit(asyncio.run, place.store.delete_one("a", "default"))
        until_it_waits(deleting, gate, 2)
        gate.execute("SELECT pg_advisory_unlock(1)")
        assert storing.result().new == [0]
        assert deleting.result()[0] == 1
    assert events_left(place) == 0


def test_an_event_of_a_document_that_is_being_deleted_is_refused(place: Place) -> None:
    place.put(Document("a", "text"))
    with ThreadPoolExecutor(1) as pool, place.store.pool.connection() as raw:
        with raw.transaction():
            assert writes.delete_one(Connection(raw), "a", "default")[0] == 1
            storing = pool.submit(asyncio.run, place.store.record_events([EVENT], EventLimits()))
            until_it_waits(storing, raw, 1)
        assert isinstance(storing.result().refused[0], NotFound)
    assert events_left(place) == 0


WRITTEN = (
    "123456789012345678901234567890 -123456789012345678901234567890 1e308 1.7976931348623157e308 1e15 1e16 "
    "-1e17 1.5e19 12345678901234567.0 9007199254740993 9223372036854775807 9223372036854775808 "
    "-9223372036854775808 -9223372036854775809 18446744073709551615 18446744073709551616 1 1.0 0.1 1e-5 "
    "1.5e-7 1e-400 5e-324"
).split()
GIVEN = '{"a":"1e+17 \\" 2e+18","b":["123456789012345678901234567890",{"c":[' + ",".join(WRITTEN) + "]}]}"


def test_numbers_come_back_byte_for_byte(place: Place) -> None:
    sent = encode_json(orjson.loads(GIVEN))
    documents = [Document("a", "text", sent), Document("b", "text", '{"n":-0.0}')]
    rows = {at: Embedding(unit(), truncated=False) for at in range(2)}

    def forget_text(connection: Connection) -> None:
        """Makes rows look as if a version without the columns `sent` and `checksums` had stored them."""
        connection.execute("UPDATE documents SET sent = NULL, checksums = NULL")

    async def stored() -> list[bytes]:
        found, _ = await place.store.page("", 10, None)
        return [record.metadata_json for record in found]

    async def both() -> tuple[list[bytes], list[bytes]]:
        await place.store.put(documents, {place.active: rows})
        today = await stored()
        await place.store.writer.run(forget_text)
        return today, await stored()

    today, before = asyncio.run(both())
    assert today == [sent.encode(), b'{"n":-0.0}']
    assert before[1] == b'{"n": 0.0}', "jsonb knows no -0.0"
    assert orjson.loads(before[0]) == orjson.loads(sent)


@pytest.mark.long
def test_an_export_has_the_numbers_that_were_sent(tmp_path: Path, tiny_models_dir: Path) -> None:
    out = tmp_path / "out.jsonl"
    with Service(tmp_path, tiny_models_dir, SIMILE_DATABASE=postgres.new_database()) as service:
        metadata = orjson.loads(GIVEN)  # Integers of more than 64 bits become floats here.
        body = {"documents": [{"id": "a", "text": "text", "metadata": metadata}]}
        service.client.post("/documents", json=body).raise_for_status()
        run(parser().parse_args(["export", str(out), "--url", str(service.client.base_url)]))
        hit = service.client.get("/search", params={"q": "text"}).json()["hits"][0]
    [line] = out.read_bytes().splitlines()
    expected = json.loads(encode_json(orjson.loads(GIVEN)))
    for found in (json.loads(line)["metadata"], hit["metadata"]):
        assert repr(found) == repr(expected)


def test_a_character_that_postgresql_lacks_is_refused(place: Place, caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(Validation, match="U\\+0000"):
        place.put(Document("a", "nul\0inside"))
    with pytest.raises(Validation, match="U\\+0000"):
        place.put(Document("a", "text", encode_json({"a": "nul\0inside"})))
    with pytest.raises(Validation, match="U\\+0000"):
        asyncio.run(place.store.document("\0"))
    assert "fail" not in caplog.text, "it is no outage"
    place.put(Document("a", "text"))


def test_processes_that_start_together_make_the_tables_once() -> None:
    import psycopg

    url = postgres.new_database()

    def start(_: int) -> None:
        with Raw.connect(url, autocommit=True) as raw:
            migrate(raw)

    with ThreadPoolExecutor(6) as pool:
        list(pool.map(start, range(6)))
    with psycopg.connect(url) as raw:
        assert raw.execute("SELECT count(*) FROM collections").fetchone() == (1,)


@pytest.mark.long
@pytest.mark.parametrize("declared", [[], Everything()])
@given(case=cases())
@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_filter_passes_what_the_reference_passes(filtered: Place, declared: Any, case: Any) -> None:
    filter, rows = case
    where = compile_in(JsonbDialect(declared), filter)
    for row in rows:
        sql = f"SELECT {where.sql} FROM (SELECT ?::jsonb AS metadata) AS documents"
        bound = (*where.parameters, encode_json(row))
        with filtered.store.pool.connection() as raw:
            found = Connection(raw).execute(sql, bound).fetchone()
        assert found == (matches(filter, row),), (filter, row)
