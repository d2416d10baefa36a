"""Compare the database with the tables, columns, indexes, functions and rights that this version needs.

Start reading at `problem`. The expected names come from the statements of MIGRATIONS (schema.py), so a new
migration needs no second list.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache

from service.store.postgres.connection import Raw
from service.store.postgres.vectors import HALF_DIMENSIONS, table
from service.store.sql.connection import COPYING
from service.store.sql.generations import ACTIVE, BUILDING, DROPPED

LEAST_PGVECTOR = (0, 8)  # iterative scans
RIGHTS = ["SELECT", "INSERT", "UPDATE", "DELETE"]
SCHEMA_TABLE = "simile_schema"
_NAMED = 5  # faults that a message names
_COMMENT = re.compile(r"--[^\n]*")
_BODY = re.compile(r"\$\$.*?\$\$", re.DOTALL)  # of a function, with semicolons of its own
_CREATE_TABLE = re.compile(r"CREATE TABLE (?:IF NOT EXISTS )?(\w+) \((.*)\)", re.DOTALL)
_CREATE_INDEX = re.compile(r"CREATE (?:UNIQUE )?INDEX (?:IF NOT EXISTS )?(\w+) ON (\w+)")
_CREATE_ALONE = re.compile(r"CREATE (?:OR REPLACE )?(SEQUENCE|FUNCTION) (?:IF NOT EXISTS )?(\w+)")
_ALTER_TABLE = re.compile(r"ALTER TABLE (\w+) (.*)", re.DOTALL)
_DROP = re.compile(r"DROP (TABLE|INDEX|SEQUENCE|FUNCTION) (?:IF EXISTS )?(\w+)")
_COLUMNS = re.compile(r"\(([\w, ]+)\)")

# Of each relation: whether it exists, its columns, its valid indexes, and the rights that this role lacks.
_LOOK = """
    SELECT name, oid IS NOT NULL,
        ARRAY(SELECT attname::text FROM pg_attribute
            WHERE attrelid = oid AND attnum > 0 AND NOT attisdropped),
        ARRAY(SELECT relname::text FROM pg_index JOIN pg_class ON pg_class.oid = indexrelid
            WHERE indrelid = wanted.oid AND indisvalid),
        ARRAY(SELECT needed FROM unnest(%s::text[]) AS needed WHERE NOT has_table_privilege(oid, needed))
    FROM (SELECT name, to_regclass(name)::oid AS oid FROM unnest(%s::text[]) AS name) AS wanted
