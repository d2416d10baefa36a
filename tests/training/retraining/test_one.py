"""One retraining: what is published, what is refused and kept, and when there is nothing to learn."""

from __future__ import annotations

import json
import os
import shutil
import signal
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest

from models.errors import Damaged
from models.manifest import REPORT, SearchDefaults
from models.publishing.layout import CARD
from models.publishing.publish import publish
from models.store import Store
from tests.service.lifecycle.test_learned_search import with_search
from tests.tiny import tiny_source as make_tiny_source
from tests.training.jobs import noised
from tests.training.run_cases import stop_after
from training.errors import Interrupted, NothingToLearn, TrainingError
from training.retraining import one
from training.retraining.crossfit import Fold
from training.retraining.gate.rules import Thresholds
from training.retraining.gate.words import figure
from training.retraining.one import Job, judge, retrain
from training.retraining.workplace import workplace
from training.text.corpus import Corpus


def test_what_is_not_worse_is_published_wanted_and_says_where_it_comes_from(job: Job) -> None:
    active = job.store.wanted()
    outcome = retrain(job)
    assert outcome.published, outcome.reason
    assert job.store.wanted() == outcome.version != active
    manifest = job.store.verify(str(outcome.version))
    assert manifest.parent == active
    assert manifest.origin == "simcse-unsup"
    assert manifest.lineage["corpus"] == job.corpus.digest
    assert manifest.lineage["steps"] == 3
    assert manifest.lineage["seed"] == job.recipe.seed
    assert manifest.calibration.int8 is not None
    assert manifest.gate is not None
    assert (manifest.gate.mode, manifest.gate.verdict) == ("on", "accepted")
    report = json.loads((job.store.folder(manifest.version) / REPORT).read_bytes())
    assert report["accepted"] is True
    assert report["meta"]["active"]["version"] == active
    assert report["meta"]["candidate"]["max_length"] == 64
    assert report["active"]["sts"]["stsb"]["spearman_all"] == pytest.approx(1.0, abs=1e-6)
    after = report["candidate"]["sts"]["stsb"]["spearman_all"]
    assert manifest.scores["sts"]["stsb"] == after
    card = (job.store.folder(manifest.version) / CARD).read_text(encoding="utf-8")
    assert f"Trained by the recipe simcse-unsup on {len(job.corpus):,} rows, in 3 steps." in card
    assert f"**{report['headline']}** Compared with {active}, {report['meta']['date']}." in card
    assert [step for step, _ in report["curve"]["loss"]] == [3]
    [row] = [row for row in report["rows"] if row["name"] == "stsb"]
    assert f"| {row['title']} | {row['measure']} | {figure(1.0)} | {figure(after)} |" in card
    assert CARD in manifest.files


def test_queries_of_folds_judge_alone_where_nothing_else_is_held_out(job: Job) -> None:
    fold = Fold(job.corpus, {}, {})
    assert one._needs_scores(job)
    assert not one._needs_scores(replace(job, data=None, folds=(fold,)))
    with pytest.raises(TrainingError, match="needs evaluation sets"):
        one._needs_scores(replace(job, data=None))
    assert not one._needs_scores(replace(job, data=None, mode="off"))


@pytest.mark.long
def test_a_candidate_keeps_the_search_that_was_learned_for_the_collections(job: Job) -> None:
    learned = {"tickets": SearchDefaults(mode="hybrid", weight=0.4)}
    job.store.want(with_search(job.store, str(job.store.wanted()), learned))
    outcome = retrain(job)
    assert outcome.published, outcome.reason
    assert job.store.verify(str(outcome.version)).search == learned


def test_what_is_worse_is_kept_as_refused_with_its_reason_and_not_wanted(job: Job, tmp_path: Path) -> None:
    active = str(job.store.wanted())
    source = noised(tmp_path / "noised", job.store.folder(active), 0.5)
    outcome = retrain(replace(job, base=str(source)))
    assert not outcome.published
    assert job.store.wanted() == active
    manifest = job.store.verify(str(outcome.version))
    assert manifest.gate is not None
    assert manifest.gate.verdict == "refused"
    assert "stsb" in manifest.gate.reason
    assert outcome.reason == manifest.gate.reason
    card = (job.store.folder(manifest.version) / CARD).read_text(encoding="utf-8")
    assert "**Refused.**" in card


@pytest.mark.long
def test_a_better_candidate_replaces_a_noised_active_model(
    job: Job, tmp_path: Path, tiny_source: Path
) -> None:
    worse = publish(job.store, noised(tmp_path / "noised", tiny_source, 0.5)).version
    job.store.want(worse)
    outcome = retrain(replace(job, base=str(tiny_source)))
    assert outcome.published, outcome.reason
    assert outcome.verdict is not None
    [mean] = [row for row in outcome.verdict.rows if row.name.startswith("mean")]
    assert mean.difference is not None
    assert mean.difference > 0.05
    assert job.store.wanted() == outcome.version


@pytest.mark.long
def test_the_same_text_from_the_same_start_is_nothing_to_learn(job: Job) -> None:
    retrain(job)
    with pytest.raises(NothingToLearn, match="this very text"):
        retrain(replace(job, work=job.work / "again"))
    more = Corpus.of([*job.corpus.texts, "one more text"], "more")
    assert retrain(replace(job, corpus=more, work=job.work / "more")).version


@pytest.mark.long
def test_a_refused_candidate_is_not_made_again(job: Job) -> None:
    impossible = Thresholds(mean_fall=0, set_fall=0, uniformity_loss=0)
    first = retrain(replace(job, thresholds=impossible, steps=6))
    assert not first.published
    with pytest.raises(NothingToLearn, match=str(first.version)):
        retrain(replace(job, thresholds=impossible, steps=6, work=job.work / "again"))


