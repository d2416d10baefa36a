"""Measure learned rankings: `python -m benchmarks.ranking SET…`.

    collection ─▶ candidates of hybrid search ─▶ features ─▶ five folds ─▶ gain over the better hybrid search

A row has the gain in nDCG@10 from a number of judged queries, on new questions or on questions as they come
(cross_validation.py). Each set starts from a default ranking that was learned on the other sets.
`--late` adds rows with the gain of late interaction over the same ranking without it.
`--clicks 0.1 0.2` adds rows that learn from clicks of simulated users. `--recurring 0.3` adds rows where 30 %
of the test queries have an answer that was judged before. `--figure` draws the gains on new questions.
`--write-default` writes a default ranking instead: halfway between hybrid search and the mean of the rankings
that were learned on the sets.
SIMILE_EVAL_DATA names the folder of the sets; `python -m benchmarks.sets` makes simple_wiki.
"""

import argparse
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from benchmarks.command import build_parser, format_table, progress, report, scratch_folder
from benchmarks.workloads import evaluation_folder
from models.search.features import FEATURES
from models.search.measures import judge
from models.search.ranking import Ranking
from training.evaluation.modes import Passages, Scores, WordIndex, find, get_passages
from training.evaluation.retrieval import Collection, load
from training.evaluation.scorable import open_scorable
from training.mining.pairs import folded
from training.ranking.cross_validation import COMING, NEW, Comparison, Fold, compare, draw_folds, learn, limit
from training.ranking.examples import Example, Texts, build_example
from training.ranking.fitting import Procedure, fit
from training.ranking.late import compare_tokens
from training.retraining import judgements
from training.retraining.clicks import build_sessions, estimated_bias, judged_by
from training.retraining.config import EventsTable
from training.retraining.rank import label
from training.text.service import DEFAULT

SETS = ("cranfield", "mlqa_en", "scifact", "simple_wiki")
BOTH_SPLITS = ("scifact",)  # Sets whose training queries are judged, too.
COUNTS = (50, 100, 200, 400)
SHOWN = 10  # Hits that a simulated user sees.
VISITORS = 10  # Users who search for each query.
RECURRING = "of the test queries that have an answer which was judged before, 0 to below 1"
HYBRID = {"hybrid": 1.5}  # The prior of the default ranking.
OLD_WEIGHT = 0.8  # Weight of vectors in the formula of the first release.
# Weights of memory in the default ranking. Chosen by us, because nearly no question of these sets is asked
# twice. They exceed the effect of all other features, which is at most 10 between 50 standardized candidates.
MEMORY = {"memory_best": 20.0, "memory_not": -20.0}
MEMORY_THRESHOLD = 0.95


class Prepared(NamedTuple):
    """A set with its candidates.

    Attributes:
        examples: The judged queries.
        hybrid: nDCG@10 of each query by the formula of hybrid search with the higher mean, shape (q,).
    """

    examples: list[Example]
    hybrid: NDArray[np.float64]


def main() -> None:
    parser = build_parser("ranking", __doc__)
    parser.add_argument("sets", nargs="*", default=SETS)
    parser.add_argument("--cache", type=Path, metavar="FOLDER", help="keeps the vectors for the next run")
    parser.add_argument("--seeds", type=int, default=5, metavar="N", help="of folds (%(default)s)")
    parser.add_argument("--counts", type=int, nargs="*", default=COUNTS, help="judged queries, besides all")
    parser.add_argument("--clicks", type=float, nargs="*", default=(), metavar="NOISE", help="of users")
    parser.add_argument("--visitors", type=int, default=VISITORS, metavar="N", help="a query (%(default)s)")
    parser.add_argument("--recurring", type=float, nargs="*", default=(), metavar="SHARE", help=RECURRING)
    parser.add_argument("--late", action="store_true", help="measure late interaction, too")
    parser.add_argument("--figure", type=Path, metavar="FILE", help="draw the gains on new questions, as SVG")
    parser.add_argument("--write-default", type=Path, metavar="FILE", help="write the default ranking, only")
    options = parser.parse_args()
    with scratch_folder() as empty:
        sets = {name: prepare(name, options.cache or empty, late=options.late) for name in options.sets}
    weights = {name: learn_weights(found.examples) for name, found in sets.items()}
    if options.write_default:
        chosen = Ranking(weights=halfway([*weights.values()]), memory_threshold=MEMORY_THRESHOLD)
        options.write_default.write_text(f"{chosen.model_dump_json(exclude_defaults=True)}\n")
        return
    rows = [row for name in sets for row in measure(name, sets[name], weights, options)]
    columns = ["set", "queries", "hybrid", "judged", "questions", "gain", "low", "high"]
    report("ranking", {"rows": rows}, [format_table(columns, rows)], [])
    if options.figure:
        options.figure.write_text(draw(rows), encoding="utf-8")


