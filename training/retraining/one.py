"""A retraining: from a corpus to a published version that is wanted, or the reason why not.

    corpus ─▶ learned from before? ─▶ train ─▶ export and prove ─▶ artifact
                                                                      │ opened again, every byte checked
    active version ─────────▶ scores ───────────────────────▶ gate ◀── scores
                                                               ├▶ publish ─▶ want
                                                               └▶ publish as refused

Both sides are scored as the files that are, or would be, served. What is published is the scored artifact,
byte for byte, with the report of its gate beside it.
"""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from models import cpus
from models.errors import Damaged, ProofFailed
from models.manifest import ANCHOR, Manifest, SearchDefaults
from models.progress import Say, silent
from models.sources.folder import read_source
from models.store import ModelStore
from training.errors import Interrupted, TrainingError
from training.evaluation.encoding import Choose
from training.methods.recipe import fitted
from training.methods.recipe_files import TRIED
from training.model.base import Base, open_base
from training.model.encoder import compute_digest
from training.retraining import searches as own
from training.retraining.anchor import active_version, find_anchor
from training.retraining.changed import answers, changed
from training.retraining.crossfit import Fold, pooled, queried
from training.retraining.gate import rules as gate
from training.retraining.gate.cost import costs
from training.retraining.gate.drift import compute_drift
from training.retraining.gate.verdict import JUDGED, Scores
from training.retraining.gate.words import report
from training.retraining.publication import Outcome, known, publish
from training.retraining.scoring import KnownScores, compute_scores, describe_model, short
from training.retraining.students import beside, build_lineage, find_start, require_pace
from training.runfile import FILE_NAME as RUN
from training.runfile import OtherRun, Result
from training.runs.checkpoint import FILE_NAME as CHECKPOINT
from training.runs.command import train
from training.runs.export import export_run
from training.runs.options import Options
from training.runs.record import read_curve
from training.runs.stages import COUNTED, steps_within
from training.text.corpus import Corpus

if TYPE_CHECKING:
    from training.evaluation.retrieval import Collection
    from training.methods.recipe import Recipe
    from training.retraining.staged import Staged
    from training.runfile import Identity

_RUN = "run"  # in the folder of a job, beside its artifact


@dataclass(frozen=True)
class Job:
    """A retraining that is asked for, and its gate."""

    recipe: Recipe
    corpus: Corpus
    base: str  # `anchor`, `active`, or what `train --base` takes
    steps: int | None
    store: ModelStore
    work: Path  # the run and its artifact go into a folder of their own in it
    data: Path | None  # evaluation sets; None only with the gate off, or where there is `searches`
    mode: Literal["on", "off"] = "on"
    thresholds: gate.Thresholds = field(default_factory=gate.Thresholds)
    require: gate.Require = "not worse"
    searches: Mapping[str, Collection] = field(default_factory=dict)  # over text that is in no corpus
    evidence: Mapping[str, Any] = field(default_factory=dict)  # of the judged queries: searches.evidence
    folds: tuple[Fold, ...] = ()  # where judged queries are few; none of them is in `searches` then
    passages: bool = True  # False: the service splits no document
    looks: float = 1.0  # the number of this look at the same queries
    about: Mapping[str, Any] = field(default_factory=dict)  # what the report says of the job besides
    minutes: float | None = None  # of training, at most; None: each row once
    choose: Choose | None = None  # which share of the training is kept; None: all of it
    staged: Staged | None = None  # several recipes in the place of `recipe`, which is the first of them
    pair: bool = False  # of a student: it is judged and published beside its teacher, for queries
    sweep: bool = False  # earlier runs leave `work` when this one begins
    options: Options = field(default_factory=Options)  # of its run, but for what stands above
    scored: KnownScores = field(default_factory=KnownScores, compare=False)  # of the active version