"""


@dataclass
class Expected:
    """Names that a schema has. `columns` and `indexes` are by table."""

    columns: dict[str, set[str]] = field(default_factory=dict)
    indexes: dict[str, set[str]] = field(default_factory=dict)
    sequences: set[str] = field(default_factory=set)
    functions: set[str] = field(default_factory=set)


@cache
def expected(migrations: tuple[str, ...]) -> Expected:
    """The names that the statements of `migrations` make, after all of them ran."""
    found = Expected()
    for statement in _BODY.sub("", _COMMENT.sub("", "".join(migrations))).split(";"):
        _apply(found, " ".join(statement.split()))
    return found


def _apply(found: Expected, statement: str) -> None:
    if made := _CREATE_TABLE.fullmatch(statement):
        name, body = made.groups()
        found.columns[name], found.indexes[name] = set(), set()
        for entry in _entries(body):
            _add_column(found, name, entry)
    elif made := _CREATE_INDEX.match(statement):
        found.indexes[made[2]].add(made[1])
    elif made := _CREATE_ALONE.match(statement):
        _alone(found, made[1]).add(made[2])
    elif made := _ALTER_TABLE.fullmatch(statement):
        for action in _entries(made[2]):
            _alter(found, made[1], action)
    elif made := _DROP.match(statement):
        _drop(found, *made.groups())


def _alone(found: Expected, kind: str) -> set[str]:
    """The names of a kind that belongs to no table."""
    return {"SEQUENCE": found.sequences, "FUNCTION": found.functions}[kind]


def _drop(found: Expected, kind: str, name: str) -> None:
    if kind in {"SEQUENCE", "FUNCTION"}:
        _alone(found, kind).discard(name)
        return
    if kind == "TABLE":
        found.columns.pop(name, None)
        found.indexes.pop(name, None)
    for names in found.indexes.values():
        names.discard(name)


def _entries(body: str) -> Iterator[str]:
    """The parts between the commas that are in no parentheses."""
    depth, part = 0, ""
    for character in body:
        depth += {"(": 1, ")": -1}.get(character, 0)
        if character == "," and depth == 0:
            yield part.strip()
            part = ""
        else:
            part += character
    yield part.strip()


def _add_column(found: Expected, table: str, entry: str) -> None:
    """A column, or a constraint of the table; PostgreSQL names the indexes of constraints."""
    first = entry.split(maxsplit=1)[0]
    if first == "UNIQUE":
        columns = _COLUMNS.search(entry)
        assert columns is not None  # noqa: S101  the test of MIGRATIONS says so
        found.indexes[table].add("_".join([table, *re.findall(r"\w+", columns[1]), "key"]))
    elif first == "PRIMARY":
        found.indexes[table].add(f"{table}_pkey")
    elif first not in {"CHECK", "CONSTRAINT", "FOREIGN"}:
        found.columns[table].add(first)
        if "PRIMARY KEY" in entry:
            found.indexes[table].add(f"{table}_pkey")
        if " UNIQUE" in entry:
            found.indexes[table].add(f"{table}_{first}_key")


def _alter(found: Expected, table: str, action: str) -> None:
    words = [word for word in action.split() if word not in {"IF", "NOT", "EXISTS"}]
    match words:
        case ["ADD", "COLUMN", *_]:
            _add_column(found, table, action[action.index(words[2]) :])
        case ["ADD", "UNIQUE" | "PRIMARY", *_]:
            _add_column(found, table, action.removeprefix("ADD "))
        case ["DROP", "COLUMN", name, *_]:
            found.columns[table].discard(name)
        case ["RENAME", "COLUMN", name, "TO", new]:
            found.columns[table] = found.columns[table] - {name} | {new}
        case ["RENAME", "TO", new]:
            found.columns[new], found.indexes[new] = found.columns.pop(table), found.indexes.pop(table)


def problem(raw: Raw, migrations: tuple[str, ...]) -> str | None:
    """What the database lacks for this version, as a sentence; None where it is whole.

    Takes some milliseconds.
    """
    rows = raw.execute(_LOOK, (RIGHTS, [SCHEMA_TABLE])).fetchall()
    if not rows[0][1]:
        return _sentence([f"the table {SCHEMA_TABLE}"])
    if "SELECT" in rows[0][4]:
        return _sentence([f"the right SELECT on {SCHEMA_TABLE}"])
    row = raw.execute(f"SELECT version FROM {SCHEMA_TABLE}".encode()).fetchone()
    version = None if row is None else row[0]
    if version is None or version < len(migrations):
        return (
            f"The database has schema {version or 0}, and this version of Simile needs {len(migrations)}. "
            "Was an older backup restored? Start the service again: it brings the schema up to date."
        )
    if version > len(migrations):
        return (
            f"A newer Simile has changed the database to schema {version}, and this one knows "
            f"{len(migrations)}. Start this service with that version."
        )
    lacking = list(_lacking(raw, expected(migrations)))
    return _sentence(lacking) if lacking else None


def _sentence(lacking: list[str]) -> str:
    shown = ", ".join(lacking[:_NAMED])
    more = f" and {len(lacking) - _NAMED} more" if len(lacking) > _NAMED else ""
    return (
        f"The database lacks {shown}{more}. Restore a backup (pg_restore), or make again what was removed "
        "(docs/REPLICAS.md)."
    )


def _lacking(raw: Raw, needed: Expected) -> Iterator[str]:
    """What is not there, in words."""
    row = raw.execute("SELECT extversion FROM pg_extension WHERE extname = 'vector'").fetchone()
    if row is None:
        yield "the extension vector"
    elif tuple(map(int, row[0].split(".")[:2])) < LEAST_PGVECTOR:
        yield f"pgvector 0.8 or later (it has {row[0]})"
    for name, there, columns, indexes, denied in raw.execute(_LOOK, (RIGHTS, [*needed.columns])).fetchall():
        yield from _of_table(
            name, there, needed.columns[name] - {*columns}, needed.indexes[name] - {*indexes}, denied
        )
    for name in sorted(needed.sequences):
        [there, usable] = raw.execute(
            "SELECT oid IS NOT NULL, oid IS NULL OR (has_sequence_privilege(oid, 'SELECT') "
            "AND has_sequence_privilege(oid, 'USAGE, UPDATE')) "  # one of the two
            "FROM (SELECT to_regclass(%s)::oid AS oid) AS sequence",
            (name,),
        ).fetchone() or (False, True)
        if not there:
            yield f"the sequence {name}"
        elif not usable:
            yield f"the right SELECT, USAGE on {name}"
    functions = raw.execute(
        "SELECT name FROM unnest(%s::text[]) AS name WHERE NOT EXISTS "
        "(SELECT 1 FROM pg_proc WHERE proname = name AND pg_function_is_visible(oid)) ORDER BY name",
        ([*needed.functions],),
    ).fetchall()
    yield from (f"the function {name}" for (name,) in functions)
    readable = raw.execute(
        "SELECT bool_and(has_table_privilege(to_regclass(name), 'SELECT')) "
        "FROM unnest(ARRAY['generations', 'facts']) AS name HAVING count(to_regclass(name)) = 2"
    ).fetchone()
    if readable == (True,):
        yield from _lacking_vectors(raw)


def _lacking_vectors(raw: Raw) -> Iterator[str]:
    """Of the generations. Only the active one needs its index, which a copy builds at its end."""
    copying = raw.execute("SELECT 1 FROM facts WHERE name = %s", (COPYING,)).fetchone() is not None
    dimensions = {
        table(number): (state, dimension)
        for number, state, dimension in raw.execute(
            "SELECT number, state, dimension FROM generations WHERE state NOT IN (%s, %s)",
            (DROPPED, BUILDING),
        ).fetchall()
    }
    for name, there, _, indexes, denied in raw.execute(_LOOK, (RIGHTS, [*dimensions])).fetchall():
        state, dimension = dimensions[name]
        indexed = {f"{name}_pkey"}
        if state == ACTIVE and dimension <= HALF_DIMENSIONS and not copying:
            indexed.add(f"{name}_nearest")
        yield from _of_table(name, there, set(), indexed - {*indexes}, denied)


def _of_table(
    name: str, there: bool, columns: set[str], indexes: set[str], denied: list[str]
) -> Iterator[str]:
    if not there:
        yield f"the table {name}"
        return
    yield from (f"the column {name}.{column}" for column in sorted(columns))
    yield from (f"the index {index}" for index in sorted(indexes))
    if denied:
        yield f"the right {', '.join(denied)} on {name}"


def drop_everything(raw: Raw, migrations: tuple[str, ...]) -> None:
    """Drop the tables, sequences and functions of a schema, and the vectors of every generation."""
    needed = expected(migrations)
    vectors = raw.execute(
        "SELECT relname FROM pg_class WHERE relkind = 'r' AND relname ~ '^vectors_[0-9]+$' AND "
        "pg_table_is_visible(oid)"
    ).fetchall()
    tables = [SCHEMA_TABLE, *needed.columns, *(name for (name,) in vectors)]
    raw.execute(f"DROP TABLE IF EXISTS {', '.join(tables)}".encode())
    raw.execute(f"DROP SEQUENCE IF EXISTS {', '.join(sorted(needed.sequences))}".encode())
    # Triggers and indexes that use them went with the tables.
    raw.execute(f"DROP FUNCTION IF EXISTS {', '.join(sorted(needed.functions))}".encode())
