"""Indexes of declared fields (`SIMILE_INDEXED_FIELDS`), over the metadata of documents.

Of each field there are five: of its values, members of arrays among them (GIN); of numbers, of the
beginnings of texts and of instants (filters/times.py), for ranges; and of the documents that have an array or
several values there. They are made while others write, so a field that has just been declared is scanned for
until they are there.
"""

import logging
import re
from collections.abc import Iterator, Sequence
from hashlib import blake2b

import orjson

from service.store.filters.paths import splits
from service.store.postgres.connection import Raw

log = logging.getLogger(__name__)

BEGINNING = 200  # characters of a text; an index takes no row of more than 2,700 bytes
MAX_PATH_NAMES = 3  # of a field that is read by paths, of which there are twice as many with each name more
_PREFIX = "field_"
_LOCK = 7_405_833


def value_at(field: str) -> str:
    """Returns SQL of the value at a field; with a dot in the field, of an array of its values and members.

    The names are literals, as an index needs them.
    """
    if "." not in field:
        return f"(metadata -> {_literal(field)})"
    sql, names = values_of(field)
    for name in names:
        sql = sql.replace("?", _literal(name), 1)  # a literal has no question mark
    return sql


def values_of(field: str) -> tuple[str, list[str]]:
    """Returns SQL of an array of the values at a field with a dot and of their members, and its parameters.

    Of a field without a value it is empty, or NULL.
    """
    paths = paths_of(field)
    if not paths:
        return "simile_values(metadata, ?::text)", [field]
    arrays = " || ".join("jsonb_path_query_array(metadata, ?::jsonpath)" for _ in paths)
    return f"({arrays})", [f"{path}[*]" for path in paths]


def paths_of(field: str) -> list[str]:
    """Returns the paths that a field may mean; none where they are too many, and simile_values is faster."""
    return [f"${path}" for path in _paths(field)] if field.count(".") < MAX_PATH_NAMES else []


def _paths(field: str) -> Iterator[str]:
    for name, rest in splits(field):
        key = f".{orjson.dumps(name).decode()}"
        yield from [key] if rest is None else (f"{key}{path}" for path in _paths(rest))


def number_at(field: str) -> str:
    value = _one_at(field)
    return f"(CASE jsonb_typeof({value}) WHEN 'number' THEN {value}::numeric END)"


def text_at(field: str) -> str:
    value = _one_at(field)
    beginning = f"left({value} #>> '{{}}', {BEGINNING})"
    return f"((CASE jsonb_typeof({value}) WHEN 'string' THEN {beginning} END) COLLATE \"C\")"


def instant_at(field: str) -> str:
    return f"(simile_instant({_one_at(field)} #>> '{{}}') COLLATE \"C\")"


def has_many(field: str) -> str:
    """Returns SQL that holds where a field has an array, or several values."""
    value = value_at(field)
    return f"jsonb_array_length({value}) > 1" if "." in field else f"jsonb_typeof({value}) = 'array'"


def _one_at(field: str) -> str:
    """Returns SQL of the one value of a field."""
    return f"({value_at(field)} -> 0)" if "." in field else value_at(field)


def _literal(name: str) -> str:
    """A string of SQL without a sign that psycopg or a question mark's translation would see."""
    return "U&'" + re.sub(r"[^0-9A-Za-z_ ]", lambda sign: f"\\+{ord(sign[0]):06X}", name) + "'"


def keep(raw: Raw, fields: Sequence[str]) -> None:
    """Make the indexes of `fields`, and drop those of fields that are declared no longer.

    `raw` is in no transaction. Of several processes one does it, and the others do not wait.
    """
    row = raw.execute("SELECT pg_try_advisory_lock(%s)", (_LOCK,)).fetchone()
    if row is None or not row[0]:
        return
    raw.execute("SET statement_timeout = 0")
    wanted = {name: definition for field in fields for name, definition in _definitions(field).items()}
    there = raw.execute(
        "SELECT relname, indisvalid FROM pg_index JOIN pg_class ON pg_class.oid = indexrelid "
        "WHERE indrelid = 'documents'::regclass AND starts_with(relname, %s)",
        (_PREFIX,),
    ).fetchall()
    for name, valid in there:
        if not valid or name not in wanted:
            raw.execute(f"DROP INDEX CONCURRENTLY IF EXISTS {name}".encode())
    missing = wanted.keys() - {name for name, valid in there if valid}
    for name in sorted(missing):
        raw.execute(f"CREATE INDEX CONCURRENTLY {name} ON documents {wanted[name]}".encode())
    if missing:
        raw.execute("ANALYZE documents")  # how rare a value is
        log.info("The declared fields have indexes: %s", ", ".join(fields))


def _definitions(field: str) -> dict[str, str]:
    """The indexes of a field: name to what follows ON documents."""
    value = value_at(field)
    # A field with a dot has other values than its indexes of an older version, so it takes another name.
    name = _PREFIX + blake2b((value if "." in field else field).encode(), digest_size=8).hexdigest()
    return {
        f"{name}_values": f"USING gin ({value} jsonb_path_ops)",
        f"{name}_numbers": f"(collection, {number_at(field)}) WHERE {number_at(field)} IS NOT NULL",
        f"{name}_texts": f"(collection, {text_at(field)}) WHERE {text_at(field)} IS NOT NULL",
        f"{name}_times": f"(collection, {instant_at(field)}) WHERE {instant_at(field)} IS NOT NULL",
        f"{name}_arrays": f"(collection) WHERE {has_many(field)}",
    }