def retrain(job: Job, say: Say = silent) -> Outcome:
    """Raise NothingToLearn when the corpus was learned from before, or TrainingError or ModelError.

    What can be refused is refused before anything is trained, so the active version is scored first.
    """
    active = active_version(job.store)
    job = replace(job, recipe=fitted(job.recipe, job.corpus.columns))  # its digest says how many negatives
    job.store.require_writable()
    if job.mode == "on" and job.thresholds.slower < 1:
        require_pace(job.store, active, job.base, job.recipe)
    begin = find_start(job.store, active, job.base, distils=job.recipe.student is not None)
    with open_base(begin, job.store.root) as base:
        if job.pair and base.version is None:
            raise TrainingError(f"train.pair needs a published version to distil, and {base.name} is none.")
        new_line = base.version is None or job.staged is not None  # of another model, or of other tokens
        anchor = None if new_line else find_anchor(job.store, str(base.version))
        _check_new(job, active, base)
        learned = Manifest.read(job.store.folder(active)).search
        before = job.scored.of(job.store, active, *_data(job, learned), say=say) if _needs_scores(job) else {}
        place = job.work / _name(job, base)
        if job.sweep:
            _sweep(job.work, place, job.recipe.name, say)
        crossed: Scores = {}
        try:
            if job.folds and job.mode == "on":
                judged_before, crossed = _crossed(job, active, learned, base, place, say)
                before["own"] = {**before.get("own", {}), JUDGED: judged_before}
            artifacts, candidate = _artifact(job, job.corpus, base, place, say, anchor)
            if job.pair:
                candidate = beside(job.store, str(base.version), artifacts, candidate, say)
        except ProofFailed as error:  # it does not compute what was trained: nobody shall have it
            return Outcome(None, False, str(error), None)
    return judge(job, active, before, artifacts, candidate, say, crossed)


