"""The rules for publishing a ranking, and their messages. Start at `judge_first` and `judge_refit`.

A ranking is compared with the hybrid order, and a later one also with the procedure of the active ranking,
fitted to the same folds. That procedure is not the active ranking: both procedures learn the same wrong
judgments.
"""

from __future__ import annotations

from collections.abc import Sequence

from models.messages import amount
from models.search.ranking import Ranking
from training.evaluation.paired import Interval
from training.ranking.cross_validation import CERTAIN, COMING, LIKELY, NEW, Comparison, Rows
from training.ranking.fitting import MIN_QUERIES

_FEW = 100  # Below this number of independent queries, a gain must be certain, not only likely.
_ADDED = 0.99  # Of the interval that adds late interaction or a reranker to a ranking.
_RANDOM = 0.98  # Of the interval that tells judgments from random ones.


def judge_first(rows: Rows) -> list[str]:
    """Returns the reasons not to publish the first ranking of a collection."""
    few = rows[COMING].independent < _FEW
    needed = f"certain, as it must be with fewer than {_FEW} independent queries" if few else "likely"
    return judge_judgments(rows) + _require_gain(rows, CERTAIN if few else LIKELY, needed)


def judge_refit(rows: Rows, against_active: Rows) -> list[str]:
    """Returns the reasons not to publish a ranking that was fitted again.

    Args:
        rows: Comparisons of the ranking with the hybrid order.
        against_active: Comparisons of the ranking with the procedure of the active ranking.
    """
    return judge_first(rows) + _losses(against_active, (NEW, COMING))


def judge_settings(rows: Rows) -> list[str]:
    """Returns the reasons not to publish other search settings of a collection."""
    return _require_gain(rows, CERTAIN, "certain")


def judge_added(rows: Rows, what: str, *, used: bool) -> tuple[bool, str]:
    """Returns whether a ranking uses late interaction or a reranker, and a sentence for the report.

    Args:
        rows: Comparisons of the ranking with the same ranking without that part.
        what: The part.
        used: Whether the active ranking uses it. Otherwise the gain must be more certain, because it is
            measured again with each ranking.
    """
    found = rows[COMING].interval(CERTAIN if used else _ADDED)
    chosen = found.low > 0 and not _losses(rows, (NEW,))
    return chosen, (
        f"{what} is {'used' if chosen else 'not used'}: on {COMING} it changes nDCG@10 by "
        f"{100 * rows[COMING].gain:+.1f} points, {_between(found)}, and on {NEW} by "
        f"{100 * rows[NEW].gain:+.1f}."
    )


def judge_judgments(rows: Rows) -> list[str]:
    """Returns a list with the reason if the judgments are too few or look random, or else an empty list.

    A ranking that was learned from random judgments is also random.
    """
    row = rows[COMING]
    if (few := row.independent) < MIN_QUERIES:
        reason = (
            f"Only {few} independent queries can judge, and {MIN_QUERIES} are needed: those on which several "
            "trusted keys agree, and on which no encoder was trained."
        )
        return [reason]
    if row._replace(before=row.chance, after=row.before).interval(_RANDOM).low > 0:
        return []
    return ["The judgments look random: the search finds judged documents hardly better than by chance."]


def _require_gain(rows: Rows, level: float, needed: str) -> list[str]:
    """Returns the reasons if COMING has no gain in the interval of `level`, or NEW a loss."""
    found = rows[COMING].interval(level)
    reasons = [] if found.low > 0 else [f"On {COMING} a gain is not {needed}: {_between(found)}."]
    return reasons + _losses(rows, (NEW,))


def _losses(rows: Rows, names: tuple[str, ...]) -> list[str]:
    found = {name: rows[name].interval(CERTAIN) for name in names}
    return [f"On {name} there is a loss: {_between(each)}." for name, each in found.items() if each.high < 0]


def count_first(kind: str, ranks: Sequence[Sequence[int | None]]) -> str:
    """Returns a sentence about the first hits.

    Args:
        kind: Adjective for documents that answer a query: `judged` or `right`.
        ranks: The position of the first relevant hit of each query by both orders. 0 or None: not found.
    """
    before, after = (sum(each[side] == 1 for each in ranks) for side in (0, 1))
    queries = amount(len(ranks), "query", "queries")
    return f"A {kind} document is first for {after} of {queries} ({before} before)."


def describe(rows: Rows, ranking: Ranking | None = None) -> list[str]:
    """Returns sentences about a ranking: first hits, both comparisons, and the weights, largest first."""
    told = [
        count_first("judged", rows[COMING].ranks.tolist()),
        f"nDCG@10 changes {_told(COMING, rows[COMING])}, and {_told(NEW, rows[NEW])}.",
    ]
    if ranking is not None:
        reranker = {} if ranking.reranker is None else {"reranker": ranking.reranker.weight}
        weights = sorted({**ranking.weights, **reranker}.items(), key=lambda item: -abs(item[1]))
        named = ", ".join(f"{name} {weight:+.2f}" for name, weight in weights if round(weight, 2))
        trees = f", and {len(ranking.trees.roots)} trees" if ranking.trees else ""
        told.append(f"Weights: {named}{trees}.")
    return told


def _told(name: str, row: Comparison) -> str:
    found = row.interval(CERTAIN)
    certainty = "better" if found.low > 0 else "worse" if found.high < 0 else "not certain"
    return (
        f"from {row.before.mean():.3f} to {row.after.mean():.3f} on {name} "
        f"({100 * row.gain:+.1f} points, {_between(found).removesuffix(' points')}: {certainty})"
    )


def _between(found: Interval) -> str:
    return f"between {100 * found.low:+.1f} and {100 * found.high:+.1f} points"
