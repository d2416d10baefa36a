"""Test recipes and the gate on unseen queries: `python -m benchmarks.recipes SETS --recipes … --seeds …`.

    queries of a set ─▶ the seen half, with answers ─▶ a retraining, as `retrain --config` runs it
                     └▶ the unseen half ─▶ base and candidate in each mode: the true difference

The retraining and the gate, which accepts or rejects the candidate, use the seen half only. The unseen half
measures the true difference, with which the verdict of the gate is compared. Queries that share an answer are
in the same half. Each candidate adds a line of JSON to the file --out, unless the file has it already.
`--table` prints the file as tables, with paired 95 % intervals.

The candidates `worse` and `far worse` are the active version with noise on its weights. With `--noise 0.1`
the active version has noise, and the candidate `mended` removes it. These candidates test the gate with
losses and gains of different sizes, without any training.

`--ungated` measures the true difference without the gate, in a fraction of the time. `--share` uses a part of
the seen queries. With `--share` and `--steps` a benchmark can vary the amount of data and of training.

The sets are in BEIR's layout, and SIMILE_EVAL_DATA names their folder. benchmarks/sets.py makes two more
sets. A candidate takes minutes, mostly for encoding.
"""

import hashlib
import json
import shutil
import time
from argparse import Namespace
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

import numpy as np
from safetensors.numpy import load_file, save_file

from benchmarks.command import append_row, build_parser, format_table, progress, scratch_folder
from benchmarks.sets import hash_number, judge_by_clicks, split_queries
from benchmarks.workloads import evaluation_folder
from models.engines.form import FP32, read_form
from models.engines.opening import BF16, require
from models.publishing.default import default_source, publish_named
from models.search.fusion import get_mode
from models.store import ModelStore
from training.errors import NothingToLearn
from training.evaluation.retrieval import Collection, judge_all, load, search
from training.evaluation.scorable import build_scorable
from training.evaluation.significance import of_mean
from training.evaluation.suites import score
from training.methods.recipe_files import AUTO, SEARCH
from training.retraining.config import Config
from training.retraining.gather import gather
from training.retraining.publication import Outcome
from training.retraining.settings import tune
from training.text.lines import read_records
from training.text.service import DEFAULT

if TYPE_CHECKING:
    from training.retraining.one import Job

Row = dict[str, Any]

# Name: the recipe, changed values, and the judgments that it may learn from.
CANDIDATES: dict[str, tuple[str, dict[str, Any], str]] = {
    "crops": ("crops", {}, "none"),
    "ict": ("ict", {}, "none"),
    "distil-hybrid": ("distil-hybrid", {}, "none"),
    "titles": ("pairs", {}, "none"),
    "judgements": ("pairs", {}, "all"),
    "judgements with negatives": ("triples", {}, "all"),
    "clicks": ("pairs", {}, "clicks"),
    "too fast": ("pairs", {"optim.lr": 3e-4}, "all"),
    "dropout": ("simcse-unsup", {}, "none"),
    "poisoned": ("pairs", {}, "false"),
    "nothing": ("crops", {"optim.lr": 1e-7}, "none"),
    "search": (SEARCH, {}, "all"),
    "auto": (AUTO, {}, "all"),
    "auto, of text alone": (AUTO, {}, "none"),
    **{name: ("crops", {"optim.lr": 1e-7}, "all") for name in ("worse", "far worse", "mended")},
}
# These candidates do not begin with the active version. They begin with the default model and noise on its
# weights, in shares of each tensor's standard deviation. They are trained for one step that changes nothing.
NOISE = {"worse": 0.05, "far worse": 0.15, "mended": 0.0}
KEY_OPTIONS = ("steps", "negatives", "share", "noise", "form", "ungated")  # a row is identified by them

SEEN = "seen, "  # prefix of a mode: queries of the first half
OUTCOMES = ("better", "no different", "worse")
SIDES = ("before", "after")
MODES = ("dense", "hybrid", "served")  # they decide whether a candidate is better


