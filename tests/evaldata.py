"""Where the public evaluation sets are, when they are: the project ships none of them."""

import gzip
import os
from pathlib import Path

import orjson
import pytest

FOLDER = Path(os.environ.get("SIMILE_EVAL_DATA") or Path(__file__).resolve().parents[2] / "shared" / "data")


def needs(name: str) -> pytest.MarkDecorator:
    """Skip a test, with the reason, where the set `name` is absent."""
    absent = not (FOLDER / name).is_dir()
    return pytest.mark.skipif(
        absent, reason=f"needs the evaluation set {name} (SIMILE_EVAL_DATA names its folder)"
    )


def jsonl(path: str) -> list[dict[str, str]]:
    with gzip.open(FOLDER / path) as file:
        return [orjson.loads(line) for line in file]


def qrels(path: str) -> dict[str, dict[str, int]]:
    """Query id to document id to gain."""
    found: dict[str, dict[str, int]] = {}
    with gzip.open(FOLDER / path, "rt", encoding="utf-8") as file:
        next(file)
        for line in file:
            query, document, gain = line.rstrip("\n").split("\t")
            found.setdefault(query, {})[document] = int(gain)
    return found
