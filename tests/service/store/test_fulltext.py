"""Keyword search: terms of texts and BM25 scores, compared with short reference functions."""

import json
import math
import sqlite3
import time
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from statistics import median

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from models.search import terms as words
from models.tokens import normalize
from service.store.filters.grammar import Predicate
from service.store.sql.connection import LEXICAL_RULES, fact
from service.store.sqlite import fulltext, secondary_indexes
from service.store.sqlite.filter_cache import FilterCache, FilterMatches
from service.store.sqlite.postings import PostingCache, end_read
from service.store.sqlite.schema import MIGRATIONS, connect, migrate
from service.store.sqlite.secondary_indexes import bring_up_to_date
from service.store.values import DEFAULT_COLLECTION


@pytest.fixture
def store(tmp_path: Path) -> Iterator[sqlite3.Connection]:
    migrate(tmp_path / "simile.db")
    connection = connect(tmp_path / "simile.db")
    bring_up_to_date(connection)
    yield connection
    connection.close()


def put(store: sqlite3.Connection, *texts: str, collection: str = DEFAULT_COLLECTION) -> None:
    """Stores each text as a document named by the number of documents before it (d0, d1, …)."""
    for text in texts:
        revision = store.execute(
            "INSERT INTO documents (collection, id, text, metadata) VALUES (?, ?, ?, '{}')",
            (collection, f"d{store.execute('SELECT count(*) FROM documents').fetchone()[0]}", text),
        ).lastrowid
        assert revision is not None
        secondary_indexes.add(store, revision)


def test_new_collections_seldom_change_the_schema(store: sqlite3.Connection) -> None:
    """Every connection parses a changed schema again, which takes long with many collections."""
    versions = set()
    for at in range(2 * secondary_indexes.SPARE_TABLES):
        secondary_indexes.add_collection(store, f"c{at}")
        put(store, "a word", collection=f"c{at}")
        versions.add(store.execute("PRAGMA schema_version").fetchone()[0])
    assert len(versions) == 2
    assert secondary_indexes.unequal(store) == []
    bring_up_to_date(store)  # A start drops the spare tables.
    assert len(fulltext.numbers(store)) == 1 + 2 * secondary_indexes.SPARE_TABLES
    secondary_indexes.add_collection(store, "last")
    put(store, "another word", collection="last")
    assert secondary_indexes.unequal(store) == []


def test_a_read_does_not_make_sqlite_parse_the_schema_again(
    store: sqlite3.Connection, tmp_path: Path
) -> None:
    """With many collections, that would take longer than the search."""
    put(store, "a word")
    for at in range(200):
        secondary_indexes.add_collection(store, f"c{at}")
    reader = connect(tmp_path / "simile.db", read_only=True)

    def search(end: Callable[[sqlite3.Connection], None]) -> float:
        """Returns the seconds of a search after one that `end` ended."""
        for finish in (end, end_read):
            began = time.perf_counter()
            reader.execute("BEGIN")
            assert found(reader, "word") == [1]
            finish(reader)
            seconds = time.perf_counter() - began
        assert reader.execute("SELECT name FROM temp.sqlite_master").fetchall() == []
        assert reader.execute("PRAGMA query_only").fetchone() == (1,)
        return seconds

    search(end_read)
    times = [(search(end_read), search(sqlite3.Connection.rollback)) for _ in range(15)]
    assert median(fast for fast, _ in times) < median(slow for _, slow in times) / 2
    reader.close()


def matching(store: sqlite3.Connection, revisions: Iterable[int]) -> FilterMatches:
    listed = Predicate("revision IN (SELECT value FROM json_each(?))", [json.dumps([*revisions])])
    return FilterMatches(store, FilterCache(), listed, DEFAULT_COLLECTION)


def found(store: sqlite3.Connection, query: str, depth: int = 100) -> list[int]:
    revisions, scores = fulltext.nearest(store, PostingCache(), query, depth, None, DEFAULT_COLLECTION)
    assert (scores > 0).all()
    assert (np.diff(scores) <= 0).all()
    return sorted(revisions.tolist())


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ("東京都", ["東京", "京都", "都"]),
        ("京", ["京"]),
        ("서울에서", ["서울", "울에", "에서", "서"]),
        ("カタカナ", ["カタ", "タカ", "カナ", "ナ"]),
        ("ｶﾞｽ", ["ガス", "ス"]),  # half-width, with a separate voicing mark
        ("한글", ["한글", "글"]),  # decomposed into jamo
        ("GPUは東京、2台", ["gpu", "は東", "東京", "京", "2", "台"]),
        ("Café CAFE\u0301 naïve", ["cafe", "cafe", "naiv"]),
        ("Straße Ÿ Ώρα", ["strass", "y", "ωρα"]),
        ("\uff21\uff22\uff23 ﬁne m²", ["abc", "fine", "m2"]),
        ("don\u2019t “quote”—this…", ["don", "quot", "this"]),
        ("co\u00adoperate zero\u200bwidth", ["cooper", "zero", "width"]),
        ("हिन्दी भाषा", ["हिन्दी", "भाषा"]),
        ("𠮷野家", ["𠮷野", "野家", "家"]),
        ("🦉 ★ ・", []),
    ],
)
def test_a_text_is_cut_into_the_tokens_that_the_rules_say(text: str, tokens: list[str]) -> None:
    assert words.cut(text).split() == tokens


