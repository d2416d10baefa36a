"""Costly requests to documents, search and feedback; and those of every route together."""

from collections.abc import Callable, Iterator
from urllib.parse import quote

from tests.service.costly import (
    BODY,
    LINE,
    LONG,
    MANY,
    SHARE,
    TEXTS,
    Case,
    Facts,
    Request,
    embedding,
    filled,
    got,
    marks,
    others,
    packed,
    pairs,
    posted,
    tokens,
    words,
)

COLLECTION = "/collections/{collection}"
PLACE = "/collections/busy"  # where a route of a collection is asked
NEVER = {"there is no such field": 1}


def filters(route: str, path: str) -> Iterator[Case]:
    """Of a route that takes one as a parameter; nothing passes any of them."""
    inside = path + ("&" if "?" in path else "?") + "filter="
    chosen: dict[str, object] = {
        "many conditions": {"$and": [NEVER] * (LINE // 60)},
        "many values": {"nothing": {"$in": list(range(LINE // 10))}},
    }
    for name, value in chosen.items():
        yield got(route, name, inside + quote(packed(value), safe=""))
    yield got(route, "a deep filter", inside + quote('{"$and":[' * (LINE // 30), safe=""))


def searches() -> Iterator[Case]:
    route = "GET /search"
    for mode in ("dense", "lexical", "hybrid"):
        for kind, text in TEXTS.items():
            query = quote(text(LINE // 3), safe="")
            yield got(
                route, f"{mode}, a query of {kind}", f"/search?mode={mode}&q={query[: LINE // 18 * 18]}"
            )
    yield got(route, "as many hits as there may be", "/search?q=red&k=1000&offset=10000&mode=hybrid")
    yield got(route, "documents with much metadata", "/search?q=metadata&k=1000")
    yield from filters(route, "/search?q=red&k=1000")
    route = "POST /search"
    for mode in ("dense", "lexical", "hybrid"):
        yield posted(route, f"{mode}, 2,048 queries", queries, [words(60)] * MANY, mode, 1)
        yield posted(route, f"{mode}, 50 queries of 1,000 hits", queries, ["red"] * 50, mode, 1000)
        for kind, text in TEXTS.items():
            yield posted(
                route,
                f"{mode}, one query of {kind}",
                lambda text, mode: queries([text(LONG)], mode, 1),
                text,
                mode,
            )
    yield posted(route, "lexical, 2,048 long queries", lambda: queries([words(SHARE)] * MANY, "lexical", 1))
    yield Case(route, "2,048 vectors", _vectors)
    yield posted(route, "empty objects", lambda: filled(b'{"queries":[', b"{}", b"]}"))
    yield posted(
        route,
        "many conditions",
        lambda: filled(b'{"queries":["a"],"filter":{"$and":[', packed(NEVER), b"]}}"),
    )
    yield posted(
        route, "many values", lambda: filled(b'{"queries":["a"],"filter":{"a":{"$in":[', b"7", b"]}}}")
    )


def queries(asked: list[str], mode: str, k: int) -> object:
    return {"queries": asked, "mode": mode, "k": k}


def _vectors(facts: Facts) -> Request:
    vectors = [[1.0] * facts.dimension] * MANY
    return Request("/search", packed({"queries": vectors, "model": facts.version, "k": 24}))


def documents() -> Iterator[Case]:
    route = "POST /documents"

    def put(*texts: str, **metadata: object) -> object:
        return {
            "documents": [
                {"id": f"c{at}", "text": text, "metadata": metadata} for at, text in enumerate(texts)
            ]
        }

    for kind, text in TEXTS.items():
        yield posted(route, f"one text of {kind}", lambda text: put(text(LONG)), text)
    yield posted(route, "2,048 long texts", lambda: put(*[words(SHARE)] * MANY))
    yield posted(route, "metadata of one text", lambda: put("a", much=words(LONG)))
    yield posted(route, "metadata of many numbers", lambda: put("a", much=[7] * (BODY // 3)))
    yield posted(route, "metadata of 2,048", lambda: put(*["a"] * MANY, much=words(SHARE)))
    yield posted(
        route, "deep metadata", lambda: b'{"documents":[{"text":"a","metadata":{"a":' + b"[" * (LONG)
    )
    yield posted(route, "empty objects", lambda: filled(b'{"documents":[', b"{}", b"]}"))
    for name, line in {
        "empty objects": lambda: b"{}\n" * (BODY // 3),
        "one endless text": lambda: b'{"text": "' + b"a" * (LONG),
        "marks": lambda: b'{"id": "m", "text": "' + marks(250_000).encode() + b'"}\n',
    }.items():
        yield lines(name, line)
    longest = quote("\u0315" * 512, safe="")
    yield got("GET /documents", "all that a page holds", "/documents?limit=1000")
    for path in ("/documents", "/documents/count"):
        yield from filters(f"GET {path}", path)
    yield from filters("DELETE /documents", "/documents")
    for method in ("GET", "DELETE"):
        yield got(f"{method} /documents/{{id}}", "the longest id", f"/documents/{longest}")


def lines(name: str, body: Callable[[], bytes]) -> Case:
    """An import: it may take for ever, so no deadline holds it."""

    def make(facts: Facts) -> Request:
        return Request("/documents", body(), "application/x-ndjson")

    return Case("POST /documents", f"lines of {name}", make, timed=False)


def judgements() -> Iterator[Case]:
    route = "POST /feedback"

    def judged(count: int, query: str) -> object:
        return {"feedback": [{"query": f"{at}{query}", "id": "d-1", "relevant": True} for at in range(count)]}

    yield posted(route, "2,048 long queries", lambda: judged(MANY, words(1000)))
    yield posted(route, "2,048 queries of marks", lambda: judged(MANY, marks(2000)))
    yield posted(route, "one query of marks", lambda: judged(1, marks(LONG)))
    yield posted(route, "empty objects", lambda: filled(b'{"feedback":[', b"{}", b"]}"))
    yield got("GET /feedback", "all that a page holds", "/feedback?limit=1000")
    yield got("GET /feedback/count", "it", "/feedback/count")
    yield got(
        "DELETE /feedback", "a query of marks", f"/feedback?id=d-1&query={quote(marks(LINE // 3), safe='')}"
    )


def cases() -> list[Case]:
    """All of them; of a route of a collection, those that cost most of the same one without."""
    plain = [
        *embedding("POST /embed", "inputs", whole=True),
        *embedding("POST /", "inputs", whole=False),
        *embedding("POST /v1/embeddings", "input", whole=False),
        *embedding("POST /embeddings", "input", whole=False),
        *embedding("POST /v2/embed", "texts", whole=False),
        *pairs(),
        *tokens(),
        *searches(),
        *documents(),
        *judgements(),
        *others(),
    ]
    return [*plain, *_in_a_collection(plain)]


def _in_a_collection(plain: list[Case]) -> Iterator[Case]:
    seen: set[str] = set()
    for case in plain:
        method, path = case.route.split()
        if path.startswith(("/search", "/documents", "/feedback")) and case.route not in seen:
            seen.add(case.route)
            yield case._replace(route=f"{method} {COLLECTION}{path}", make=_placed(case.make))


def _placed(make: Callable[[Facts], Request]) -> Callable[[Facts], Request]:
    def inside(facts: Facts) -> Request:
        request = make(facts)
        return request._replace(path=PLACE + request.path)

    return inside
