"""The file judged.json in the models folder: what earlier runs judged. Start at `count_test`.

tests       how many candidates were tested on a query, by digest of the query
ranking     digest of the judgments from which the last ranking of a collection was learned, by collection
search      the same for the search settings
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

from models.files.bounded import read_json
from models.files.fsync import replace_text
from models.store import ModelStore
from training.retraining.split import digest

FILE_NAME = "judged.json"
_TESTS = "tests"


def read(store: ModelStore, part: str) -> dict[str, Any]:
    """Returns a part of FILE_NAME. Returns an empty dict if the file or the part is missing or damaged."""
    with contextlib.suppress(ValueError, TypeError):
        return dict(_read_all(store).get(part, {}))
    return {}


def remember(store: ModelStore, part: str, entries: Mapping[str, Any]) -> None:
    """Adds entries to a part of the file."""
    content = _read_all(store) | {part: read(store, part) | dict(entries)}
    replace_text(store.root / FILE_NAME, json.dumps(content) + "\n")


def _read_all(store: ModelStore) -> dict[str, Any]:
    with contextlib.suppress(OSError, ValueError, TypeError):
        return dict(read_json(store.root / FILE_NAME))
    return {}


def count_test(store: ModelStore, names: Sequence[str]) -> float:
    """Counts a test of a candidate on these queries. Returns the number of the test (evaluation/paired.py).

    The number is 1 + the mean number of earlier tests of each query. So it grows by one with each test on the
    same queries, and new queries lower it.
    """
    known = read(store, _TESTS)
    counts = {each: int(known.get(each, 0)) for each in map(digest, names)}
    remember(store, _TESTS, {each: count + 1 for each, count in counts.items()})
    return 1 + fmean(counts.values()) if counts else 1.0
