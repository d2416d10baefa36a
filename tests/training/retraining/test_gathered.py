"""Queries of events that may be trained on: none that people judged, and none that nearly repeats one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from models.manifest import FILE_NAME, REPORT, seal
from models.publishing.pair import pair
from tests.service.swapping import publish_pair
from training.errors import NothingToLearn
from training.retraining.clicks import Use
from training.retraining.config import Config, CorpusTable, EventsTable
from training.retraining.gathered import _learned, _unjudged, gather
from training.retraining.judgements import Judgement, judged
from training.retraining.one import Job

JUDGED = "how do I reset the password of my old account on the web page of the shop today"
NEARLY = f"{JUDGED}?"
OTHER = "why is the printer on the second floor slow"


def test_a_query_that_judges_is_in_no_training_however_it_is_written() -> None:
    found = judged([Judgement(JUDGED, "a", True)], {"a": "a"}, 0.5)
    used = Use([], "", {"default": (JUDGED.upper(), NEARLY, OTHER), "notes": (NEARLY, OTHER)})

    def asked(*, allowed: bool) -> dict[str, list[str]]:
        config = Config(corpus=CorpusTable(service="http://service"), events=EventsTable(queries=allowed))
        return _unjudged(config, used, found)

    assert asked(allowed=True) == {"default": [OTHER], "notes": [OTHER]}
    assert asked(allowed=False) == {}


def test_nothing_is_trained_while_a_version_that_a_person_activated_is_on_its_way(
    job: Job, tiny_source: Path, tmp_path: Path
) -> None:
    live = job.store.versions()[0]
    student, _ = publish_pair(job.store, live, tiny_source)
    job.store.write_state({"live": live.version})
    chosen = student.version
    job.store.want(chosen, "activate")
    config = Config(corpus=CorpusTable(file=tmp_path / "nothing.jsonl"))
    with pytest.raises(NothingToLearn, match=f"{chosen} was activated by hand and is about to go live"):
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
    assert _learned(job.store, both.version) == {"a digest"}