def draw(rows: Iterable[Sequence[Any]]) -> str:
    """Returns an SVG of the gains on new questions by judged queries. `rows` are those of `measure`."""
    from training.evaluation.report.plots import Gains, gains_by_queries  # noqa: PLC0415  matplotlib

    points: dict[str, list[tuple[float, float, float, float]]] = {}
    for name, count, _, judged, row, *figures in rows:
        if row == NEW and judged and (judged == "all" or isinstance(judged, int)):
            gain, low, high = map(float, figures)
            points.setdefault(name, []).append((count if judged == "all" else judged, gain, low, high))
    curves = [Gains(name, each) for name, each in points.items()]
    return gains_by_queries(curves, "Gain of a learned ranking on new questions").svg()


def measure(
    name: str, found: Prepared, weights: Mapping[str, Mapping[str, float]], options: argparse.Namespace
) -> Iterator[list[Any]]:
    """Yields a row for each item of `list_draws`, with means over the seeds of the folds."""
    prior = leave_out(weights, name)
    for judged, row, draw in list_draws(found.examples, options):
        fitting = partial(learn, prior=prior) if judged else partial(untrained, prior)
        pairs: dict[str, list[Comparison]] = {row: []}
        for seed in range(options.seeds if judged else 1):
            folds = [*draw(seed)]
            compared = compare(found.examples, [fold.fit(fitting) for fold in folds])
            hybrid = found.hybrid[sorted(chain.from_iterable(fold.test for fold in folds))]
            pairs[row].append(compared._replace(before=hybrid))
            if options.late and judged:
                fitting_late = partial(learn, prior=prior, late=True)
                late = compare(found.examples, [fold.fit(fitting_late) for fold in folds])
                pairs.setdefault(f"{row}, late", []).append(late._replace(before=compared.after))
        for kind, each in pairs.items():
            before = 100 * np.mean([one.before.mean() for one in each])
            low, high = np.mean([one.interval() for one in each], axis=0).tolist()
            figures = [f"{100 * some:+.1f}" for some in (np.mean([one.gain for one in each]), low, high)]
            progress(f"{name}, {judged} judged, {kind}: {' '.join(figures)}")
            yield [name, len(found.examples), f"{before:.1f}", judged, kind, *figures]


def list_draws(
    examples: Sequence[Example], options: argparse.Namespace
) -> Iterator[tuple[int | str, str, Callable[[int], Iterable[Fold]]]]:
    """Yields what each row measures: judged queries, kind of questions, function from seed to folds."""
    count = len(examples)
    for judged in (0, *sorted(each for each in options.counts if each < count * 0.8), count):
        for row in (NEW, COMING):
            yield "all" if judged == count else judged, row, partial(draw_limited, examples, row, judged)
    for noise in options.clicks:
        for row in (NEW, COMING):
            yield (
                f"clicks, noise {noise:g}",
                row,
                partial(draw_clicked, examples, row, noise, options.visitors),
            )
    for share in options.recurring:
        yield "all", f"{share:.0%} recur", partial(draw_recurring, examples, share)


