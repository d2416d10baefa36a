"""Expensive requests for documents, search and feedback, and the list of all cases."""

from collections.abc import Callable, Iterator
from itertools import islice
from urllib.parse import quote

from models.search.synonyms import MAX_ALL_PHRASES, MAX_PHRASES
from models.search.syntax import MAX_CONDITIONS as MAX_CONDITIONS_OF_QUERY
from service.api.collections import MAX_CLICKED
from service.api.openapi import MAX_K, MAX_OFFSET
from service.api.search_plan import MAX_FACET_CHARACTERS, MAX_FACETS, MAX_RERANK_K, TOGETHER
from service.api.suggest import MAX_CHARACTERS, MAX_SUGGESTIONS
from service.corpus.query import CANDIDATES, RERANK_WORK
from service.ranking import WORK
from service.store.filters.grammar import MAX_CONDITIONS, MAX_VALUES
from service.store.values import MAX_QUERY_CHARACTERS
from tests.service.costly import (
    LINE,
    LONG,
    MANY,
    REFUSED,
    SHARE,
    UNITS,
    VALUES,
    Case,
    Facts,
    Request,
    decoded,
    default,
    distinct,
    embedding,
    filled,
    got,
    of,
    others,
    packed,
    pairs,
    posted,
    reranked,
    sized,
    tokens,
    words,
)
from tests.service.process import Service

COLLECTION = "/collections/{collection}"
PLACE = "/collections/busy"  # the collection that cases of collection routes use
DOOMED = "doomed"  # name of a collection and of a field, both to be deleted
METADATA_BYTES = default("max_metadata_kb") << 10
NEVER = {"there is no such field": 1}
CONDITIONS = {"$or": [NEVER] * (MAX_CONDITIONS - 1)}
KINDS = ("words", "marks", "characters that grow")


