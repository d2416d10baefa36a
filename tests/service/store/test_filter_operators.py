"""Both SQL dialects, the OpenAPI document, the web page and the docs have the same filter operators."""

import re
from pathlib import Path

from service.api.openapi import Filter
from service.store.filters.grammar import OPERATORS

ROOT = Path(__file__).parents[3]


def test_the_schema_and_the_page_and_the_docs_name_the_same_operators() -> None:
    [condition] = Filter.model_json_schema()["$defs"]["Filter"]["patternProperties"].values()
    assert list(condition["properties"]) == list(OPERATORS)
    page = (ROOT / "service/ui/filter.js").read_text(encoding="utf-8")
    table = re.findall(r"const OPERATORS = {(.*)};", page)
    assert [re.findall(r"(\$\w+):", row) for row in table] == [list(OPERATORS)]
    search = (ROOT / "docs/SEARCH.md").read_text(encoding="utf-8")
    [grammar] = re.findall(r'^    {"field": value}.*$', search, re.MULTILINE)
    assert set(re.findall(r"\$\w+", grammar)) == {*OPERATORS, "$and", "$or", "$ids"}