def draw_limited(examples: Sequence[Example], row: str, count: int, seed: int) -> Iterator[Fold]:
    return limit(draw_folds(examples, row, seed), count, seed)


def draw_recurring(examples: Sequence[Example], share: float, seed: int) -> Iterator[Fold]:
    """Yields folds in which `share` of the test queries share an answer with a training query."""
    random = np.random.default_rng(seed)
    for fold in draw_folds(examples, COMING, seed):
        known = {id for each in fold.train for id in each.relevant}
        test = random.permutation(fold.test).tolist()
        new = [at for at in test if known.isdisjoint(examples[at].relevant)]
        old = [at for at in test if at not in new]
        count = min(len(new) / (1 - share), len(old) / share if share else np.inf)
        yield fold._replace(test=[*old[: round(share * count)], *new[: round((1 - share) * count)]])


def untrained(prior: Mapping[str, float], _: Sequence[Example]) -> Ranking:
    """Returns a ranking with the weights `prior`, and ignores the queries."""
    return Ranking(weights=dict(prior), memory_threshold=MEMORY_THRESHOLD)


def click(examples: Sequence[Example], noise: float, visitors: int, seed: int) -> dict[str, Example]:
    """Returns the queries, by text, with labels that a retraining derives from simulated clicks.

    A user sees the first SHOWN hits of hybrid search, and examines position k with probability 1 / k. The
    user clicks an examined hit with probability 1 - noise if it is relevant, and else with probability noise
    (Joachims, Swaminathan, Schnabel 2017).
    """
    random = np.random.default_rng(seed)
    rows = []
    for example in examples:
        page = list(example.ids[:SHOWN])
        relevant = np.array([id in example.relevant for id in page])
        chance = np.where(relevant, 1 - noise, noise) / np.arange(1, len(page) + 1)
        for visitor, clicks in enumerate(random.random((visitors, len(page))) < chance):
            named = {"query": example.query, "search_id": str(visitor), "user": str(visitor), "shown": page}
            rows += [{**named, "id": page[at], "type": "click"} for at in np.flatnonzero(clicks)]
    sessions = build_sessions(rows)
    events = EventsTable()
    bias = estimated_bias(sessions.found)
    said, _, graded = judged_by(sessions, bias, events.least, events.visitors)
    known = {id: id for example in examples for id in example.ids}
    found = judgements.judged(said, known, 0.5, clicked=graded)
    clicked = {}
    for example in examples:
        clicked[example.query] = label(DEFAULT, folded(example.query), found).apply(example)
    return clicked


def draw_clicked(
    examples: Sequence[Example], row: str, noise: float, visitors: int, seed: int
) -> Iterator[Fold]:
    """Yields folds whose training queries have the labels of `click`.

    With NEW, training queries lose the answers of test queries.
    """
    clicked = click(examples, noise, visitors, seed)
    for fold in draw_folds(examples, row, seed):
        answers = {id for at in fold.test for id in examples[at].relevant} if row == NEW else set()
        yield fold._replace(train=[clicked[each.query].without(answers) for each in fold.train])


def learn_weights(examples: Sequence[Example]) -> dict[str, float]:
    """Learns the weights of a set, with `hub` set to 0, because a default ranking has no mean query."""
    hub = FEATURES.index("hub")
    kept = []
    for each in examples:
        features = each.features.copy()
        features[:, hub] = 0
        kept.append(each._replace(features=features))
    return fit(kept, HYBRID, Procedure(None, trees=False)).weights


