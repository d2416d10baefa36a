"""Recipes checked without torch: the schema that is kept is the one of the class."""

import json
from typing import Any

from training.methods.declared import schema
from training.methods.recipe import RECIPE


def bare(node: Any) -> Any:
    """Without words for readers."""
    if isinstance(node, dict):
        return {key: bare(value) for key, value in node.items() if key not in ("description", "title")}
    return [bare(each) for each in node] if isinstance(node, list) else node


def test_the_schema_that_is_kept_is_the_one_of_the_class() -> None:
    """Where a recipe got another key: write what is printed into training/recipes/schema.json."""
    now = bare(RECIPE.json_schema())
    assert schema() == now, json.dumps(now, indent=1)