def judge(
    job: Job,
    active: str,
    before: Scores,
    artifacts: ModelStore,
    candidate: str,
    say: Say = silent,
    crossed: Scores | None = None,
) -> Outcome:
    """Score the artifact as it would be served, publish it with the verdict, and want it when accepted.

    before: the scores of the active version on the same data; not looked at with the gate off. crossed: those
    of judged queries by the models of the folds, where there are any.
    """
    served = job.store.verify(active)
    try:
        manifest = artifacts.verify(candidate)
        # Stages read what the active version cannot: what was learned for that one is void.
        if not job.staged:
            manifest = manifest.model_copy(update={"search": served.search})
        data = _data(job, manifest.search)
        after = compute_scores(artifacts, candidate, *data, say=say) if _needs_scores(job) else {}
        if crossed:
            after["own"] = {**after.get("own", {}), JUDGED: crossed}
    except Damaged as error:
        return Outcome(None, False, str(error), None)
    files = artifacts.folder(candidate)
    about = {
        "candidate": describe_model(manifest),
        "active": describe_model(served),
        "anchor": manifest.lineage.get(ANCHOR),
        "base": job.base,
        "recipe": job.recipe.name,
        "corpus": job.corpus.digest,
        "texts": len(job.corpus),
        "gate": job.mode,
        "require": job.require,
        "thresholds": job.thresholds.model_dump(include={*gate.Thresholds.model_fields}),
        "looks": round(job.looks, 2),
        **job.about,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
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
    verdict = gate.compare(after, before, job.thresholds, job.require, job.looks)
    verdict = verdict.besides(gate.changed_use(manifest, served))
    content = report(verdict, after, before, about)
    was, now = before.get("own", {}), after.get("own", {})
    searches = {**job.searches, **queried(job.folds)}
    content["changed"] = changed(searches, was, now)
    content["overlap"] = own.overlap(was, now)
    content["curve"] = read_curve(artifacts.root.parent / _RUN)
    scored = manifest.model_copy(update={"scores": short(after)})
    return publish(job.store, active, files, scored, verdict, content, answers(searches, was, now))


def _train(job: Job, corpus: Corpus, base: Base, run: Path, say: Say) -> Result:
    """Go on with the run in the folder `run`; begin anew where there is none, or one that cannot go on."""
    known = replace(
        job.options, steps=job.steps, data=job.data, base_name=base.name, choose=job.choose, say=say
    )
    begin = partial(job.staged.train if job.staged else partial(train, job.recipe, corpus), base.folder, run)
    if not job.staged and job.steps is None and job.minutes is not None:
        steps = steps_within(job.minutes, job.recipe, corpus, base.folder, run.parent, known)
        known = replace(known, steps=steps)
    if (run / RUN).is_file():
        try:
            return begin(replace(known, resume=True))
        except OtherRun as error:
            say(f"training begins anew: {error.why}")
            shutil.rmtree(run)
    return begin(known)


def _identity(job: Job) -> Identity:
    """The part of its run's lineage by which a job is known again."""
    if job.staged:
        return job.staged.lineage()
    return {"corpus": job.corpus.digest, "recipe": job.recipe.digest(), "seed": job.recipe.seed}


def _check_new(job: Job, active: str, base: Base) -> None:
    """The same text, recipe and base give the same model again, and it was judged already."""
    identity = _identity(job)
    digest = compute_digest(read_source(base.folder))
    for manifest in job.store.versions():
        if job.pair != (manifest.query_encoder is not None):
            continue
        lineage = build_lineage(job.store, manifest)
        same_start = lineage.get("base_digest") == digest and job.steps in {None, lineage.get("steps")}
        judged = manifest.gate is not None and identity.items() <= lineage.items()
        if judged and (same_start or manifest.version == active):
            raise known(manifest, "came of this very text by this recipe")


def _name(job: Job, base: Base) -> str:
    """A folder for this very run, so that the same job goes on in it and another begins its own."""
    identity = _identity(job)
    of_job = identity["corpus"], identity["recipe"], identity["seed"], job.steps, job.options.precision
    parts = (*of_job, base.folder.name, base.name)
    return f"{job.recipe.name}-{hashlib.sha256(repr(parts).encode()).hexdigest()[:12]}"


def _sweep(work: Path, place: Path, recipe: str, say: Say) -> None:
    """Remove the runs of other jobs: each holds three copies of a model.

    An unfinished one of another recipe stays where `auto` may come to that, too, and go on with it.
    """
    for other in work.iterdir() if work.is_dir() else ():
        runs = [*other.glob(f"**/{RUN}")] if other.is_dir() and other != place else []
        if runs or (other != place and (other / COUNTED).is_file()):
            stopped = any((run.parent / CHECKPOINT).is_file() for run in runs)
            if stopped and other.name.rpartition("-")[0] in {*TRIED} - {recipe}:  # as _name
                continue
            if stopped:
                say("an unfinished run of other text, rows or settings was found; training begins anew")
            shutil.rmtree(other)


def _needs_scores(job: Job) -> bool:
    """False where queries of folds alone judge. Raise TrainingError where nothing does."""
    if job.mode == "off":
        return False
    found = job.data is not None or bool(job.searches)
    if not found and not job.folds:
        raise TrainingError("The gate needs evaluation sets: --data, SIMILE_EVAL_DATA, or --gate off.")
    return found


def _data(job: Job, learned: Mapping[str, SearchDefaults]) -> tuple[Any, ...]:
    """The data and the search of a scoring, as `compute_scores` takes them."""
    threads = job.options.threads or cpus.available()
    return threads, job.data, job.searches, job.evidence, learned, job.passages


def _crossed(
    job: Job, active: str, learned: Mapping[str, SearchDefaults], base: Base, place: Path, say: Say
) -> tuple[Scores, Scores]:
    """The judged queries of both halves, as the active version and as the model of the other half answers."""
    sides: tuple[list[Scores], list[Scores]] = ([], [])
    threads = job.options.threads or cpus.available()
    for number, fold in enumerate(job.folds, 1):
        say(f"training without half of the judged queries, {number} of {len(job.folds)}")
        store, version = _artifact(job, fold.corpus, base, place / f"fold-{number}", say)
        for side, (of, name) in zip(sides, ((job.store, active), (store, version)), strict=True):
            data = None, fold.searches, fold.evidence, learned, job.passages
            found = compute_scores(of, name, threads, *data, say=say)
            side.append(found["own"][JUDGED])
    return pooled(sides[0]), pooled(sides[1])


def _artifact(
    job: Job, corpus: Corpus, base: Base, place: Path, say: Say, anchor: str | None = None
) -> tuple[ModelStore, str]:
    """Train and export; a run that was stopped in `place` goes on. Raise Interrupted or ProofFailed."""
    result = _train(job, corpus, base, place / _RUN, say)
    if result.interrupted:
        raise Interrupted(f"Stopped after step {result.steps}; nothing was published.")
    artifacts = ModelStore(place / "artifact")
    return artifacts, export_run(place / _RUN, artifacts, anchor=anchor, say=say).version
