"""Compute the gains of a candidate, and choose the searches on which a gain is required.

If there are enough judged queries, they decide. Otherwise searches made from text decide: titles, neighbors
and known items, each with a part of the significance level (Bonferroni). Without any search, the mean of the
similarity sets decides. A few judged queries can hardly show a gain, so the gate only checks that they do not
get worse. The score of a query is the mean of dense and hybrid search, so there is one test for both modes.

`count_looks` counts the tests of candidates on the same queries. Each test lowers the level (paired.py):

    looks = 1 + maximum over earlier tests of (share of the current queries in that test · its looks)

Without new queries, the number grows by one with each retraining. New queries lower it. The report of each
version has the number and a sample of the queries, so the count survives when older versions are deleted.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from models.files.bounded import read_json
from models.manifest import REPORT
from models.store import ModelStore
from training.evaluation.retrieval import Collection
from training.evaluation.significance import Graded, of_spearman
from training.retraining.gate.paired import compute_level, spread
from training.retraining.gate.verdict import (
    CLICKED,
    EACH,
    GROUPS,
    HYBRID,
    JUDGED,
    KEYS,
    SAMPLES,
    SERVED,
    TOO_FEW_JUDGED,
    Gain,
    Scores,
)
from training.retraining.sides import digest


def gains(candidate: Scores, active: Scores, looks: float = 1.0) -> tuple[Gain, ...]:
    """Computes the gains of a candidate on the searches that decide, or else on the similarity sets.

    Args:
        candidate: Scores of the candidate.
        active: Scores of the active version.
        looks: Number of this test on the same queries (paired.compute_level).

    Returns:
        The gains. Empty if both versions have scores on neither searches nor similarity sets.

    """
    level = compute_level(looks)
    return tuple(_own(candidate, active, level)) or tuple(_similarity(candidate, active, level))


def deciding(own: Scores) -> list[str]:
    """Returns the names of the searches on which a gain is required."""
    return [JUDGED] if JUDGED in own else [name for name in own if name != TOO_FEW_JUDGED]


def rests_on_one_key(candidate: Scores, active: Scores) -> Iterator[str]:
    """Yields each API key without whose queries the judged or clicked queries would show no gain."""
    both = [side.get("own") or {} for side in (active, candidate)]
    before, after = (own.get(JUDGED) or own.get(CLICKED) for own in both)
    if before is None or after is None or len(before[EACH]) != len(after[EACH]):
        return
    keys = before.get(KEYS) or [None] * len(before[EACH])
    differences = np.subtract(list_each(after), list_each(before))
    for name in sorted({key for key in keys if key is not None}):
        others = differences[[key != name for key in keys]]
        if differences.mean() > 0 and not (len(others) and others.mean() > 0):
            yield name


def _own(candidate: Scores, active: Scores, level: float) -> Iterator[Gain]:
    before, after = active.get("own") or {}, candidate.get("own") or {}
    common = [
        name
        for name in deciding(before)
        if name in after and len(before[name][EACH]) == len(after[name][EACH])
    ]
    for name in common:
        was, now = list_each(before[name]), list_each(after[name])
        found = spread(was, now, before[name].get(GROUPS))
        part = level / len(common)
        half = found.half(part)
        yield Gain(
            f"own {name}",
            found.mean,
            found.mean - half,
            found.mean + half,
            float(np.mean(was)),
            float(np.mean(now)),
            found.queries,
            found.least_gain(part),
            found.enough(part),
        )


def list_each(figures: Scores) -> Sequence[float]:
    """Returns one score per query: nDCG@10 as served if known, or else the mean of dense and hybrid."""
    if SERVED in figures:
        return list(figures[SERVED][EACH])
    modes: list[Any] = [figures[EACH], *([figures[HYBRID][EACH]] if HYBRID in figures else [])]
    each: list[float] = np.mean(modes, axis=0).tolist()
    return each


def _similarity(candidate: Scores, active: Scores, level: float) -> Iterator[Gain]:
    """Yields the gain on the similarity sets for which both models have scores of each pair."""
    before, after = active.get(SAMPLES) or {}, candidate.get(SAMPLES) or {}
    common = [name for name in before if name in after and len(before[name][1]) == len(after[name][1])]
    if common:
        sets = [Graded(before[name][0], before[name][1], after[name][1]) for name in common]
        sides = [[scores["sts"][name]["spearman_all"] for name in common] for scores in (active, candidate)]
        if None not in (*sides[0], *sides[1]):
            was, now = (float(np.mean(side)) for side in sides)
            low, high = of_spearman(sets, level=1 - 2 * level)
            yield Gain(f"mean of {len(common)}", now - was, low, high, was, now, None, None, None)


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
