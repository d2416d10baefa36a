"""Simulate live tests: how many decided searches find a gain, and how often chance decides.

    graded documents ─▶ two rankings ─▶ interleaved ─▶ a user clicks ─▶ outcomes ─▶ the sequential test

A query has 50 documents of grades 0 to 3. A ranking sorts them by grade plus noise; more noise means less
nDCG@10. Rankings of one encoder make mostly the same errors; others are harder to compare. A user examines
the hit at rank r with probability 1/r^0.7 (position bias). An examined hit attracts with a probability of
(2^grade - 1)/7, mixed with chance by the click noise. The first click decides a search.

`--sets` takes the rankings of judged queries instead: hybrid search, and a learned ranking that has seen
neither the query nor its answers. SIMILE_EVAL_DATA names their folder.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from benchmarks.command import Verdict, build_parser, format_table, progress, report, scratch_folder
from benchmarks.live_week import simulate_equal, simulate_week
from benchmarks.ranking import learn_weights, leave_out, prepare
from models.publishing.default import default_source
from models.publishing.publish import publish
from models.store import ModelStore
from service.corpus.interleaving import Coins, draft
from service.lifecycle.sequential import Outcome, Standing, decide, select
from training.ranking.cross_validation import NEW, cross_validate, learn
from training.ranking.examples import Example

DOCUMENTS, SHOWN = 50, 10
GRADES = (0.80, 0.12, 0.05, 0.03)  # Shares of the grades 0 to 3.
NOISE = 1.0  # Of the active ranking, whose nDCG@10 is 0.74.
SAME, OTHER = 0.9, 0.5  # Shares of the errors' variance that both rankings have: alike, and less alike.
BIAS = 0.7
MAX_DECIDED = {0.1: 2000, 0.2: 4500}  # Decided searches that may find a gain, by click noise.
EQUAL_SEARCHES = 600  # Of each test of equal versions by a service.
DISCOUNTS = 1 / np.log2(np.arange(2, SHOWN + 2))


class Sides(NamedTuple):
    """One search: the grades of the documents, and both rankings."""

    grades: NDArray[np.int64]
    active: list[int]
    candidate: list[int]


class Candidate(NamedTuple):
    """How a candidate ranks: the deviation of its errors, and the share that the active ranking makes too."""

    noise: float
    common: float = SAME


def draw(random: np.random.Generator, candidate: Candidate) -> Sides:
    """Returns a search with the rankings of the active version and of a candidate."""
    grades = random.choice(len(GRADES), DOCUMENTS, p=GRADES)
    common, own = np.sqrt(candidate.common), np.sqrt(1 - candidate.common)
    shared = random.normal(size=DOCUMENTS)

    def rank(amount: float) -> list[int]:
        errors = common * shared + own * random.normal(size=DOCUMENTS)
        order: list[int] = np.argsort(-(grades + amount * errors), kind="stable").tolist()
        return order

    return Sides(grades, rank(NOISE), rank(candidate.noise))


def measure_ndcg(grades: NDArray[np.int64], order: Sequence[int]) -> float:
    gains = 2.0**grades - 1
    ideal = np.sort(gains)[::-1][:SHOWN] @ DISCOUNTS
    return float(gains[list(order[:SHOWN])] @ DISCOUNTS / ideal) if ideal else 0.0


def measure_gain(candidate: Candidate, searches: int = 20_000) -> float:
    """Returns the mean gain of the candidate in points of nDCG@10."""
    random, gains = np.random.default_rng(1), []
    for _ in range(searches):
        grades, active, other = draw(random, candidate)
        if grades.any():
            gains.append(measure_ndcg(grades, other) - measure_ndcg(grades, active))
    return 100 * float(np.mean(gains))


def find_candidate(points: float, common: float) -> Candidate:
    """Returns a candidate whose gain is `points`, by bisection."""
    low, high = 0.3, 3.0
    for _ in range(12):
        middle = (low + high) / 2
        low, high = (
            (middle, high) if measure_gain(Candidate(middle, common), 4000) > points else (low, middle)
        )
    return Candidate((low + high) / 2, common)


def click(random: np.random.Generator, grades: NDArray[np.int64], noise: float) -> int | None:
    """Returns the place of the first click on the hits with these grades, or None."""
    attraction = (1 - noise) * (2.0**grades - 1) / 7 + noise / 2
    examined = np.arange(1, len(grades) + 1) ** -BIAS
    clicked = random.random(len(grades)) < attraction * examined
    return int(clicked.argmax()) if clicked.any() else None


def simulate(
    random: np.random.Generator, drawn: Callable[[np.random.Generator], Sides], noise: float, most: int
) -> tuple[Standing, int]:
    """Runs one test until it is decided or has `most` decided searches. Also returns all its searches.

    Args:
        random: The source of chance.
        drawn: Returns the next search.
        noise: Share of the attraction that is chance.
        most: Number of decided searches.
    """
    outcomes: list[int] = []
    searches = 0
    seed = int(random.integers(2**62))
    while len(outcomes) < most:
        searches += 1
        grades, *lists = drawn(random)
        own, other = (ranked[:SHOWN] for ranked in lists)
        chosen = draft(own, other, Coins(str(seed), "", "", str(searches)).flip(SHOWN))[:SHOWN]
        place = click(random, grades[[document for document, _ in chosen]], noise)
        if place is not None and chosen[place][1]:
            outcomes.append(chosen[place][1])
            if len(outcomes) % 50 == 0 and decide(outcomes).decision:
                break
    return decide(outcomes), searches


def simulate_many(
    random: np.random.Generator,
    drawn: Callable[[np.random.Generator], Sides],
    noise: float,
    most: int,
    runs: int,
    wanted: str,
) -> list[float]:
    """Returns the share of tests that end as `wanted`, and the medians of decided and of all searches."""
    found = [simulate(random, drawn, noise, most) for _ in range(runs)]
    share = np.mean([standing.decision == wanted for standing, _ in found])
    counts = np.median([[standing.decided, searches] for standing, searches in found], axis=0)
    return [float(share), *counts.tolist()]


def read_sides(examples: Sequence[Example], prior: Mapping[str, float]) -> tuple[float, list[Sides]]:
    """Returns the gain of a learned ranking in points, and judged queries with both orders.

    Hybrid search is active. The ranking starts from `prior`, and is cross-validated on new questions.
    """
    row = cross_validate(examples, partial(learn, prior=prior))[NEW]
    top = max(gain for each in examples for gain in each.relevant.values())
    sides = []
    for example, hits in zip(row.examples, row.hits, strict=True):
        places = {id: place for place, id in enumerate(example.ids)}
        grades = np.rint(3 * example.gains / top).astype(np.int64)
        sides.append(Sides(grades, [*places.values()], [places[id] for id in hits]))
    return 100 * row.gain, sides


def draw_known(sides: Sequence[Sides], random: np.random.Generator) -> Sides:
    return sides[int(random.integers(len(sides)))]


def measure_sets(names: Sequence[str], random: np.random.Generator, runs: int) -> Iterator[list[object]]:
    """Yields a row for each set and click noise. A ranking starts from the default of the other sets."""
    with scratch_folder() as folder:
        examples = {name: prepare(name, folder).examples for name in names}
    weights = {name: learn_weights(some) for name, some in examples.items()}
    for name, some in examples.items():
        gain, sides = read_sides(some, leave_out(weights, name))
        for noise, most in MAX_DECIDED.items():
            progress(f"{name}, click noise {noise:g}")
            figures = simulate_many(random, partial(draw_known, sides), noise, most, runs, "accepted")
            yield [name, f"{gain:+.1f}", noise, most, *figures]


def main() -> None:
    parser = build_parser("live_test", __doc__, quick=True)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--week", action="store_true", help="an unattended week of a running service instead")
    parser.add_argument(
        "--service", type=int, metavar="N", help="tests of equal versions by a service instead"
    )
    parser.add_argument("--sets", nargs="+", metavar="SET", help="rankings of judged queries instead")
    options = parser.parse_args()
    if options.week or options.service:
        with scratch_folder() as folder:
            run_service(folder, options.service)
        return
    runs, even = (20, 50) if options.quick else (200, 2000)
    random = np.random.default_rng(options.seed)
    last = ["decided at most", "share right", "decided", "searches"]
    if options.sets:
        rows = [*measure_sets(options.sets, random, runs)]
        columns = ["set", "gain, points", "click noise", *last]
        report("live_test", {"rows": rows}, [format_table(columns, rows)], [])
        return
    rows, verdicts = list[list[object]](), []
    cases = [*((3.0, noise, most, 0.8) for noise, most in MAX_DECIDED.items()), (-10.0, 0.1, 300, 0.9)]
    for common in (SAME, OTHER):
        for points, noise, most, bound in cases:
            progress(f"{points:+g} points, click noise {noise:g}, {common:g} of the errors alike")
            candidate = find_candidate(points, common)
            wanted = "accepted" if points > 0 else "rejected"
            drawn = partial(draw, candidate=candidate)
            share, *counts = simulate_many(random, drawn, noise, most, runs, wanted)
            rows.append([f"{measure_gain(candidate):+.1f}", noise, common, most, share, *counts])
            if common == SAME:
                subject = f"share {wanted} at {points:+g} points, click noise {noise:g}"
                verdicts.append(Verdict(subject, share, bound, at_least=True))
    progress("equal versions")
    wrong, *_ = simulate_many(random, partial(draw, candidate=Candidate(NOISE)), 0.1, 1000, even, "accepted")
    verdicts.append(Verdict("share of equal candidates accepted", wrong, 0.05))
    alone = [Outcome(1, "default", f"q{at}", "one visitor", "web") for at in range(1000)]
    verdicts.append(Verdict("outcomes of one visitor's 1,000 clicks", float(len(select(alone))), 7))
    columns = ["gain, points", "click noise", "errors alike", *last]
    with scratch_folder():
        report("live_test", {"rows": rows}, [format_table(columns, rows)], verdicts)


def run_service(folder: Path, equal: int | None) -> None:
    """Reports an unattended week of a service, or tests of equal versions by a service."""
    store = ModelStore(folder / "models")
    with default_source() as source:
        base = publish(store, source, origin="base").version
    if equal:
        results = simulate_equal(folder, store, base, click, equal, EQUAL_SEARCHES)
        rows = [[one["state"], one["wins"], one["decided"]] for one in results]
        wrong = sum(one["state"] == "accepted" for one in results) / equal
        verdicts = [Verdict("share of equal candidates accepted through the service", wrong, 0.05)]
        report("live_test", {"rows": rows}, [format_table(["state", "wins", "decided"], rows)], verdicts)
        return
    ended, active = simulate_week(folder, store, base, click)
    table = [[one.night, one.result["ended"], one.result["state"], one.result["says"]] for one in ended]
    right = [(one.result["state"] == "accepted") == one.night.startswith("better") for one in ended]
    best = float(active == ended[-1].version and ended[-1].night.startswith("better"))
    verdicts = [
        Verdict("share of the week's candidates judged rightly", float(np.mean(right)), 1.0, at_least=True),
        Verdict("the best version is active at the end", best, 1.0, at_least=True),
    ]
    report("live_test", {"rows": table}, [format_table(["night", "ended", "state", "says"], table)], verdicts)


if __name__ == "__main__":
    main()
