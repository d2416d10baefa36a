"""Public evaluation sets, in the folder that SIMILE_EVAL_DATA names. The project ships none of them."""

import gzip
import os
from pathlib import Path

import orjson
import pytest

NAMED = os.environ.get("SIMILE_EVAL_DATA")
FOLDER = Path(NAMED or "no-evaluation-data")  # without a named folder every set is absent


def needs(name: str) -> pytest.MarkDecorator:
    """Marks a test that reads the set `name`. `make test-evaluation` runs the tests with this mark."""
    return pytest.mark.evaluation_data(name)


def require(item: pytest.Item) -> None:
    """Skips a test if an evaluation set that it needs is absent. The reason names the set."""
    for mark in item.iter_markers("evaluation_data"):
        [name] = mark.args
        if not NAMED or not (FOLDER / name).is_dir():
            pytest.skip(f"needs the evaluation set {name} (SIMILE_EVAL_DATA names its folder)")


def jsonl(path: str) -> list[dict[str, str]]:
    with gzip.open(FOLDER / path) as file:
        return [orjson.loads(line) for line in file]


def qrels(path: str) -> dict[str, dict[str, int]]:
    """Returns {query id: {document id: gain}} of a gzipped file below the folder of the sets."""
    found: dict[str, dict[str, int]] = {}
    with gzip.open(FOLDER / path, "rt", encoding="utf-8") as file:
        next(file)
        for line in file:
            query, document, gain = line.rstrip("\n").split("\t")
            found.setdefault(query, {})[document] = int(gain)
    return found
