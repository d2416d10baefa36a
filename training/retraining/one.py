"""Run one retraining: train on a corpus, compare with the active version, and publish the candidate.

    corpus ─▶ trained on before? ─▶ train ─▶ export and verify ─▶ artifact
                                                                     │ opened again, every byte checked
    active version ─────────▶ scores ──────────────────────▶ gate ◀── scores
                                                              ├▶ publish ─▶ request activation
                                                              └▶ publish as rejected

The scores are those of the files that the service opens. The published files are the scored files, together
with the report of the gate.
"""

from __future__ import annotations

import hashlib
import re
import shutil
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from models import cpus
from models.errors import Damaged, ProofFailed
from models.files.bounded import read_json
from models.manifest import Manifest, SearchDefaults
from models.progress import Say, silent
from models.sources.folder import read_source
from models.store import ModelStore
from training.errors import Interrupted, NothingToLearn, TrainingError
from training.evaluation.encoding import Choose
from training.evaluation.scorable import build_scorable
from training.evaluation.suites import score
from training.methods.recipe import fitted
from training.methods.stages import Stages
from training.model.base import Base, open_base
from training.model.encoder import compute_digest
from training.ranking.cross_validation import COMING
from training.ranking.rules import count_first
from training.retraining import searches as own
from training.retraining.changes import MAX_ANSWERS, find_answers, find_changed
from training.retraining.gate import rules as gate
from training.retraining.gate.cost import costs
from training.retraining.gate.drift import compute_drift
from training.retraining.gate.gains import deciding
from training.retraining.gate.verdict import JUDGED, NAMES, RANKINGS, Scores, report
from training.retraining.ledger import count_test
from training.retraining.lineage import (
    active_version,
    beside,
    build_lineage,
    find_anchor,
    find_start,
    why_slower,
)
from training.retraining.publication import Outcome, known, publish
from training.retraining.scoring import build_meta, read_rankings, score_judged, short
from training.runfile import FILE_NAME as RUN
from training.runfile import Identity, OtherRun, Result
from training.runs.checkpoint import FILE_NAME as CHECKPOINT
from training.runs.command import train
from training.runs.export import export_run
from training.runs.options import Options
from training.runs.record import read_curve
from training.runs.stages import build_lineage_identity, build_parts, run_stages, steps_within
from training.text.corpus import Corpus, Kind
from training.text.service import Searches

if TYPE_CHECKING:
    from training.evaluation.retrieval import Collection
    from training.methods.recipe import Recipe
    from training.retraining.judgements import Judged

_RUN = "run"  # folder of the run, in the folder of a job


class Staged(NamedTuple):
    """A training of several stages, which runs like a training of a single recipe."""

    stages: Stages
    corpora: Mapping[Kind, Corpus]


@dataclass(frozen=True)
class Job:
    """The arguments of a retraining, including the settings of the gate."""

    recipe: Recipe
    corpus: Corpus
    base: str  # `anchor`, `active`, or what `train --base` takes
    steps: int | None
    store: ModelStore
    work: Path  # parent of the job's folder, which has the run and the artifact
    data: Path | None  # evaluation sets; None only with the gate off, or with `searches`
    mode: Literal["on", "off"] = "on"
    thresholds: gate.Thresholds = field(default_factory=gate.Thresholds)
    require: gate.Require = "not worse"
    searches: Mapping[str, Collection] = field(default_factory=dict)  # searches over held-out text
    found: Judged | None = None  # the judged queries in `searches`
    served: Searches = field(default_factory=Searches)  # search settings of the service
    active: str | None = None  # the version to compare with; None: the active one
    about: Mapping[str, Any] = field(default_factory=dict)  # further facts for the report
    minutes: float | None = None  # maximum training time; None: each row once
    choose: Choose | None = None  # chooses the share of the training to keep; None keeps all
    staged: Staged | None = None  # several recipes; `recipe` is the first
    pair: bool = False  # True to judge and publish a student together with its teacher
    options: Options = field(default_factory=Options)  # options of the run that the fields above do not set


