"""Writes filters as SQL over jsonb, and builds the indexes of declared fields.

Start reading at `JsonbDialect` and `keep_field_indexes`. jsonb compares as the grammar does: 1 equals 1.0 but
neither true nor "1", and `@>` finds a value in itself and among the members of an array. Operands are sent as
JSON, because PostgreSQL rounds a float8 to 15 digits when it compares a number with it. A field with a dot
may have several values, so such a field is read as an array.

A declared field (`SIMILE_INDEXED_FIELDS`) has five indexes. One is of all values and members of arrays (GIN).
Three are for ranges: of numbers, of the beginnings of texts, and of instants. One is of the documents that
have several values. The indexes are built while other transactions write. Conditions on a declared field
contain the expressions of the indexes, and PostgreSQL chooses whether to use an index.
"""

import logging
import re
from collections.abc import Container, Iterator, Mapping, Sequence
from hashlib import blake2b
from typing import Any

import orjson

from service.store.filters.grammar import RANGES, Compared, Predicate, Test, splits
from service.store.filters.times import Time, parse_time
from service.store.postgres.connection import Connection, Raw
from service.store.sql.connection import fetch_value

LOOKED_UP = 100  # Maximum values of one field that are looked up. For more values, all documents are read.
_TEXT = "(@ #>> '{}') COLLATE \"C\""
_IN_DAYS = f"left({_TEXT}, 10) BETWEEN ? AND ?"
_INSTANT = "simile_instant(@ #>> '{}') COLLATE \"C\""


class JsonbDialect:
    """Writes conditions as SQL over jsonb. `declared` are the fields with indexes."""

    def __init__(self, declared: Container[str]) -> None:
        self._declared = declared

    def condition(self, path: Sequence[str], test: Test | None) -> Predicate:
        name = ".".join(path)
        declared = name in self._declared
        value, names = "(metadata -> ?::text)", [name]
        if declared:
            value, names = value_at(name), []
        elif len(path) > 1:
            value, names = build_values_sql(name)
        if test is None:
            paths = build_paths(name) if len(path) > 1 else []
            exists = " OR ".join("jsonb_path_exists(metadata, ?::jsonpath)" for _ in paths)
            return Predicate(f"({exists})", paths) if paths else Predicate(f"{value} IS NOT NULL", names)
        if isinstance(test, Compared):
            exact = _passes(len(path) > 1, value, names, *_compared(test))
            if not declared:
                return exact
            looked_up, operands = _range(name, {test.sign: test.operand})
            return Predicate(f"({looked_up} AND {exact.sql})", [*operands, *exact.parameters], "lookup")
        plain = _among(value, names, [_json(each) for each in test.values], indexed=declared)
        if not test.times:
            return plain
        timed = _passes(len(path) > 1, value, names, *_at_times(test.times))
        if declared:
            looked_up = f"({instant_at(name)} = ANY(?::text[]) OR {has_many(name)})"
            instants = [time.instant for time in test.times]
            timed = Predicate(f"({looked_up} AND {timed.sql})", [instants, *timed.parameters], "lookup")
        if not test.values:
            return timed
        parameters = [*plain.parameters, *timed.parameters]
        return Predicate(f"({plain.sql} OR {timed.sql})", parameters, "or", (plain, timed))

    def named(self, ids: Sequence[str]) -> Predicate:
        return Predicate("id = ANY(?::text[])", [[*ids]])

    def between(self, both: Predicate, field: str, bounds: Mapping[str, Any]) -> Predicate:
        """Combines the bounds of a declared field into one range, as each bound may match almost everything.

        Returns `both` if the field is not declared, or if the bounds cannot be combined.
        """
        kinds = {(isinstance(bound, str), parse_time(bound) is None) for bound in bounds.values()}
        if field not in self._declared or len(kinds) > 1 or not bounds.keys() <= RANGES.keys():
            return both
        looked_up, operands = _range(field, {RANGES[name]: bound for name, bound in bounds.items()})
        return Predicate(f"({looked_up} AND {both.sql})", [*operands, *both.parameters], "lookup")


def _json(value: Any) -> str:
    return orjson.dumps(value).decode()


