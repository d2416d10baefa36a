"""Filters in SQLite match the same rows as `matches`, a short matcher without SQL."""

import sqlite3
from typing import Any

import orjson
import pytest
from hypothesis import given, settings

from service.store.filters.grammar import (
    MAX_CONDITIONS,
    MAX_DEPTH,
    MAX_FIELD_PARTS,
    MAX_VALUES,
    FilterError,
    parse_filter,
)
from service.store.sqlite.filters import compile_filter
from service.store.sqlite.schema import harden
from tests.service.filtering import cases, matches


def select(filter: object, *rows: dict[str, Any]) -> list[bool]:
    """Returns which rows match in SQLite."""
    connection = sqlite3.connect(":memory:")
    harden(connection)
    connection.execute("CREATE TABLE documents (number INTEGER PRIMARY KEY, metadata TEXT, id TEXT)")
    stored = [(number, orjson.dumps(row).decode(), f"d{number}") for number, row in enumerate(rows)]
    connection.executemany("INSERT INTO documents VALUES (?, ?, ?)", stored)
    where = compile_filter(filter)
    found = connection.execute(
        f"SELECT number FROM documents WHERE 7 = ? AND ({where.sql})", [7, *where.parameters]
    )
    numbers = {number for (number,) in found}
    connection.close()
    return [number in numbers for number in range(len(rows))]


@settings(max_examples=100, deadline=None)
@given(cases())
def test_sqlite_selects_what_the_grammar_says(case: tuple[dict[str, Any], list[dict[str, Any]]]) -> None:
    filter, rows = case
    assert select(filter, *rows) == [matches(filter, row) for row in rows]


