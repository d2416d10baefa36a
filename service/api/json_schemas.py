"""Fields that routes share, and JSON schemas of what is checked by hand: texts, ids, filters, metadata.

The schemas say what is well-formed. What depends on the served model (its vocabulary, its prompts, its
dimension) or on a setting is refused all the same.
"""

import re
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, Field, StrictStr, WithJsonSchema
from pydantic_core import PydanticCustomError

from service.store.values import MAX_QUERY_CHARACTERS

MAX_ID_CHARACTERS = 512
MAX_NAME_CHARACTERS = 64  # of a search_id or an event_id
MAX_K = 1000  # hits of a search
MAX_OFFSET = 10_000
MAX_PAGE = 1000
Limit = Annotated[int, Field(ge=1, le=MAX_PAGE)]  # of a page


_VISIBLE = re.compile(r"^[^\x00-\x20\x7f-\xa0]{1,128}$")


def _check_user(value: str) -> str:
    # The message does not repeat the value: it may be in a log of the caller.
    if not _VISIBLE.fullmatch(value):
        raise ValueError(
            "an id of a visitor has 1 to 128 characters, none of them a space or a control character"
        )
    return value


# A visitor's opaque id, as the caller knows it; only its hash is kept (auth/visitors.py).
User = Annotated[
    StrictStr, AfterValidator(_check_user), WithJsonSchema({"type": "string", "pattern": _VISIBLE.pattern})
]
USER = "An opaque id of the visitor; only a keyed hash of it is stored"
# Of an answer in which nothing passed a filter.
Warnings = Annotated[
    list[str],
    Field(description="What may be wrong with a filter that nothing passed; absent where nothing is"),
]


class Count(BaseModel):
    count: int


# What contract.py turns into a reference to one of SHAPES, and into a parameter whose text is JSON: pydantic
# and FastAPI have no words for either.
NAMED, HOLDS = "x-named", "x-holds"

# A character that str.isspace() does not take for white space; `\S` is another set in each language.
_INK = r"[^\t-\r\x1c-\x20\x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000]"
TEXT: dict[str, Any] = {"type": "string", "pattern": _INK}
MANY_TEXTS: dict[str, Any] = {"type": "array", "items": TEXT, "minItems": 1}
TEXTS: dict[str, Any] = {"anyOf": [TEXT, MANY_TEXTS]}
_IDS: dict[str, Any] = {"type": "array", "items": {"type": "integer", "minimum": 0}, "minItems": 1}
IDS: dict[str, Any] = {"anyOf": [_IDS, {"type": "array", "items": _IDS, "minItems": 1}]}
INPUTS: dict[str, Any] = {"anyOf": [*TEXTS["anyOf"], *IDS["anyOf"]]}
DIMENSIONS: dict[str, Any] = {"type": "integer", "minimum": 1}
VECTOR: dict[str, Any] = {"type": "array", "items": {"type": "number"}, "minItems": 1}

# SQLite's functions end a text at U+0000, and PostgreSQL does not store it.
_PATTERN = r"^[^\x00]*$"
_PLAIN: dict[str, Any] = {"type": "string", "pattern": _PATTERN}
_STORED_TEXT: dict[str, Any] = {"type": "string", "pattern": rf"^[^\x00]*{_INK}[^\x00]*$"}
_STORED_TITLE: dict[str, Any] = {"type": "string", "pattern": rf"^([^\x00]*{_INK}[^\x00]*)?$"}


def _without_null(text: str) -> str:
    if "\0" in text:
        message = "It has the character U+0000, which cannot be stored. Leave it out"
        raise PydanticCustomError("null_character", message)
    return text


# Texts that a store keeps as they are.
_WITHOUT_NULL = AfterValidator(_without_null)
StoredText = Annotated[StrictStr, _WITHOUT_NULL, WithJsonSchema(_STORED_TEXT)]
StoredTitle = Annotated[StrictStr, _WITHOUT_NULL, WithJsonSchema(_STORED_TITLE)]


def _name(max_characters: int) -> Any:
    return Field(min_length=1, max_length=max_characters, json_schema_extra={"pattern": _PATTERN})


DocumentId = Annotated[StrictStr, _name(MAX_ID_CHARACTERS), _WITHOUT_NULL]
EventName = Annotated[StrictStr, _name(MAX_NAME_CHARACTERS), _WITHOUT_NULL]
StoredQuery = Annotated[
    StrictStr, Field(max_length=MAX_QUERY_CHARACTERS, json_schema_extra=_STORED_TEXT), _WITHOUT_NULL
]

_VALUE = {NAMED: "MetadataValue"}
# A name, or several joined by dots. At the top level it does not begin as an operator of filters does.
_DOTTED = r"(\.[^.\x00]+){0,15}"
_OBJECT: dict[str, Any] = {
    "type": "object",
    "propertyNames": {"type": "string", "pattern": rf"^[^.\x00]+{_DOTTED}$"},
    "additionalProperties": _VALUE,
}
METADATA: dict[str, Any] = {
    **_OBJECT,
    "propertyNames": {"type": "string", "pattern": rf"^[^$.\x00][^.\x00]*{_DOTTED}$"},
}

FILTER: dict[str, Any] = {NAMED: "Filter"}
FilterText = Annotated[str | None, Field(json_schema_extra={HOLDS: FILTER})]
CONDITIONS: dict[str, Any] = {"allOf": [FILTER], "minProperties": 1}  # a filter that is not empty
_FILTERS: dict[str, Any] = {"type": "array", "items": CONDITIONS, "minItems": 1}
_FIELD = r"[^$.\x00][^.\x00]*(\.[^.\x00]+){0,511}"
# Of several types, each keyword binds one.
_SCALAR: dict[str, Any] = {
    "type": ["string", "number", "boolean", "null"],
    "pattern": _PATTERN,
    "minimum": -(2**63),
    "exclusiveMaximum": 2**63,
}
_BOUND: dict[str, Any] = {"type": ["string", "number"], "pattern": _PATTERN}

_CONDITION: dict[str, Any] = {
    **_SCALAR,
    "type": [*_SCALAR["type"], "object"],
    "minProperties": 1,
    "additionalProperties": False,
    "properties": {
        "$in": {"type": "array", "items": _SCALAR},
        "$ne": _SCALAR,
        **dict.fromkeys(("$gt", "$gte", "$lt", "$lte"), _BOUND),
        "$exists": {"type": "boolean"},
    },
}

# What refers to itself, and so needs a name in the OpenAPI document.
SHAPES: dict[str, Any] = {
    "Filter": {
        "title": "Filter",
        "type": "object",
        "properties": {"$and": _FILTERS, "$or": _FILTERS, "$ids": {"type": "array", "items": _PLAIN}},
        "patternProperties": {rf"^{_FIELD}$": _CONDITION},
        "additionalProperties": False,
        "examples": [
            {"topic": "birds"},
            {"year": {"$gte": 1990, "$lt": 2000}, "draft": {"$exists": False}},
            {"$or": [{"tags": {"$in": ["owl", "hawk"]}}, {"$and": [{"source.page": {"$ne": 7}}]}]},
        ],
    },
    "MetadataValue": {
        "title": "MetadataValue",
        "anyOf": [
            {"type": ["number", "boolean", "null"]},
            _PLAIN,
            {"type": "array", "items": _VALUE},
            _OBJECT,
        ],
    },
}