@pytest.mark.parametrize(
    ("query", "expression"),
    [
        ("東京", '"東京"'),
        ("京", '"京" *'),
        ("東京都 GPU", '"東京" OR "京都" OR "gpu"'),
        ("the river", '"river"'),
        ("To be, or not to be", '"to" OR "be" OR "or" OR "not"'),
        ("river River RIVER", '"river"'),
        ('a" OR text:x* NEAR(y) -z', '"text" OR "x" OR "near" OR "y" OR "z" OR "textx"'),
        ("?!  ★", ""),
    ],
)
def test_a_query_is_quoted_terms_and_nothing_of_a_user_is_syntax(query: str, expression: str) -> None:
    assert words.expression(query) == expression


@given(st.text(max_size=40))
@settings(max_examples=100, deadline=None)
def test_any_text_is_found_by_itself_and_gone_when_it_is_removed(text: str) -> None:
    text = text.encode(errors="replace").decode()
    store = sqlite3.connect(":memory:")
    store.executescript("".join(MIGRATIONS.values()))
    store.isolation_level = None
    bring_up_to_date(store)
    put(store, "quite another xylophone", text)
    tokens = words.get_terms(text)
    assert (2 in found(store, text)) == bool(tokens)
    secondary_indexes.remove(store, 2)
    # Asks FTS5 directly, because a search finds only documents that exist.
    requested = "SELECT rowid FROM lexical_1 WHERE lexical_1 MATCH ?"
    assert not tokens or (2,) not in store.execute(requested, (words.expression(text),)).fetchall()
    assert store.execute("SELECT id FROM lexical_1_docsize").fetchall() == [(1,)]
    store.execute("DELETE FROM documents WHERE revision = 2")
    assert found(store, "xylophones") == [1]
    store.execute("INSERT INTO lexical_1 (lexical_1) VALUES ('integrity-check')")
    store.close()


def test_words_of_two_characters_and_of_one_are_found(store: sqlite3.Connection) -> None:
    put(store, "東京は日本の首都です", "서울은 한국의 수도", "京都の寺", "London is far", "大阪府")
    assert found(store, "東京") == [1]
    assert found(store, "서울") == [2]
    assert found(store, "京") == [1, 3]  # within a run, and at the start of one
    assert found(store, "都") == [1, 3]
    assert found(store, "府") == [5]  # at the end of a run
    assert found(store, "수도") == [2]
    assert found(store, "도수") == []


def test_endings_accents_case_and_function_words(store: sqlite3.Connection) -> None:
    put(store, "She was SEARCHING for cafés", "nothing of the kind", "to be or not to be", "river", "stones")
    for query in ("searched", "search", "cafe", "CAFÉ", "café"):
        assert found(store, query) == [1], query
    assert found(store, "to be or not to be") == [3]
    assert found(store, "a river of stones") == [4, 5]


