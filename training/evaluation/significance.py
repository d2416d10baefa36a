"""Test if two models differ significantly: `simile training significance BEFORE AFTER`.

    both models ─▶ the same pairs and queries ─▶ paired differences ─▶ each with its interval

Similarity is Spearman's correlation over the pairs of a set. Search is nDCG@10 over the queries of a set, in
dense and hybrid mode. If an interval contains 0, the difference may be due to the choice of test data. The
test does not cover training seeds, so two runs of a recipe may differ by more than their intervals. Transfer,
clustering and geometry have only one figure per set, so this command does not compare them.

The interval of a search is Student's (paired.py). The interval of a correlation is from the bootstrap, which
draws as many pairs as the set has, with replacement, and scores both models on the same draw. This interval
covers the middle part of the differences over many draws (Efron and Tibshirani 1993, percentile interval;
Koehn 2004 for two systems on one test set).
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from models.progress import Say, step_to_stderr
from training.arguments import add_data
from training.errors import TrainingError
from training.evaluation.data import BY_KEY, SETS, data_folder, is_absent
from training.evaluation.data import load as load_pairs
from training.evaluation.encoding import encode_once
from training.evaluation.paired import Interval, spread
from training.evaluation.report.table import Section, percent, title
from training.evaluation.retrieval import collections, judge_all, load, search
from training.evaluation.scorable import open_scorable
from training.evaluation.sts import Floats, sample, spearman
from training.evaluation.suites import check_suites

LEVEL = 0.95
_SUITES = ("sts", "retrieval")


class Measured(NamedTuple):
    """Scores of one model on each pair and each query of the sets."""

    pairs: dict[str, tuple[Floats, Floats]]  # gold scores and cosines
    # nDCG@10 of each query. Keys are names of sets; hybrid search has "hybrid" after the name.
    queries: dict[str, list[float]]


class Difference(NamedTuple):
    name: str
    before: float
    after: float
    interval: Interval
    items: int

    @property
    def verdict(self) -> str:
        if self.interval.low > 0:
            return "better"
        return "worse" if self.interval.high < 0 else "may be luck"


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    command = commands.add_parser(
        "significance",
        help="whether a difference between two models may be luck",
        description="Two models on the same pairs and queries: each difference with its 95 % interval. "
        "Similarity, and search by vectors, and by vectors and words; transfer, clustering and geometry have "
        "a figure of a whole set, and no scores of each item that could be compared so.",
    )
    for name in ("before", "after"):
        command.add_argument(name, metavar=name.upper(), help="a model, as `evaluate` takes it")
    add_data(command)
    command.add_argument(
        "--suite", metavar="NAMES", default="sts", help="sts, retrieval or both, with a comma (%(default)s)"
    )
    command.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    suites = check_suites(options.suite.split(","), _SUITES)
    data = data_folder(options.data)
    before, after = (measure(name, data, suites, step_to_stderr) for name in (options.before, options.after))
    sys.stdout.write(f"{table(list(differences(before, after)))}\n")
    return 0


def measure(given: str, data: Path, suites: Sequence[str], say: Say) -> Measured:
    """Scores the model `given` on the sets in `data`.

    Raises:
        TrainingError: The model does not exist, or `data` contains no set of the suites.
    """
    found = Measured({}, {})
    with open_scorable(given, os.environ, say) as model:
        if "sts" in suites:
            sets = {key: load_pairs(key, data) for key in BY_KEY if not is_absent(key, data)}
            say("encoding the sentences")
            texts = chain.from_iterable((*pairs.left, *pairs.right) for pairs in sets.values())
            known = encode_once(model.encode, {*texts})
            found.pairs.update({key: sample(pairs, known) for key, pairs in sets.items()})
        for name, folder in (collections(data) if "retrieval" in suites else {}).items():
            say(f"searching {name}")
            collection = load(folder)
            encoders = model.encode_queries, model.encode_documents
            lists, _ = search(collection, *encoders, model.split, model.unrelated)
            for known_as, ranked in ((name, lists["dense"]), (f"{name} hybrid", lists["hybrid"])):
                found.queries[known_as] = [each["ndcg10"] for each in judge_all(collection, ranked)]
    if not found.pairs and not found.queries:
        raise TrainingError(f"{data} holds no set of {' and '.join(suites)}.")
    return found


def differences(first: Measured, second: Measured) -> Iterator[Difference]:
    """Yields the difference of two models on each set, and in the mean over English similarity sets.

    Both models must be measured on the same data.
    """
    graded = {
        key: Graded(gold, cosines, second.pairs[key][1]) for key, (gold, cosines) in first.pairs.items()
    }
    rows = [(title(key), [each]) for key, each in graded.items()]
    sets = [graded[known.key] for known in SETS if known.key in graded]
    if len(sets) > 1:
        rows.append((f"mean of {len(sets)}", sets))
    for name, some in rows:
        before = float(np.mean([spearman(each.before, each.gold) for each in some]))
        after = float(np.mean([spearman(each.after, each.gold) for each in some]))
        count = sum(len(each.gold) for each in some)
        yield Difference(name, before, after, of_spearman(some, level=LEVEL), count)
    for key, scores_before in first.queries.items():
        scores_after = second.queries[key]
        means = float(np.mean(scores_before)), float(np.mean(scores_after))
        yield Difference(key, *means, of_mean(scores_before, scores_after, level=LEVEL), len(scores_before))


def table(found: list[Difference]) -> str:
    """Formats the differences as a table. Scores are multiplied by 100, as in papers."""
    rows = []
    for each in found:
        low, high = (100 * end for end in each.interval)
        change = f"{100 * (each.after - each.before):+.2f}"
        scores = percent(each.before), percent(each.after), change, f"[{low:+.2f}, {high:+.2f}]"
        rows.append((each.name, *scores, str(each.items), each.verdict))
    header = ("", "before", "after", "change", "95 % interval", "items", "remarks")
    return str(Section("Differences", header, rows))


ROUNDS = 1000
_SEED = 20_110_531  # constant, so that equal scores give equal verdicts


class Graded(NamedTuple):
    """The pairs of a set: gold scores, and cosines of the model before and after, shape (n,) each."""

    gold: Floats
    before: Floats
    after: Floats


def of_mean(
    before: Sequence[float] | Floats,
    after: Sequence[float] | Floats,
    *,
    level: float,
    groups: NDArray[np.int64] | None = None,
) -> Interval:
    """Returns the interval of mean(after) - mean(before), by paired.py. Both ends are NaN without queries.

    Args:
        before: Scores of queries by the model before.
        after: Scores of the same queries by the model after.
        level: Probability that the interval contains the true difference, such as 0.95.
        groups: Group of each query. Queries of a group are not independent. None: all queries are.
    """
    return spread(before, after, groups).interval((1 - level) / 2)


def of_spearman(sets: Sequence[Graded], *, level: float, rounds: int = ROUNDS) -> Interval:
    """Returns the bootstrap interval of a difference in Spearman's correlation, averaged over sets.

    Args:
        sets: Pairs with gold scores and the cosines of both models. Each draw resamples pairs within a set.
        level: Probability that the interval contains the true difference, such as 0.95.
        rounds: Number of bootstrap draws.

    """
    from scipy.stats import rankdata  # noqa: PLC0415  a second

    random = np.random.default_rng(_SEED)
    totals = np.zeros(rounds)
    for gold, before, after in sets:
        for at in range(rounds):
            drawn = random.integers(len(gold), size=len(gold))
            people = rankdata(gold[drawn])
            totals[at] += _correlation(people, rankdata(after[drawn]))
            totals[at] -= _correlation(people, rankdata(before[drawn]))
    low, high = np.quantile(totals / max(1, len(sets)), [(1 - level) / 2, (1 + level) / 2])
    return Interval(float(low), float(high))


def _correlation(x: Floats, y: Floats) -> float:
    """Returns Pearson's correlation of two arrays of ranks, or 0 if one is constant."""
    a, b = x - x.mean(), y - y.mean()
    lengths = np.sqrt((a @ a) * (b @ b))
    return float(a @ b / lengths) if lengths else 0.0
