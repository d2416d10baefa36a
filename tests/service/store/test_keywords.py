"""Keyword search in both stores: which texts a query finds, and which one comes first."""
# ruff: noqa: RUF001  letters of many scripts are meant

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from functools import partial
from itertools import permutations
from pathlib import Path
from typing import Protocol

import numpy as np
import pytest

from models.search.terms import NO_WEIGHTS, Weights
from service.store.sqlite import fulltext, secondary_indexes
from service.store.sqlite.postings import PostingCache
from service.store.sqlite.schema import connect, migrate
from service.store.sqlite.secondary_indexes import bring_up_to_date
from service.store.values import Document, Embedding, Ranking
from tests.service.part_lines import CODES, LINES


class Ask(Protocol):
    """Ranks the stored texts by their places."""

    def __call__(self, query: str, weights: Weights = NO_WEIGHTS, /) -> Ranking: ...


Store = Callable[[str, Sequence[str]], Ask]
Search = Callable[[str], list[list[int]]]  # Returns the places of texts, best first; equal ones together.
Index = Callable[[Sequence[str]], Search]


@pytest.fixture(scope="module", params=["sqlite", "postgres"])
def store(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    """Yields a function that stores texts in a collection."""
    opened = in_sqlite(tmp_path_factory.mktemp("store")) if request.param == "sqlite" else in_postgres()
    yield next(opened)
    opened.close()


@pytest.fixture(scope="module")
def index(store: Store) -> Index:
    """Returns a function that stores texts in a new collection."""
    collections = iter(range(1000))

    def fill(texts: Sequence[str]) -> Search:
        ask = store(f"c{next(collections)}", texts)

        def search(query: str) -> list[list[int]]:
            revisions, scores = ask(query)
            levels: dict[float, list[int]] = {}
            for revision, score in zip(revisions.tolist(), scores.tolist(), strict=True):
                levels.setdefault(float(f"{score:.4g}"), []).append(revision)
            return [levels[score] for score in sorted(levels, reverse=True)]

        return search

    return fill


def placed(found: Ranking, places: Mapping[int, int]) -> Ranking:
    return np.array([places[revision] for revision in found[0].tolist()], np.int64), found[1]


def in_sqlite(folder: Path) -> Generator[Store, None, None]:
    migrate(folder / "simile.db")
    connection = connect(folder / "simile.db")
    bring_up_to_date(connection)

    def store(collection: str, texts: Sequence[str]) -> Ask:
        secondary_indexes.add_collection(connection, collection)
        places = {}
        for at, text in enumerate(texts):
            sql = "INSERT INTO documents (collection, id, text, metadata) VALUES (?, ?, ?, '{}')"
            revision = connection.execute(sql, (collection, str(at), text)).lastrowid or 0
            places[revision] = at
            secondary_indexes.add(connection, revision)
        return lambda query, weights=NO_WEIGHTS: placed(
            fulltext.nearest(connection, PostingCache(), query, 1000, None, collection, weights), places
        )

    try:
        yield store
    finally:
        connection.close()


def in_postgres() -> Generator[Store, None, None]:
    pytest.importorskip("psycopg", reason="needs the extra postgres")
    from service.store.postgres import fulltext as postgres_fulltext
    from service.store.postgres import writes
    from tests.parts.stores import Place, unit

    place, cache = Place(), postgres_fulltext.BlockCache()

    def store(collection: str, texts: Sequence[str]) -> Ask:
        documents = [Document(str(at), text) for at, text in enumerate(texts)]
        rows = {place.active: {at: Embedding(unit(), truncated=False) for at in range(len(texts))}}
        place.write(partial(writes.put, documents=documents, embedded=rows, collection=collection))
        sql = "SELECT revision, id FROM documents WHERE collection = ?"
        stored = place.read(lambda it: it.execute(sql, (collection,)).fetchall())
        places = {revision: int(id) for revision, id in stored}
        return lambda query, weights=NO_WEIGHTS: placed(
            place.read(
                lambda it: postgres_fulltext.nearest(it, cache, query, 1000, None, collection, weights)
            ),
            places,
        )

    try:
        yield store
    finally:
        place.store.close()


def found(index: Index, text: str, query: str) -> bool:
    ranked = index([text, "zebra crossing"])(query)
    return 0 in [place for level in ranked for place in level]


def together(pairs: Sequence[tuple[str, str]], index: Index) -> list[tuple[str, str]]:
    """Returns the pairs of a text and a query whose query does not find the text."""
    search = index([text for text, _ in pairs])
    return [
        (text, query)
        for at, (text, query) in enumerate(pairs)
        if at not in [place for level in search(query) for place in level]
    ]


BOTH_WAYS = {
    "stems": (
        "viruses virus|buses bus|gases gas|statuses status|campuses campus|bonuses bonus|aliases alias|"
        "canvases canvas|biases bias|lenses lens|censuses census|focuses focus|quizzes quiz|ties tie|"
        "pies pie|skies sky|dying die|"
        "houses house|cases case|roses rose|diseases disease|kinases kinase|senses sense|courses course|"
        "uses use|irises iris|atlases atlas|geniuses genius|boxes box|glasses glass|classes class|"
        "sizes size|prizes prize|waltzes waltz|topazes topaz|fezzes fez|buzzes buzz|whizzes whiz|"
        "lying lie|tying tie|cities city|toys toy|heroes hero|trellises trellis|minibuses minibus"
    ),
    "letters": (
        "Łódź Lodz|Malmø Malmo|København Kobenhavn|Æsop Aesop|cœur coeur|Þór Thor|Ħal Hal|ısparta isparta|"
        "Đặng Dang|Ísafjörður Isafjordur|Straße strasse|Ŋgũgĩ Ngugi|ƒunk funk|Əliyev Eliyev|ȺB AB|groß gross|"
        "Bjørnøya Bjornoya|Ǿ O|Łukasz LUKASZ|ŁÓDŹ lodz"
    ),
    "vowel marks": (
        "كِتَابٌ كتاب|كـــتاب كتاب|أحمد احمد|آدم ادم|إسلام اسلام|مؤمن مومن|سائل سايل|رحمٰن رحمن|كريم کریم|"
        "علی علي|"
        "תִּקּוּן תקון|שָׁלוֹם שלום|דָּוִד דוד|ספר סֵפֶר|ירושלים יְרוּשָׁלַיִם"
    ),
    "apostrophes": (
        "Hawaiʻi Hawai'i|мʼята м'ята|Hawaiʻi Hawai’i|Qurʾan Qur'an|ʿAli 'Ali|O’Brien O'Brien|пʼять п’ять"
    ),
    "digits": "١٢٣ 123|۱۲۳ 123|१२३ 123|１２３ 123|༡༢༣ 123|𝟙𝟚𝟛 123",
    "signs": (
        "Hitman™ Hitman|iPad™ iPad|iPad™️ iPad|Lego® Lego|Acme℠ Acme|Metroⓜ Metro|Tango℗ Tango|Rolex™, Rolex|"
        "№5 5|price¹ price|1½ 1|H₂O H2O|m² m2|km² km2|ﬁ fi|CO₂ CO2|1️⃣ 1|葛󠄀飾区 葛飾区|5️⃣ 5|㎏ kg|Ⅻ XII"
    ),
    "parts": (
        "parseHTMLResponse html|parseHTMLResponse response|getUserName user|HTTPServer server|"
        "XMLHttpRequest http|base64Encoder encoder|NullPointerException pointer|snake_case_name case|"
        "ABC-123 ABC123|ABC-DEF ABCDEF|user_name userName|com.example.App app"
    ),
}


@pytest.mark.parametrize("kind", BOTH_WAYS)
def test_both_spellings_find_each_other(index: Index, kind: str) -> None:
    pairs = [tuple(pair.rsplit(" ", 1)) for pair in BOTH_WAYS[kind].split("|")]
    one_way = [(text, query) for text, query in pairs]
    assert together(one_way, index) == []
    if kind not in {"parts", "signs"}:
        assert together([(query, text) for text, query in one_way], index) == []


@pytest.mark.parametrize(
    ("text", "query"),
    [
        *(("news of the day", "new"), ("a new day", "news"), ("iOS", "IO"), ("Jones", "Jone")),
        *(("мой", "мои"), ("Мой", "мои"), ("бойня", "боиня"), ("ўз", "уз"), ("їх", "іх"), ("йод", "иод")),
        *(("organization", "organ"), ("generation", "general")),
        *(("1.5", "15"), ("12-34", "1234"), ("I'm here", "m"), ("Tom's", "s"), ("iPad", "pad")),
    ],
)
def test_different_words_stay_apart(index: Index, text: str, query: str) -> None:
    assert not found(index, text, query)


def test_an_accent_that_makes_no_letter_is_ignored(index: Index) -> None:
    assert together([("ёлка", "елка"), ("за́мок", "замок"), ("Ώρα", "ωρα"), ("naïve", "naive")], index) == []


def check_first(index: Index, query: str, texts: Sequence[str]) -> None:
    for shift in range(2):  # The result does not depend on the order of texts.
        turned = [*texts[shift:], *texts[:shift]]
        assert index(turned)(query)[0] == [turned.index(texts[0])], query


@pytest.mark.parametrize(
    ("query", "texts"),
    [
        (
            "Hitman The Complete",
            ["Hitman™: The Complete First Season", "Football Manager: The Complete Guide"],
        ),
        ("ABC-123", ["Part ABC-123 ring", "ABC ABC ABC 123 123 123", "Part 123-ABC ring"]),
        ("ABC-123-A", ["ABC-123-A: ring", "ABC-123-B: ring A", "ABC-123 123-A: ring", "A-123-ABC: ring"]),
        ("ABC123", ["Part ABC123 ring", "Part ABC-123 ring", "Part ABC 123 ring"]),
        ("10.0.0.1", ["host 10.0.0.1 down", "host 1.0.0.10 down", "host 10.0.1.0 down"]),
        ("2024-01-15", ["due 2024-01-15", "due 2024-15-01", "due 15-01-2024"]),
        ("a/b/c", ["path a/b/c", "path c/b/a", "path a b c"]),
        ("state-of-the-art", ["a state-of-the-art engine", "an art of the state engine"]),
        ("react-router-dom", ["npm react-router-dom", "npm dom-router-react"]),
        ("user_name_id", ["column user_name_id", "column id_name_user"]),
        ("10:30", ["at 10:30", "at 30:10", "at 10", "at 30"]),
        ("АБВ-12-3", ["деталь АБВ-12-3", "деталь АБВ-3-12"]),
        ("C++", ["a book on C++", "a book on C", "a book on C#"]),
        ("C#", ["a book on C#", "a book on C", "a book on C++"]),
        ("F#", ["learn F#", "learn F", "learn F++"]),
        ("C", ["a book on C", "a book on C++"]),
        (".NET", ["the .NET runtime", "the net runtime"]),
        ("c++", ["new in C++11", "new in C 11"]),
        ("A+ rating", ["an A+ rating", "an A rating"]),
        ("parseHTMLResponse", ["call parseHTMLResponse", "parse the HTML response"]),
    ],
)
def test_what_was_typed_comes_first(index: Index, query: str, texts: list[str]) -> None:
    check_first(index, query, texts)


NAMES = {
    "vitamin {} dose": "A B C D E K M S",
    "hepatitis {}": "A B C D E",
    "{} guidelines": "WHO NHS CDC FDA EU",
    "{} department": "IT HR PR US UK",
    "{} tax": "US UK EU IT",
    "{} Smith": "Will Jane John Adam",
    "report {}": "May June July April",
    "{} bus": "CAN LIN USB PCI",
    "{} cell": "T B NK",
    "Model {}": "S T X Y",
    "shirt size {}": "M S L XL",
    "Appendix {}": "A B C D",
    "Grade {}": "I II III IV",
    "Doctor {} episodes": "Who Kildare House",
}


@pytest.mark.parametrize("pattern", NAMES)
def test_a_name_that_is_a_function_word_in_small_letters_is_searched(index: Index, pattern: str) -> None:
    names = NAMES[pattern].split()
    search = index([f"{pattern.format(name)} and what it is about" for name in names])
    for at, name in enumerate(names):
        assert search(pattern.format(name))[0] == [at], name


@pytest.mark.parametrize(
    "query", ["vitamin d dose", "t cell", "hepatitis a", "shirt size m", "model s", "grade i"]
)
def test_a_small_letter_after_a_noun_is_searched(index: Index, query: str) -> None:
    *noun, _ = query.split() if query != "t cell" else ["cell", ""]
    check_first(index, query, [f"{query} leaflet", f"{' '.join(noun)} leaflet", f"{noun[0]} z leaflet"])


def test_all_orders_of_the_parts_of_a_code_find_their_own(index: Index) -> None:
    for joiner in "-./_:":
        codes = [joiner.join(parts) for parts in permutations(["12", "34", "56", "78"], 3)]
        search = index([f"Article {code} is in stock." for code in codes])
        for at, code in enumerate(codes):
            assert search(code)[0] == [at], code


def test_the_codes_of_many_like_parts_find_their_own(index: Index) -> None:
    search = index(LINES)
    first = [search(code)[0] for code in CODES]
    right = sum(
        all(f"Part {code}:" in LINES[at] for at in places) for code, places in zip(CODES, first, strict=True)
    )
    assert right >= 0.95 * len(CODES)


def test_weighted_groups_of_terms_are_added_up(store: Store) -> None:
    texts = [
        "red",
        "red green",
        "green blue",
        "blue stone river",
        "stone",
        "river red red",
        "river stone",
        "cat",
    ]
    ask = store("weighted", texts)

    def scores(query: str, weights: Weights = NO_WEIGHTS) -> dict[int, float]:
        places, found = ask(query, weights)
        assert found.tolist() == sorted(found.tolist(), reverse=True)
        return dict(zip(places.tolist(), found.tolist(), strict=True))

    single = {term: scores(term) for term in ("red", "green", "blue", "stone", "river")}
    weights: Weights = {("green",): 0.5, ("blue",): 0.25, ("stone", "river"): 0.125}
    expected: dict[int, float] = {}
    for group, weight in {("red",): 1.0, **weights}.items():
        for place in set.intersection(*({*single[term]} for term in group)):
            part = weight * sum(single[term][place] for term in group)
            expected[place] = expected.get(place, 0.0) + part
    assert scores("green red", weights) == pytest.approx(expected)
    assert 4 not in expected, "it has only one term of the group"
    assert scores("green", {("green",): 0.5}) == pytest.approx(
        {at: s / 2 for at, s in single["green"].items()}
    )
    assert scores("?", {("cat",): 1.0, ("absent",): 1.0}) == scores("cat")
