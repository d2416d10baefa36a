"""The most expensive allowed requests, and hostile ones: texts, ids, and routes without a body.

The limits are the defaults of the settings. Each request is built when it is sent, because all together would
take gigabytes.
"""

import json
from collections.abc import Callable, Iterator
from typing import NamedTuple

from service.settings import Settings
from tests.service.process import Service


def default(setting: str) -> int:
    """Returns the default of a setting."""
    return int(Settings.model_fields[setting].default)


BODY = (default("max_body_mb") << 20) - 4096  # just below the limit of a body
LONG = BODY - 4096  # bytes of a text or value that fills a body by itself
MANY = default("max_inputs")
SHARE = BODY // MANY - 100  # bytes of each of `MANY` texts
VALUES = default("max_values") - 1000
LINE = 30_000  # bytes of a path with parameters, where a head may have 64 KiB
UNITS = {
    "words": "red river stone ",
    "punctuation": ".,;!",
    "CJK": "天地人",
    "marks": "\u0315\u0300",  # Normalization reorders them, in quadratic time for a long run.
    "characters that grow": "\ufdfa",  # One character becomes eighteen.
    "one word": "a",
}
# Expected statuses. An allowed request may also hit its deadline or a full queue.
ALLOWED = frozenset({200, 429, 504})
REFUSED = frozenset({422})
REFUSED_THERE = frozenset({400})


class Facts(NamedTuple):
    """Values of the running service that requests contain."""

    version: str
    dimension: int


class Request(NamedTuple):
    path: str
    body: bytes = b""
    kind: str = "application/json"


def _nothing(service: Service, at: str) -> None:
    """Does nothing. The default of `Case.prepare`."""


class Case(NamedTuple):
    route: str  # "METHOD /path" as in the OpenAPI document
    name: str
    make: Callable[[Facts], Request]
    expected: frozenset[int] = ALLOWED
    beside: frozenset[int] = frozenset({429})  # also expected if several requests run at once
    timed: bool = True  # The deadline applies.
    prepare: Callable[[Service, str], None] = _nothing  # before each try
    at: str = ""  # path of the collection to prepare

    def __str__(self) -> str:
        return f"{self.route} {self.name}"