def main() -> None:
    parser = build_parser("recipes", __doc__)
    parser.add_argument("sets", nargs="*", default=["cranfield", "mlqa_en", "scifact"])
    parser.add_argument("--recipes", nargs="*", choices=[*CANDIDATES], default=[*CANDIDATES])
    parser.add_argument("--seeds", nargs="*", type=int, default=[1])
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--negatives", type=int, default=3)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--noise", type=float, default=0.0, help="on the weights of the active version")
    parser.add_argument("--share", type=float, default=1.0, help="of the judged queries, to learn from")
    parser.add_argument("--form", choices=[str(FP32), str(BF16)], default=str(FP32), help="of the evaluation")
    parser.add_argument("--ungated", action="store_true", help="train and measure without a gate")
    parser.add_argument("--out", type=Path, default=Path("recipes.jsonl"))
    parser.add_argument("--table", action="store_true")
    options = parser.parse_args()
    if options.table:
        print(tables(read_rows(options.out)))
        return
    require(read_form(options.form))
    existing = read_rows(options.out)
    for name in options.sets:
        whole = load(evaluation_folder() / name)
        about = {"set": name, "content": _digest(whole)} | {key: getattr(options, key) for key in KEY_OPTIONS}
        keys = [
            about | {"recipe": recipe, "seed": seed} for seed in options.seeds for recipe in options.recipes
        ]
        missing = [key for key in keys if not any(key.items() <= row.items() for row in existing)]
        if not missing:
            continue
        with scratch_folder() as folder:
            trial = Trial(folder, name, whole, options)
            for key in missing:
                row = key | trial.candidate(key["recipe"], key["seed"])
                append_row(options.out, row)
                progress(summarize(row))


def read_rows(file: Path) -> list[Row]:
    """Return the rows of a file of JSON lines, or no rows if the file is missing."""
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def _digest(whole: Collection) -> str:
    """Return a digest of a set's queries and answers, which may change while the name stays."""
    return hashlib.sha256(repr((whole.queries, whole.relevant)).encode()).hexdigest()[:12]