def retrain(job: Job, say: Say = silent) -> Outcome:
    """Runs a retraining. Scores the active version first, to fail before the training if data are invalid.

    Raises:
        NothingToLearn: A version was already trained on the same corpus with the same recipe, the result
            would be slower than the active student, or no share of the training helps.
        Interrupted: The user stopped the training.
        TrainingError: The recipe, the corpus or the data cannot be used.
        ModelError: The base cannot be used.

    """
    active = job.active or active_version(job.store)
    recipe = fitted(job.recipe, job.corpus.columns)  # The digest depends on the number of negatives.
    job = replace(job, recipe=recipe, active=active)
    job.store.require_writable()
    may_be_slower = job.mode == "off" or job.thresholds.slower == 1 or recipe.student is not None
    if not may_be_slower and (why := why_slower(job.store, active, job.base, recipe.name)):
        raise NothingToLearn(why)
    begin = find_start(job.store, active, job.base, distils=recipe.student is not None)
    with open_base(begin, job.store.root) as base:
        if job.pair and base.version is None:
            raise TrainingError(f"train.pair needs a published version to distil, and {base.name} is none.")
        # Another model and new tokens need a new anchor.
        new_line = base.version is None or job.staged is not None
        anchor = None if new_line else find_anchor(job.store, str(base.version))
        _check_new(job, base)
        search = Manifest.read(job.store.folder(active)).search
        before = compute_scores(job, job.store, active, search, say)
        place = job.work / _name(job, base)
        _sweep(place, say)
        try:
            artifacts, candidate = _artifact(job, base, place, say, anchor)
            if job.pair:
                candidate = beside(job.store, str(base.version), artifacts, candidate, say)
        except ProofFailed as error:  # The graph computes other vectors than the weights.
            return Outcome(None, False, str(error), None)
    return judge(job, before, artifacts, candidate, say)


def judge(job: Job, before: Scores, artifacts: ModelStore, candidate: str, say: Say) -> Outcome:
    """Scores a candidate, publishes it with the verdict, and requests it if it is accepted.

    Args:
        job: The retraining.
        before: Scores of the active version on the same data. Not used if the gate is off.
        artifacts: Store with the candidate.
        candidate: Version of the candidate.
        say: Called with progress messages.

    """
    active = str(job.active)
    served = job.store.verify(active)
    try:
        manifest = artifacts.verify(candidate)
        # Settings that were learned for text that the active version cannot read are void.
        if not job.staged:
            manifest = manifest.model_copy(update={"search": served.search})
        after = compute_scores(job, artifacts, candidate, manifest.search, say)
    except Damaged as error:
        return Outcome(None, False, str(error), None)
    files = artifacts.folder(candidate)
    about = build_meta(manifest, served, job.recipe.name, job.base, len(job.corpus)) | {
        "corpus": job.corpus.digest,
        "gate": job.mode,
        "require": job.require,
        "thresholds": job.thresholds.model_dump(include={*gate.Thresholds.model_fields}),
        **job.about,
    }
    if job.mode == "off":
        content: dict[str, Any] = {"verdict": "not asked", "meta": about}
        return publish(job.store, active, files, manifest, None, content)
    say("timing both")
    paces = costs((job.store, active), (artifacts, candidate), job.corpus.texts)
    before, after = (dict(side) | {"cost": cost} for side, cost in zip((before, after), paces, strict=True))
    began = find_anchor(job.store, active) if job.staged else about["anchor"]
    if began:
        after["drift"] = compute_drift((job.store, began), (artifacts, candidate), job.corpus.texts)
    was, now = before.get("own", {}), after.get("own", {})
    number = count_test(job.store, [name for each in deciding(was) for name in was[each][NAMES]])
    about["looks"] = round(number, 2)
    verdict = gate.compare(after, before, job.thresholds, job.require, number)
    verdict = verdict._replace(reasons=(*verdict.reasons, *gate.changed_use(manifest, served)))
    content = report(verdict, after, before, about)
    answers = find_answers(job.searches, was, now)
    if answers:
        kind = "judged" if deciding(was) == [COMING] else "right"
        content["summary"].insert(0, count_first(kind, [row["ranks"] for row in answers]))
    content["changed"] = find_changed(answers)
    content["curve"] = read_curve(artifacts.root.parent / _RUN)
    scored = manifest.model_copy(update={"scores": short(after)})
    return publish(
        job.store, active, files, scored, verdict, content, answers[:MAX_ANSWERS], after.get(RANKINGS, {})
    )


def compute_scores(
    job: Job, store: ModelStore, version: str, learned: Mapping[str, SearchDefaults], say: Say
) -> dict[str, Any]:
    """Scores a version on the evaluation sets and the searches of a job. Returns {} if the gate is off.

    Where the active version has rankings, rankings are fitted to this version in the same way, and the scores
    of judged queries are those with rankings. The fitted rankings are returned under RANKINGS.

    Args:
        job: The retraining.
        store: Store with the version.
        version: Version to score.
        learned: Search settings of the version, by collection.
        say: Called with progress messages.

    Raises:
        TrainingError: The gate is on, without searches and evaluation sets.

    """
    data, searches, found, served = job.data, job.searches, job.found, job.served
    if job.mode == "off":
        return {}
    if data is None and not searches:
        raise TrainingError("The gate needs evaluation sets: --data, SIMILE_EVAL_DATA, or --gate off.")
    rankings = read_rankings(job.store, Manifest.read(job.store.folder(str(job.active))))
    threads = job.options.threads or cpus.available()
    say(f"scoring {version}")
    with closing(store.open(version, threads=threads)) as encoder:
        model = own.caching(build_scorable(encoder, passages=served.passages))
        scores = score(model.encode, data, samples=True) if data is not None else {}
        if searches:
            say(f"searching the held-out text: {', '.join(searches)}")
            made = {name: searched for name, searched in searches.items() if name != JUDGED}
            scores["own"] = own.score(made, model, learned, served.mode)
            if found is not None and JUDGED in searches:
                rows, scores[RANKINGS] = score_judged(
                    searches[JUDGED], model, learned, served.mode, found, rankings
                )
                scores["own"] |= rows
        return scores


