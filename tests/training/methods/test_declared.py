"""Recipes are checked without torch, by schemas that match the classes."""

import json
import subprocess
import sys
from importlib import resources
from typing import Any

from training.methods.recipe import recipe_type
from training.methods.recipe_files import schema
from training.papers import blocks  # registers its blocks


def bare(node: Any) -> Any:
    """Removes titles and descriptions."""
    if isinstance(node, dict):
        return {key: bare(value) for key, value in node.items() if key not in ("description", "title")}
    return [bare(each) for each in node] if isinstance(node, list) else node


def test_the_schemas_match_the_classes() -> None:
    """If it fails, copy the printed schema to recipes/schema.json, blocks of papers to papers/schema.json."""
    assert blocks
    now = bare(recipe_type().json_schema())
    assert schema() == now, json.dumps(now, indent=1)


def test_a_recipe_of_the_product_imports_no_block_of_a_paper() -> None:
    """In a process of its own, because other tests import those blocks."""
    code = (
        "import sys; from training.methods.recipe import load_recipe\n"
        "for name in sys.argv[1:]:\n"
        "    load_recipe(name)\n"
        "    print(name, 'training.papers.blocks' in sys.modules)\n"
    )
    folder = resources.files("training") / "recipes"
    names = [file.name.removesuffix(".toml") for file in folder.iterdir() if file.name.endswith(".toml")]
    given = [sys.executable, "-c", code, *names, "tsdae", "crops"]  # tsdae has only blocks of the product
    found = subprocess.run(given, capture_output=True, text=True, check=True).stdout.split()
    assert dict(zip(found[::2], found[1::2], strict=True)) == dict.fromkeys([*names, "tsdae"], "False") | {
        "crops": "True"
    }
    assert "simcse-unsup" in names
