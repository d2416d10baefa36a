"""Measure encoders that a retraining trains: `python -m benchmarks.retraining SET… --work FOLDER`.

    seen half of the judged queries ─▶ a retraining as `retrain --config` runs it, gate off ─▶ candidate
    base and candidate ─▶ dense, hybrid and ranked search for both halves ─▶ gain in nDCG@10

Queries that share an answer are in the same half (cross_validation.find_groups). Where a large share of all
queries is connected, unseen queries lose the answers of seen ones. A ranking is fitted to the seen half on
top of each side, by the procedure that the base chooses, and seen queries are cross-validated. Its prior is
hybrid search, because the default ranking was learned on these sets. Queries of the unseen half choose
nothing.

FOLDER keeps the trainings and a row for each in rows.jsonl, so a stopped command goes on. The table has all
rows of the file. SIMILE_EVAL_DATA names the folder of the sets.
"""

import argparse
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from benchmarks.command import append_row, build_parser, format_table, progress, report
from benchmarks.ranking import halfway
from benchmarks.workloads import evaluation_folder
from models.engines.opening import form_for
from models.publishing.default import publish_named
from models.search.measures import judge
from models.store import ModelStore
from training.errors import NothingToLearn
from training.evaluation.retrieval import Collection, load
from training.evaluation.scorable import Scorable, build_scorable
from training.evaluation.significance import of_mean
from training.methods.recipe import load_recipe
from training.ranking.cross_validation import COMING, Fold, compare, draw_folds, find_groups, learn
from training.ranking.examples import Example
from training.ranking.fitting import Procedure, fit
from training.retraining import one, plan
from training.retraining import searches as own
from training.retraining.config import Config
from training.retraining.split import place

SETS = ("mlqa_en", "cranfield", "scifact")
RECIPES = ("triples", "distil-hybrid")
BASE = "base"
DOCUMENTS = {"scifact": 1500}  # Documents of a set. All others have fewer, and all are used.
HALVES, MODES = ("unseen", "seen"), ("dense", "hybrid", "ranked")
Row = Mapping[str, Any]


class Halves(NamedTuple):
    """A set, and whether each of its queries is in the seen half, shape (q,)."""

    collection: Collection
    seen: NDArray[np.bool_]


def main() -> None:
    parser = build_parser("retraining", __doc__)
    parser.add_argument("sets", nargs="*", default=SETS)
    parser.add_argument("--work", type=Path, required=True, metavar="FOLDER", help="keeps all trainings")
    parser.add_argument("--recipes", nargs="*", default=RECIPES)
    parser.add_argument("--seeds", type=int, nargs="*", default=[1])
    parser.add_argument("--steps", type=int, help="of each training (default: as the recipe says)")
    parser.add_argument("--threads", type=int, default=1, metavar="N", help="(%(default)s)")
    parser.add_argument("--base", default="default", help="as for `train` (%(default)s)")
    options = parser.parse_args()
    options.work.mkdir(parents=True, exist_ok=True)
    file = options.work / "rows.jsonl"
    for name in options.sets:
        halves = divide(read_set(name))
        keys: list[dict[str, Any]] = [{"set": name, "recipe": BASE}]
        for seed, recipe in product(options.seeds, options.recipes):
            keys.append({"set": name, "recipe": recipe, "steps": options.steps, "seed": seed})
        for key in keys:
            rows = read_rows(file)
            if find(rows, key) is None:
                row = key | measure(key, halves, find(rows, keys[0]), options)
                append_row(file, row)
                progress(f"measured {key}, {row.get('reason', '')}")
    rows = read_rows(file)
    columns = [
        "set",
        "recipe",
        "steps",
        "seeds",
        "kept",
        *(f"{half}, {mode}" for half, mode in _list_modes()),
    ]
    report("retraining", {"rows": rows}, [format_table(columns, [*tabulate(rows)])], [])


def measure(key: Row, halves: Halves, base: Row | None, options: argparse.Namespace) -> dict[str, Any]:
    """Trains the candidate `key`, and returns the nDCG@10 of each query by half and mode.

    Without a row `base`, measures the base.
    """
    folder = options.work / "-".join(str(value) for value in key.values())
    store = ModelStore(folder / "models")
    version = publish_named(store, options.base).version
    store.request(version)
    kept: Any = None
    if base is not None:
        try:
            version = retrain(key, halves, store, folder, options.threads)
        except NothingToLearn as error:
            return {"kept": 0, "reason": str(error), "scores": base["scores"]}
        kept = store.verify(version).lineage.get("share")
    procedure = None if base is None else Procedure(*base["procedure"])
    with closing(store.open(version, options.threads, form=form_for("auto"))) as encoder:
        model = own.caching(build_scorable(encoder))
        return {"kept": kept} | evaluate(halves, model, procedure)


