"""Simulate nights that learn a ranking, and measure true gains: `python -m benchmarks.ranking_nights SET…`.

    judgments so far, or wrong ones ─▶ learn, judge ─▶ published? ─▶ true gain on queries never judged

Each run begins with hybrid search and a few judged queries. Each night judges some more. In a third of the
nights, half of the judgments are random. In another third, all of them are. The true gain of a ranking is the
gain over hybrid search, in points of nDCG@10, on half of the queries, which are never judged. The memory of
a ranking has the judgments from which it was learned. In the service, all judgments are remembered at once,
wrong ones as well. Each set starts from a default ranking that was learned on the other sets of `--prior`, as
in benchmarks/ranking.py.
"""

from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

import numpy as np

from benchmarks.command import build_parser, format_table, progress, report, scratch_folder
from benchmarks.ranking import SETS, learn_weights, leave_out, prepare
from models.search.ranking import Ranking
from training.ranking.cross_validation import Fold, compare, cross_validate, learn
from training.ranking.examples import Example
from training.ranking.fitting import MIN_QUERIES, Weights
from training.retraining.rank import find_reasons

NIGHTS = 10  # Nights of a run.
WRONG = (0.0, 0.5, 1.0)  # Shares of the judged queries that get a random answer; each night has one of them.
WORSE, BETTER = -0.5, 2.0  # True gains, in points, that count as worse and as better.


def main() -> None:
    parser = build_parser("ranking_nights", __doc__)
    parser.add_argument("sets", nargs="+")
    parser.add_argument(
        "--prior", nargs="+", default=SETS, metavar="SET", help=f"to learn a default from ({', '.join(SETS)})"
    )
    parser.add_argument("--cache", type=Path, metavar="FOLDER", help="keeps the vectors for the next run")
    parser.add_argument("--runs", type=int, default=10, metavar="N", help="of each set (%(default)s)")
    parser.add_argument(
        "--judged", type=int, default=180, metavar="N", help="in the last night (%(default)s)"
    )
    options = parser.parse_args()
    if alone := [name for name in options.sets if {*options.prior} == {name}]:
        parser.error(f"--prior must name another set than {alone[0]}")
    with scratch_folder() as empty:
        names = dict.fromkeys([*options.sets, *options.prior])
        sets = {name: prepare(name, options.cache or empty).examples for name in names}
    weights = {name: learn_weights(sets[name]) for name in options.prior}
    rows = []
    for name in options.sets:
        prior = leave_out(weights, name)
        for run in range(options.runs):
            rows += [[name, run, *row] for row in simulate(sets[name], run, options.judged, prior)]
            progress(f"{name}, run {run}: {rows[-1]}")
    columns = ["set", "run", "judged", "wrong", "published", "gain", "active gain"]
    tables = [format_table(["nights", "", "published"], [*summarize(rows)]), format_table(columns, rows)]
    report("ranking_nights", {"rows": rows}, tables, [])


def simulate(examples: Sequence[Example], seed: int, most: int, prior: Weights) -> Iterator[list[float]]:
    """Yields a row for each night of a run, the last of which has at most `most` judged queries.

    A row has the number of judged queries and the share of random judgments. Then come 1 or 0 (published or
    not) and the true gain of the new ranking, and the true gain of the ranking that is active afterwards.
    """
    random = np.random.default_rng(seed)
    order = random.permutation(len(examples)).tolist()
    fitting = partial(learn, prior=prior)
    active: Ranking | None = None
    gained = 0.0
    half = len(order) // 2
    for count in np.linspace(MIN_QUERIES, min(most, half), NIGHTS).round().astype(int).tolist():
        wrong = float(random.choice(WRONG))
        judged = [
            spoil(examples[at], random) if random.random() < wrong else examples[at] for at in order[:count]
        ]
        rows = cross_validate(judged, fitting)
        reasons = find_reasons(judged, judged, rows, active, prior)
        ranking = fitting(judged)
        gain = measure(examples, order[half:], judged, ranking)
        if not reasons:
            active, gained = ranking, gain
        yield [count, wrong, float(not reasons), gain, gained]


def spoil(example: Example, random: np.random.Generator) -> Example:
    """Returns the query with a random candidate as its only answer."""
    return example._replace(relevant={str(random.choice(example.ids)): 1.0})


def measure(
    examples: Sequence[Example], test: Sequence[int], judged: Sequence[Example], ranking: Ranking
) -> float:
    """Returns the true gain of a ranking on the queries `test`, with memory of the judged queries."""
    found = compare(examples, [Fold(judged, test, ranking)])
    return 100 * float(np.mean(found.after - found.before))


def summarize(rows: Sequence[Sequence[float]]) -> Iterator[list[str]]:
    """Yields for each kind of new ranking the number of nights, and how many rankings were published.

    The last row has the least true gain of an active ranking.
    """
    kinds = {
        f"worse by more than {-WORSE:g}": [row for row in rows if row[5] < WORSE],
        f"better by {BETTER:g} or more": [row for row in rows if row[5] >= BETTER],
    } | {
        f"better by {BETTER:g} or more, from {least} judged": [
            row for row in rows if row[5] >= BETTER and row[2] >= least
        ]
        for least in (100, 200)
    }
    for name, found in kinds.items():
        yield [str(len(found)), name, f"{sum(row[4] for row in found):.0f}"]
    yield [
        str(len(rows)),
        "nights; least true gain of the active ranking",
        f"{min(row[6] for row in rows):+.2f}",
    ]


if __name__ == "__main__":
    main()
