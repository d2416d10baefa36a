"""Judged queries that train one half and judge the other."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

from models.manifest import REPORT
from models.progress import silent
from models.search.content import Content
from tests.training.conftest import WORDS
from tests.training.jobs import configured, tiny_config, write_documents
from tests.training.retraining.test_auto import documents
from training.__main__ import main
from training.errors import NothingToLearn
from training.evaluation.retrieval import Collection
from training.methods.recipe import load_recipe
from training.methods.stages import find_stages
from training.retraining.adapt import adapt_job
from training.retraining.auto import build_material
from training.retraining.config import Config, GateTable
from training.retraining.crossfit import Fold, all_judging, build_halves, pooled, queried
from training.retraining.documents import Document
from training.retraining.gate.verdict import LABELLED
from training.retraining.gathered import Gathered, gather
from training.retraining.heldout import Split
from training.retraining.judgements import Judged, Judgment, judged, judgments_in
from training.retraining.one import Job
from training.retraining.plan import build_job
from training.retraining.sides import digest, learned
from training.text.corpus import TRIPLES, Corpus

NONE = Collection({}, {}, {}, 0)
ANSWERED = 40


@pytest.fixture
def config(tmp_path: Path) -> Config:
    """500 documents with a title and two sentences each; 40 queries, each on a document of its own."""
    rows = documents(WORDS, 500)
    queried = [(f"query {at * 7919}", each["id"]) for at, each in enumerate(rows[:ANSWERED])]
    return configured(tmp_path, rows, queried, least=2)


def job_for(method: str, gathered: Gathered, config: Config, job: Job, *, labels: bool = False) -> Job:
    return build_job(gathered, config, load_recipe(method), job.store, job.work, silent, labels=labels)


def asks(found: Job) -> set[str]:
    """The judged queries that judge."""
    return {query for name in LABELLED for query in found.searches.get(name, NONE).queries.values()}


LISTS = pytest.param("distil-hybrid", marks=pytest.mark.long)  # half a minute of mining


@pytest.mark.parametrize("method", ["simcse-unsup", "crops", LISTS])
def test_all_judged_queries_judge_what_learns_from_text_alone(job: Job, config: Config, method: str) -> None:
    gathered = gather(config, job.store, silent)
    half, both = gathered.found.held, gathered.found.held | gathered.found.crossed
    found = job_for(method, gathered, config, job)
    assert asks(found) == both.keys() > half.keys()
    assert {*found.searches} >= {"judged", "titles"}
    answered = {id for ids in both.values() for id in ids}
    texts = {text for text in found.corpus.texts if text}
    for document in gathered.documents.kept:
        if document.id in answered:
            assert not any(document.text in text or text in document.text for text in texts)
    labels = job_for(method, gathered, config, job, labels=True)
    assert asks(labels) == half.keys(), "as where `adapt` trains on the others"
    assert len(labels.corpus.texts) > len(found.corpus.texts)


def test_without_a_gate_nothing_is_held_back(job: Job, config: Config) -> None:
    gathered = gather(config, job.store, silent)
    off = config.model_copy(update={"gate": GateTable(mode="off")})
    without, by_gate = (job_for("crops", gathered, how, job).corpus for how in (off, config))
    assert len(without) > len(by_gate)


def test_where_few_are_judged_all_of_them_count_as_what_there_is_to_learn_from(
    job: Job, config: Config
) -> None:
    gathered = gather(config, job.store, silent)
    both = len(gathered.found.train) + len(gathered.found.held)
    tokenizer = job.store.folder(gathered.active) / "tokenizer.json"
    assert len(gathered.found.train) < 30 <= both
    assert build_material(gathered, config, tokenizer).judged == both
    alone = config.model_copy(update={"gate": GateTable(mode="off")})
    assert build_material(gathered, alone, tokenizer).judged == len(gathered.found.train)


def test_what_the_active_version_learned_trains_both_halves(job: Job, config: Config, tmp_path: Path) -> None:
    old = gather(config, job.store, silent)
    known = learned(dict([*old.found.train.items(), *old.found.held.items()][::3]))
    said = judgments_in(tmp_path / "judged.tsv")
    ids = {document.id: document.id for document in old.documents.kept}
    found = judged(said, ids, 0.5, learned=known)
    (_, one), (_, other) = build_halves(config, TRIPLES, old.split.moved(found.parts), found)
    both = one.train.keys() & other.train.keys()
    assert both == found.train.keys() - found.crossed.keys()
    assert len(both) > 10
    assert (one.held, other.held) == (found.held, found.crossed)


def test_a_few_queries_alone_do_not_let_stages_train(job: Job, config: Config, tmp_path: Path) -> None:
    """Documents so short that no search can be made of them: nothing could show a gain."""
    rows = [{"id": f"d{at}", "text": f"{WORDS[at % 9]} {at}"} for at in range(300)]
    write_documents(tmp_path, rows, [(f"query {at * 7919}", f"d{at}") for at in range(16)])
    gathered = gather(config, job.store, silent)
    stages = find_stages("adapt")
    assert stages is not None
    with pytest.raises(NothingToLearn, match="There is nothing to judge with"):
        adapt_job(stages, gathered, config, job.store, job.work, silent)


def build_text(*collections: tuple[str, int]) -> Split:
    named = [(name, f"{name}{at}") for name, count in collections for at in range(count)]
    return Split(tuple(Document(id, "", "text", collection=name) for name, id in named), (), {})


def build_lineage_identity(split: Split, answers: dict[str, list[str]], **how: Any) -> tuple[Split, Judged]:
    ids = {document.id: document.id for document in split.train}
    said = [Judgment(query, id, True) for query, some in answers.items() for id in some]
    found = judged(said, ids, 0.5, **how)
    return split.moved(found.parts), found


def test_of_each_collection_a_tenth_of_the_text_is_held_back_at_most() -> None:
    answers = {f"ask {at * 7919}": [f"few{at}"] for at in range(20)}
    answers |= {f"say {at * 7919}": [f"many{at}"] for at in range(60)}
    split, found = build_lineage_identity(build_text(("few", 40), ("many", 1000)), answers)
    moved, all_of_them = all_judging(split, found)
    left = {name: sum(each.collection == name for each in split.train) for name in ("few", "many")}
    now = {name: sum(each.collection == name for each in moved.train) for name in ("few", "many")}
    more = all_of_them.held.keys() - found.held.keys()
    assert {query for query in found.crossed if "say" in query} <= more
    assert left["few"] - now["few"] == sum("ask" in query for query in more) == left["few"] // 10
    assert all_judging(split, found)[1].held.keys() == all_of_them.held.keys(), "the same ones every night"


def test_a_query_judges_with_all_its_answers() -> None:
    """A component of most queries is cut, so a query that trains may have an answer on another side."""
    answers = {f"ask {at * 7919}": [f"d{at}", f"d{at + 1}"] for at in range(60)}
    split, found = build_lineage_identity(build_text(("d", 3000)), answers)
    assert any(len(ids) < len(answers[query]) for query, ids in found.crossed.items())
    moved, both = all_judging(split, found)
    assert both.held.keys() == found.held.keys() | found.crossed.keys()
    assert all({*ids} == {*answers[query]} for query, ids in both.held.items())
    assert not {id for ids in both.held.values() for id in ids} & {each.id for each in moved.train}


def test_what_nearly_equals_a_learned_query_judges_no_recipe() -> None:
    long = "how do I reset the password of the second account that I have at your shop number {}"
    answers = {long.format(at * 7919) + mark: [f"d{at}{mark}"] for at in range(30) for mark in ("", "?")}
    ids = {id for some in answers.values() for id in some}
    split = Split(tuple(Document(id, "", "text") for id in sorted(ids)), (), {})
    first = long.format(0)
    _, found = build_lineage_identity(split, answers, learned=learned({first: answers[first]}))
    assert {first, f"{first}?"} <= found.train.keys()
    assert not {first, f"{first}?"} & found.crossed.keys()
    assert digest(f"{first}?") not in learned({first: answers[first]})


@pytest.mark.parametrize(("queries", "documents"), [(3, 3), (30, 1)])
def test_nothing_is_held_back_for_queries_that_could_not_even_guard(queries: int, documents: int) -> None:
    answers = {f"ask {at * 7919}": [f"d{at % documents}"] for at in range(queries)}
    split, found = build_lineage_identity(build_text(("d", 1000)), answers)
    assert all_judging(split, found) == (split, found)


def figures(each: list[float], documents: int) -> dict[str, object]:
    mean = sum(each) / len(each)
    return {"ndcg10": mean, "each": each, "hits": [["a"]] * len(each), "queries": len(each)} | {
        "documents": documents,
        "keys": [None] * len(each),
        "hybrid": {"ndcg10": mean / 2, "each": [value / 2 for value in each]},
    }


def test_both_halves_are_one_search_in_which_each_query_counts_once() -> None:
    found = pooled([figures([1.0, 0.0, 0.5], 10), figures([0.0], 12)])
    assert found["each"] == [1.0, 0.0, 0.5, 0.0]
    assert found["ndcg10"] == pytest.approx(1.5 / 4)
    assert found["hybrid"]["ndcg10"] == pytest.approx(1.5 / 8)
    assert (found["queries"], found["documents"], len(found["keys"])) == (4, 12, 4)


def test_the_queries_of_both_halves_keep_their_order() -> None:
    corpus, folds = Corpus.of(["a text"], "a text"), []
    for name in "ba":
        half = Collection({"d": Content("x"), name: Content("y")}, {name: name}, {name: {name: 1.0}}, 0)
        folds.append(Fold(corpus, {"judged": half}, {}))
    assert list(queried(folds)["judged"].queries) == ["b", "a"]
    assert queried([]) == {}


@pytest.fixture
def place(job: Job) -> Path:
    """A configuration with 40 judged queries, each on a document of its own."""
    place = job.store.root.parent
    rng = random.Random(1)
    rows = [{"id": f"d{at}", "text": " ".join(rng.choices(WORDS, k=12))} for at in range(260)]
    queried = [(f"{' '.join(rng.choices(WORDS, k=4))} {at}", f"d{at}") for at in range(40)]
    write_documents(place, rows, queried)
    folders = {"models": job.store.root, "work": job.work, "sets": Path(str(job.data))}
    judgements = '[judgements]\nfile = "judged.tsv"'
    config = tiny_config(
        'file = "documents.jsonl"', "active", **folders, steps=2, batch=4, schedule=judgements
    )
    config = config.replace("simcse-unsup", "pairs")
    (place / "retrain.toml").write_text(config, encoding="utf-8")
    return place


@pytest.mark.long
def test_every_judged_query_judges_a_model_that_did_not_see_it(
    job: Job, place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["retrain", "--config", str(place / "retrain.toml")]) == 0
    said = capsys.readouterr()
    assert "training without half of the judged queries, 2 of 2" in said.err
    assert "Search on your judged queries" in said.out
    version = str(job.store.requested())
    report = json.loads((job.store.folder(version) / REPORT).read_bytes())
    assert report["meta"]["cross_fitted"] is True
    judged = report["candidate"]["own"]["judged"]
    held_for_dev = report["meta"]["documents"]["queries_held_out_for_dev"]
    assert judged["queries"] == 40 - held_for_dev == report["gains"][0]["queries"]
    assert report["active"]["own"]["judged"]["queries"] == judged["queries"]
    assert report["meta"]["documents"]["queries_trained_on"] == judged["queries"]
    [run] = job.work.glob("*/run")
    made = [next(folder.glob("2*")).name for folder in sorted(run.parent.glob("fold-*/artifact"))]
    assert len({*made, version}) == 3
    learned = {*report["meta"]["learned"]}
    queries = [line.split("\t")[0] for line in (place / "judged.tsv").read_text().splitlines()[1:]]
    assert sum(digest(query) in learned for query in queries) == judged["queries"]


@pytest.mark.long
def test_what_the_candidate_learned_from_judges_no_more(
    job: Job, place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["retrain", "--config", str(place / "retrain.toml")]) == 0
    capsys.readouterr()
    assert main(["retrain", "--config", str(place / "retrain.toml")]) == 4, "the very same pairs train again"
    assert "came of this very text" in capsys.readouterr().out
    rng = random.Random(2)
    with (place / "documents.jsonl").open("a", encoding="utf-8") as file:
        for at in range(10):
            text = " ".join(rng.choices(WORDS, k=12))
            file.write(json.dumps({"id": f"new{at}", "title": f"the {WORDS[at]}", "text": text}) + "\n")
    assert main(["retrain", "--config", str(place / "retrain.toml")]) in {0, 3}
    said = capsys.readouterr()
    assert "without half" not in said.err
    assert "Search on your judged queries" not in said.out
    first, second = (
        json.loads((job.store.folder(each.version) / REPORT).read_bytes())["meta"]["documents"]
        for each in job.store.versions()[-2:]
    )
    assert second["queries_trained_on"] == first["queries_trained_on"], "all of them train again"
