"""Students, pairs, and what a retraining gathers before it begins."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from models.manifest import FILE_NAME, REPORT, TEACHER, seal
from models.publishing.pair import pair
from models.store import ModelStore
from tests.service.swapping import publish_pair, published_pair
from training.errors import NothingToLearn, TrainingError
from training.methods.recipe import load_recipe
from training.retraining import one
from training.retraining.clicks import Use
from training.retraining.config import Config, CorpusTable, EventsTable
from training.retraining.gate.rules import Thresholds
from training.retraining.gather import _unjudged, gather
from training.retraining.judgements import Judgment, judged
from training.retraining.lineage import find_start, find_teacher
from training.retraining.one import Job, retrain
from training.retraining.publication import get_learned
from training.text.corpus import Corpus

DISTIL = load_recipe("distil", {"student.layers": 1, "optim.lr": 3e-3, "optim.batch": 8})
LOOSE = Thresholds(mean_fall=1, set_fall=1, uniformity_loss=1, drift=1)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[ModelStore, list[str]]:
    root = tmp_path_factory.mktemp("made") / "models"
    return ModelStore(root), published_pair(root)


@pytest.mark.parametrize(
    ("base", "distils", "begins"),
    [
        ("anchor", False, ("teacher", "student", "teacher")),
        ("active", False, ("teacher", "student", "pair")),
        ("anchor", True, ("teacher", "pair", "pair")),
        ("active", True, ("teacher", "pair", "pair")),
        ("some/folder", True, ("some/folder",) * 3),
    ],
)
def test_a_student_is_distilled_from_what_is_served_and_never_from_a_student(
    made: tuple[ModelStore, list[str]], base: str, distils: bool, begins: tuple[str, ...]
) -> None:
    """Distilling again starts at the newest version with the teacher's vectors, which is the pair."""
    store, versions = made
    names = dict(zip(("teacher", "student", "pair"), versions, strict=True))
    found = [find_start(store, version, base, distils=distils) for version in versions]
    assert found == [names.get(name, name) for name in begins]


def test_a_student_whose_teacher_is_gone_says_what_to_do(
    made: tuple[ModelStore, list[str]], tmp_path: Path
) -> None:
    store, (_, student, _) = made
    shutil.copytree(store.folder(student), tmp_path / student)
    with pytest.raises(NothingToLearn, match=r"its teacher .* is not published here\. Import the teacher"):
        find_teacher(ModelStore(tmp_path), student)


@pytest.fixture
def studied(job: Job, tmp_path: Path, tiny_source: Path) -> tuple[Job, str, str, str]:
    """A job, and the versions of its teacher, student and pair. The teacher is active."""
    teacher = job.store.versions()[0]
    student, both = publish_pair(job.store, teacher, tiny_source)
    return replace(job, base="anchor"), teacher.version, student.version, both.version


def test_what_would_be_slower_than_a_student_or_a_pair_is_refused_before_it_is_trained(
    studied: tuple[Job, str, str, str],
) -> None:
    job, _, student, both = studied
    job.store.request(student)
    said = f"{student} is a student, and simcse-unsup would train a model as"
    with pytest.raises(NothingToLearn, match=said):
        retrain(job)
    job.store.request(both)
    for base in ("anchor", "active"):
        said = f"{both} is a pair, .*gate.slower = 1, and it may be slower"
        with pytest.raises(NothingToLearn, match=said):
            retrain(replace(job, base=base))
    assert not job.work.exists()


@pytest.mark.long
def test_it_is_trained_where_it_may_be_slower_and_a_student_may_be_trained_itself(
    studied: tuple[Job, str, str, str],
) -> None:
    job, teacher, student, both = studied
    slower = LOOSE.model_copy(update={"slower": 1, "larger": 1})
    job.store.request(both)
    outcome = retrain(replace(job, thresholds=slower))
    assert outcome.published, outcome.reason
    manifest = job.store.verify(str(outcome.version))
    assert manifest.query_encoder is None
    assert manifest.parent == teacher
    job.store.request(student)
    outcome = retrain(replace(job, base="active", thresholds=LOOSE, work=job.work / "again"))
    assert job.store.verify(str(outcome.version)).parent == student