def retrain(key: Row, halves: Halves, store: ModelStore, folder: Path, threads: int) -> str:
    """Returns the version of the candidate, which may be there from an earlier run."""
    [base] = {each.version for each in store.versions() if each.gate is None}
    if trained := [name for name in store.names() if name != base]:
        return trained[0]
    collection, seen = halves
    documents, judged = folder / "documents.jsonl", folder / "judged.jsonl"
    contents = collection.documents.items()
    _write(documents, ({"id": id, "title": each.title, "text": each.text} for id, each in contents))
    queries = [query for query, known in zip(collection.queries, seen, strict=True) if known]
    pairs = ((collection.queries[query], id) for query in queries for id in collection.relevant[query])
    _write(judged, ({"query": query, "id": id} for query, id in pairs))
    config = Config.model_validate(
        {
            "corpus": {"file": documents},
            "judgements": {"file": judged},
            "train": {"recipe": key["recipe"], "steps": key["steps"]},
            "gate": {"mode": "off"},
            "schedule": {"threads": threads},
            "folders": {"models": store.root},
        }
    )
    recipe = load_recipe(key["recipe"], {"seed": key["seed"]})
    job = plan.prepare(config, recipe, store, folder, progress)
    outcome = one.retrain(replace(job, options=replace(job.options, threads=threads)), progress)
    if outcome.version is None:
        raise NothingToLearn(outcome.reason)
    return outcome.version


def evaluate(halves: Halves, model: Scorable, procedure: Procedure | None) -> dict[str, Any]:
    """Returns the nDCG@10 of each query by half and mode, and the procedure of the rankings.

    `procedure` None: the seen half chooses it by cross-validation.
    """
    collection, seen = halves
    half = {"seen": np.flatnonzero(seen).tolist(), "unseen": np.flatnonzero(~seen).tolist()}
    dense = own.find(collection, model, own.Setting("dense"))
    hybrid = own.find(collection, model, own.Setting("hybrid"), ranked=True)
    judged, prior = [hybrid[at] for at in half["seen"]], halfway(())
    procedure = procedure or Procedure.of(learn(judged, prior))
    fitting = partial(fit, prior=prior, procedure=procedure)
    scores = {}
    for name, some in half.items():
        for mode, examples in (("dense", dense), ("hybrid", hybrid)):
            scores[f"{name}, {mode}"] = score([examples[at] for at in some])
    scores["unseen, ranked"] = compare(hybrid, [Fold(judged, half["unseen"]).fit(fitting)]).after.tolist()
    scores["seen, ranked"] = compare(
        judged, [fold.fit(fitting) for fold in draw_folds(judged, COMING)]
    ).after.tolist()
    groups = {
        name: find_groups([hybrid[at].relevant for at in some], [hybrid[at].query for at in some]).tolist()
        for name, some in half.items()
    }
    return {"scores": scores, "groups": groups, "procedure": procedure}


def score(examples: Iterable[Example]) -> list[float]:
    return [judge(each.ids, each.relevant)["ndcg10"] for each in examples]


def read_set(name: str) -> Collection:
    """Returns a set with at most DOCUMENTS documents, among them all answers.

    Another hash than that of split.py draws the others, because each part needs its share of them.
    """
    found = load(evaluation_folder() / name)
    answers = {id for each in found.relevant.values() for id in each}
    order = sorted(found.documents, key=lambda each: (each not in answers, place(f"benchmark\0{each}")))
    return found._replace(documents={id: found.documents[id] for id in order[: DOCUMENTS.get(name)]})


def divide(whole: Collection) -> Halves:
    """Divides the queries. No answer of a seen query is an answer of an unseen one."""
    answers = [whole.relevant[query] for query in whole.queries]
    groups = find_groups(answers, [text.casefold() for text in whole.queries.values()])
    labels, number = np.unique(groups, return_inverse=True)
    known = (np.random.default_rng(0).permutation(len(labels)) % 2 == 0)[number].tolist()
    learned = {id for each, seen in zip(answers, known, strict=True) if seen for id in each}
    seen, queries, relevant = list[bool](), dict[str, str](), dict[str, dict[str, float]]()
    for (query, text), each, is_seen in zip(whole.queries.items(), answers, known, strict=True):
        kept = {id: gain for id, gain in each.items() if is_seen or id not in learned}
        if kept:
            seen.append(is_seen)
            queries[query], relevant[query] = text, kept
    return Halves(whole._replace(queries=queries, relevant=relevant), np.array(seen))


def tabulate(rows: Sequence[Row]) -> Iterator[list[Any]]:
    """Yields a row for each set and recipe: scores of the base, or gains in the mean over the seeds."""
    groups: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        groups.setdefault((row["set"], row["recipe"], row.get("steps") or "-"), []).append(row)
    for key, some in groups.items():
        base = groups[key[0], BASE, "-"][0]
        cells = []
        for half, mode in _list_modes():
            name = f"{half}, {mode}"
            before = np.array(base["scores"][name])
            after = np.mean([row["scores"][name] for row in some], axis=0)
            if key[1] == BASE:
                cells.append(f"{100 * before.mean():.1f}")
                continue
            low, high = of_mean(before, after, level=0.95, groups=np.array(base["groups"][half]))
            cells.append(f"{100 * (after - before).mean():+.1f} [{100 * low:+.1f}, {100 * high:+.1f}]")
        kept = " ".join(str(row["kept"]) for row in some)
        yield [*key, len(some), kept, *cells]


def read_rows(file: Path) -> list[Row]:
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def find(rows: Iterable[Row], key: Row) -> Row | None:
    return next((row for row in rows if key.items() <= row.items()), None)


def _list_modes() -> Iterator[tuple[str, str]]:
    return product(HALVES, MODES)


def _write(file: Path, rows: Iterable[Row]) -> None:
    file.write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")


if __name__ == "__main__":
    main()