def _train(job: Job, base: Base, run: Path, say: Say) -> Result:
    """Trains in the folder `run`. Continues a stopped run in it if possible, or else starts again."""
    known = replace(
        job.options, steps=job.steps, data=job.data, base_name=base.name, choose=job.choose, say=say
    )
    begin = partial(run_stages, *job.staged) if job.staged else partial(train, job.recipe, job.corpus)
    begin = partial(begin, base.folder, run)
    if not job.staged and job.steps is None and job.minutes is not None:
        steps = steps_within(job.minutes, job.recipe, job.corpus, base.folder, run.parent, known)
        known = replace(known, steps=steps)
    if (run / RUN).is_file():
        try:
            return begin(replace(known, resume=True))
        except OtherRun as error:
            say(f"training begins anew: {error.why}")
            shutil.rmtree(run)
    return begin(known)


def _identity(job: Job) -> Identity:
    """Returns the part of the lineage that identifies a job: corpus, recipe and seed."""
    if job.staged:
        stages, corpora = job.staged
        return build_lineage_identity(stages, build_parts(stages, corpora, Options(seed=job.options.seed)))
    return {"corpus": job.corpus.digest, "recipe": job.recipe.digest(), "seed": job.recipe.seed}


def _check_new(job: Job, base: Base) -> None:
    """Raises NothingToLearn if a judged version has the same text, recipe and seed.

    That version must also have the same base and steps, or be the active one.
    """
    identity = _identity(job)
    digest = compute_digest(read_source(base.folder))
    for manifest in job.store.versions():
        if job.pair != (manifest.query_encoder is not None):
            continue
        lineage = build_lineage(job.store, manifest)
        same_start = lineage.get("base_digest") == digest and job.steps in {None, lineage.get("steps")}
        judged = manifest.gate is not None and identity.items() <= lineage.items()
        if judged and (same_start or manifest.version == job.active):
            raise known(manifest, "came of this very text by this recipe")


def _name(job: Job, base: Base) -> str:
    """Returns a folder name for the run. Only an equal job gets the same name, and so continues the run."""
    identity = _identity(job)
    of_job = identity["corpus"], identity["recipe"], identity["seed"], job.steps, job.options.precision
    parts = (*of_job, base.folder.name, base.name)
    return f"{job.recipe.name}-{hashlib.sha256(repr(parts).encode()).hexdigest()[:12]}"


def _sweep(place: Path, say: Say) -> None:
    """Removes earlier runs, because each run has three copies of a model.

    Two kinds of runs of other recipes stay: unfinished ones, because `auto` can continue them, and those of
    which no share helped, because they must not be repeated.
    """
    recipe = place.name.rpartition("-")[0]
    for other in place.parent.glob("*-*"):
        if other == place or other.is_symlink() or not re.fullmatch(r".+-[0-9a-f]{12}", other.name):
            continue
        run = other / _RUN / RUN
        if other.name.rpartition("-")[0] == recipe:
            if any(other.glob(f"**/{CHECKPOINT}")):
                say("an unfinished run of other text, rows or settings was found; training begins anew")
        elif not run.is_file() or read_json(run).get("finished", {"share": 0}).get("share") == 0:
            continue
        shutil.rmtree(other)


def _artifact(job: Job, base: Base, place: Path, say: Say, anchor: str | None) -> tuple[ModelStore, str]:
    """Trains and exports a model. Continues a stopped run in `place`. Returns the store and the version.

    Raises:
        Interrupted: The user stopped the training.
        NothingToLearn: No share of the training helps.
        ProofFailed: The exported graph does not compute the same vectors as the weights.

    """
    result = _train(job, base, place / _RUN, say)
    if result.interrupted:
        raise Interrupted(f"Stopped after step {result.steps}; nothing was published.")
    finished = read_json(place / _RUN / RUN)["finished"]
    if finished.get("share") == 0:  # The searches found no share better than the base.
        means = ", ".join(f"{mean:.3f} with {float(share):.0%}" for share, mean in finished["shares"].items())
        raise NothingToLearn(
            f"No share of this training finds more than the model without it: nDCG@10 is {means}."
        )
    artifacts = ModelStore(place / "artifact")
    int8 = Manifest.read(job.store.folder(str(job.active))).quantised is not None
    return artifacts, export_run(place / _RUN, artifacts, anchor=anchor, int8=int8, say=say).version
