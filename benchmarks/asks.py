"""The requests of the soak: every kind, right and wrong, and the statuses that each may get.

A client writes under names of its own and from a bounded set of them, so the store keeps its size however
long the soak goes on.
"""

import json
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote

NAMES = 200  # documents of one client, at most
MOST_TEXTS = 48
LONG_WORDS = 600
TOO_MANY_INPUTS = 2049
DEEP = 5000

JSON = {"content-type": "application/json"}
AS_BYTES = {"accept": "application/octet-stream"}
IN_TIME = [{"x-timeout-ms": milliseconds} for milliseconds in ("1", "5", "20")]
OPTIONS: list[dict[str, Any]] = [
    {},
    {"normalize": False},
    {"dimensions": 8},
    {"truncation_direction": "left"},
]
THREE = {"kind": {"$in": [0, 1, 2]}}
CODED = [{"encoding_format": "float"}, {"encoding_format": "base64"}]
COHERE = {"model": "any", "input_type": "search_document", "embedding_types": ["float", "int8", "ubinary"]}
READ = ["/documents?limit=50", "/documents/count"]
LOOKED_AT = ["/info", "/models", "/health", "/ready", "/metrics"]


@dataclass(frozen=True, slots=True)
class Ask:
    """A request; `expected` are the statuses that it may be answered with."""

    name: str
    method: str
    target: str
    body: bytes | None = None
    expected: tuple[int, ...] = (200,)
    headers: Mapping[str, str] = field(default_factory=lambda: JSON)


class Asks:
    """The requests of one client, drawn by `chance`."""

    def __init__(self, texts: Sequence[str], owner: str, chance: random.Random) -> None:
        self._texts = texts
        self._owner = owner
        self._chance = chance
        text, some, pick, post = self._text, self._some, chance.choice, _post
        self._kinds: dict[Callable[[], Ask], int] = {  # and their weights
            lambda: post("embed", "/embed", {"inputs": text()}): 6,
            lambda: post("embed many", "/embed", {"inputs": some(MOST_TEXTS)} | pick(OPTIONS)): 3,
            self._embed_long: 1,
            lambda: post("embed as bytes", "/embed", {"inputs": some(8)}, more=AS_BYTES): 1,
            lambda: post("out of time", "/embed", {"inputs": some(32)}, (200, 504), pick(IN_TIME)): 1,
            lambda: post("similarity", "/similarity", {"inputs": self._compared()}): 2,
            lambda: post("similarity", "/similarity", {"pairs": [[each, text()] for each in some(8)]}): 1,
            self._search: 8,
            lambda: post("search many", "/search", {"queries": some(8), "k": 10, "filter": THREE}): 2,
            lambda: post("openai", "/v1/embeddings", {"input": some(8), "model": "any"} | pick(CODED)): 3,
            lambda: post("cohere", "/v2/embed", COHERE | {"texts": some(8)}): 1,
            lambda: post("tokenize", "/tokenize", {"inputs": some(8)}): 1,
            lambda: post("write", "/documents", {"documents": self._documents()}): 4,
            lambda: Ask("delete", "DELETE", self._one()): 2,
            lambda: Ask("delete by filter", "DELETE", f"/documents?filter={_quoted(self._fields())}"): 1,
            lambda: Ask("read documents", "GET", pick([*READ, self._one()]), None, (200, 404)): 2,
            lambda: Ask("operation", "GET", pick(LOOKED_AT)): 2,
            lambda: pick(WRONG): 4,
        }

    def next(self) -> Ask:
        [make] = self._chance.choices([*self._kinds], [*self._kinds.values()])
        return make()

    def large(self) -> bytes:
        """A body that takes the service a while, for a client that does not wait for the answer."""
        return _json({"inputs": self._some(MOST_TEXTS)})

    def _embed_long(self) -> Ask:
        body = {"inputs": " ".join(self._text() for _ in range(LONG_WORDS // 10))}
        if self._chance.random() < 0.5:
            return _post("embed long", "/embed", body)
        return _post("embed too long", "/embed", body | {"truncate": False}, (422,))

    def _search(self) -> Ask:
        target = f"/search?k={self._chance.choice([1, 10, 100])}&q={quote(self._text()[:80])}"
        if self._chance.random() < 0.3:
            target += f"&filter={_quoted({'kind': self._chance.randrange(4)})}"
        return Ask("search", "GET", target)

    def _compared(self) -> dict[str, Any]:
        return {"source_sentence": self._text(), "sentences": self._some(8)}

    def _documents(self) -> list[dict[str, Any]]:
        return [{"id": self._name(), "text": text, "metadata": self._fields()} for text in self._some(20)]

    def _text(self) -> str:
        return self._chance.choice(self._texts)

    def _some(self, most: int) -> list[str]:
        return [self._text() for _ in range(self._chance.randint(1, most))]

    def _fields(self) -> dict[str, Any]:
        return {"owner": self._owner, "kind": self._chance.randrange(4)}

    def _name(self) -> str:
        return f"{self._owner}-{self._chance.randrange(NAMES)}"

    def _one(self) -> str:
        return f"/documents/{self._name()}"


def _json(body: Any) -> bytes:
    return json.dumps(body).encode()


def _quoted(condition: Any) -> str:
    return quote(json.dumps(condition))


def _post(
    name: str, path: str, body: Any, expected: tuple[int, ...] = (200,), more: dict[str, str] = JSON
) -> Ask:
    return Ask(name, "POST", path, _json(body), expected, JSON | more)


def _bad(body: bytes, status: int) -> Ask:
    return Ask("wrong", "POST", "/embed", body, (status,))


WRONG = [
    _bad(b'{"inputs": ', 422),
    _bad(b'{"inputs": 5}', 422),
    _bad(b'{"inputs": ["a", NaN]}', 422),
    _bad(b'{"inputs": ["\xff"]}', 422),
    _bad(b'{"inputs": ' + DEEP * b"[", 422),
    _bad(_json({"inputs": TOO_MANY_INPUTS * ["a"]}), 422),
    _bad(_json({"inputs": "a", "dimensions": 100_000}), 422),
    _bad(_json({"inputs": []}), 400),
    _bad(_json({"inputs": ["a", " "]}), 400),
    Ask("wrong", "POST", "/embed", b"a", (415,), {"content-type": "text/plain"}),
    Ask("wrong", "POST", "/embed", _json({"inputs": "a"}), (422,), JSON | {"x-timeout-ms": "soon"}),
    Ask("wrong", "GET", "/embed", None, (405,)),
    Ask("wrong", "GET", "/nowhere", None, (404,)),
    Ask("wrong", "GET", "/search", None, (422,)),
    Ask("wrong", "GET", "/search?q=a&k=0", None, (422,)),
    Ask("wrong", "GET", "/search?q=a&filter=%7B%22a%22%3A%7B%22%24like%22%3A1%7D%7D", None, (422,)),
    Ask("wrong", "DELETE", "/documents", None, (422,)),
    Ask("wrong", "POST", "/documents", _json({"documents": [{"id": "a", "text": ""}]}), (400,)),
    Ask("wrong", "POST", "/models/20200101T000000-none-00000000/activate", None, (404,)),
]