@pytest.mark.parametrize(
    ("filter", "matching", "failing"),
    [
        ({}, [{}, {"a": 1}], []),
        ({"a": True}, [{"a": True}], [{"a": 1}, {"a": "true"}, {"a": False}, {}]),
        ({"a": 1}, [{"a": 1}, {"a": 1.0}, {"a": [0, 1]}], [{"a": True}, {"a": "1"}, {"a": [True]}, {}]),
        ({"a": "1"}, [{"a": "1"}, {"a": ["1"]}], [{"a": 1}, {"a": [1]}, {"a": "11"}]),
        ({"a": None}, [{"a": None}, {"a": [None]}], [{}, {"a": 0}, {"a": ""}, {"a": []}, {"a": False}]),
        ({"a": {"$ne": 1}}, [{}, {"a": 2}, {"a": "1"}, {"a": []}, {"a": None}], [{"a": 1}, {"a": [2, 1.0]}]),
        ({"a": {"$ne": None}}, [{}, {"a": 0}], [{"a": None}]),
        (
            {"a": {"$in": [1, "x", None]}},
            [{"a": 1}, {"a": "x"}, {"a": [2, "x"]}, {"a": None}],
            [{}, {"a": True}],
        ),
        ({"a": {"$in": []}}, [], [{}, {"a": None}, {"a": []}]),
        ({"a": {"$exists": True}}, [{"a": None}, {"a": []}, {"a": {}}], [{}, {"b": 1}]),
        ({"a": {"$exists": False}}, [{}, {"b": {"a": 1}}], [{"a": None}]),
        ({"a": {"$gt": 1}}, [{"a": 2}, {"a": 1.5}, {"a": [0, 9]}], [{"a": 1}, {"a": "2"}, {"a": True}, {}]),
        ({"a": {"$gte": "b"}}, [{"a": "b"}, {"a": "ba"}], [{"a": "a"}, {"a": "B"}, {"a": 5}, {"a": None}]),
        ({"a": {"$lt": "b"}}, [{"a": "a"}, {"a": ""}], [{"a": "b"}, {"a": 5}, {"a": True}, {"a": {}}, {}]),
        ({"a": {"$gt": "["}}, [{"a": "a"}], [{"a": {"b": 1}}, {"a": [[1]]}, {"a": "A"}]),
        ({"a": {"$gte": 1, "$lt": 3}}, [{"a": 1}, {"a": 2}], [{"a": 3}, {"a": 0}]),
        ({"a": {"$lt": 1e300}}, [{"a": 1}, {"a": 1e299}], [{"a": 1e300}]),
        (
            {"a.b": 1},
            [{"a": {"b": 1}}, {"a": {"b": [1]}}, {"a.b": 1}, {"a": [{"b": 1}]}],
            [{"a": '{"b":1}'}, {"a": [[{"b": 1}]]}, {"a": ["b"]}, {"a.b": 2}],
        ),
        ({"a.0": 1}, [{"a": {"0": 1}}], [{"a": [1]}]),
        # For three or more names, a recursive query finds the values.
        (
            {"a.b.c": {"$gt": 10}},
            [{"a": {"b": {"c": 10.5}}}, {"a.b": {"c": 1e15}}, {"a": [{"b.c": [2.5, 11]}]}],
            [{"a": {"b": {"c": 2.5}}}, {"a.b.c": 9.75}, {"a": {"b": {"c": [2.5, "99"]}}}],
        ),
        ({"a.b.c": {"$gt": 9}}, [{"a": {"b": {"c": 10.5}}}, {"a.b.c": 9.5}], [{"a": {"b": {"c": 1e-7}}}]),
        ({"a.b.c": {"$gt": 1}}, [{"a": {"b": {"c": 1.25}}}], [{"a": {"b": {"c": 1.0}}}, {"a.b.c": 1}]),
        ({"a.b.c": {"$lt": 9}}, [{"a": {"b": {"c": -1e15}}}], [{"a": {"b": {"c": 1e15}}}, {"a.b.c": 10.0}]),
        ({"a.b.c": {"$gte": 2, "$lte": 2.5}}, [{"a.b": {"c": 2.0}}, {"a.b.c": 2.5}], [{"a.b.c": 10.25}]),
        ({"a.b.c": 10}, [{"a": {"b": {"c": 10.0}}}], [{"a": {"b": {"c": "10"}}}, {"a.b.c": "10.0"}]),
        ({"a.b.c": {"$in": [0.5, 1e15]}}, [{"a": {"b": {"c": 1e15}}}, {"a.b.c": 0.5}], [{"a.b.c": "0.5"}]),
        ({"a.b.c.d": {"$lt": 9}}, [{"a": {"b": {"c": {"d": 2.5}}}}], [{"a": {"b": {"c": {"d": 10.5}}}}]),
        ({"a": 1, "b": 2}, [{"a": 1, "b": 2}], [{"a": 1}, {"b": 2}]),
        ({"$or": [{"a": 1}, {"b": 2}]}, [{"a": 1}, {"b": 2}], [{"a": 2, "b": 1}]),
        ({"$or": [{"a": 1}, {"b": 2}], "c": 3}, [{"a": 1, "c": 3}], [{"a": 1}, {"c": 3}]),
        ({"$and": [{"a": {"$gt": 1}}, {"a": {"$lt": 1}}]}, [{"a": [0, 2]}], [{"a": 1}]),
        ({'it\'s "x"\\; --[0]': 1}, [{'it\'s "x"\\; --[0]': 1}], [{"it's": 1}]),
    ],
)
def test_a_filter_passes_what_the_contract_says(
    filter: dict[str, Any], matching: list[dict[str, Any]], failing: list[dict[str, Any]]
) -> None:
    assert select(filter, *matching, *failing) == [True] * len(matching) + [False] * len(failing)
    assert [matches(filter, row) for row in [*matching, *failing]] == select(filter, *matching, *failing)


