"""Recipes and the gate against the truth: `python -m benchmarks.recipes SETS --recipes … --seeds …`.

    a set's queries ─▶ half of them, with their answers ─▶ a retraining, as `retrain --config` runs it
                    └▶ the other half, which it never sees ─▶ base and candidate in each mode: the truth

Queries that share an answer are in one half. The gate judges by its own half, so its verdict can be compared
with what the candidate is worth on the other. Answers of the first half are *seen*. One line of JSON for each
candidate goes to --out; `--table` prints what is there as tables, with paired intervals (95 %).

`worse` and `far worse` are the version in service with noise on its weights; with `--noise 0.1` that version
has some itself, and `mended` takes it away. So the gate is asked about losses and gains of every size without
a training.

With `--ungated` no gate is asked: the truth alone, in a fraction of the time. `--share` takes a part of the
first half's queries: with `--steps` it draws the curve over data and steps. A row that is in --out is not
made again.

The sets are in BEIR's layout (SIMILE_EVAL_DATA names their folder); benchmarks/sets.py makes two more. A
run takes minutes, most of them for encoding.
"""

import hashlib
import json
import shutil
import time
from argparse import Namespace
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

import numpy as np
from safetensors.numpy import load_file, save_file

from benchmarks.clicked import judged_by_clicks
from benchmarks.places import add_row, arguments, row_of, rows, say, scratch
from benchmarks.recipe_tables import SEEN, summary, tables
from benchmarks.sets import halves, number_of
from benchmarks.workloads import evaluation_folder
from models.engines.form import FP32, read_form
from models.engines.opening import BF16, require
from models.publishing.default import default_source, publish_named
from models.store import Store
from training.errors import NothingToLearn
from training.evaluation.retrieval import Collection, judge_all, load, search
from training.evaluation.scorable import scorable_of
from training.evaluation.suites import score
from training.methods.names import AUTO, SEARCH
from training.retraining.config import Config
from training.retraining.gathered import gather
from training.retraining.publication import Outcome
from training.retraining.retune import retune
from training.text.lines import read_records
from training.text.service_collections import DEFAULT

if TYPE_CHECKING:
    from training.retraining.one import Job

# A name, the recipe, what is changed, and what of the judgements it may learn from.
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
    "search, of text alone": (SEARCH, {}, "none"),
    "auto": (AUTO, {}, "all"),
    "auto, of text alone": (AUTO, {}, "none"),
    **{name: ("crops", {"optim.lr": 1e-7}, "all") for name in ("worse", "far worse", "mended")},
}
# Where these begin, instead of the version in service: the default model with noise on its weights, in shares
# of each tensor's deviation. They are trained for one step that changes nothing.
NOISE = {"worse": 0.05, "far worse": 0.15, "mended": 0.0}
_ASKED = ("steps", "negatives", "share", "noise", "form", "ungated")  # options that a row is known by


def main() -> None:
    parser = arguments("recipes", __doc__)
    parser.add_argument("sets", nargs="*", default=["cranfield", "mlqa_en", "scifact"])
    parser.add_argument("--recipes", nargs="*", choices=[*CANDIDATES], default=[*CANDIDATES])
    parser.add_argument("--seeds", nargs="*", type=int, default=[1])
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--negatives", type=int, default=3)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--noise", type=float, default=0.0, help="on the weights of the version in service")
    parser.add_argument("--share", type=float, default=1.0, help="of the judged queries, to learn from")
    parser.add_argument("--form", choices=[str(FP32), str(BF16)], default=str(FP32), help="of the truth")
    parser.add_argument("--ungated", action="store_true", help="train and measure; ask no gate")
    parser.add_argument("--out", type=Path, default=Path("recipes.jsonl"))
    parser.add_argument("--table", action="store_true")
    options = parser.parse_args()
    if options.table:
        print(tables(rows(options.out)))
        return
    require(read_form(options.form))
    made = rows(options.out)
    for name in options.sets:
        whole = load(evaluation_folder() / name)
        about = {"set": name, "content": _digest(whole)} | {key: getattr(options, key) for key in _ASKED}
        asked = [
            about | {"recipe": recipe, "seed": seed} for seed in options.seeds for recipe in options.recipes
        ]
        left = [each for each in asked if row_of(made, each) is None]
        if not left:
            continue
        with scratch() as folder:
            place = Place(folder, name, whole, options)
            for each in left:
                row = each | place.candidate(each["recipe"], each["seed"])
                add_row(options.out, row)
                say(summary(row))


def _digest(whole: Collection) -> str:
    """Of the queries and their answers: a set may be drawn anew under its name."""
    return hashlib.sha256(repr((whole.queries, whole.relevant)).encode()).hexdigest()[:12]