@pytest.mark.long
def test_distil_is_accepted_for_its_speed_and_distils_the_teacher_again(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    teacher = job.store.versions()[0]
    paces = [{"texts_per_second": 100.0, "megabytes": 2.0}, {"texts_per_second": 190.0, "megabytes": 1.0}]
    monkeypatch.setattr(one, "costs", lambda *_: (paces[0], paces[-1]))
    queried = replace(job, recipe=DISTIL, thresholds=LOOSE, base="anchor")
    outcome = retrain(replace(queried, require="faster"))
    assert outcome.published, outcome.reason
    student = job.store.verify(str(outcome.version))
    assert student.lineage[TEACHER] == teacher.fingerprint
    assert student.parent == teacher.version
    assert job.store.requested() == student.version
    paces.pop()
    more = Corpus.of([*job.corpus.texts, "one more text"], "more")
    again = retrain(replace(queried, corpus=more, require="not worse"))
    second = job.store.verify(str(again.version))
    assert (second.lineage[TEACHER], second.parent) == (teacher.fingerprint, teacher.version)
    most = Corpus.of([*more.texts, "and another"], "most")
    slower = retrain(replace(queried, corpus=most, require="faster"))
    assert not slower.published
    assert "It is not faster by 80%: +0% texts per second." in slower.reason
    both = pair(job.store, teacher.version, student.version).query_encoder
    assert both is not None
    assert both.fingerprint == student.fingerprint


@pytest.mark.long
def test_a_pair_is_judged_as_it_would_be_served_and_a_second_one_has_a_student_of_the_same_teacher(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    teacher = job.store.versions()[0]
    paces = [{"queries_per_second": 100.0, "megabytes": 2.0}, {"queries_per_second": 190.0, "megabytes": 3.0}]
    timed: list[str] = []

    def costs(active: object, candidate: tuple[ModelStore, str], texts: object) -> tuple[Any, Any]:
        store, version = candidate
        encoder = store.open(version)
        timed.append(str(encoder.queries and encoder.queries.manifest.fingerprint))
        encoder.close()
        return paces[0], paces[-1]

    monkeypatch.setattr(one, "costs", costs)
    limits = LOOSE.model_copy(update={"larger": 1})
    queried = replace(job, recipe=DISTIL, thresholds=limits, base="anchor", require="faster", pair=True)
    outcome = retrain(queried)
    assert outcome.published, outcome.reason
    both = job.store.verify(str(outcome.version))
    assert both.query_encoder is not None
    assert (both.fingerprint, both.parent) == (teacher.fingerprint, teacher.version)
    assert timed == [both.query_encoder.fingerprint]
    assert both.gate is not None
    assert both.gate.verdict == "accepted"
    assert (job.store.folder(both.version) / REPORT).is_file()
    assert job.store.requested() == both.version
    with pytest.raises(NothingToLearn, match="came of this very text by this recipe"):
        retrain(queried)
    paces.pop()
    more = Corpus.of([*job.corpus.texts, "one more text"], "more")
    again = retrain(replace(queried, corpus=more, require="not worse"))
    second = job.store.verify(str(again.version))
    assert second.query_encoder is not None
    assert second.query_encoder.fingerprint != both.query_encoder.fingerprint
    assert (second.fingerprint, second.parent) == (teacher.fingerprint, both.version)
    refused = retrain(replace(queried, corpus=Corpus.of([*more.texts, "and another"], "most")))
    assert not refused.published
    assert "It is not faster by 80%: +0% queries per second." in refused.reason


def test_a_pair_of_a_base_that_is_not_published_is_refused_before_it_is_trained(
    job: Job, tiny_source: Path
) -> None:
    recipe = load_recipe("distil", {"student.layers": 1})
    said = r"train\.pair needs a published version to distil, and .* is none"
    with pytest.raises(TrainingError, match=said):
        retrain(replace(job, recipe=recipe, base=str(tiny_source), pair=True))
    assert not job.work.exists()


JUDGED = "how do I reset the password of my old account on the web page of the shop today"
NEARLY = f"{JUDGED}?"
OTHER = "why is the printer on the second floor slow"


def test_a_query_that_judges_is_in_no_training_however_it_is_written() -> None:
    found = judged([Judgment(JUDGED, "a", True)], {"a": "a"}, 0.5)
    used = Use([], "", {"default": (JUDGED.upper(), NEARLY, OTHER), "notes": (NEARLY, OTHER)})

    def queried(*, allowed: bool) -> dict[str, list[str]]:
        config = Config(corpus=CorpusTable(service="http://service"), events=EventsTable(queries=allowed))
        return _unjudged(config, used, found)

    assert queried(allowed=True) == {"default": [OTHER], "notes": [OTHER]}
    assert queried(allowed=False) == {}


def test_nothing_is_trained_while_a_version_that_a_person_activated_is_on_its_way(
    job: Job, tiny_source: Path, tmp_path: Path
) -> None:
    active = job.store.versions()[0]
    student, _ = publish_pair(job.store, active, tiny_source)
    job.store.write_state({"live": active.version})
    chosen = student.version
    job.store.request(chosen, "activate")
    config = Config(corpus=CorpusTable(file=tmp_path / "nothing.jsonl"))
    with pytest.raises(NothingToLearn, match=f"{chosen} is about to be activated, by hand"):
        gather(config, job.store, print)


def test_a_pair_made_by_hand_knows_what_its_documents_model_has_learned(job: Job, tiny_source: Path) -> None:
    teacher = job.store.versions()[0]
    student, _ = publish_pair(job.store, teacher, tiny_source)
    folder = job.store.folder(teacher.version)
    (folder / REPORT).write_text(json.dumps({"meta": {"learned": ["a digest"]}}), encoding="utf-8")
    (folder / FILE_NAME).unlink()
    seal(folder, teacher)
    for version in job.store.names() - {teacher.version, student.version}:
        job.store.prune(version)  # the pair of before
    both = pair(job.store, teacher.version, student.version)
    assert get_learned(job.store, both.version) == {"a digest"}
