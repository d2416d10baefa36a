"""The scope of an API key: collections, a filter and quotas. Start reading at `KeyScope`.

A key with a scope is the key of a tenant. Whatever is outside of the scope does not exist for the key.
"""

import math
import re
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, TypeAlias

import orjson

from service.store.filters.times import parse_time
from service.store.values import COLLECTION_NAME, DEFAULT_COLLECTION

Scalar: TypeAlias = str | int | float | bool

MAX_COLLECTIONS = 100  # Names and prefixes of a scope.
MAX_FIELDS = 8  # Fields of its filter.
MAX_CHARACTERS = 256  # Of a name or a value in the filter.
EVERY = "*"  # At the end of a prefix.
LIMITS = ("max_documents", "max_bytes", "max_collections")
FIELDS = ("collections", "filter", *LIMITS)
EXAMPLE = '{"collections":["acme","acme-*"],"filter":{"tenant":"acme"},"max_documents":100000}'
_PATTERN = re.compile(rf"{COLLECTION_NAME.pattern}|({COLLECTION_NAME.pattern})?\*")


class ScopeError(ValueError):
    """Raised if a scope is malformed. The message says what is allowed, and never quotes the scope."""


@dataclass(frozen=True, slots=True)
class KeyScope:
    """What a key may see and store.

    Attributes:
        collections: Names of collections, and prefixes that end with *.
        filter: Metadata fields with the value that each document has. Empty: all documents.
        max_documents: Maximum number of documents in the scope. None: no limit.
        max_bytes: Maximum bytes of their titles, texts and metadata. None: no limit.
        max_collections: Maximum number of collections in the scope. None: no limit.
    """

    collections: tuple[str, ...]
    filter: tuple[tuple[str, Scalar], ...] = ()
    max_documents: int | None = None
    max_bytes: int | None = None
    max_collections: int | None = None

    def allows(self, collection: str) -> bool:
        """Returns whether a collection is in the scope, existing or not."""
        return any(
            collection.startswith(given[:-1]) if given.endswith(EVERY) else collection == given
            for given in self.collections
        )

    @property
    def conditions(self) -> dict[str, Scalar]:
        """The filter as it is sent in a search."""
        return dict(self.filter)

    @property
    def tenant(self) -> str:
        """A text that is equal for keys that see the same documents."""
        return orjson.dumps([sorted(self.collections), sorted(self.filter)]).decode()

    @property
    def given(self) -> dict[str, Any]:
        """The scope as in the keys file."""
        said: dict[str, Any] = {"collections": list(self.collections)}
        if self.filter:
            said["filter"] = self.conditions
        for name in LIMITS:
            if (limit := getattr(self, name)) is not None:
                said[name] = limit
        return said

    def __str__(self) -> str:
        return orjson.dumps(self.given).decode()


class OpenTo(StrEnum):
    """The keys that a route is open to, because it keeps to their scopes.

    UNSCOPED is the default, so a new route is closed to tenants until somebody has thought about them.
    """

    UNSCOPED = "unscoped"  # Keys without a scope.
    COLLECTIONS = "collections"  # Also keys whose scope has no filter.
    SCOPED = "scoped"  # All keys.

    def admits(self, scope: KeyScope | None) -> bool:
        return scope is None or self is OpenTo.SCOPED or (self is OpenTo.COLLECTIONS and not scope.filter)


def parse_scope(text: str) -> KeyScope:
    """Parses the seventh field of a line of the keys file.

    Raises:
        ScopeError: The text is not a scope.

    """
    try:
        given = orjson.loads(text)
    except orjson.JSONDecodeError:
        given = None
    if not isinstance(given, dict):
        raise ScopeError(f"the scope must be a JSON object such as {EXAMPLE}.")
    if given.keys() - {*FIELDS}:
        raise ScopeError(f"a scope has no other fields than {', '.join(FIELDS)}.")
    return KeyScope(
        _parse_collections(given.get("collections")),
        _parse_filter(given["filter"]) if "filter" in given else (),
        *(_parse_limit(name, given.get(name)) for name in LIMITS),
    )


def _parse_collections(given: object) -> tuple[str, ...]:
    if given is None:
        raise ScopeError(
            f'a scope needs "collections", such as ["acme","acme-*"]; {DEFAULT_COLLECTION!r} is the '
            "collection of requests that name none."
        )
    if not isinstance(given, list) or not 1 <= len(given) <= MAX_COLLECTIONS:
        raise ScopeError(f'"collections" must be a list of 1 to {MAX_COLLECTIONS} names or prefixes.')
    for at, name in enumerate(given, 1):
        if not isinstance(name, str) or not _PATTERN.fullmatch(name):
            raise ScopeError(
                f'entry {at} of "collections" is neither the name of a collection nor a prefix like acme-*.'
            )
    return tuple(dict.fromkeys(given))


def _parse_filter(given: object) -> tuple[tuple[str, Scalar], ...]:
    if not isinstance(given, dict) or not 1 <= len(given) <= MAX_FIELDS:
        raise ScopeError(f'"filter" must be an object with 1 to {MAX_FIELDS} fields: {{"tenant":"acme"}}.')
    for name, value in given.items():
        if not name or name.startswith("$") or "." in name or not _is_plain(name):
            raise ScopeError(
                f'the fields of "filter" must be names of metadata with 1 to {MAX_CHARACTERS} characters, '
                "without dots, which do not begin with $."
            )
        finite = isinstance(value, int) or (isinstance(value, float) and math.isfinite(value))
        if not (finite and abs(value) < 2**53) and not (isinstance(value, str) and _is_plain(value)):
            raise ScopeError(
                f'each value of "filter" must be a text of at most {MAX_CHARACTERS} printable characters, a '
                "number of less than 2^53, true or false."
            )
        if parse_time(value) is not None:  # Other texts of the same time match, so tenants would mix.
            raise ScopeError(
                'no value of "filter" may be a date or a time, because those have several texts.'
            )
    return tuple(sorted(given.items()))


def _is_plain(text: str) -> bool:
    return len(text) <= MAX_CHARACTERS and "\0" not in text and text.isprintable()


def _parse_limit(name: str, given: object) -> int | None:
    if given is None:
        return None
    if not isinstance(given, int) or isinstance(given, bool) or not 1 <= given < 2**53:
        raise ScopeError(f'"{name}" must be a whole number of at least 1. Leave it out for no limit.')
    return given