class Place:
    """A set as a team's text: its documents, half of its judgements, and a store with the default model."""

    def __init__(self, folder: Path, name: str, whole: Collection, options: Namespace) -> None:
        self.folder, self.name, self.threads, self.options = folder, name, options.threads, options
        known, self.unseen = halves(whole)
        known = sorted(known, key=number_of)[: round(options.share * len(known))]
        answers = {query: whole.relevant[query] for query in known}
        self.known = whole._replace(
            queries={query: whole.queries[query] for query in known}, relevant=answers
        )
        self.store = Store(folder / "models")
        self._jobs: dict[str, tuple[Job, float]] = {}  # by candidate, and the seconds that it took
        self.base = publish_named(self.store, self._noised(options.noise)).version
        self.store.want(self.base)
        self.before, found, self.sts = self._truth(self.base)
        said = [(query, id, True) for query in known for id in answers[query]]
        documents = sorted(whole.documents)
        praised = [(query, documents[number_of(query) % 7], True) for query, *_ in said]
        clicked = judged_by_clicks(found, answers, seed=1)
        self._write(
            {
                "all": said,
                "false": praised,
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
        for kind, judgements in judged.items():
            with (self.folder / f"{kind}.jsonl").open("w") as file:
                for query, id, relevant in judgements:
                    line = {"query": self.known.queries[query], "id": id, "relevant": relevant}
                    file.write(json.dumps(line) + "\n")

    def candidate(self, name: str, seed: int) -> dict[str, Any]:
        """Retrain once; what the gate said, and the truth."""
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
                    "base": self._noised(NOISE[name]) if name in NOISE else "anchor",
                    "negatives": self.options.negatives,
                },
                "gate": {"mode": "off" if self.options.ungated else "on"},
                "schedule": {"threads": self.threads},
                "folders": {"models": self.store.root, "work": work},
            }
        )
        started = time.perf_counter() - self._jobs[name][1] if name in self._jobs else time.perf_counter()
        row: dict[str, Any] = {"before": self.before, "sts_before": self.sts}
        try:
            outcome = self._retrained(name, config, work)
        except NothingToLearn as error:
            return row | {"verdict": "nothing to learn", "reason": str(error), "after": self.before}
        finally:
            shutil.rmtree(work, ignore_errors=True)
            self.store.want(self.base)
        verdict = "accepted" if outcome.published else "refused"
        verdict = "not asked" if self.options.ungated else verdict
        row |= {"verdict": verdict, "reason": outcome.reason, "minutes": (time.perf_counter() - started) / 60}
        if outcome.version is None:
            return row | {"after": self.before}
        row["kept"] = self.store.verify(outcome.version).lineage.get("share")
        row["after"], _, row["sts"] = self._truth(outcome.version)
        for manifest in self.store.versions():  # `auto` may publish two
            if manifest.version != self.base:
                shutil.rmtree(self.store.root / manifest.version)
        return row

    def _retrained(self, name: str, config: Config, work: Path) -> Outcome:
        from training.methods.catalogue import load_recipe  # noqa: PLC0415  torch
        from training.retraining.auto import retrain_auto  # noqa: PLC0415  torch
        from training.retraining.one import retrain  # noqa: PLC0415  torch
        from training.retraining.plan import prepare  # noqa: PLC0415  torch

        train = config.train
        if train.recipe == AUTO:
            return retrain_auto(config, self.store, work, {"threads": self.threads}, say)
        if train.recipe == SEARCH:
            return retune(gather(config, self.store, say), config, self.store, say)
        recipe = load_recipe(train.recipe, train.set | {"seed": train.seed})
        if name in self._jobs:
            job, _ = self._jobs[name]
        else:
            began = time.perf_counter()
            job = prepare(config, recipe, self.store, work, say)
            if self.options.ungated:  # the next seed has the same rows; a gate counts its looks
                self._jobs[name] = job, time.perf_counter() - began
        # benchmarks/__init__.py leaves torch one thread.
        return retrain(replace(job, recipe=recipe, options=replace(job.options, threads=self.threads)), say)

    def _noised(self, noise: float) -> str:
        """The default model with noise on its weights: a folder, or its name where there is none."""
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

    def _truth(self, version: str) -> tuple[dict[str, list[float]], dict[str, list[str]], float]:
        """nDCG@10 of each query by mode and as `served` without one; hybrid hits of known queries; STS."""
        encoder = self.store.open(version, self.threads or 4, form=read_form(self.options.form))
        model = scorable_of(encoder)
        try:
            learned = encoder.manifest.search
            encoders = model.encode_queries, model.encode_documents
            both = self.unseen._replace(queries=self.unseen.queries | self.known.queries)
            lists, _ = search(both, *encoders, model.split, learned)
            served = learned[DEFAULT].mode if DEFAULT in learned else "dense"
            first, found = len(self.unseen.queries), dict[str, list[float]]()
            for begin, asked, rows in (
                ("", self.unseen, slice(first)),
                (SEEN, self.known, slice(first, None)),
            ):
                for mode, ranked in lists.items():
                    judged = judge_all(asked, ranked[rows])
                    found[begin + mode] = [round(ranking.ndcg10, 4) for ranking in judged]
                found[begin + "served"] = found[begin + served]
            sts = score(model.encode, evaluation_folder(), ("sts",))["sts"]
            mean = fmean(figures["spearman_all"] for figures in sts.values())
            return found, dict(zip(self.known.queries, lists["hybrid"][first:], strict=True)), mean
        finally:
            encoder.close()


if __name__ == "__main__":
    main()
