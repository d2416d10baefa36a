"""The number of looks at the same queries: each has to be paid for (gate/paired.py).

    looks = 1 + the most of: share of tonight's queries that judged at an earlier look · looks of that one

So it counts the nights since the queries were new, and new queries among them bring it down. The report of
each judged version has its own number and a sample of its queries, by which the next one counts on: pruning
older versions forgets nothing.
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
    """Tonight's look at the queries that decide, among `searches`."""
    queries = (query for name in deciding(searches) for query in searches[name].queries.values())
    queried = tuple(sorted({digest(query) for query in queries})[:SAMPLE])
    before = (_share(queried, look.queried) * look.number for look in _looks(store))
    return Looks(1 + max(before, default=0.0), queried)


def _share(queried: Sequence[str], earlier: Sequence[str]) -> float:
    """Share of the queries of `queried` that `earlier` has; both are samples.

    What lies behind the end of a sample may have been asked or not, so only what is before it counts.
    """
    ends = [sample[-1] for sample in (queried, earlier) if len(sample) == SAMPLE]
    known = {query for query in queried if not ends or query <= min(ends)}
    return len(known & {*earlier}) / max(1, len(known))


def _looks(store: ModelStore) -> Iterator[Looks]:
    """The looks that left a report; recipes of one night may have asked different queries."""
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