def _among(value: str, names: Sequence[str], values: Sequence[str], *, indexed: bool) -> Predicate:
    if indexed and 0 < len(values) <= LOOKED_UP:
        tests = " OR ".join(f"{value} @> ?::jsonb" for _ in values)
        return Predicate(f"(({tests}) AND {value} IS NOT NULL)", [*values], "lookup")
    return Predicate(f"COALESCE({value} @> ANY(?::jsonb[]), FALSE)", [*names, [*values]])


def _passes(many: bool, value: str, names: Sequence[str], sql: str, operands: Sequence[Any]) -> Predicate:
    """Returns the condition that a value, or a member if the value is an array, passes a test.

    Args:
        many: Whether `value` is always an array, or NULL.
        value: SQL of the value.
        names: Parameters in `value`.
        sql: SQL of the test, with @ for the tested value.
        operands: Parameters in `sql`.
    """
    if many:
        members = f"jsonb_array_elements({value}) AS member"
        test, parameters = _filled(sql, "member", [], operands)
        return Predicate(f"EXISTS (SELECT 1 FROM {members} WHERE {test})", [*names, *parameters])
    array, of_array = _filled("CASE jsonb_typeof(@) WHEN 'array' THEN @ ELSE '[]' END", value, names, [])
    alone, of_alone = _filled(sql, value, names, operands)
    test, of_member = _filled(sql, "member", [], operands)
    members = f"SELECT 1 FROM jsonb_array_elements({array}) AS member WHERE {test}"
    return Predicate(f"COALESCE({alone} OR EXISTS ({members}), FALSE)", [*of_alone, *of_array, *of_member])


def _filled(sql: str, value: str, names: Sequence[str], operands: Sequence[Any]) -> tuple[str, list[Any]]:
    """Replaces each @ in `sql` by `value`. Returns the SQL, and all parameters in the order of the SQL."""
    left = iter(operands)
    parameters: list[Any] = []
    for sign in re.findall("[@?]", sql):
        parameters += names if sign == "@" else [next(left)]
    return sql.replace("@", value), parameters


def _compared(test: Compared) -> tuple[str, list[Any]]:
    """Returns SQL that compares a value, written as @, with an operand. Also returns the parameters."""
    if not isinstance(test.operand, str):
        return f"(jsonb_typeof(@) = 'number' AND @ {test.sign} ?::jsonb)", [_json(test.operand)]
    text = f"{_TEXT} {test.sign} ?::text"
    if (time := test.time) is None:
        return f"(jsonb_typeof(@) = 'string' AND {text})", [test.operand]
    compared = f"COALESCE({_INSTANT} {test.sign} ?::text, {text})"
    sql = f"(jsonb_typeof(@) = 'string' AND CASE WHEN {_IN_DAYS} THEN {compared} ELSE {text} END)"
    return sql, [time.earliest, time.latest, time.instant, test.operand, test.operand]


def _at_times(times: Sequence[Time]) -> tuple[str, list[Any]]:
    """Returns SQL that tests whether a value, written as @, equals one of `times`.

    Also returns the parameters.
    """
    sql = f"(jsonb_typeof(@) = 'string' AND CASE WHEN {_IN_DAYS} THEN {_INSTANT} = ANY(?::text[]) END)"
    earliest, latest = min(time.earliest for time in times), max(time.latest for time in times)
    return sql, [earliest, latest, [time.instant for time in times]]


def _range(field: str, bounds: Mapping[str, Any]) -> tuple[str, list[str]]:
    """Returns SQL that finds documents in a range by the indexes of a field, and the parameters.

    The SQL matches all documents within the bounds, and possibly others. All bounds are of one kind: numbers,
    times or other texts.
    """
    tests, instants = [], []
    operands, instant_operands = [], []
    for sign, bound in bounds.items():
        if not isinstance(bound, str):
            tests.append(f"{number_at(field)} {sign} ?::numeric")
            operands.append(_json(bound))
            continue
        # The index has only the beginnings of texts.
        tests.append(f"{text_at(field)} {sign.rstrip('=')}= ?::text")
        operands.append(bound[:BEGINNING])
        if (time := parse_time(bound)) is not None:
            instants.append(f"{instant_at(field)} {sign} ?::text")
            instant_operands.append(time.instant)
    ways = [" AND ".join(each) for each in (tests, instants) if each]
    sql = f"({' OR '.join(f'({way})' for way in ways)} OR {has_many(field)})"
    return sql, [*operands, *instant_operands]


log = logging.getLogger(__name__)