@pytest.mark.parametrize(
    ("filter", "complaint"),
    [
        ([], "A filter is an object .* not a list"),
        ("x", "not a string"),
        (None, "not null"),
        ({"a": {"$nin": [1]}}, r"'a': unknown operator '\$nin'. Allowed are \$in, .* and \$exists"),
        ({"a": {"$eq": 1}}, r"unknown operator '\$eq'"),
        ({"a": {"$gt": 1, "b": 2}}, "'a': unknown operator 'b'"),
        ({"a": {"b": 1}}, "named with dots"),
        ({"a": {"": 1}}, "unknown operator ''"),
        ({"a": {}}, "'a': {} has no operator"),
        ({"a": [1, 2]}, r"'a': equality compares with .* not a list.*\$in"),
        ({"a": {"$ne": {"b": 1}}}, r"\$ne compares with .* not an object"),
        ({"a": {"$in": 5}}, r"\$in needs a list of values, not a number"),
        ({"a": {"$in": [[1]]}}, r"\$in compares with .* not a list"),
        ({"a": {"$in": [0] * (MAX_VALUES + 1)}}, f"{MAX_VALUES} are allowed"),
        ({"a": {"$exists": 1}}, r"\$exists needs true or false, not a number"),
        ({"a": {"$exists": None}}, r"\$exists needs true or false, not null"),
        ({"a": {"$gt": True}}, r"\$gt compares with a number or a string, not true"),
        ({"a": {"$gt": None}}, "a number or a string, not null"),
        ({"a": {"$lte": [1]}}, r"\$lte compares with a number or a string, not a list"),
        ({"a": {"$lt": {}}}, "not an object"),
        ({"$not": {"a": 1}}, r"'\$not' cannot stand in the place of a field; allowed there are \$and, \$or"),
        ({"$in": [1]}, "Operators follow a field"),
        ({"$and": []}, r"\$and needs a list of at least one filter, not an empty one"),
        ({"$or": {"a": 1}}, r"\$or needs a list of at least one filter, not an object"),
        ({"$or": [{}]}, r"\$or holds an empty filter"),
        ({"$or": [1]}, "A filter is an object .* not a number"),
        ({"$ids": "a"}, r"\$ids needs a list of document ids, not a string"),
        ({"$ids": ["a", 1]}, r"\$ids needs ids, which are strings, not a number"),
        ({"$ids": ["a\0"]}, r"U\+0000"),
        ({"$ids": ["a"] * (MAX_VALUES + 1)}, f"{MAX_VALUES} are allowed"),
        ({"": 1}, "A field name is a string of at least one character"),
        ({1: 1}, "A field name is a string"),
        ({"a..b": 1}, "no name before or after a dot"),
        ({".a": 1}, "no name before or after a dot"),
        ({"a": float("nan")}, "must be finite, not nan"),
        ({"a": {"$gt": float("inf")}}, "must be finite, not inf"),
        ({"a": 2**63}, "does not fit in 64 bits"),
        ({"a": {"$lt": -(2**63) - 1}}, "does not fit in 64 bits"),
        ({"a": 10**5000}, "does not fit in 64 bits"),
        ({"a": {"$in": [2.0**63]}}, "does not fit in 64 bits"),
        ({"a": {"$ne": -(2.0**63)}}, "does not fit in 64 bits"),
        ({"a": "\ud800"}, "half a surrogate pair"),
        ({"\udc00": 1}, "half a surrogate pair"),
        ({"a": {"$gt": "x\0y"}}, r"U\+0000"),
        ({"a\0b": 1}, r"U\+0000"),
        ({"a" * 500: {"$x": 1}}, "unknown operator"),
    ],
)
def test_what_breaks_the_grammar_is_refused_by_name(filter: object, complaint: str) -> None:
    with pytest.raises(FilterError, match=complaint) as refusal:
        compile_filter(filter)
    assert len(str(refusal.value)) < 400
    str(refusal.value).encode()  # A response must be able to contain the message.


