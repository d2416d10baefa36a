"""Looks at the same queries are counted on from report to report, whatever was pruned."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from models.manifest import FILE_NAME, REPORT, Gate, read_manifest
from models.store import Store
from training.evaluation.retrieval import Collection
from training.retraining.looks import count_looks
from training.retraining.one import Job, retrain


def searches(first: int, count: int = 100) -> dict[str, Collection]:
    queries = {f"q{at}": f"question {at}" for at in range(first, first + count)}
    return {"judged": Collection({}, queries, {}, 0), "titles": Collection({}, {"x": "a title"}, {}, 0)}


def judged(store: Store, first: int) -> float:
    """A look that leaves its report with the active version."""
    looks = count_looks(store, searches(first))
    version = str(store.wanted())
    content = {"meta": {"looks": looks.number, "asked": looks.asked}}
    (store.folder(version) / REPORT).write_text(json.dumps(content), encoding="utf-8")
    return looks.number


@pytest.fixture
def store(job: Job) -> Store:
    """The active version of `job` came through a gate."""
    store = job.store
    version = str(store.wanted())
    manifest = store.verify(version).model_copy(update={"gate": Gate(mode="on", verdict="accepted")})
    (store.folder(version) / FILE_NAME).write_text(manifest.model_dump_json(), encoding="utf-8")
    return store


def test_the_same_queries_count_on_and_new_ones_bring_it_down(store: Store) -> None:
    assert [judged(store, 0) for _ in range(3)] == [1, 2, 3]
    assert judged(store, 50) == pytest.approx(1 + 0.5 * 3)
    assert judged(store, 1000) == 1


def test_other_queries_asked_in_between_do_not_begin_the_count_anew(store: Store, tmp_path: Path) -> None:
    assert [judged(store, 0) for _ in range(2)] == [1, 2]
    first = str(store.wanted())
    later = "99991231T235959-tiny-00000000"
    shutil.copytree(store.folder(first), store.root / later)
    manifest = read_manifest(store.folder(first)).model_copy(update={"version": later})
    (store.root / later / FILE_NAME).write_text(manifest.model_dump_json(), encoding="utf-8")
    between = {"meta": {"looks": 1, "asked": list(count_looks(store, searches(5000)).asked)}}
    (store.root / later / REPORT).write_text(json.dumps(between), encoding="utf-8")
    assert count_looks(store, searches(0)).number == 3


def test_a_part_of_earlier_queries_is_a_second_look_however_many_there_were(store: Store) -> None:
    """As the search alone, which asks no neighbours: the samples of many queries end at other places."""
    many = searches(0, 3000)["judged"]
    both = {"titles": many, "neighbours": searches(5000, 3000)["judged"]}
    looks = count_looks(store, both)
    content = {"meta": {"looks": looks.number, "asked": looks.asked}}
    (store.folder(str(store.wanted())) / REPORT).write_text(json.dumps(content), encoding="utf-8")
    assert count_looks(store, {"titles": many}).number == 2
    assert count_looks(store, both | {"known": searches(9000, 6000)["judged"]}).number == pytest.approx(
        1.5, abs=0.1
    )


def test_without_judged_queries_the_others_are_counted(store: Store) -> None:
    titles = {"titles": searches(0)["titles"]}
    assert count_looks(store, titles).asked != count_looks(store, searches(0)).asked
    assert count_looks(store, {}).number == 1


@pytest.mark.long
def test_the_count_reaches_the_report_and_the_gate(job: Job) -> None:
    outcome = retrain(replace(job, looks=7.0))
    report = json.loads((job.store.folder(str(outcome.version)) / REPORT).read_bytes())
    assert report["meta"]["looks"] == 7