class Trial:
    """A test of candidates on one set, with a store of models. Half of the set acts as a user's data."""

    def __init__(self, folder: Path, name: str, whole: Collection, options: Namespace) -> None:
        self.folder, self.name, self.threads, self.options = folder, name, options.threads, options
        known, self.unseen = split_queries(whole)
        known = sorted(known, key=hash_number)[: round(options.share * len(known))]
        answers = {query: whole.relevant[query] for query in known}
        self.known = whole._replace(
            queries={query: whole.queries[query] for query in known}, relevant=answers
        )
        self.store = ModelStore(folder / "models")
        self._jobs: dict[str, tuple[Job, float]] = {}  # by candidate, with the seconds of its preparation
        self.base = publish_named(self.store, self._model_with_noise(options.noise)).version
        self.store.request(self.base)
        self.before, hits, self.sts = self._evaluate(self.base)
        judged = [(query, id, True) for query in known for id in answers[query]]
        documents = sorted(whole.documents)
        wrong = [(query, documents[hash_number(query) % 7], True) for query, *_ in judged]
        clicked = judge_by_clicks(hits, answers, seed=1)
        self._write(
            {
                "all": judged,
                "false": wrong,
                "clicks": [(each.query, each.id, each.relevant) for each in clicked],
            }
        )

    def _write(self, judged: Mapping[str, Sequence[tuple[str, str, bool]]]) -> None:
        records = read_records(evaluation_folder() / self.name / "corpus.jsonl.gz", kind=".jsonl")
        with (self.folder / "documents.jsonl").open("w") as file:
            for record in records:
                fields = {"id": record.fields["_id"], "title": record.fields.get("title", "")}
                if str(record.fields["text"]).strip():
                    file.write(json.dumps(fields | {"text": record.fields["text"]}) + "\n")
        for kind, judgments in judged.items():
            with (self.folder / f"{kind}.jsonl").open("w") as file:
                for query, id, relevant in judgments:
                    line = {"query": self.known.queries[query], "id": id, "relevant": relevant}
                    file.write(json.dumps(line) + "\n")

    def candidate(self, name: str, seed: int) -> Row:
        """Create the candidate `name`; return the verdict of the gate and the scores on both halves."""
        recipe, changed, judged = CANDIDATES[name]
        work = self.folder / "work"
        config = Config.model_validate(
            {
                "corpus": {"file": self.folder / "documents.jsonl"},
                "judgements": {} if judged == "none" else {"file": self.folder / f"{judged}.jsonl"},
                "train": {
                    "recipe": recipe,
                    "set": changed,
                    "seed": seed,
                    "steps": 1 if name in NOISE else self.options.steps,
                    "base": self._model_with_noise(NOISE[name]) if name in NOISE else "anchor",
                    "negatives": self.options.negatives,
                },
                "gate": {"mode": "off" if self.options.ungated else "on"},
                "schedule": {"threads": self.threads},
                "folders": {"models": self.store.root, "work": work},
            }
        )
        started = time.perf_counter() - self._jobs[name][1] if name in self._jobs else time.perf_counter()
        row: Row = {"before": self.before, "sts_before": self.sts}
        try:
            outcome = self._retrain(name, config, work)
        except NothingToLearn as error:
            return row | {"verdict": "nothing to learn", "reason": str(error), "after": self.before}
        finally:
            shutil.rmtree(work, ignore_errors=True)
            self.store.request(self.base)
        verdict = "accepted" if outcome.published else "refused"
        verdict = "not asked" if self.options.ungated else verdict
        row |= {"verdict": verdict, "reason": outcome.reason, "minutes": (time.perf_counter() - started) / 60}
        if outcome.version is None:
            return row | {"after": self.before}
        row["kept"] = self.store.verify(outcome.version).lineage.get("share")
        row["after"], _, row["sts"] = self._evaluate(outcome.version)
        for manifest in self.store.versions():  # `auto` may publish two
            if manifest.version != self.base:
                shutil.rmtree(self.store.root / manifest.version)
        return row

    def _retrain(self, name: str, config: Config, work: Path) -> Outcome:
        from training.methods.recipe import load_recipe  # noqa: PLC0415  torch
        from training.retraining.auto import retrain_auto  # noqa: PLC0415  torch
        from training.retraining.one import retrain  # noqa: PLC0415  torch
        from training.retraining.plan import prepare  # noqa: PLC0415  torch

        train = config.train
        if train.recipe == AUTO:
            return retrain_auto(config, self.store, work, {"threads": self.threads}, progress)
        if train.recipe == SEARCH:
            return tune(gather(config, self.store, progress), config, self.store, progress)
        recipe = load_recipe(train.recipe, train.set | {"seed": train.seed})
        if name in self._jobs:
            job, _ = self._jobs[name]
        else:
            began = time.perf_counter()
            job = prepare(config, recipe, self.store, work, progress)
            if self.options.ungated:  # the next seed has the same rows; a gate must count each look
                self._jobs[name] = job, time.perf_counter() - began
        # benchmarks/__init__.py leaves torch only one thread.
        return retrain(
            replace(job, recipe=recipe, options=replace(job.options, threads=self.threads)), progress
        )

    def _model_with_noise(self, noise: float) -> str:
        """Return a folder with the default model and noise on its weights. Without noise, return its name."""
        if not noise:
            return "default"
        folder = self.folder / f"noise-{noise}"
        if not folder.exists():
            with default_source() as source:
                shutil.copytree(source, folder)
            weights = load_file(folder / "model.safetensors")
            chance = np.random.default_rng(7)
            for name in sorted(weights):
                if weights[name].ndim > 1:
                    drawn = chance.standard_normal(weights[name].shape, np.float32)
                    weights[name] = weights[name] + noise * weights[name].std() * drawn
            save_file(weights, folder / "model.safetensors")
        return str(folder)

    def _evaluate(self, version: str) -> tuple[dict[str, list[float]], dict[str, list[str]], float]:
        """Evaluate a version in all search modes.

        Returns:
            The nDCG@10 of each query by mode ("served" is the mode that the service would use), the hits of
            hybrid search for the seen queries, and the mean Spearman correlation over similarity sets.

        """
        encoder = self.store.open(version, self.threads or 4, form=read_form(self.options.form))
        model = build_scorable(encoder)
        try:
            learned = encoder.manifest.search
            encoders = model.encode_queries, model.encode_documents
            both = self.unseen._replace(queries=self.unseen.queries | self.known.queries)
            lists, _ = search(both, *encoders, model.split, learned, model.unrelated)
            served = get_mode(learned.get(DEFAULT))
            first, found = len(self.unseen.queries), dict[str, list[float]]()
            for prefix, half, rows in (
                ("", self.unseen, slice(first)),
                (SEEN, self.known, slice(first, None)),
            ):
                for mode, ranked in lists.items():
                    judged = judge_all(half, ranked[rows])
                    found[prefix + mode] = [round(ranking["ndcg10"], 4) for ranking in judged]
                found[prefix + "served"] = found[prefix + served]
            sts = score(model.encode, evaluation_folder(), ("sts",))["sts"]
            mean = fmean(figures["spearman_all"] for figures in sts.values())
            return found, dict(zip(self.known.queries, lists["hybrid"][first:], strict=True)), mean
        finally:
            encoder.close()