def test_with_the_gate_off_it_is_published_and_says_so_for_ever(job: Job) -> None:
    outcome = retrain(replace(job, mode="off", data=None))
    assert outcome.published
    manifest = job.store.verify(str(outcome.version))
    assert manifest.gate is not None
    assert (manifest.gate.mode, manifest.gate.verdict) == ("off", "not asked")
    report = json.loads((job.store.folder(manifest.version) / REPORT).read_bytes())
    assert report["meta"]["gate"] == "off"
    card = (job.store.folder(manifest.version) / CARD).read_text(encoding="utf-8")
    assert "The gate was off: this version was compared with no other." in card


def test_an_artifact_broken_after_its_export_is_refused_and_not_published(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = [manifest.version for manifest in job.store.versions()]

    def broken(*arguments: object) -> object:
        [artifact] = job.work.glob("*/artifact/2*")
        content = bytearray((artifact / "onnx/model.onnx").read_bytes())
        content[len(content) // 2] ^= 1
        (artifact / "onnx/model.onnx").write_bytes(content)
        return judge(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr("training.retraining.one.judge", broken)
    outcome = retrain(job)
    assert not outcome.published
    assert "onnx/model.onnx was changed" in outcome.reason
    assert [manifest.version for manifest in job.store.versions()] == before


@pytest.mark.long
def test_the_same_weights_again_keep_the_verdict_that_they_have(job: Job, tmp_path: Path) -> None:
    impossible = Thresholds(mean_fall=0, set_fall=0, uniformity_loss=0)
    refused = retrain(replace(job, thresholds=impossible, steps=6))
    assert not refused.published
    wanted = job.store.wanted()
    with pytest.raises(NothingToLearn, match=f"models activate {refused.version}"):
        retrain(replace(job, mode="off", steps=6, work=tmp_path / "other", corpus=job.corpus))
    assert job.store.wanted() == wanted, "a version was wanted that its own gate refused"
    manifest = job.store.verify(str(refused.version))
    assert manifest.gate is not None
    assert manifest.gate.verdict == "refused"


@pytest.mark.long
def test_a_candidate_that_cuts_texts_shorter_or_has_other_prompts_is_refused(
    job: Job, tmp_path: Path
) -> None:
    short = make_tiny_source(tmp_path / "short", max_length=8)
    outcome = retrain(replace(job, base=str(short)))
    assert not outcome.published
    assert "cut at 8 tokens instead of 64" in outcome.reason
    prompted = make_tiny_source(tmp_path / "prompted", prompts={"document": "red: ", "query": "blue: "})
    outcome = retrain(replace(job, base=str(prompted)))
    assert not outcome.published
    assert "document_prompt: 'red: ' instead of ''" in outcome.reason


@pytest.mark.long
def test_what_is_active_meanwhile_is_not_overridden(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    other = publish(job.store, make_tiny_source(job.work / "other", seed=5)).version

    def decided_meanwhile(*arguments: object) -> object:
        job.store.want(other)
        job.store.write_state({"live": other})
        return judge(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr("training.retraining.one.judge", decided_meanwhile)
    outcome = retrain(job)
    assert not outcome.published
    assert f"{other} became active" in outcome.reason
    assert job.store.wanted() == other
    assert job.store.verify(str(outcome.version))


@pytest.mark.long
def test_a_stopped_job_goes_on_in_its_work_folder_to_the_same_model(
    job: Job, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    straight = retrain(replace(job, mode="off", steps=6, work=tmp_path / "straight"))
    fingerprint = job.store.verify(str(straight.version)).fingerprint
    again = replace(job, mode="off", steps=6, store=Store(tmp_path / "again"))
    shutil.copytree(job.store.root, again.store.root)
    again.store.want(str(job.store.verify(str(straight.version)).parent))
    shutil.rmtree(again.store.folder(str(straight.version)))
    with monkeypatch.context() as patch:
        stop_after(patch, 3)
        with pytest.raises(Interrupted):
            retrain(again)
    outcome = retrain(again)
    assert again.store.verify(str(outcome.version)).fingerprint == fingerprint


def test_a_damaged_active_version_is_no_refusal_of_the_candidate(job: Job, tiny_source: Path) -> None:
    weights = job.store.folder(str(job.store.wanted())) / "onnx/model.onnx"
    content = bytearray(weights.read_bytes())
    content[len(content) // 2] ^= 1
    weights.write_bytes(content)
    with pytest.raises(Damaged, match="was changed"):
        retrain(replace(job, base=str(tiny_source)))
    assert not list(job.work.glob("*")), "it was trained before that was found"


def test_evaluation_data_is_looked_at_before_anything_is_trained(job: Job, tmp_path: Path) -> None:
    (tmp_path / "nothing").mkdir()
    with pytest.raises(TrainingError, match="holds none of"):
        retrain(replace(job, data=tmp_path / "nothing"))
    assert not list(job.work.glob("*"))


def test_a_temporary_work_folder_goes_with_its_process_and_dead_ones_are_swept(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    dead = tmp_path / "simile-retrain-dead"
    dead.mkdir()
    with workplace(None) as first:
        assert not dead.exists()
        with workplace(None) as second:
            assert first.is_dir(), "a living process's folder was swept"
        assert not second.exists()
        with pytest.raises(KeyboardInterrupt), workplace(None) as third:
            os.kill(os.getpid(), signal.SIGTERM)
        assert not third.exists()
    assert not first.exists()
