"""Requests that cost as much as the contract allows, and hostile ones: texts, ids, and what takes no body.

Each is made when it is sent: sixteen megabytes of each at once would be gigabytes here.
"""

import json
from collections.abc import Callable, Iterator
from typing import NamedTuple

BODY = (16 << 20) - 4096  # just below what a body may have
LONG = BODY - 4096  # bytes of one text, or of what else fills a body
MANY = 2048  # inputs of one request
SHARE = BODY // MANY - 100  # bytes of each when there are so many
TOKENIZED = 1_000_000  # characters of one /tokenize
LINE = 30_000  # bytes of a path with its parameters, of which a head of requests may have 64 KiB
MARKS = "\u0315\u0300"  # in an order that normalising turns round: quadratic over a long run
GROWS = "\ufdfa"  # one character that becomes eighteen


class Facts(NamedTuple):
    """What a request must know of the service."""

    version: str
    dimension: int


class Request(NamedTuple):
    path: str
    body: bytes = b""
    kind: str = "application/json"


class Case(NamedTuple):
    route: str  # "METHOD /path" as the service's own document names it
    name: str
    make: Callable[[Facts], Request]
    timed: bool = True  # its answer must come by its deadline

    def __str__(self) -> str:
        return f"{self.route} {self.name}"


def words(size: int) -> str:
    return ("red river stone " * (size // 16 + 1))[:size]


def marks(size: int) -> str:
    """About so many bytes of UTF-8."""
    return "a" + MARKS * (size // 4)


def grows(size: int) -> str:
    return GROWS * (size // 3)


TEXTS: dict[str, Callable[[int], str]] = {
    "words": words,
    "marks": marks,
    "characters that grow": grows,
    "one word": "a".__mul__,
}


def packed(value: object) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()


def filled(before: bytes, item: bytes, after: bytes) -> bytes:
    """As many of `item` as a body may hold."""
    return before + b",".join([item] * ((BODY - len(before) - len(after)) // (len(item) + 1))) + after


def posted(route: str, name: str, body: Callable[..., object], *arguments: object) -> Case:
    """`body`, called with `arguments`, gives the bytes, or what JSON makes them of."""

    def make(facts: Facts) -> Request:
        content = body(*arguments)
        return Request(route.split()[1], content if isinstance(content, bytes) else packed(content))

    return Case(route, name, make)


def got(route: str, name: str, path: str) -> Case:
    return Case(route, name, lambda facts: Request(path))


def embedding(route: str, key: str, *, whole: bool) -> Iterator[Case]:
    """Texts or ids as `key`; all shapes, or those that its siblings take another way."""
    name = packed(key)
    begin = (
        b'{"model":"m","input_type":"search_document","embedding_types":["float"],'
        if key == "texts"
        else b"{"
    )
    begin += name + b":"
    for kind, text in TEXTS.items():
        if whole or kind == "marks":
            yield posted(route, f"one text of {kind}", lambda text: begin + packed([text(LONG)]) + b"}", text)
    yield posted(route, "2,048 long texts", lambda: begin + packed([words(SHARE)] * MANY) + b"}")
    yield posted(route, "empty objects", lambda: filled(begin + b"[", b"{}", b"]}"))
    if key != "texts":
        yield posted(route, "one row of ids", lambda: filled(begin + b"[", b"9", b"]}"))
    if not whole:
        return
    yield posted(route, "2,048 empty texts", lambda: begin + packed([""] * MANY) + b"}")
    yield posted(route, "2,048 texts of marks", lambda: begin + packed([marks(SHARE)] * MANY) + b"}")
    yield posted(route, "2,048 rows of ids", lambda: begin + packed([[2, *[9] * 3900, 3]] * MANY) + b"}")
    yield posted(route, "empty lists", lambda: filled(begin + b"[", b"[]", b"]}"))
    yield posted(route, "deep nesting", lambda: begin + b"[" * (BODY - 100))
    yield posted(route, "a field more", lambda: filled(begin + b'"a","x":[', b"{}", b"]}"))


def pairs() -> Iterator[Case]:
    route = "POST /similarity"
    yield posted(
        route,
        "2,048 sentences",
        lambda: {"inputs": {"source_sentence": "a", "sentences": [words(SHARE)] * (MANY - 1)}},
    )
    yield posted(route, "1,024 pairs of marks", lambda: {"pairs": [[marks(SHARE)] * 2] * (MANY // 2)})
    yield posted(route, "empty pairs", lambda: filled(b'{"pairs":[', b"[]", b"]}"))


def tokens() -> Iterator[Case]:
    route = "POST /tokenize"
    for kind, text in TEXTS.items():
        yield posted(route, f"all characters of {kind}", lambda text: {"inputs": text(TOKENIZED)}, text)
    yield posted(route, "2,048 texts", lambda: {"inputs": [words(TOKENIZED // MANY)] * MANY})
    yield posted(route, "too many characters", lambda: {"inputs": words(LONG)})
    yield posted("POST /decode", "one row of ids", lambda: filled(b'{"ids":[', b"9", b"]}"))
    yield posted("POST /decode", "2,048 rows of ids", lambda: {"ids": [[9] * 4000] * MANY})
    yield posted("POST /decode", "empty rows", lambda: filled(b'{"ids":[', b"[]", b"]}"))


def others() -> Iterator[Case]:
    """What takes no body is sent one all the same."""
    name = "x" * 200
    for route, path in {
        "GET /v1/models": "",
        "GET /models": "",
        "GET /info": "",
        "GET /health": "",
        "GET /ready": "",
        "GET /metrics": "",
        "GET /collections": "",
        "DELETE /collections/{collection}": f"/collections/{name}",
        "GET /models/{version}/report": f"/models/{name}/report",
        "GET /models/{version}/report/{file}": f"/models/{name}/report/{name}",
        "POST /models/{version}/activate": f"/models/{name}/activate",
        "POST /models/rollback": "",
    }.items():
        at = path or route.split()[1]
        yield Case(route, "a body that nobody reads", _unread(at))
        yield got(route, "many parameters", f"{at}?{'a=b&' * (LINE // 4)}")


def _unread(path: str) -> Callable[[Facts], Request]:
    return lambda facts: Request(path, b"[" * BODY)