def unknown(characters: int) -> str:
    """Returns distinct words of twelve letters."""
    letters = (
        bytes(97 + at // 26**place % 26 for place in range(12)).decode() for at in range(9**9, 10**9, 977)
    )
    return " ".join(islice(letters, characters // 13))


def put(service: Service, at: str, documents: list[dict[str, object]]) -> None:
    for first in range(0, len(documents), 200):
        answer = service.client.post(f"{at}/documents", json={"documents": documents[first : first + 200]})
        assert answer.status_code == 200, answer.text


def heavy(id: str) -> dict[str, object]:
    """Returns a document with the largest allowed metadata."""
    return {"id": id, "text": "metadata", "metadata": {"much": "x" * (METADATA_BYTES - len('{"much":""}'))}}


def fill(service: Service) -> None:
    """Stores documents in four collections. Those of the default one exceed the largest answer."""
    for at in ("", PLACE, "/collections/other", "/collections/third"):
        documents: list[dict[str, object]] = [
            {"id": f"d-{n}", "text": f"red {words(40 + n)}", "metadata": {"kind": n % 7}} for n in range(200)
        ]
        documents += [{"id": f"l-{n}", "text": words(100_000)} for n in range(4)]
        put(service, at, documents + [heavy(f"m-{n}") for n in range(8)])
    for at in ("", PLACE):
        put(service, at, [{"id": f"j-{n}", "text": f"judged {n}"} for n in range(MANY)])
    put(service, "", [heavy(f"m-{n}") for n in range(MAX_K)])


def _doom(service: Service, at: str) -> None:
    documents: list[dict[str, object]] = [
        {"id": f"x-{n}", "text": f"doomed {n}", "metadata": {DOOMED: 1}} for n in range(4000)
    ]
    put(service, at, documents)


def searches() -> Iterator[Case]:
    route = "GET /search"
    most = default("max_query_characters")
    for kind in KINDS:
        query = quote(of(UNITS[kind], min(most, LINE // 9)), safe="")
        yield got(route, f"a query of {kind}", f"/search?mode=hybrid&q={query}")
    yield got(route, "the last hits", f"/search?q=red&k={MAX_K}&offset={MAX_OFFSET}&mode=hybrid&fields=")
    fits = min(MAX_K, default("max_answer_mb") * 1_000_000 // (METADATA_BYTES + 200))
    yield got(route, "the largest answer", f"/search?q=metadata&mode=lexical&k={fits}")
    yield got(route, "too large an answer", f"/search?q=metadata&mode=lexical&k={MAX_K}", REFUSED)
    yield got(
        route, "200 reranked hits", f"/search?q=red&mode=hybrid&rerank=true&rerank_k={MAX_RERANK_K}&k=1"
    )
    yield got(
        route, "1,000 highlighted hits", f"/search?q=red+river&k={MAX_K}&mode=hybrid&highlight=true&fields="
    )
    deep = ",".join(f"metadata.{at}{'.a' * ((MAX_FACET_CHARACTERS - 11) // 2)}" for at in range(MAX_FACETS))
    for facets in (deep, "metadata.kind"):
        path = f"/search?q=red&mode=hybrid&facet_values=100&facets={facets}"
        yield got(route, f"facets of {len(facets)} characters", path)
    conditions = quote(" ".join([f'-"red river w{at}"' for at in range(MAX_CONDITIONS_OF_QUERY)]) + " red")
    yield got(route, "all conditions", f"/search?syntax=true&mode=hybrid&q={conditions}")
    for kind in KINDS:
        typed = quote(of(UNITS[kind], MAX_CHARACTERS), safe="")
        yield got("GET /suggest", f"a text of {kind}", f"/suggest?q={typed}&k={MAX_SUGGESTIONS}")
    yield from filters("GET /suggest", f"/suggest?q=r&k={MAX_SUGGESTIONS}&filter=")
    yield from filters(route, f"/search?q=red&k={MAX_K}&fields=&filter=")
    yield from _ranked()
    yield from _requested(most)


def filters(route: str, path: str) -> Iterator[Case]:
    """Yields requests with filters that match nothing, for a route with a filter parameter."""
    chosen: dict[str, object] = {
        "many conditions": CONDITIONS,
        "many values": {"nothing": {"$in": list(range(LINE // 10))}},
    }
    for name, value in chosen.items():
        yield got(route, name, path + quote(packed(value), safe=""))
    yield got(route, "a deep filter", path + quote('{"$and":[' * (LINE // 30), safe=""), REFUSED)


def queries(requested: list[str], mode: str, k: int, **others: object) -> object:
    return {"queries": requested, "mode": mode, "k": k, **others}


def _ranked() -> Iterator[Case]:
    """Yields searches with the largest allowed numbers of hits and candidates."""
    route, hits = "POST /search", default("max_hits")
    hybrid = default("max_candidates") // (2 * CANDIDATES)
    long = TOGETHER * default("max_query_characters") // hybrid
    pairs = default("max_candidates") // (2 * CANDIDATES + WORK + MAX_RERANK_K * RERANK_WORK)
    reranks = lambda: queries(["red"] * pairs, "hybrid", 1, rerank=True, rerank_k=MAX_RERANK_K)  # noqa: E731
    yield posted(route, f"{pairs} reranked queries", reranks)
    share = TOGETHER * default("max_query_characters") // MANY
    yield posted(route, "unknown words", lambda: queries([unknown(share)] * MANY, "lexical", 1, fields=[]))
    yield posted(route, f"{hybrid} hybrid queries", lambda: queries([distinct(long)] * hybrid, "hybrid", 1))
    for mode in ("dense", "lexical"):
        for count in (hits // MAX_K, MANY):
            requested = lambda mode, count: queries(["red"] * count, mode, hits // count, fields=[])  # noqa: E731
            yield posted(route, f"{mode}, all hits of {count} queries", requested, mode, count)
    yield Case(route, "2,048 vectors", _vectors)


def _vectors(facts: Facts) -> Request:
    vectors = [[1.0] * facts.dimension] * MANY
    k = default("max_hits") // MANY
    return Request("/search", packed({"queries": vectors, "model": facts.version, "k": k, "fields": []}))


def _requested(most: int) -> Iterator[Case]:
    """Yields searches with queries of up to `most` characters, and with filters."""
    route = "POST /search"
    for kind in KINDS:
        yield posted(
            route, f"a query of {kind}", lambda kind: queries([of(UNITS[kind], most)], "hybrid", 1), kind
        )
    yield posted(route, "a query of distinct words", lambda: queries([distinct(most)], "hybrid", 1))
    share = TOGETHER * most // MANY
    for name, text in (("distinct words", distinct(share)), ("marks", of(UNITS["marks"], share))):
        yield posted(route, f"2,048 queries of {name}", queries, [text] * MANY, "lexical", 1)
    yield posted(
        route,
        "an endless query",
        lambda: queries([sized(UNITS["marks"], LONG)], "hybrid", 1),
        expected=REFUSED,
    )
    yield posted(route, "empty objects", lambda: filled(b'{"queries":[', b"{}", b"]}"), expected=REFUSED)
    for mode in ("dense", "lexical"):
        yield posted(
            route, f"{mode}, conditions", lambda mode: queries(["red"], mode, 1, filter=CONDITIONS), mode
        )
    values = {"kind": {"$in": list(range(7, MAX_VALUES + 7))}}
    yield posted(route, "values of a filter", lambda: queries(["red"], "hybrid", 1, filter=values))
    begin = b'{"queries":["a"],"filter":{"'
    for name, before, item in (("conditions", b'$and":[', packed(NEVER)), ("values", b'a":{"$in":[', b"7")):
        end = b"]}}" if name == "conditions" else b"]}}}"
        too_many = lambda before, item, end: filled(begin + before, item, end)  # noqa: E731
        yield posted(route, f"too many {name}", too_many, before, item, end, expected=REFUSED)


def documents() -> Iterator[Case]:
    route = "POST /documents"

    def given(count: int, text: str, **metadata: object) -> object:
        rows = [{"id": f"c{at}", "text": text, "metadata": metadata} for at in range(count)]
        return {"documents": rows}

    for kind in (*KINDS, "one word"):
        yield posted(route, f"one text of {kind}", lambda kind: given(1, sized(UNITS[kind], LONG)), kind)
    for kind in ("words", "marks"):
        yield posted(
            route, f"2,048 texts of {kind}", lambda kind: given(MANY, sized(UNITS[kind], SHARE)), kind
        )
    room = METADATA_BYTES - len('{"much":""}')
    yield posted(route, "metadata of 240", lambda: given(240, "a", much="x" * room))
    yield posted(route, "values in metadata", lambda: given(240, "a", much=[7] * (VALUES // 240 - 30)))
    yield posted(route, "metadata without end", lambda: given(1, "a", much="x" * LONG), expected=REFUSED)
    deep = lambda: b'{"documents":[{"text":"a","metadata":{"a":' + b"[" * LONG  # noqa: E731
    yield posted(route, "metadata nested without end", deep, expected=REFUSED)
    yield posted(route, "empty objects", lambda: filled(b'{"documents":[', b"{}", b"]}"), expected=REFUSED)
    some = 1 << 19  # Bytes. An import has no limit.
    yield lines("empty objects", lambda: b"{}\n" * (some // 3))
    yield lines("nothing", lambda: b"\n" * some)._replace(expected=frozenset({400}))
    yield lines("one endless text", lambda: b'{"text": "' + b"a" * LONG)
    yield lines(
        "marks", lambda: b'{"id": "m", "text": "' + sized(UNITS["marks"], 1_000_000).encode() + b'"}\n'
    )
    yield got("GET /documents", "all that a page holds", "/documents?limit=1000")
    conditions = quote(packed(CONDITIONS), safe="")
    yield got("GET /documents", "many conditions", f"/documents?limit=1000&filter={conditions}")
    yield got("GET /documents/count", "many conditions", f"/documents/count?filter={conditions}")
    chosen = quote(packed({DOOMED: 1}), safe="")
    of_many = got("DELETE /documents", "thousands", f"/documents?filter={chosen}")
    yield of_many._replace(prepare=_doom)
    yield from filters("DELETE /documents", "/documents?filter=")
    longest = quote("\u0315" * 512, safe="")
    yield got("GET /documents/{id}", "the longest id", f"/documents/{longest}", frozenset({404}))
    yield got("DELETE /documents/{id}", "the longest id", f"/documents/{longest}")


def lines(name: str, body: Callable[[], bytes]) -> Case:
    """Returns a case that imports the JSON lines of `body`. An import has no deadline."""

    def make(facts: Facts) -> Request:
        return Request("/documents", body(), "application/x-ndjson")

    return Case("POST /documents", f"lines of {name}", make, timed=False)


def files() -> Iterator[Case]:
    """Yields an import of a table, which has no deadline, and its preview."""
    rows = b"id,text\n" + b"1\n" * (1 << 12)

    def sent(path: str, content: bytes) -> Callable[[Facts], Request]:
        return lambda facts: Request(f"{path}?name=a.csv", content, "application/octet-stream")

    yield Case("POST /files", "rows that are too short", sent("/files", rows), timed=False)
    yield Case("POST /files/preview", "rows", sent("/files/preview", rows[: 1 << 20]))


def judgements() -> Iterator[Case]:
    route = "POST /feedback"

    def judged(unit: str, size: int, ids: int) -> object:
        """Returns 2,048 judged queries of `size` bytes for `ids` documents in turn."""
        text = sized(unit, size)[: MAX_QUERY_CHARACTERS - 6]
        rows = [{"query": f"{at}{text}", "id": f"j-{at % ids}", "relevant": True} for at in range(MANY)]
        return {"feedback": rows}

    for kind in ("words", "marks"):
        yield posted(route, f"2,048 queries of {kind}", judged, UNITS[kind], SHARE - 60, MANY)
    conflict = frozenset({409})
    yield posted(route, "too many of one document", judged, "red ", 100, 1, expected=conflict)
    endless = lambda: {"query": sized(UNITS["marks"], LONG), "id": "j-1", "relevant": True}  # noqa: E731
    yield posted(route, "an endless query", endless, expected=REFUSED)
    yield posted(route, "empty objects", lambda: filled(b'{"feedback":[', b"{}", b"]}"), expected=REFUSED)
    yield got("GET /feedback", "all that a page holds", "/feedback?limit=1000")
    yield got("GET /feedback/count", "it", "/feedback/count")
    yield got("GET /feedback/summary", "it", "/feedback/summary")
    longest = quote(of(UNITS["marks"], MAX_QUERY_CHARACTERS), safe="")
    yield got("DELETE /feedback", "a query of marks", f"/feedback?id=d-1&query={longest}")


def events() -> Iterator[Case]:
    route = "POST /events"

    def used(unit: str, size: int, shown: int) -> object:
        """Returns 2,048 events with queries of `size` bytes and `shown` hits each."""
        event = {"query": sized(unit, size)[:MAX_QUERY_CHARACTERS], "type": "click"}
        hits = [f"j-{at}" for at in range(shown)]
        return {
            "events": [
                event | {"search_id": f"s-{at}", "id": f"j-{at % MANY}", "shown": hits} for at in range(MANY)
            ]
        }

    yield posted(route, "2,048 long queries", used, UNITS["words"], SHARE - 200, 0)
    yield posted(route, "2,048 pages of a hundred hits", used, "red ", 100, 100)
    yield posted(route, "empty objects", lambda: filled(b'{"events":[', b"{}", b"]}"), expected=REFUSED)
    yield got("GET /searches", "it", "/searches")
    yield got("GET /events", "all that a page holds", "/events?limit=1000")
    yield got("GET /events/count", "it", "/events/count")
    longest = quote(of(UNITS["marks"], MAX_QUERY_CHARACTERS), safe="")
    yield got("DELETE /events", "a query of marks", f"/events?id=d-1&query={longest}")


def collections() -> Iterator[Case]:
    clicks = [{"query": f"q{at}", "id": f"j-{at % MANY}", "gain": 0.5} for at in range(MAX_CLICKED)]
    content = packed({"clicked": clicks})
    put = Case(f"PUT {COLLECTION}/clicked", "all answers", lambda _: Request(f"{PLACE}/clicked", content))
    yield put._replace(at=PLACE)
    route, place = f"{COLLECTION}/synonyms", f"{PLACE}/synonyms"
    groups = [
        [f"a{at} b{other} c d" for other in range(MAX_PHRASES)]
        for at in range(MAX_ALL_PHRASES // MAX_PHRASES)
    ]
    synonyms = packed({"groups": groups})
    put = Case(f"PUT {route}", "as many as are stored", lambda _: Request(place, synonyms))
    yield put._replace(at=PLACE)
    yield got(f"GET {route}", "all", place)
    yield got(f"DELETE {route}", "all", place)
    path = f"/collections/{DOOMED}"
    full = got(f"DELETE {COLLECTION}", "a full one", path)
    # Only one of several requests finds the collection.
    yield full._replace(prepare=_doom, at=path, beside=frozenset({404}))
    yield got(f"DELETE {COLLECTION}", "a name that none has", f"/collections/{'x' * 200}", REFUSED)


def cases() -> list[Case]:
    """Returns all cases. Routes within a collection repeat the first case of the plain route."""
    plain = [
        *embedding(),
        *pairs(),
        *reranked(),
        *tokens(),
        *decoded(),
        *searches(),
        *documents(),
        *files(),
        *judgements(),
        *events(),
        *others(),
    ]
    return [*plain, *_in_a_collection(plain), *collections()]


def _in_a_collection(plain: list[Case]) -> Iterator[Case]:
    seen: set[str] = set()
    for case in plain:
        method, path = case.route.split()
        if (
            path.startswith(("/search", "/suggest", "/documents", "/files", "/feedback", "/events", "/map"))
            and case.route not in seen
        ):
            seen.add(case.route)
            route = f"{method} {COLLECTION}{path}"
            yield case._replace(route=route, make=_placed(case.make), at=PLACE)


def _placed(make: Callable[[Facts], Request]) -> Callable[[Facts], Request]:
    def inside(facts: Facts) -> Request:
        request = make(facts)
        return request._replace(path=PLACE + request.path)

    return inside