BEGINNING = 200  # Characters of a text. A row of an index may have at most 2,700 bytes.
MAX_PATH_NAMES = 3  # Names of a field that is read by paths. Each further name doubles their number.
_INDEX_PREFIX = "field_"
_INDEX_LOCK = 7_405_833


def value_at(field: str) -> str:
    """Returns SQL of the value of a field.

    For a field with a dot, this is an array of its values, with arrays replaced by their members.

    Names are written as literals, because an index requires this.
    """
    if "." not in field:
        return f"(metadata -> {_literal(field)})"
    sql, names = build_values_sql(field)
    for name in names:
        sql = sql.replace("?", _literal(name), 1)  # A literal has no question mark.
    return sql


def build_values_sql(field: str) -> tuple[str, list[str]]:
    """Returns SQL of an array with the values of a field with a dot, and the parameters.

    Values that are arrays are replaced by their members. Without a value, the array is empty or NULL.
    """
    paths = build_paths(field)
    if not paths:
        return "simile_values(metadata, ?::text)", [field]
    arrays = " || ".join("jsonb_path_query_array(metadata, ?::jsonpath)" for _ in paths)
    return f"({arrays})", [f"{path}[*]" for path in paths]


def build_paths(field: str) -> list[str]:
    """Returns the JSON paths that a field may mean.

    The list is empty for more than MAX_PATH_NAMES names, as the SQL function simile_values is then faster.
    """
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
    """Returns SQL that tests whether a field's value is an array, or with a dot, has several values."""
    value = value_at(field)
    return f"jsonb_array_length({value}) > 1" if "." in field else f"jsonb_typeof({value}) = 'array'"


def _one_at(field: str) -> str:
    """Returns SQL of the value of a field that has a single value."""
    return f"({value_at(field)} -> 0)" if "." in field else value_at(field)


def _literal(name: str) -> str:
    """Returns an SQL string literal without characters that psycopg or `_translated` would interpret."""
    return "U&'" + re.sub(r"[^0-9A-Za-z_ ]", lambda sign: f"\\+{ord(sign[0]):06X}", name) + "'"


def keep_field_indexes(raw: Raw, fields: Sequence[str]) -> None:
    """Builds the indexes of `fields`, and drops the indexes of other fields.

    If several processes call this at the same time, one process does the work. The others return at once.

    Args:
        raw: A connection that is not in a transaction.
        fields: The declared fields.
    """
    if not fetch_value(Connection(raw), "SELECT pg_try_advisory_lock(?)", _INDEX_LOCK):
        return
    raw.execute("SET statement_timeout = 0")
    needed = {name: definition for field in fields for name, definition in _definitions(field).items()}
    there = raw.execute(
        "SELECT relname, indisvalid FROM pg_index JOIN pg_class ON pg_class.oid = indexrelid "
        "WHERE indrelid = 'documents'::regclass AND starts_with(relname, %s)",
        (_INDEX_PREFIX,),
    ).fetchall()
    for name, valid in there:
        if not valid or name not in needed:
            raw.execute(f"DROP INDEX CONCURRENTLY IF EXISTS {name}".encode())
    missing = needed.keys() - {name for name, valid in there if valid}
    for name in sorted(missing):
        raw.execute(f"CREATE INDEX CONCURRENTLY {name} ON documents {needed[name]}".encode())
    if missing:
        raw.execute("ANALYZE documents")  # The planner needs the frequencies of values.
        log.info("The declared fields have indexes: %s", ", ".join(fields))


def _definitions(field: str) -> dict[str, str]:
    """Returns the definitions of a field's indexes: their names, and the SQL after ON documents."""
    value = value_at(field)
    # In an older version, the indexes of a field with a dot had other values, so the name differs.
    name = _INDEX_PREFIX + blake2b((value if "." in field else field).encode(), digest_size=8).hexdigest()
    return {
        f"{name}_values": f"USING gin ({value} jsonb_path_ops)",
        f"{name}_numbers": f"(collection, {number_at(field)}) WHERE {number_at(field)} IS NOT NULL",
        f"{name}_texts": f"(collection, {text_at(field)}) WHERE {text_at(field)} IS NOT NULL",
        f"{name}_times": f"(collection, {instant_at(field)}) WHERE {instant_at(field)} IS NOT NULL",
        f"{name}_arrays": f"(collection) WHERE {has_many(field)}",
    }
