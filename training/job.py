"""One retraining: from a corpus to a published version that is wanted, or the reason why not.

    corpus ─▶ learned from before? ─▶ train ─▶ export and prove ─▶ artifact
                                                                     │ opened again, every byte checked
    active version ─────────────────────────────────▶ scores ─▶ gate ─▶ publish ─▶ want
                                                                     └▶ publish as refused

Both sides are scored as the files that are, or would be, served. What is published is the scored artifact,
byte for byte, with the report of its gate beside it.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from models.encoder import ONNX
from models.errors import Damaged, ModelError, ProofFailed
from models.manifest import FILE_NAME, REPORT, Gate, Manifest
from models.publish import Say, silent
from models.store import Store
from training import gate
from training.base import open_base
from training.corpus import Corpus
from training.errors import NothingToLearn, TrainingError
from training.evaluation.suites import score
from training.export import export_run
from training.train import train

if TYPE_CHECKING:
    from training.recipe import Recipe


@dataclass(frozen=True)
class Job:
    """What to retrain, and by which gate."""

    recipe: Recipe
    corpus: Corpus
    base: str  # `active`, or what `train --base` takes
    steps: int | None
    store: Store
    work: Path  # the run and its artifact; a folder that the job may fill
    data: Path | None  # evaluation sets; None only with the gate off
    mode: Literal["on", "off"] = "on"
    thresholds: gate.Thresholds = field(default_factory=gate.Thresholds)
    options: Mapping[str, Any] = field(default_factory=dict)  # of training.train.train


class Outcome(NamedTuple):
    version: str | None  # None when there was nothing to publish
    published: bool  # and wanted; else it was refused
    reason: str  # why it was refused; empty when it was not
    verdict: gate.Verdict | None  # None without a gate


class Interrupted(TrainingError):
    """Ctrl-C; the run can be gone on with."""


def retrain(job: Job, say: Say = silent) -> Outcome:
    """Raise NothingToLearn when the corpus was learned from before, or TrainingError or ModelError."""
    active = active_version(job.store)
    artifacts = Store(job.work / "artifact")
    try:
        candidate = _make(job, active, artifacts, say)
        return judge(job, active, artifacts, candidate, say)
    except (ProofFailed, Damaged) as error:  # what was made is not what was trained: nobody shall have it
        return Outcome(None, False, str(error), None)


def active_version(store: Store) -> str:
    """What the service serves; what it would start with when none has run yet. Raise TrainingError."""
    version = store.read_state().get("live") or store.wanted()
    if not version:
        raise TrainingError(
            f"{store.root} has no active version to compare with. Start the service once, "
            "or name the folder with SIMILE_MODELS_DIR."
        )
    return str(version)


def judge(job: Job, active: str, artifacts: Store, candidate: str, say: Say = silent) -> Outcome:
    """Score the artifact and the active version, publish with the verdict, and want it when accepted.

    Raise Damaged when the artifact is not what was proved.
    """
    about = {
        "candidate": candidate,
        "active": active,
        "base": job.base,
        "recipe": job.recipe.name,
        "corpus": job.corpus.digest,
        "texts": len(job.corpus.texts),
        "gate": job.mode,
        "thresholds": asdict(job.thresholds),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
    }
    if job.mode == "off":
        artifacts.verify(candidate)
        report: dict[str, Any] = {"verdict": "not asked", "meta": about}
        version = _publish(job, artifacts, candidate, Gate(mode="off", verdict="not asked"), report)
        return _want(job.store, version, None)
    before = _scores(job.store, active, job, say)
    after = _scores(artifacts, candidate, job, say)
    verdict = gate.compare(after, before, job.thresholds)
    reason = " ".join(verdict.reasons)
    report = gate.report(verdict, after, before, about)
    word: Literal["accepted", "refused"] = "accepted" if verdict.accepted else "refused"
    version = _publish(
        job, artifacts, candidate, Gate(mode="on", verdict=word, reason=reason), report, _short(after)
    )
    if not verdict.accepted:
        return Outcome(version, False, reason, verdict)
    return _want(job.store, version, verdict)


def _make(job: Job, active: str, artifacts: Store, say: Say) -> str:
    """Train and export; the artifact's version."""
    with open_base(active if job.base == "active" else job.base, job.store.root) as base:
        _check_new(job, active, base.name)
        result = train(
            job.recipe,
            job.corpus,
            base.folder,
            job.work / "run",
            steps=job.steps,
            data=job.data,
            base_name=base.name,
            say=say,
            **job.options,
        )
    if result.interrupted:
        raise Interrupted(f"Stopped after step {result.steps}; nothing was published.")
    return export_run(job.work / "run", artifacts, say=say).version


def _check_new(job: Job, active: str, base: str) -> None:
    """The same text, recipe and base give the same model again, and it was judged already."""
    asked = {"corpus": job.corpus.digest, "recipe": job.recipe.digest(), "seed": job.recipe.seed}
    for manifest in job.store.versions():
        lineage = manifest.lineage
        same_start = lineage.get("base") == base and job.steps in {None, lineage.get("steps")}
        if asked.items() <= lineage.items() and (same_start or manifest.version == active):
            raise NothingToLearn(
                f"{manifest.version} came of this very text by this recipe. Add text, or change the recipe "
                "or its seed."
            )


def _scores(store: Store, version: str, job: Job, say: Say) -> dict[str, Any]:
    """Of the served file, as the service would open it."""
    if job.data is None:
        raise TrainingError("The gate needs evaluation sets: --data, SIMILE_EVAL_DATA, or --gate off.")
    say(f"scoring {version}")
    encoder = store.open(version, threads=len(os.sched_getaffinity(0)))
    try:
        return score(lambda texts: encoder.encode(texts).vectors, job.data)
    finally:
        encoder.close()


def _short(scores: Mapping[str, Any]) -> dict[str, Any]:
    """For the manifest and GET /models; the report has every number."""
    sts = {key: figures["spearman_all"] for key, figures in scores.get("sts", {}).items()}
    geometry = scores.get("geometry", {})
    return {"sts": sts} | {key: geometry[key] for key in ("alignment", "uniformity") if key in geometry}


def _publish(
    job: Job,
    artifacts: Store,
    candidate: str,
    verdict: Gate,
    report: Mapping[str, Any],
    scores: Mapping[str, Any] | None = None,
) -> str:
    manifest = artifacts.verify(candidate)
    sealed = manifest.model_copy(update={"gate": verdict, "scores": dict(scores or {}), "files": {}})
    build = partial(_copy, source=artifacts.folder(candidate), manifest=sealed, report=report)
    published = job.store.publish(build)
    if published.version == candidate and published.files[ONNX] != manifest.files[ONNX]:
        raise ModelError(f"{candidate} changed while it was published.")
    return published.version


def _copy(folder: Path, *, source: Path, manifest: Manifest, report: Mapping[str, Any]) -> Manifest:
    shutil.copytree(source, folder, dirs_exist_ok=True, ignore=shutil.ignore_patterns(FILE_NAME))
    (folder / REPORT).write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    return manifest


def _want(store: Store, version: str, verdict: gate.Verdict | None) -> Outcome:
    store.want(version)
    return Outcome(version, True, "", verdict)
