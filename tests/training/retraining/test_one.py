"""One retraining: its candidate, gate, publication and anchor, and the count of tests by the same queries."""

from __future__ import annotations

import json
import os
import shutil
import signal
import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from models.errors import Damaged, InUse
from models.manifest import REPORT, SearchDefaults
from models.publishing.layout import CARD
from models.publishing.publish import publish
from models.search.content import Content
from models.store import REQUESTED, Kind, ModelStore
from tests.service.lifecycle.test_learned_search import with_search
from tests.service.swapping import published
from tests.tiny import tiny_source as make_tiny_source
from tests.training.jobs import noised
from tests.training.run_cases import stop_after
from training.errors import Interrupted, NothingToLearn, TrainingError
from training.evaluation.retrieval import Collection
from training.retraining import ledger, one
from training.retraining.gate.rules import Thresholds
from training.retraining.gate.verdict import figure
from training.retraining.ledger import count_test
from training.retraining.lineage import find_anchor
from training.retraining.one import Job, judge, retrain
from training.retraining.publication import request
from training.retraining.workplace import workplace
from training.runs.mix import SHARES
from training.text.corpus import Corpus


def test_what_is_not_worse_is_published_wanted_and_says_where_it_comes_from(job: Job) -> None:
    active = job.store.requested()
    outcome = retrain(job)
    assert outcome.published, outcome.reason
    assert job.store.requested() == outcome.version != active
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
    assert "| measure | that version | this version | difference | allowed |" in card
    assert CARD in manifest.files


def test_a_gate_needs_something_to_judge_with(job: Job) -> None:
    with pytest.raises(TrainingError, match="needs evaluation sets"):
        retrain(replace(job, data=None))


@pytest.mark.long
def test_a_candidate_keeps_the_search_that_was_learned_for_the_collections(job: Job) -> None:
    learned = {"tickets": SearchDefaults(mode="hybrid", weight=0.4)}
    job.store.request(with_search(job.store, str(job.store.requested()), learned))
    outcome = retrain(job)
    assert outcome.published, outcome.reason
    assert job.store.verify(str(outcome.version)).search == learned


def test_what_is_worse_is_kept_as_refused_with_its_reason_and_not_wanted(job: Job, tmp_path: Path) -> None:
    active = str(job.store.requested())
    source = noised(tmp_path / "noised", job.store.folder(active), 0.5)
    outcome = retrain(replace(job, base=str(source)))
    assert not outcome.published
    assert job.store.requested() == active
    manifest = job.store.verify(str(outcome.version))
    assert manifest.gate is not None
    assert manifest.gate.verdict == "refused"
    assert "stsb" in manifest.gate.reason
    assert outcome.reason == manifest.gate.reason
    card = (job.store.folder(manifest.version) / CARD).read_text(encoding="utf-8")
    assert "**Refused.**" in card


def test_finished_runs_of_other_recipes_are_removed_and_all_else_stays(tmp_path: Path) -> None:
    place = tmp_path / "triples-0123456789ab"
    states = {
        "distil-hybrid-000000000001": {"finished": {"share": 0.5}},
        "distil-hybrid-000000000002": {"finished": {"share": 0}},  # Kept, so that it is not repeated.
        "distil-hybrid-000000000003": {},  # Not finished.
        "my-notes": {"finished": {"share": 0.5}},
        place.name: {"finished": {"share": 0.5}},
        "triples-000000000004": {},  # an earlier run of the same recipe
    }
    for name, state in states.items():
        (tmp_path / name / "run").mkdir(parents=True)
        (tmp_path / name / "run/run.json").write_text(json.dumps(state), encoding="utf-8")
    (tmp_path / "linked-000000000005").symlink_to(tmp_path / "my-notes")
    one._sweep(place, lambda _: None)
    left = {found.name for found in tmp_path.iterdir()}
    assert {*states, "linked-000000000005"} - left == {"distil-hybrid-000000000001", "triples-000000000004"}


