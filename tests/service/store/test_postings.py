"""Keyword search over random writes equals BM25 of all documents, computed with dictionaries."""

import random
import sqlite3
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import orjson
import pytest

from models.search.content import Content
from models.search.terms import expressions, get_terms, parse_query
from service.store.filters.grammar import Predicate
from service.store.sql import bm25
from service.store.sql.bm25 import Postings, Size, compute_scores
from service.store.sqlite import fulltext, postings, state_cache
from service.store.sqlite.filter_cache import FilterCache, FilterMatches
from service.store.sqlite.postings import PostingCache
from service.store.values import DEFAULT_COLLECTION, Document, Ranking
from tests.parts import sqlite_store
from tests.parts.bm25 import WEIGHTED, WORDS, check, rank


class Store(sqlite_store.Store):
    def put(self, texts: Mapping[int, str], collection: str = DEFAULT_COLLECTION) -> None:
        documents = [Document(str(id), text) for id, text in texts.items()]
        self.write(documents, collection)

    def delete(self, ids: Sequence[int]) -> None:
        listed = orjson.dumps([str(id) for id in ids]).decode()
        self.remove(Predicate("id IN (SELECT value FROM json_each(?))", [listed]))


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    store = Store(tmp_path / "simile.db")
    yield store
    store.close()


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Records the terms whose postings are read as a whole. Terms with four postings are cached."""
    made: list[str] = []
    read = postings.Reader._read

    def counted(self: postings.Reader, term: str, last: str) -> Postings:
        made.append(term)
        return read(self, term, last)

    monkeypatch.setattr(postings.Reader, "_read", counted)
    monkeypatch.setattr(postings, "KEPT", 4)
    monkeypatch.setattr(postings, "NEAR", 5)
    monkeypatch.setattr(postings, "STEP_DOCUMENTS", 7)
    monkeypatch.setattr(postings, "STEP", 4)
    return made


def find_texts(reader: sqlite3.Connection, where: str = "1") -> dict[int, str]:
    sql = f"SELECT revision, text, title FROM documents WHERE collection = ? AND {where}"
    return {
        revision: Content(text, title).whole
        for revision, text, title in reader.execute(sql, (DEFAULT_COLLECTION,))
    }


@pytest.mark.parametrize("seed", range(3))
def test_over_random_writes_every_reader_gets_the_scores_of_its_own_moment(
    store: Store, monkeypatch: pytest.MonkeyPatch, reads: list[str], seed: int
) -> None:
    monkeypatch.setattr(state_cache, "FAR", 40)
    monkeypatch.setattr(bm25, "TOGETHER", [2_000_000, 30, 5][seed])
    monkeypatch.setattr(bm25, "SPACING", [1000, 4, 1][seed])
    rng, cache, requested = random.Random(seed), PostingCache(), 0
    readers = [store.now()]
    for _ in range(30):
        some = rng.sample(range(40), rng.choice([1, 1, 3, 9]))
        texts = {id: " ".join(rng.choices(WORDS, k=rng.choice([1, 4, 9, 150]))) for id in some}
        if rng.random() < 0.7:
            store.put(texts)
        elif rng.random() < 0.7:
            store.delete(some)
        else:
            store.put(texts, collection="other")
        readers.append(store.now())
        for reader in rng.sample(readers[-4:], min(2, len(readers))):
            every = find_texts(reader)
            for query, weights in rng.sample(WEIGHTED, 4):
                parsed = parse_query(query)
                requested += 2 * len(parsed.add(term for group in weights for term in group).terms)
                expected, depth = rank(every, parsed, weights), rng.choice([1, 3, 100])
                found = fulltext.nearest(reader, cache, query, depth, None, DEFAULT_COLLECTION, weights)
                check(found, expected, depth)
                where = f"revision % 3 = {rng.randrange(3)}"
                matches = FilterMatches(reader, FilterCache(), Predicate(where, []), DEFAULT_COLLECTION)
                monkeypatch.setattr(fulltext, "NARROW", rng.choice([0, 1000]))
                found = fulltext.nearest(reader, cache, query, depth, matches, DEFAULT_COLLECTION, weights)
                inside = find_texts(reader, where)
                check(found, {name: score for name, score in expected.items() if name in inside}, depth)
    assert len(reads) < requested / 2, "the cache is of use"


def test_many_postings_are_scored_in_parts_with_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(7)
    texts = {
        int(each): f"river {'stone' if each % 3 else 'owl owl'}" for each in rng.choice(9000, 2000, False)
    }
    counts = {revision: Counter(get_terms(text)) for revision, text in sorted(texts.items())}
    having = {term: [each for each in counts if counts[each][term]] for term in ("river", "stone", "owl")}
    found = {
        term: Postings(np.array(some), np.array([counts[each][term] for each in some]), np.full(len(some), 3))
        for term, some in having.items()
    }
    query, size = parse_query("river stone owl"), Size(len(texts), 3 * len(texts))
    weights = {("owl",): 0.5, ("river", "stone"): 0.7}
    whole = compute_scores(query, weights, found, size)
    monkeypatch.setattr(bm25, "TOGETHER", 400)
    monkeypatch.setattr(bm25, "SPACING", 10)
    pauses: list[int] = []
    monkeypatch.setattr(bm25, "pause", lambda: pauses.append(1))
    most: list[int] = []
    add = bm25._sum

    def counted(parts: Sequence[bm25.Scored]) -> Ranking:
        most.append(sum(len(revisions) for revisions, _ in parts))
        return add(parts)

    monkeypatch.setattr(bm25, "_sum", counted)
    revisions, scores = compute_scores(query, weights, found, size)
    assert revisions.dtype == np.int64
    assert scores.dtype == np.float32
    assert [*zip(revisions.tolist(), scores.tolist(), strict=True)] == [*zip(*whole, strict=True)]
    assert len(pauses) >= 10
    assert max(most) < 2 * 400


def test_the_scores_are_those_of_fts5(store: Store) -> None:
    rng = random.Random(5)
    store.put({id: " ".join(rng.choices(WORDS, k=rng.randint(1, 40))) for id in range(300)})
    store.delete(range(0, 300, 7))
    reader = store.now()
    for query in ("river stone", "The", "owl the bridge", "京", "abc-12"):
        match = " OR ".join(expressions(parse_query(query)).values())
        sql = "SELECT rowid, -rank FROM lexical_1 WHERE lexical_1 MATCH ?"
        expected = dict(reader.execute(sql, (match,)).fetchall())
        check(fulltext.nearest(reader, PostingCache(), query, 50, None, DEFAULT_COLLECTION), expected, 50)


def test_common_terms_are_read_once_and_follow_writes_without_end(store: Store, reads: list[str]) -> None:
    cache = PostingCache()
    store.put(dict.fromkeys(range(9), "river stone"))
    for step in range(30):
        reader = store.now()
        found = fulltext.nearest(reader, cache, "river", 100, None, DEFAULT_COLLECTION)
        check(found, rank(find_texts(reader), parse_query("river"), {}), 100)
        store.put({step % 9: f"river {'river ' * (step % 5)} owl", 100 + step: "stone"})
        store.delete([100 + step])
    assert reads == ["river"]


@pytest.mark.parametrize("how", ["too far behind", "the log is cut", "from a later moment"])
def test_postings_that_cannot_be_updated_are_read_again(
    store: Store, monkeypatch: pytest.MonkeyPatch, reads: list[str], how: str
) -> None:
    cache = PostingCache()
    store.put(dict.fromkeys(range(9), "river stone"))
    old = store.now()
    if how == "from a later moment":
        store.put({0: "river owl"})
    fulltext.nearest(store.now(), cache, "river", 100, None, DEFAULT_COLLECTION)
    store.put({0: "owl", 1: "stone", 2: "river river"})
    if how == "too far behind":
        monkeypatch.setattr(state_cache, "FAR", 5)
    if how == "the log is cut":
        store.connection.execute("DELETE FROM operations WHERE sequence < 11")
    reader = old if how == "from a later moment" else store.now()
    found = fulltext.nearest(reader, cache, "river", 100, None, DEFAULT_COLLECTION)
    check(found, rank(find_texts(reader), parse_query("river"), {}), 100)
    assert reads == ["river", "river"]


def test_no_more_is_kept_than_there_is_room_for(
    store: Store, monkeypatch: pytest.MonkeyPatch, reads: list[str]
) -> None:
    monkeypatch.setattr(postings, "MAX_BYTES", 4000)
    cache = PostingCache()
    store.put({id: " ".join(f"w{word}" for word in range(20)) for id in range(9)})
    for word in range(20):
        fulltext.nearest(store.now(), cache, f"w{word}", 5, None, DEFAULT_COLLECTION)
    assert 0 < cache.terms.kept.nbytes <= 4000
    fulltext.nearest(store.now(), cache, "w19 w0", 5, None, DEFAULT_COLLECTION)
    assert reads == [*(f"w{word}" for word in range(20)), "w0"]


def test_the_latest_state_stays_if_both_do_not_fit() -> None:
    def build(sequence: int, size: int) -> postings._Lengths:
        return postings._Lengths(sequence, np.zeros(size, np.int64), np.zeros(size, np.int64))

    cache = state_cache.StateCache[postings._Lengths](max_bytes=16 * 1000 + 500)
    cache.keep("few", build(1, 10))
    for sequence, size in ((5, 900), (7, 901), (6, 899)):
        cache.keep("many", build(sequence, size))
    assert (found := cache.find("many", 8)) is not None
    assert found.sequence == 7
    cache.keep("few", build(2, 10))
    cache.keep("too many", build(3, 1001))
    assert cache.find("too many", 8) is None
    assert cache.find("few", 2) is not None, "what cannot stay removes nothing else"
    assert cache.kept.nbytes <= 16 * 1000 + 500
