"""Few judged queries: each judges a model that was trained without it, and the candidate learns from all."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from models.manifest import REPORT
from models.search.content import Content
from tests.training.conftest import WORDS
from tests.training.jobs import tiny_config
from training.__main__ import main
from training.evaluation.retrieval import Collection
from training.retraining.crossfit import Fold, asked, pooled
from training.retraining.one import Job
from training.retraining.sides import digest
from training.text.corpus import Corpus


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
    halves = [
        Collection({"d": Content("x"), name: Content("y")}, {name: name}, {name: {name: 1.0}}, 0)
        for name in "ba"
    ]
    corpus = Corpus.of(["a text"], "a text")
    assert list(asked([Fold(corpus, {"judged": half}, {}) for half in halves])["judged"].queries) == [
        "b",
        "a",
    ]
    assert asked([]) == {}


@pytest.fixture
def place(job: Job) -> Path:
    """A configuration with 40 judged queries, each on a document of its own."""
    place = job.store.root.parent
    rng = random.Random(1)
    with (place / "documents.jsonl").open("w", encoding="utf-8") as file:
        for at in range(260):
            text = " ".join(rng.choices(WORDS, k=12))
            file.write(json.dumps({"id": f"d{at}", "text": text}) + "\n")
    with (place / "judged.tsv").open("w", encoding="utf-8") as file:
        file.write("query\tid\n")
        for at in range(40):
            file.write(f"{' '.join(rng.choices(WORDS, k=4))} {at}\td{at}\n")
    config = tiny_config(
        'file = "documents.jsonl"',
        "active",
        models=job.store.root,
        work=job.work,
        sets=Path(str(job.data)),
        steps=2,
        batch=4,
        schedule='[judgements]\nfile = "judged.tsv"',
    ).replace("simcse-unsup", "pairs")
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
    version = str(job.store.wanted())
    report = json.loads((job.store.folder(version) / REPORT).read_bytes())
    assert report["meta"]["cross_fitted"] is True
    judged = report["candidate"]["own"]["judged"]
    held_for_dev = report["meta"]["documents"]["queries_held_out_for_dev"]
    assert judged["queries"] == 40 - held_for_dev == report["gains"][0]["queries"]
    assert report["active"]["own"]["judged"]["queries"] == judged["queries"]
    assert report["meta"]["documents"]["queries_trained_on"] == judged["queries"]
    # Two models that were trained on different halves are no copies of the published one.
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
