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
MOST_DOCUMENTS = 20
LONG_WORDS = 600
TOO_MANY_INPUTS = 2049
DEEP = 5000

JSON = {"content-type": "application/json"}


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
        self._acts: dict[Callable[[], Ask], int] = {  # and their weights
            self._embed: 6,
            self._embed_many: 3,
            self._embed_long: 1,
            self._embed_bytes: 1,
            self._out_of_time: 1,
            self._similarity: 2,
            self._pairs: 1,
            self._search: 8,
            self._searches: 2,
            self._openai: 3,
            self._cohere: 1,
            self._tokenize: 1,
            self._write: 4,
            self._delete: 2,
            self._delete_some: 1,
            self._read: 2,
            self._look: 2,
            self._wrong: 4,
        }

    def next(self) -> Ask:
        [act] = self._chance.choices([*self._acts], [*self._acts.values()])
        return act()

    def large(self) -> bytes:
        """A body that takes the service a while, for a client that does not wait for the answer."""
        return _json({"inputs": self._some(MOST_TEXTS)})

    def _embed(self) -> Ask:
        return Ask("embed", "POST", "/embed", _json({"inputs": self._text()}))

    def _embed_many(self) -> Ask:
        options: list[dict[str, Any]] = [
            {},
            {"normalize": False},
            {"dimensions": 8},
            {"truncation_direction": "left"},
        ]
        body = {"inputs": self._some(MOST_TEXTS)} | self._chance.choice(options)
        return Ask("embed many", "POST", "/embed", _json(body))

    def _embed_long(self) -> Ask:
        text = " ".join(self._text() for _ in range(LONG_WORDS // 10))
        if self._chance.random() < 0.5:
            return Ask("embed long", "POST", "/embed", _json({"inputs": text}))
        body = _json({"inputs": text, "truncate": False})
        return Ask("embed too long", "POST", "/embed", body, (422,))

    def _embed_bytes(self) -> Ask:
        headers = JSON | {"accept": "application/octet-stream"}
        return Ask("embed as bytes", "POST", "/embed", _json({"inputs": self._some(8)}), headers=headers)

    def _out_of_time(self) -> Ask:
        headers = JSON | {"x-timeout-ms": str(self._chance.choice([1, 5, 20]))}
        return Ask("out of time", "POST", "/embed", _json({"inputs": self._some(32)}), (200, 504), headers)

    def _similarity(self) -> Ask:
        inputs = {"source_sentence": self._text(), "sentences": self._some(8)}
        return Ask("similarity", "POST", "/similarity", _json({"inputs": inputs}))

    def _pairs(self) -> Ask:
        pairs = [[self._text(), self._text()] for _ in range(self._chance.randint(1, 8))]
        return Ask("similarity", "POST", "/similarity", _json({"pairs": pairs}))

    def _search(self) -> Ask:
        target = f"/search?k={self._chance.choice([1, 10, 100])}&q={quote(self._text()[:80])}"
        if self._chance.random() < 0.3:
            target += f"&filter={quote(json.dumps({'kind': self._chance.randrange(4)}))}"
        return Ask("search", "GET", target)

    def _searches(self) -> Ask:
        body = {"queries": self._some(8), "k": 10, "filter": {"kind": {"$in": [0, 1, 2]}}}
        return Ask("search many", "POST", "/search", _json(body))

    def _openai(self) -> Ask:
        body = {
            "input": self._some(8),
            "model": "any",
            "encoding_format": self._chance.choice(["float", "base64"]),
        }
        return Ask("openai", "POST", "/v1/embeddings", _json(body))

    def _cohere(self) -> Ask:
        body = {"texts": self._some(8), "model": "any", "input_type": "search_document"}
        return Ask(
            "cohere", "POST", "/v2/embed", _json(body | {"embedding_types": ["float", "int8", "ubinary"]})
        )

    def _tokenize(self) -> Ask:
        return Ask("tokenize", "POST", "/tokenize", _json({"inputs": self._some(8)}))

    def _write(self) -> Ask:
        documents = [
            {"id": self._name(), "text": self._text(), "metadata": self._kind()}
            for _ in range(self._chance.randint(1, MOST_DOCUMENTS))
        ]
        return Ask("write", "POST", "/documents", _json({"documents": documents}))

    def _delete(self) -> Ask:
        return Ask("delete", "DELETE", f"/documents/{self._name()}")

    def _delete_some(self) -> Ask:
        target = f"/documents?filter={quote(json.dumps(self._kind()))}"
        return Ask("delete by filter", "DELETE", target)

    def _read(self) -> Ask:
        targets = ["/documents?limit=50", "/documents/count", f"/documents/{self._name()}"]
        return Ask("read documents", "GET", self._chance.choice(targets), None, (200, 404))

    def _look(self) -> Ask:
        return Ask(
            "operation", "GET", self._chance.choice(["/info", "/models", "/health", "/ready", "/metrics"])
        )

    def _wrong(self) -> Ask:
        return self._chance.choice(WRONG)

    def _text(self) -> str:
        return self._chance.choice(self._texts)

    def _some(self, most: int) -> list[str]:
        return [self._text() for _ in range(self._chance.randint(1, most))]

    def _kind(self) -> dict[str, Any]:
        return {"owner": self._owner, "kind": self._chance.randrange(4)}

    def _name(self) -> str:
        return f"{self._owner}-{self._chance.randrange(NAMES)}"


def _json(body: Any) -> bytes:
    return json.dumps(body).encode()


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