def in_one_call(text: str) -> list[str]:
    """Returns the terms of a text by the rules themselves, applied to the whole text at once."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(normalize, "PIECE", 1 << 20)
        return words.get_terms(text)


@given(
    st.text(
        st.one_of(st.sampled_from("aÉ\u0301\u05b0\u034f東京한ᄒㅏᆫｶﾞ \u00ad"), st.characters()), max_size=40
    )
)
@settings(max_examples=500, deadline=None)
def test_a_text_that_is_cut_in_pieces_has_the_tokens_of_the_whole(text: str) -> None:
    assume(normalize.stream_safe(text) == text)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(normalize, "PIECE", 3)
        assert words.cut(text + "é").split() == in_one_call(text + "é")
        terms = words.expression(text + "é東")
    assert terms == words.expression(text + "é東")


@pytest.mark.parametrize(
    ("part", "terms"), [("x", 1), ("X", 1), ("1", 1), ("xX", 1), ("a-", 100_000), ("a+", 100_001)]
)
def test_a_long_word_is_read_once(part: str, terms: int) -> None:
    """A pattern that began at every character would take hours."""
    assert len(words.get_terms(part * 100_000 + '"')) == terms


def test_runs_of_marks_are_never_sorted_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []
    plain = unicodedata.normalize

    def normalize_and_note(form: normalize.Form, text: str) -> str:
        seen.append(len(text))
        return plain(form, text)

    monkeypatch.setattr(unicodedata, "normalize", normalize_and_note)
    for marks in ("\u0315\u0300", "\u05bc\u05b0"):
        text = "a" + marks * 50_000
        assert words.cut(text).split()[0][0] == "a"
        assert words.expression(text)
    assert max(seen) < 10_000


def test_tokens_take_a_few_times_the_memory_of_their_text_whatever_it_stands_for() -> None:
    text = "\ufdfa" * 300_000  # Each decomposes into 18 characters.
    assert len(words.cut(text)) < 5 * len(text) + 200_000
    text = "東京都" * 100_000 + "é"
    assert len(words.cut(text).split()) == 300_001, "nothing is left out of what people write"


def bm25(texts: list[str], query: str) -> list[float]:
    """Returns the scores of FTS5's formula, for words that stemming does not change."""
    documents = [Counter(text.split()) for text in texts]
    mean = sum(map(Counter.total, documents)) / len(documents)
    scores = []
    for document in documents:
        score = 0.0
        for word in query.split():
            having = sum(word in other for other in documents)
            idf = max(math.log((len(documents) - having + 0.5) / (having + 0.5)), 1e-6)
            length = 1 - 0.75 + 0.75 * document.total() / mean
            score += idf * document[word] * 2.2 / (document[word] + 1.2 * length)
        scores.append(score)
    return scores


def test_scores_are_bm25_and_the_best_come_first(store: sqlite3.Connection) -> None:
    generator = np.random.default_rng(7)
    some = ["red", "blue", "fox", "owl", "cat", "dog", "hat", "box"]
    texts = [" ".join(generator.choice(some, generator.integers(1, 12))) for _ in range(60)]
    texts[40:44] = ["zebra red", "red zebra", "zebra blue blue", "zebra fox"]
    put(store, *texts)
    for query in ("zebra", "zebra owl hat", "red zebra"):
        expected = bm25(texts, query)
        revisions, scores = fulltext.nearest(store, PostingCache(), query, 60, None, DEFAULT_COLLECTION)
        np.testing.assert_allclose(scores, [expected[at - 1] for at in revisions], rtol=1e-6)
        assert sorted(revisions) == [at + 1 for at, score in enumerate(expected) if score > 0]
        best = sorted(expected, reverse=True)
        np.testing.assert_allclose(scores, best[: len(scores)], rtol=1e-6)
        # The best two documents, and those that tie with the second.
        few, few_scores = fulltext.nearest(store, PostingCache(), query, 2, None, DEFAULT_COLLECTION)
        assert len(few) == np.sum(scores >= scores[1])
        np.testing.assert_array_equal(few_scores, scores[: len(few)])


def test_only_allowed_documents_of_the_collection_are_found(store: sqlite3.Connection) -> None:
    secondary_indexes.add_collection(store, "other")
    put(store, *(f"river {'stone ' * (at % 7)}" for at in range(5)))
    put(store, "river", collection="other")
    put(store, *(f"river {'stone ' * (at % 7)}" for at in range(6, 300)))
    allowed = matching(store, [6, 50, 51, 299])
    revisions, scores = fulltext.nearest(store, PostingCache(), "river", 10, allowed, DEFAULT_COLLECTION)
    assert sorted(revisions.tolist()) == [50, 51, 299]
    everything = dict(
        zip(*fulltext.nearest(store, PostingCache(), "river", 300, None, DEFAULT_COLLECTION), strict=True)
    )
    assert len(everything) == 299
    assert scores.tolist() == [everything[revision] for revision in revisions]
    none = fulltext.nearest(store, PostingCache(), "river", 10, matching(store, []), DEFAULT_COLLECTION)
    assert none[0].tolist() == none[1].tolist() == []


