"""The scores of the version in service are made once for as long as the same data judge."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from models.errors import Damaged
from models.manifest import SearchDefaults
from models.progress import silent
from models.search.content import Content
from tests.service.lifecycle.test_learned_search import with_search
from tests.training.conftest import WORDS
from tests.training.retraining.test_auto import documents
from training.evaluation.retrieval import Collection
from training.evaluation.scorable import scorable_of
from training.methods.recipe import load_recipe
from training.retraining import one
from training.retraining.config import Config, CorpusTable, GateTable, JudgementsTable
from training.retraining.gathered import gather
from training.retraining.one import Job
from training.retraining.plan import job_of
from training.retraining.scoring import KnownScores, scores_of
from training.retraining.sides import digest
from training.text.service import Searches

DOCUMENTS = {f"d{at}": Content(f"{WORDS[at]} {WORDS[at + 1]}") for at in range(6)}
TWO = Collection(DOCUMENTS, {"q": f"{WORDS[1]} {WORDS[2]}"}, {"q": {"d1": 1.0}}, 0)
OTHER = TWO._replace(relevant={"q": {"d5": 1.0}})


class Asked:
    def __init__(self, job: Job) -> None:
        self.job, self.known, self.said = job, KnownScores(), list[str]()

    def __call__(
        self, version: str, searched: Collection = TWO, learned: Mapping[str, SearchDefaults] | None = None
    ) -> dict[str, Any]:
        data: tuple[Any, ...] = (1, None, {"titles": searched}, {}, learned or {})
        return self.known.of(self.job.store, version, *data, say=self.said.append)

    @property
    def scored(self) -> int:
        return sum(line.startswith("scoring ") for line in self.said)


@pytest.fixture
def asked(job: Job) -> Asked:
    return Asked(job)


def test_equal_data_are_scored_once_and_others_anew(asked: Asked) -> None:
    store, active = asked.job.store, str(asked.job.store.wanted())
    first = asked(active)
    assert first == scores_of(store, active, 1, None, {"titles": TWO}, {}, {}, say=asked.said.append)
    before = asked.scored
    assert asked(active, TWO._replace(queries=dict(TWO.queries))) == first
    assert asked.scored == before, "equal, though another object"
    assert asked(active, OTHER) != first
    assert asked(active) == first
    asked(active, learned={"default": SearchDefaults(mode="lexical", weight=0.5)})
    asked(with_search(store, active, {"default": SearchDefaults(mode="hybrid", weight=0.5)}))
    assert asked.scored == before + 4, "another search, another version, and only the last answer is kept"


def test_what_a_caller_adds_is_not_remembered(asked: Asked) -> None:
    active = str(asked.job.store.wanted())
    asked(active)["own"] = {}
    assert asked(active)["own"]


def test_a_version_that_was_damaged_meanwhile_has_no_scores(asked: Asked) -> None:
    active = str(asked.job.store.wanted())
    asked(active)
    model = next(asked.job.store.folder(active).rglob("*.onnx"))
    model.write_bytes(model.read_bytes()[:-1])
    with pytest.raises(Damaged):
        asked(active)


LONG = Content(" ".join([*WORDS[:4] * 16, *WORDS[7:] * 12]))  # the model reads the first words alone
LIKE = Content(" ".join(WORDS[7:] * 3))  # the last passage of it


def test_where_no_document_is_split_its_head_alone_is_searched(asked: Asked) -> None:
    store, active = asked.job.store, str(asked.job.store.wanted())
    with closing(store.open(active)) as encoder:
        *_, passage = scorable_of(encoder).split(LONG, None)
        heads = scorable_of(encoder, passages=False)
        assert (heads.split(LONG, None), heads.reads) == ([LONG.whole], 0)
    searched = Collection({"long": LONG, "like": LIKE}, {"q": passage}, {"q": {"long": 1.0}}, 0)
    data: tuple[Any, ...] = (1, None, {"titles": searched}, {}, {})
    found = [asked.known.of(store, active, *data, split, say=asked.said.append) for split in (True, False)]
    assert [each["own"]["titles"]["hits"][0][0] for each in found] == ["long", "like"]


def test_a_job_scores_as_the_service_was_told_to_search(job: Job, tmp_path: Path) -> None:
    rows = documents(WORDS, 200)
    (tmp_path / "documents.jsonl").write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    config = Config(
        corpus=CorpusTable(file=tmp_path / "documents.jsonl", least=2), gate=GateTable(data=job.data)
    )
    gathered = gather(config, job.store, silent)

    def data_of(served: Searches) -> tuple[Any, ...]:
        of_service, recipe = gathered._replace(served=served), load_recipe("simcse-unsup")
        return one._data(job_of(of_service, config, recipe, job.store, job.work, silent), {})

    assert [data_of(Searches(passages=passages))[-1] for passages in (True, False)] == [True, False]


@pytest.mark.parametrize("method", ["simcse-unsup", "pairs"])
def test_fifteen_judged_queries_guard_and_the_text_decides(job: Job, tmp_path: Path, method: str) -> None:
    rows = documents(WORDS, 200)
    (tmp_path / "documents.jsonl").write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    lines = [
        "query\tid",
        *(f"{each['text'].split()[0]} {at}\t{each['id']}" for at, each in enumerate(rows[:15])),
    ]
    (tmp_path / "judged.tsv").write_text("\n".join(lines), encoding="utf-8")
    config = Config(
        corpus=CorpusTable(file=tmp_path / "documents.jsonl", held_out=0.3, least=2),
        judgements=JudgementsTable(file=tmp_path / "judged.tsv"),
    )
    gathered = gather(config, job.store, silent)
    found = job_of(gathered, config, load_recipe(method), job.store, job.work, silent)
    # Text alone learns from none of them, so all judge.
    judging = {**gathered.found.held, **(gathered.found.crossed if method == "simcse-unsup" else {})}
    assert {*found.searches["few"].queries.values()} == judging.keys()
    assert "judged" not in found.searches
    assert not found.folds
    assert not {digest(query) for query in judging} & {*found.about["asked"]}, "no look to pay"
    active = str(job.store.wanted())
    scores = scores_of(job.store, active, 1, None, found.searches, found.evidence, {}, say=silent)
    few = scores["own"]["few"]
    assert len(few["groups"]) == len(few["each"]) == len(judging)
    assert "groups" not in scores["own"]["titles"]
