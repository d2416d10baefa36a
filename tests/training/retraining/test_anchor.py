"""The anchor: found in a line of versions, kept, begun with, and measured from."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from models.errors import InUse
from models.manifest import REPORT
from models.publishing.publish import publish
from models.store import Store
from tests.training.jobs import noised
from training.retraining.anchor import anchor_of
from training.retraining.gate.rules import Thresholds
from training.retraining.one import Job, retrain
from training.text.corpus import Corpus

LOOSE = Thresholds(mean_fall=1, set_fall=1, uniformity_loss=1, slower=1)


def more(job: Job, text: str) -> Job:
    return replace(job, corpus=Corpus.of([*job.corpus.texts, text], "more"), work=job.work / text)


@pytest.mark.long
def test_every_retraining_begins_with_the_anchor_and_names_it(job: Job) -> None:
    job = replace(job, base="anchor")
    first = str(job.store.wanted())
    versions = [first]
    for text in ("one", "two"):
        outcome = retrain(more(job, text))
        assert outcome.published, outcome.reason
        manifest = job.store.verify(str(outcome.version))
        assert (manifest.parent, manifest.lineage["anchor"]) == (first, first)
        versions.append(manifest.version)
    assert anchor_of(job.store, versions[2]) == first
    report = json.loads((job.store.folder(versions[2]) / REPORT).read_bytes())
    assert (report["meta"]["active"]["version"], report["meta"]["anchor"]) == (versions[1], first)
    assert report["meta"]["base"] == "anchor"
    [row] = [row for row in report["rows"] if row["name"] == "drift from the anchor"]
    assert row["candidate"] == report["candidate"]["drift"]["neighbours"]
    assert (row["active"], row["passed"]) == (0.0, True)
    with pytest.raises(InUse, match="the anchor of retrainings"):
        job.store.prune(first)
    job.store.prune(versions[1])  # in the middle of no line


@pytest.mark.long
def test_a_line_that_goes_from_active_to_active_has_its_first_as_anchor(job: Job) -> None:
    first = str(job.store.wanted())
    for text in ("one", "two"):
        active = job.store.wanted()
        manifest = job.store.verify(str(retrain(more(job, text)).version))
        assert (manifest.parent, manifest.lineage["anchor"]) == (active, first)


def test_without_a_name_the_oldest_parent_that_is_here_is_the_anchor(
    tmp_path: Path, tiny_source: Path
) -> None:
    """Versions of an earlier release name a parent only, and an older one may be deleted."""
    store = Store(tmp_path / "models")
    line: list[str] = []
    for scale in (0.1, 0.2, 0.3):
        folder = noised(tmp_path / str(scale), tiny_source, scale)
        version = publish(store, folder).version
        manifest = store.folder(version) / "manifest.json"
        content = json.loads(manifest.read_text()) | {"parent": line[-1] if line else None}
        manifest.write_text(json.dumps(content))
        line.append(version)
    assert anchor_of(store, line[2]) == anchor_of(store, line[0]) == line[0]
    store.prune(line[0])
    assert anchor_of(store, line[2]) == line[1]
    assert anchor_of(store, "gone") == "gone"


@pytest.mark.long
def test_a_candidate_too_far_from_the_anchor_is_refused(job: Job, tmp_path: Path, tiny_source: Path) -> None:
    first = str(job.store.wanted())
    far = publish(job.store, noised(tmp_path / "noised", job.store.folder(first), 0.5)).version
    manifest = job.store.folder(far) / "manifest.json"
    manifest.write_text(json.dumps(json.loads(manifest.read_text()) | {"lineage": {"anchor": first}}))
    job.store.want(far)
    outcome = retrain(replace(job, thresholds=LOOSE.model_copy(update={"drift": 0.3})))
    assert not outcome.published
    assert outcome.reason.startswith("drift from the anchor: ")
    # Another model, named on purpose, begins a line of its own.
    other = noised(tmp_path / "other", tiny_source, 0.4)
    outcome = retrain(replace(job, base=str(other), thresholds=LOOSE, work=tmp_path / "new"))
    assert outcome.published, outcome.reason
    assert "anchor" not in job.store.verify(str(outcome.version)).lineage
    assert anchor_of(job.store, str(outcome.version)) == outcome.version