@pytest.mark.long
def test_a_better_candidate_replaces_a_noised_active_model(
    job: Job, tmp_path: Path, tiny_source: Path
) -> None:
    worse = publish(job.store, noised(tmp_path / "noised", tiny_source, 0.5)).version
    job.store.request(worse)
    outcome = retrain(replace(job, base=str(tiny_source)))
    assert outcome.published, outcome.reason
    assert outcome.verdict is not None
    [mean] = [row for row in outcome.verdict.rows if row.name.startswith("mean")]
    assert mean.difference is not None
    assert mean.difference > 0.05
    assert job.store.requested() == outcome.version


def test_a_training_of_which_no_share_helps_is_neither_exported_nor_repeated(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    shares: list[float] = []

    def less_each_time(*_: object) -> NDArray[np.float64]:
        shares.append(len(shares))
        return np.full(3, -len(shares))

    choosing = replace(job, choose=less_each_time)
    versions = job.store.names()
    for _ in range(2):
        with pytest.raises(NothingToLearn, match="No share of this training"):
            retrain(choosing)
    assert len(shares) == len(SHARES)
    assert job.store.names() == versions
    assert not [*job.work.rglob("artifact")]


@pytest.mark.long
def test_the_same_text_from_the_same_start_is_nothing_to_learn(job: Job) -> None:
    retrain(job)
    with pytest.raises(NothingToLearn, match="this very text"):
        retrain(replace(job, work=job.work / "again"))
    more = Corpus.of([*job.corpus.texts, "one more text"], "more")
    assert retrain(replace(job, corpus=more, work=job.work / "more")).version


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
def test_a_refused_candidate_is_not_made_again_and_keeps_its_verdict(job: Job, tmp_path: Path) -> None:
    impossible = Thresholds(mean_fall=0, set_fall=0, uniformity_loss=0)
    refused = retrain(replace(job, thresholds=impossible, steps=6))
    assert not refused.published
    requested = job.store.requested()
    with pytest.raises(NothingToLearn, match=str(refused.version)):
        retrain(replace(job, thresholds=impossible, steps=6, work=tmp_path / "again"))
    with pytest.raises(NothingToLearn, match=f"models activate {refused.version}"):
        retrain(replace(job, mode="off", steps=6, work=tmp_path / "other"))
    assert job.store.requested() == requested, "a version was wanted that its own gate refused"
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
        job.store.request(other)
        job.store.write_state({"live": other})
        return judge(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr("training.retraining.one.judge", decided_meanwhile)
    outcome = retrain(job)
    assert not outcome.published
    assert f"{other} became active" in outcome.reason
    assert job.store.requested() == other
    assert job.store.verify(str(outcome.version))


@pytest.mark.long
def test_a_stopped_job_goes_on_in_its_work_folder_to_the_same_model(
    job: Job, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    straight = retrain(replace(job, mode="off", steps=6, work=tmp_path / "straight"))
    fingerprint = job.store.verify(str(straight.version)).fingerprint
    again = replace(job, mode="off", steps=6, store=ModelStore(tmp_path / "again"))
    shutil.copytree(job.store.root, again.store.root)
    again.store.request(str(job.store.verify(str(straight.version)).parent))
    shutil.rmtree(again.store.folder(str(straight.version)))
    with monkeypatch.context() as patch:
        stop_after(patch, 3)
        with pytest.raises(Interrupted):
            retrain(again)
    outcome = retrain(again)
    assert again.store.verify(str(outcome.version)).fingerprint == fingerprint


def test_a_damaged_active_version_is_no_refusal_of_the_candidate(job: Job, tiny_source: Path) -> None:
    weights = job.store.folder(str(job.store.requested())) / "onnx/model.onnx"
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


Three = tuple[ModelStore, list[str]]


@pytest.fixture
def three(tmp_path: Path) -> Three:
    """A store and its three versions. The first one is active."""
    versions = published(tmp_path / "models", 3)
    store = ModelStore(tmp_path / "models")
    store.write_state({"live": versions[0]})
    return store, versions


@pytest.mark.parametrize("state", [None, {"state": "building", "reason": None}, {"state": "retired"}])
def test_what_a_person_activated_is_not_overridden_while_it_is_built(
    three: Three, state: dict[str, str] | None
) -> None:
    store, (active, chosen, candidate) = three
    store.request(chosen, "activate")
    store.write_state({"live": active, "versions": {chosen: state} if state else {}})
    outcome = request(store, active, candidate, None)
    assert not outcome.published
    said = f"{chosen} is about to be activated, by hand; the candidate was compared with {active}."
    assert outcome.reason == said
    assert store.requested() == chosen


@pytest.mark.parametrize(
    ("kind", "state"),
    [
        ("activate", {"state": "failed", "reason": "onnx/model.onnx is missing"}),
        ("activate", {"state": "retired", "reason": "rolled back from"}),
        ("want", {"state": "ready", "reason": None}),
    ],
)
def test_one_that_failed_and_one_that_a_retraining_published_are_no_obstacle(
    three: Three, kind: Kind, state: dict[str, str | None]
) -> None:
    store, (active, chosen, candidate) = three
    store.request(chosen, kind)
    queried = store.read_request()
    assert queried is not None
    store.write_state({"live": active, "versions": {chosen: state}, REQUESTED: queried.id})
    os.utime(store.root / "wanted", (2**33, 2**33))
    assert request(store, active, candidate, None).published
    assert store.requested() == candidate


def test_what_the_state_says_is_older_than_the_decision_of_a_person(three: Three) -> None:
    """The service has not yet read the person's request. The retraining must not replace this request."""
    store, (active, chosen, candidate) = three
    left = {chosen: {"state": "retired", "reason": "rolled back from"}}
    store.write_state({"live": active, "versions": left})
    store.request(chosen, "activate")
    os.utime(store.root / "wanted", (1, 1))
    assert not request(store, active, candidate, None).published
    assert store.requested() == chosen


def test_a_search_of_what_a_person_activated_goes_with_it(three: Three) -> None:
    store, (_, chosen, candidate) = three
    store.request(chosen, "activate")
    assert request(store, chosen, candidate, None).published


LOOSE = Thresholds(mean_fall=1, set_fall=1, uniformity_loss=1, slower=1)


def more(job: Job, text: str) -> Job:
    return replace(job, corpus=Corpus.of([*job.corpus.texts, text], "more"), work=job.work / text)


@pytest.mark.long
def test_every_retraining_begins_with_the_anchor_and_names_it(job: Job) -> None:
    job = replace(job, base="anchor")
    first = str(job.store.requested())
    versions = [first]
    for text in ("one", "two"):
        outcome = retrain(more(job, text))
        assert outcome.published, outcome.reason
        manifest = job.store.verify(str(outcome.version))
        assert (manifest.parent, manifest.lineage["anchor"]) == (first, first)
        versions.append(manifest.version)
    assert find_anchor(job.store, versions[2]) == first
    report = json.loads((job.store.folder(versions[2]) / REPORT).read_bytes())
    assert (report["meta"]["active"]["version"], report["meta"]["anchor"]) == (versions[1], first)
    assert report["meta"]["base"] == "anchor"
    [row] = [row for row in report["rows"] if row["name"] == "drift from the anchor"]
    assert row["candidate"] == report["candidate"]["drift"]["neighbours"]
    assert (row["active"], row["passed"]) == (0.0, True)
    with pytest.raises(InUse, match="the anchor of retrainings"):
        job.store.prune(first)
    job.store.prune(versions[1])  # No version names it as its parent or anchor.


@pytest.mark.long
def test_a_line_that_goes_from_active_to_active_has_its_first_as_anchor(job: Job) -> None:
    first = str(job.store.requested())
    for text in ("one", "two"):
        active = job.store.requested()
        manifest = job.store.verify(str(retrain(more(job, text)).version))
        assert (manifest.parent, manifest.lineage["anchor"]) == (active, first)


def test_without_a_name_the_oldest_parent_that_is_here_is_the_anchor(
    tmp_path: Path, tiny_source: Path
) -> None:
    """Versions of earlier releases name a parent, but no anchor. The oldest version may be deleted."""
    store = ModelStore(tmp_path / "models")
    line: list[str] = []
    for scale in (0.1, 0.2, 0.3):
        folder = noised(tmp_path / str(scale), tiny_source, scale)
        version = publish(store, folder).version
        manifest = store.folder(version) / "manifest.json"
        content = json.loads(manifest.read_text()) | {"parent": line[-1] if line else None}
        manifest.write_text(json.dumps(content))
        line.append(version)
    assert find_anchor(store, line[2]) == find_anchor(store, line[0]) == line[0]
    store.prune(line[0])
    assert find_anchor(store, line[2]) == line[1]
    assert find_anchor(store, "gone") == "gone"


@pytest.mark.long
def test_a_candidate_too_far_from_the_anchor_is_refused(job: Job, tmp_path: Path, tiny_source: Path) -> None:
    first = str(job.store.requested())
    far = publish(job.store, noised(tmp_path / "noised", job.store.folder(first), 0.5)).version
    manifest = job.store.folder(far) / "manifest.json"
    manifest.write_text(json.dumps(json.loads(manifest.read_text()) | {"lineage": {"anchor": first}}))
    job.store.request(far)
    outcome = retrain(replace(job, thresholds=LOOSE.model_copy(update={"drift": 0.3})))
    assert not outcome.published
    assert outcome.reason.startswith("drift from the anchor: ")
    # Another model, named on purpose, begins a line of retrainings of its own.
    other = noised(tmp_path / "other", tiny_source, 0.4)
    outcome = retrain(replace(job, base=str(other), thresholds=LOOSE, work=tmp_path / "new"))
    assert outcome.published, outcome.reason
    assert "anchor" not in job.store.verify(str(outcome.version)).lineage
    assert find_anchor(job.store, str(outcome.version)) == outcome.version


def test_the_same_queries_count_on_and_new_ones_bring_it_down(job: Job) -> None:
    def test(first: int) -> float:
        return count_test(job.store, [f"question {at}" for at in range(first, first + 100)])

    assert [test(0) for _ in range(3)] == [1, 2, 3]
    assert test(1000) == 1
    assert test(0) == 4, "other queries in between do not begin the count anew"
    assert test(50) == pytest.approx(1 + 0.5 * 4)
    assert count_test(job.store, []) == 1


def test_a_damaged_ledger_begins_anew(job: Job) -> None:
    assert [count_test(job.store, ["a"]) for _ in range(2)] == [1, 2]
    (job.store.root / ledger.FILE_NAME).write_text("{", encoding="utf-8")
    assert count_test(job.store, ["a"]) == 1


@pytest.mark.long
def test_the_count_reaches_the_report_and_the_gate(job: Job) -> None:
    documents = {f"d{at}": Content(text) for at, text in enumerate(job.corpus.texts)}
    queries = {f"q{at}": text for at, text in enumerate(job.corpus.texts)}
    right = {f"q{at}": {f"d{at}": 1.0} for at in range(len(queries))}
    titles = {"titles": Collection(documents, queries, right, 0)}
    numbers = []
    for text in ("one", "two"):
        outcome = retrain(replace(more(job, text), searches=titles))
        report = json.loads((job.store.folder(str(outcome.version)) / REPORT).read_bytes())
        numbers.append(report["meta"]["looks"])
    assert numbers == [1, 2]