def test_nesting_and_numbers_of_conditions_have_limits_that_sqlite_can_run() -> None:
    midnight = "2024-01-01"

    def nested(depth: int, **last: Any) -> dict[str, Any]:
        inner = {".".join("abcdefghijklmnop"): {"$in": ["x", 1, None, True, midnight]}, **last}
        for level in range(depth):
            inner = {"$or" if level % 2 else "$and": [{"a": 2}, {"b": {"$ne": midnight}}, inner]}
        return inner

    for field in ("a", "a.b", "a.b.c"):
        deep = nested(MAX_DEPTH, **{field: {"$gt": midnight, "$ne": midnight}})
        assert select(deep, {"a": 2, "b": 1}) == [matches(deep, {"a": 2, "b": 1})]
    pairs: dict[str, Any] = {"a.b": {"$gt": midnight, "$ne": midnight}}
    for _ in range(6):  # 191 conditions
        pairs = {"$or": [pairs, {"$and": [pairs, {"b": 1}]}]}
    assert select(pairs, {"a.b": "2024-01-01T01:00:00+00:30", "b": 1}, {"b": 1}) == [True, False]
    with pytest.raises(FilterError, match=f"nested more than {MAX_DEPTH} deep"):
        compile_filter(nested(MAX_DEPTH + 1))
    many = {"$or": [{f"{'x.' * (MAX_DEPTH - 1)}{number}": number} for number in range(MAX_CONDITIONS)]}
    row: Any = {str(MAX_CONDITIONS - 1): MAX_CONDITIONS - 1}
    for _ in range(MAX_DEPTH - 1):
        row = {"x": row}
    assert select(many, row, {"x": 1}) == [True, False]
    with pytest.raises(FilterError, match=f"more than {MAX_CONDITIONS} conditions"):
        compile_filter({"$and": [many, {"a": 1}]})
    deepest = ".".join(["x"] * MAX_FIELD_PARTS)
    assert select({deepest: 1}, {deepest: 1}, {deepest[2:]: 1}) == [True, False]
    with pytest.raises(FilterError, match=f"more than {MAX_FIELD_PARTS} names between its dots"):
        compile_filter({f"{deepest}.x": 1})
    assert select({"a": {"$in": list(range(MAX_VALUES))}}, {"a": MAX_VALUES - 1}, {"a": -1}) == [True, False]


def test_documents_are_chosen_by_their_ids() -> None:
    rows = [{"a": 1}, {"a": 2}, {"a": 1}]
    assert select({"$ids": ["d0", "d1", "none"]}, *rows) == [True, True, False]
    assert select({"$ids": ["d0", "d1"], "a": 1}, *rows) == [True, False, False]
    assert select({"$or": [{"$ids": ["d2"]}, {"a": 2}]}, *rows) == [False, True, True]
    assert select({"$ids": []}, *rows) == [False] * 3
    with pytest.raises(FilterError, match=f"more than {MAX_CONDITIONS} conditions"):
        compile_filter({"$and": [{"$ids": ["d0"]}] * (MAX_CONDITIONS + 1)})


def test_no_part_of_a_filter_becomes_sql() -> None:
    hostile = "x') OR 1=1; DROP TABLE documents; --?@"
    where = compile_filter({hostile: hostile, f"a.{hostile}": {"$in": [hostile], "$gt": hostile}})
    assert "DROP" not in where.sql
    assert select({hostile: {"$ne": hostile}}, {hostile: hostile}, {"a": 1}) == [False, True]


def test_a_filter_in_the_query_is_json_and_an_object() -> None:
    assert parse_filter('{"a": {"$gt": 1}}') == {"a": {"$gt": 1}}
    for text_, complaint in (
        ("", "This is not JSON"),
        ("{a: 1}", "This is not JSON"),
        ('{"a": NaN}', "This is not JSON"),
        ("[1]", "A filter is an object .* not a list"),
        ('"a"', "not a string"),
        ("[" * 5000, "This is not JSON"),
        ('{"a": "\ud800"}', "This is not JSON"),
    ):
        with pytest.raises(FilterError, match=complaint):
            parse_filter(text_)