def halfway(weights: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Returns weights halfway between hybrid search and the mean of several sets, with MEMORY."""
    names = {name for each in weights for name in each}
    means = {name: float(np.mean([each[name] for each in weights])) for name in sorted(names)}
    both = {name: (mean + HYBRID.get(name, 0.0)) / 2 for name, mean in means.items()} or HYBRID
    return {name: round(weight, 3) for name, weight in both.items() if weight} | MEMORY


def leave_out(weights: Mapping[str, Mapping[str, float]], name: str) -> dict[str, float]:
    """Returns the default ranking of a set, from the weights of the other sets."""
    return halfway([each for other, each in weights.items() if other != name])


def prepare(name: str, cache: Path, *, late: bool = False) -> Prepared:
    """Returns a set with its candidates and features. Vectors in `cache` are not computed again.

    With `late`, computes the features of late interaction, too.
    """
    collection = read_set(name)
    ids, contents = [*collection.documents], [*collection.documents.values()]
    queries = [*collection.queries.values()]
    file = cache / f"{name}.npz"
    if not file.exists():
        cache.mkdir(parents=True, exist_ok=True)
        with open_scorable("default") as model:
            split = get_passages(contents, model.split, model.encode_documents)
            queried = model.encode_queries(queries)
            others: Any = {"owners": split.owners, "unrelated": model.unrelated}
            np.savez(file, passages=split.vectors, queries=queried, **others)
    stored = np.load(file)
    passages, unrelated = Passages(stored["passages"], stored["owners"]), float(stored["unrelated"])
    with closing(WordIndex([content.whole for content in contents])) as words:
        lists = [*find(queries, stored["queries"], passages, words, unrelated=unrelated)]
    mean = stored["queries"].mean(axis=0)
    mean /= np.linalg.norm(mean)
    starts = np.flatnonzero(np.diff(passages.owners, prepend=-1))
    texts = Texts(ids, contents, np.split(passages.vectors, starts[1:]), mean, unrelated)
    examples, scores = [], []
    for (query, text), vector, modal in zip(
        collection.queries.items(), stored["queries"], lists, strict=True
    ):
        relevant, worded, fused = collection.relevant[query], modal["lexical"], modal["hybrid"]
        old = fuse_old(modal["dense"], worded)
        orders = [sorted(each, key=lambda at: (-each[at], at)) for each in (old, fused)]
        scores.append([judge([ids[at] for at in order[:10]], relevant)["ndcg10"] for order in orders])
        examples.append(build_example(text, vector, fused, worded, texts, dict(relevant)))
    both = np.array(scores)
    means = both.mean(axis=0)
    progress(f"{name}: {100 * means[0]:.2f} by the old hybrid search, {100 * means[1]:.2f} by the new one")
    if late:
        wholes = {id: content.whole for id, content in collection.documents.items()}
        with open_scorable("default") as model:
            assert model.encoder is not None
            examples, _, size = compare_tokens(examples, model.encoder, wholes)
        progress(f"{name}: {size:,.0f} bytes of token vectors per document")
    return Prepared(examples, both[:, int(np.argmax(means))])


def read_set(name: str) -> Collection:
    folder = evaluation_folder() / name
    found = load(folder)
    if name in BOTH_SPLITS:
        more = load(folder, "train")
        found = found._replace(queries=found.queries | more.queries, relevant=found.relevant | more.relevant)
    return found


def fuse_old(near: Scores, worded: Scores) -> Scores:
    """Fuses by the formula of the first release, which scales cosines from -1 and keyword scores from 0."""
    scaled = scale(near, -1.0)
    return weigh(scaled, scale(worded, 0.0), OLD_WEIGHT, min(scaled.values(), default=0.0))


def scale(scores: Scores, least: float) -> Scores:
    """Scales scores so that `least` becomes 0 and the best 1. If the best is `least`, all become 1."""
    span = max(scores.values(), default=least) - least
    return {at: (score - least) / span if span > 0 else 1.0 for at, score in scores.items()}


def weigh(near: Scores, worded: Scores, weight: float, missing: float) -> Scores:
    """Adds two lists of scaled scores. A document that is missing from `near` has the score `missing`."""
    return {
        at: weight * near.get(at, missing) + (1 - weight) * worded.get(at, 0.0) for at in {**near, **worded}
    }


if __name__ == "__main__":
    main()