def test_a_filter_that_much_passes_is_tried_on_the_best_alone(
    store: sqlite3.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(store, *(f"river {'stone ' * (at % 50)}" for at in range(400)))
    even = matching(store, range(2, 401, 2))
    expected = fulltext.nearest(store, PostingCache(), "river", 400, even, DEFAULT_COLLECTION)
    assert sorted(expected[0].tolist()) == [*range(2, 401, 2)]
    monkeypatch.delattr(FilterMatches, "all")
    revisions, scores = fulltext.nearest(store, PostingCache(), "river", 9, even, DEFAULT_COLLECTION)
    assert revisions.tolist() == expected[0][: len(revisions)].tolist()
    assert len(revisions) == np.sum(expected[1] >= scores[8])


def test_a_query_of_thousands_of_words_looks_for_the_first(store: sqlite3.Connection) -> None:
    put(store, "w7", f"w{words.MAX_TERMS + 1}", "x")
    assert found(store, " ".join(f"w{at}" for at in range(20_000))) == [1]


def ranked(store: sqlite3.Connection, query: str, collection: str) -> list[tuple[int, float]]:
    revisions, scores = fulltext.nearest(store, PostingCache(), query, 100, None, collection)
    return list(zip(revisions.tolist(), scores.round(4).tolist(), strict=True))


def test_the_words_of_one_collection_do_not_move_the_scores_of_another(store: sqlite3.Connection) -> None:
    put(store, "zebra crossing", "red river", "blue stone", "zebra and horse", "grey owl")
    before = ranked(store, "zebra river", DEFAULT_COLLECTION)
    secondary_indexes.add_collection(store, "other")
    put(store, *(f"zebra number {at}" for at in range(500)), collection="other")
    assert ranked(store, "zebra river", DEFAULT_COLLECTION) == before
    expected = bm25([f"zebra number {at}" for at in range(500)], "zebra 7")
    _, scores = fulltext.nearest(store, PostingCache(), "zebra 7", 1, None, "other")
    assert scores[0] == pytest.approx(max(expected), rel=1e-6)


def test_a_collection_takes_its_words_along_and_begins_empty_again(
    store: sqlite3.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(secondary_indexes, "SPARE_TABLES", 1)

    def tables() -> set[str]:
        rows = store.execute("SELECT name FROM sqlite_master WHERE name LIKE 'lexical%'")
        return {name for (name,) in rows}

    only_default = tables()
    secondary_indexes.add_collection(store, "other")
    put(store, "zebra", collection="other")
    assert len(tables()) == 2 * len(only_default)
    secondary_indexes.remove(store, 1)
    store.execute("DELETE FROM documents")
    secondary_indexes.remove_collection(store, "other")
    assert tables() == only_default
    assert ranked(store, "zebra", "other") == []
    secondary_indexes.add_collection(store, "other")
    assert ranked(store, "zebra", "other") == []
    put(store, "zebra", "zebra", collection="other")
    assert [revision for revision, _ in ranked(store, "zebra", "other")] == [2, 3]


def test_a_collection_without_its_table_of_words_gets_it_at_the_next_start(store: sqlite3.Connection) -> None:
    secondary_indexes.add_collection(store, "other")
    put(store, "red river")
    put(store, "blue river", collection="other")
    fulltext.drop(store, 2)
    assert secondary_indexes.unequal(store) == [
        "no document of the collection 'other' can be found by its words"
    ]
    bring_up_to_date(store)
    assert secondary_indexes.unequal(store) == []
    assert [revision for revision, _ in ranked(store, "river", "other")] == [2]
    assert [revision for revision, _ in ranked(store, "river", DEFAULT_COLLECTION)] == [1]


def test_other_rules_index_everything_anew_and_the_same_rules_nothing(store: sqlite3.Connection) -> None:
    put(store, "red river", "blue stone")
    store.execute("INSERT INTO lexical_1 (lexical_1) VALUES ('delete-all')")
    bring_up_to_date(store)
    assert found(store, "river") == []  # The rules are unchanged, so nothing is indexed again.
    store.execute("UPDATE facts SET value = '0' WHERE name = ?", (LEXICAL_RULES,))
    bring_up_to_date(store)
    assert found(store, "river") == [1]
    bring_up_to_date(store)
    assert found(store, "river stone") == [1, 2]


def test_what_fails_half_way_leaves_the_words_as_they_were(
    store: sqlite3.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(store, "red river", "blue stone")
    store.execute("UPDATE facts SET value = '0' WHERE name = ?", (LEXICAL_RULES,))
    with monkeypatch.context() as broken:
        broken.setattr(fulltext, "cut", lambda text: text if "red" in text else 1 / 0)
        with pytest.raises(ZeroDivisionError):
            bring_up_to_date(store)
    assert found(store, "river") == [1]
    assert found(store, "stone") == [2]
    assert fact(store, LEXICAL_RULES) == "0"
