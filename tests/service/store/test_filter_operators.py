"""Each operator of filters is known everywhere: both dialects, the OpenAPI document, the page, the docs."""

import re
from pathlib import Path
from typing import Any

import pytest

from service.api.openapi import Filter
from service.store.filters.grammar import OPERATORS, compile_in
from service.store.postgres.filters import JsonbDialect
from service.store.sqlite.filters import SqliteDialect
from tests.service.filtering import matches
from tests.service.store.test_filters import select

ROOT = Path(__file__).parents[3]
OPERANDS: dict[str, Any] = {"scalar": 2, "scalars": [2, "b"], "bound": 2, "boolean": True}
ROWS: list[dict[str, Any]] = [{"a": 1}, {"a": 2}, {"a": 3}, {"a": "b"}, {"a": [1, 2]}, {"b": 2}, {}]


@pytest.mark.parametrize("name", OPERATORS)
def test_both_dialects_know_each_operator(name: str) -> None:
    condition = {"a": {name: OPERANDS[OPERATORS[name].operand]}}
    assert select(condition, *ROWS) == [matches(condition, row) for row in ROWS]
    found = [compile_in(dialect, condition) for dialect in (SqliteDialect(()), JsonbDialect(()))]
    assert all(where.sql and where.parameters for where in found)
    assert found[0].sql != found[1].sql


def test_the_schema_and_the_page_and_the_docs_name_the_same_operators() -> None:
    [condition] = Filter.model_json_schema()["$defs"]["Filter"]["patternProperties"].values()
    assert list(condition["properties"]) == list(OPERATORS)
    page = (ROOT / "service/ui/filter.js").read_text(encoding="utf-8")
    table = re.findall(r"const OPERATORS = {(.*)};", page)
    assert [re.findall(r"(\$\w+):", row) for row in table] == [list(OPERATORS)]
    search = (ROOT / "docs/SEARCH.md").read_text(encoding="utf-8")
    [grammar] = re.findall(r'^    {"field": value}.*$', search, re.MULTILINE)
    assert set(re.findall(r"\$\w+", grammar)) == {*OPERATORS, "$and", "$or", "$ids"}