def of(unit: str, characters: int) -> str:
    """Returns a text with exactly `characters` characters."""
    return ("a" + unit * (characters // len(unit) + 1))[:characters]


def sized(unit: str, size: int) -> str:
    """Returns a text of nearly `size` bytes of UTF-8, and not more."""
    return of(unit, size * len(unit) // len(unit.encode()))


def words(characters: int) -> str:
    return of(UNITS["words"], characters)


def distinct(characters: int) -> str:
    """Returns distinct words of twenty characters, cut to `characters` in all."""
    return " ".join(f"w{at:019}" for at in range(characters // 21 + 1))[:characters]


def packed(value: object) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()


def filled(before: bytes, item: bytes, after: bytes, size: int = BODY) -> bytes:
    """Returns a body of at most `size` bytes: `before`, as many items as fit, and `after`."""
    return before + b",".join([item] * ((size - len(before) - len(after)) // (len(item) + 1))) + after


def valued(before: bytes, item: bytes, worth: int, after: bytes) -> bytes:
    """Returns a body with as many items as the limit of values allows. Each counts as `worth` values."""
    return before + b",".join([item] * (VALUES // worth)) + after


def posted(
    route: str, name: str, body: Callable[..., object], *arguments: object, expected: frozenset[int] = ALLOWED
) -> Case:
    """Returns a case that posts `body(*arguments)`, which is bytes or a JSON value."""

    def make(facts: Facts) -> Request:
        content = body(*arguments)
        return Request(route.split()[1], content if isinstance(content, bytes) else packed(content))

    return Case(route, name, make, expected)


def got(route: str, name: str, path: str, expected: frozenset[int] = ALLOWED) -> Case:
    return Case(route, name, lambda facts: Request(path), expected)


def embedding() -> Iterator[Case]:
    """Yields requests for `/embed`, and for similar routes in their own formats."""
    route, ids = "POST /embed", default("max_ids")
    for kind in ("words", "marks", "characters that grow", "one word"):
        yield posted(route, f"one text of {kind}", lambda kind: {"inputs": sized(UNITS[kind], LONG)}, kind)
    for kind in ("words", "marks"):
        many = [sized(UNITS[kind], SHARE)] * MANY
        yield posted(route, f"2,048 texts of {kind}", lambda many: {"inputs": many}, many)
    yield posted(route, "one row of ids", _ids, "inputs", 1, ids)
    yield posted(route, "many values", lambda: valued(b'{"inputs":"a","x":[', b"7", 1, b"]}"))
    yield posted(route, "many objects", lambda: valued(b'{"inputs":"a","x":[', b"{}", 5, b"]}"))
    yield posted(
        route,
        "a text that is too long, uncut",
        lambda: {"truncate": False, "inputs": words(LONG)},
        expected=REFUSED | {504},  # Its tokens are counted.
    )
    large = lambda: b'{"inputs":"' + b"a" * (default("max_body_mb") << 20) + b'"}'  # noqa: E731
    yield posted(route, "a body that is too large", large, expected=frozenset({413}))
    yield posted(route, "too many ids", _ids, "inputs", MANY, ids + 2 * MANY, expected=REFUSED)
    yield posted(route, "too many values", lambda: filled(b'{"inputs":[', b"9", b"]}"), expected=REFUSED)
    yield posted(route, "deep nesting", lambda: b'{"inputs":' + b"[" * LONG, expected=REFUSED)
    yield posted("POST /", "2,048 rows of ids", _ids, "inputs", MANY, ids)
    long = lambda: {"model": "m", "input": [sized(UNITS["words"], SHARE)] * MANY}  # noqa: E731
    yield posted("POST /embeddings", "2,048 texts", long)
    route = "POST /v1/embeddings"
    yield posted(route, "2,048 rows of ids", _ids, "input", MANY, ids)
    yield posted(route, "one row of ids", _ids, "input", 1, ids)
    cohere = b'{"model":"m","input_type":"search_document","embedding_types":["float"],"texts":['
    route = "POST /v2/embed"
    yield posted(route, "one text of marks", lambda: cohere + packed(sized(UNITS["marks"], LONG)) + b"]}")
    yield posted(route, "too many values", lambda: filled(cohere, b"{}", b"]}"), expected=REFUSED_THERE)


def _ids(field: str, rows: int, ids: int) -> object:
    """Returns `ids` ids in `rows` rows, with the special ids of the tiny model."""
    return {"model": "m", field: [[2, *[9] * (ids // rows - 2), 3]] * rows}


def pairs() -> Iterator[Case]:
    route = "POST /similarity"
    long = {"source_sentence": "a", "sentences": [words(SHARE)] * (MANY - 1)}
    yield posted(route, "2,047 sentences", lambda: {"inputs": long})
    pair = [sized(UNITS["marks"], SHARE)] * 2
    yield posted(route, "1,024 pairs of marks", lambda: {"pairs": [pair] * (MANY // 2)})
    yield posted(route, "empty pairs", lambda: filled(b'{"pairs":[', b"[]", b"]}"), expected=REFUSED)


def reranked() -> Iterator[Case]:
    query = words(default("max_query_characters"))
    route = "POST /rerank"
    for kind in ("words", "marks"):
        many = [sized(UNITS[kind], SHARE)] * MANY
        yield posted(route, f"2,048 texts of {kind}", lambda many: {"query": query, "texts": many}, many)
    one = lambda: {"query": query, "texts": [sized(UNITS["marks"], LONG - len(query))]}  # noqa: E731
    yield posted(route, "one text of marks", one)
    uncut = lambda: {"query": "a", "truncate": False, "texts": [words(LONG)]}  # noqa: E731
    yield posted(route, "a text that is too long, uncut", uncut, expected=REFUSED | {504})
    long = lambda: {"query": words(LONG), "texts": ["a"]}  # noqa: E731
    yield posted(route, "a query that is too long", long, expected=REFUSED)
    documents = [{"text": words(SHARE)}] * MANY
    for route in ("POST /v1/rerank", "POST /v2/rerank"):
        yield posted(route, "2,048 documents", lambda: {"query": query, "documents": documents})
        many_documents = lambda: filled(b'{"query":"a","documents":[', b"{}", b"]}")  # noqa: E731
        yield posted(route, "empty documents", many_documents, expected=REFUSED_THERE)
    pair = [words(SHARE // 2)] * 2
    yield posted("POST /predict", "2,048 pairs", lambda: {"inputs": [pair] * MANY})
    empty = lambda: filled(b'{"inputs":[', b"[]", b"]}")  # noqa: E731
    yield posted("POST /predict", "empty pairs", empty, expected=REFUSED)


def tokens() -> Iterator[Case]:
    route, most = "POST /tokenize", default("max_tokenize_characters")
    for kind, unit in UNITS.items():
        yield posted(route, f"as much of {kind}", lambda unit: {"inputs": of(unit, most)}, unit)
    yield posted(route, "2,048 texts", lambda: {"inputs": [words(most // MANY)] * MANY})
    yield posted(route, "far too much", lambda: {"inputs": sized(UNITS["marks"], LONG)}, expected=REFUSED)


def decoded() -> Iterator[Case]:
    route, most = "POST /decode", default("max_decode_ids")
    yield posted(route, "one row of ids", lambda: {"ids": [9] * most})
    yield posted(route, "2,048 rows of ids", lambda: {"ids": [[9] * (most // MANY)] * MANY})
    yield posted(route, "far too many", lambda: filled(b'{"ids":[', b"[]", b"]}"), expected=REFUSED)


def others() -> Iterator[Case]:
    """Yields requests with a body and many parameters for routes that accept neither."""
    name = "x" * 200
    for route, (path, *statuses) in {
        "GET /v1/models": ("/v1/models", 200),
        "GET /models": ("/models", 200),
        "GET /": ("/", 200),
        "GET /me": ("/me", 422),
        "GET /map": ("/map", 422),
        "GET /info": ("/info", 200),
        "GET /health": ("/health", 200),
        "GET /ready": ("/ready", 200),
        "GET /metrics": ("/metrics", 200),
        "GET /collections": ("/collections", 422),
        "GET /models/{version}": (f"/models/{name}", 404),
        "GET /models/{version}/report": (f"/models/{name}/report", 404),
        "GET /models/{version}/report/{file}": (f"/models/{name}/report/{name}", 404),
        "POST /models/{version}/activate": (f"/models/{name}/activate", 404),
        "POST /models/{version}/keep": (f"/models/{name}/keep", 422),
        "POST /models/{version}/test": (f"/models/{name}/test", 409),
        "GET /models/{version}/test": (f"/models/{name}/test", 404),
        "DELETE /models/{version}/test": (f"/models/{name}/test", 404),
        "GET /examples": ("/examples", 422),
        "POST /models/rollback": ("/models/rollback", 409),
        "GET /retraining": ("/retraining", 200),
        "POST /retraining": ("/retraining", 409),
    }.items():
        at = f"{path}?{'a=b&' * (LINE // 4)}"
        yield Case(route, "a body that nobody reads", _unread(at), frozenset(statuses))
    route = "POST /models/deactivate"
    yield Case(route, "a body that nobody reads", _unread("/models/deactivate"), frozenset({202, 409}))


def _unread(path: str) -> Callable[[Facts], Request]:
    return lambda facts: Request(path, b"[" * BODY)