def summarize(row: Row) -> str:
    """Return a candidate as one line of text."""
    changes = ", ".join(f"{mode} {_change(row, mode)}" for mode in MODES)
    outcome = f"{row['verdict']}; {changes}. {row.get('reason', '')}"
    return f"{row['set']}, {row['recipe']}, seed {row['seed']}: {outcome}"


def tables(rows: Sequence[Row]) -> str:
    """Return the tables of base scores, of candidates, of means over sets, and of the gate's verdicts.

    The gain of a candidate is the mean over its seeds. It is bold if the interval does not include zero.
    """
    gated = [row for row in rows if not row["ungated"]]
    served = ["served"] if gated else []  # without a gate, the search is not learned, and hybrid is served
    modes = ["dense", "hybrid", *served, f"{SEEN}dense", f"{SEEN}hybrid"]
    columns = ["set", "recipe", "steps", "share", *modes, "seeds, dense", "kept", "STS", "minutes", "verdict"]
    cells = []
    for group in _group_by_candidate(rows):
        row = _mean_of_seeds(group)
        seeds = " ".join(f"{_difference(one, 'dense'):+.1f}" for one in group)
        kept = " ".join(f"{share:g}" for share in _values(group, "kept"))
        sts, minutes = (np.mean(_values(group, key) or [np.nan]) for key in ("sts", "minutes"))
        verdicts = Counter(_values(group, "verdict")).items()
        about = [seeds, kept, f"{100 * sts:.1f}", f"{minutes:.1f}"]
        about.append(", ".join(f"{count} {verdict}" for verdict, count in verdicts))
        cells.append([*(row[key] for key in columns[:4]), *(_bold(row, mode) for mode in modes), *about])
    found = [_base_table(rows), format_table(columns, cells), _set_means_table(rows, modes)]
    if gated:
        counted = Counter((_true_outcome(row), row["verdict"] == "accepted") for row in gated)
        judged = [[outcome, counted[outcome, True], counted[outcome, False]] for outcome in OUTCOMES]
        found.append(format_table(["in truth", "accepted", "refused or nothing to learn"], judged))
    return "\n\n".join(found)


