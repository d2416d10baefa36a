"""Indexes of declared fields (`SIMILE_INDEXED_FIELDS`), over the metadata of documents.

Of each field there are four: of its values, members of arrays among them (GIN); of numbers and of the
beginnings of texts, for ranges; and of the documents that have an array there. They are made while others
write, so a field that has just been declared is scanned for until they are there.
"""

import logging
import re
from collections.abc import Sequence
from hashlib import blake2b

from service.store.postgres.connection import Raw

log = logging.getLogger(__name__)

BEGINNING = 200  # characters of a text; an index takes no row of more than 2,700 bytes
_PREFIX = "field_"
_LOCK = 7_405_833


def value_at(field: str) -> str:
    """SQL of the value at a field. Its names are literals, as an index needs them."""
    return "(metadata" + "".join(f" -> {_literal(name)}" for name in field.split(".")) + ")"


def number_at(field: str) -> str:
    value = value_at(field)
    return f"(CASE jsonb_typeof({value}) WHEN 'number' THEN {value}::numeric END)"


def text_at(field: str) -> str:
    value = value_at(field)
    beginning = f"left({value} #>> '{{}}', {BEGINNING})"
    return f"((CASE jsonb_typeof({value}) WHEN 'string' THEN {beginning} END) COLLATE \"C\")"


def is_array(value: str) -> str:
    return f"jsonb_typeof({value}) = 'array'"


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
    name = _PREFIX + blake2b(field.encode(), digest_size=8).hexdigest()
    value = value_at(field)
    return {
        f"{name}_values": f"USING gin ({value} jsonb_path_ops)",
        f"{name}_numbers": f"(collection, {number_at(field)}) WHERE {number_at(field)} IS NOT NULL",
        f"{name}_texts": f"(collection, {text_at(field)}) WHERE {text_at(field)} IS NOT NULL",
        f"{name}_arrays": f"(collection) WHERE {is_array(value)}",
    }
