"""Recipes checked without torch: the schema that is kept is the one of the class."""

import json

from training.methods.declared import schema
from training.methods.recipe import RECIPE


def test_the_schema_that_is_kept_is_the_one_of_the_class() -> None:
    """Where a recipe got another key: print this into training/recipes/schema.json."""
    now = json.dumps(RECIPE.json_schema(), indent=1, ensure_ascii=False)
    assert schema() == json.loads(now), now
