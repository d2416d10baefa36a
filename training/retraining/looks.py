"""Count how often candidates were tested on the same queries. Each test lowers the level (gate/paired.py).

    looks = 1 + maximum over earlier tests of (share of the current queries in that test · its looks)

Without new queries, the number grows by one with each retraining. New queries lower it. The report of each
version has the number and a sample of the queries, so the count survives when older versions are deleted.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from models.files.bounded import read_json
from models.manifest import REPORT
from models.store import ModelStore
from training.evaluation.retrieval import Collection
from training.retraining.gate.gains import deciding
from training.retraining.sides import digest

SAMPLE = 256  # queries, those of the least digests: the share is known to within 0.03 (one standard error)


class Looks(NamedTuple):
    number: float  # of this one, from 1
    queried: tuple[str, ...]  # digests


def count_looks(store: ModelStore, searches: Mapping[str, Collection]) -> Looks:
    """Counts the current test on the queries in `searches` that decide."""
    queries = (query for name in deciding(searches) for query in searches[name].queries.values())
    queried = tuple(sorted({digest(query) for query in queries})[:SAMPLE])
    before = (_share(queried, look.queried) * look.number for look in _looks(store))
    return Looks(1 + max(before, default=0.0), queried)


def _share(queried: Sequence[str], earlier: Sequence[str]) -> float:
    """Returns the share of the queries `queried` that are also in `earlier`. Both are sorted samples.

    Only queries before the end of both samples count, because a sample says nothing about later queries.
    """
    ends = [sample[-1] for sample in (queried, earlier) if len(sample) == SAMPLE]
    known = {query for query in queried if not ends or query <= min(ends)}
    return len(known & {*earlier}) / max(1, len(known))


def _looks(store: ModelStore) -> Iterator[Looks]:
    """Yields the number and the queries of each earlier test that has a report."""
    for manifest in store.versions():
        if manifest.gate is not None and manifest.gate.mode == "on":
            try:
                meta = read_json(store.folder(manifest.version) / REPORT)["meta"]
                yield Looks(float(meta["looks"]), tuple(map(str, meta["asked"])))
            except (
                OSError,
                ValueError,
                KeyError,
                TypeError,
            ):  # damaged, or older than the counting
                continue