def _base_table(rows: Sequence[Row]) -> str:
    """Return a table with the scores of the base version, for each set, noise and precision.

    The scores on seen queries are from the row with the largest `--share`.
    """
    modes = ["dense", "lexical", "hybrid", f"{SEEN}dense", f"{SEEN}lexical", f"{SEEN}hybrid"]
    first: dict[tuple[Any, ...], Row] = {}
    for row in sorted(rows, key=lambda row: -row["share"]):
        first.setdefault((row["set"], row["noise"], row["form"]), row)
    cells = []
    for row in first.values():
        before = row["before"]
        scores = [f"{100 * np.mean(before[mode]):.1f}" for mode in modes]
        counts = [len(before["dense"]), len(before[f"{SEEN}dense"])]
        cells.append([row["set"], row["noise"] or "", *counts, *scores, f"{100 * row['sts_before']:.1f}"])
    return format_table(["set", "noise", "queries", "seen", *modes, "STS"], cells)


def _set_means_table(rows: Sequence[Row], modes: Sequence[str]) -> str:
    """Return a table with the mean gain over sets, for candidates that were tested on several sets."""
    found: dict[tuple[Any, ...], list[Row]] = {}
    for group in _group_by_candidate(rows):
        key = *(group[0].get(name) for name in ("recipe", "steps", "share", "noise")), group[0]["verdict"]
        found.setdefault(key, []).append(_mean_of_seeds(group))
    cells = [
        [*key[:3], len(sets), *(_mean_change(sets, mode) for mode in modes)]
        for key, sets in found.items()
        if len({row["set"] for row in sets}) == len(sets) > 1
    ]
    return format_table(["recipe", "steps", "share", "sets", *modes], cells)


def _mean_change(rows: Sequence[Row], mode: str) -> str:
    """Return the mean difference over sets, and half the width of its interval, as text.

    Sets are independent, so the squares of the intervals add up.
    """
    widths = [np.ptp(_interval(row, mode)) / 2 for row in rows]
    mean = np.mean([_difference(row, mode) for row in rows])
    return f"{mean:+.2f} ± {100 * np.sqrt(np.sum(np.square(widths))) / len(rows):.2f}"


def _group_by_candidate(rows: Iterable[Row]) -> list[list[Row]]:
    """Return groups of rows that differ only in the seed, in the order of their first rows."""
    names = ("set", "recipe", "steps", "share", "noise", "ungated")
    groups: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        key = *map(row.get, names), row.get("form", str(FP32))
        groups.setdefault(key, []).append(row)
    return [*groups.values()]


def _mean_of_seeds(group: Sequence[Row]) -> Row:
    """Merge rows that differ only in the seed. The score of each query becomes the mean over the seeds."""
    modes = group[0]["after"]
    return group[0] | {
        side: {mode: np.mean([row[side][mode] for row in group], axis=0) for mode in modes} for side in SIDES
    }


def _values(group: Sequence[Row], key: str) -> list[Any]:
    return [row[key] for row in group if row.get(key) is not None]


def _interval(row: Row, mode: str) -> tuple[float, float]:
    return of_mean(row["before"][mode], row["after"][mode], level=0.95)


def _change(row: Row, mode: str) -> str:
    """Return the difference between candidate and base in points, with its interval, as text."""
    low, high = _interval(row, mode)
    return f"{_difference(row, mode):+.1f} [{100 * low:+.1f}, {100 * high:+.1f}]"


def _bold(row: Row, mode: str) -> str:
    low, high = _interval(row, mode)
    return f"**{_change(row, mode)}**" if low > 0 or high < 0 else _change(row, mode)


def _difference(row: Row, mode: str) -> float:
    """Return the difference between candidate and base in points."""
    return 100 * float(np.mean(row["after"][mode]) - np.mean(row["before"][mode]))


def _true_outcome(row: Row) -> str:
    """Return "worse" if an interval is below zero, or "better" if one is above zero and none below."""
    intervals = [_interval(row, mode) for mode in MODES]
    if any(high < 0 for _, high in intervals):
        return "worse"
    return "better" if any(low > 0 for low, _ in intervals) else "no different"


if __name__ == "__main__":
    main()
