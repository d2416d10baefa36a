"""The search alone, retuned: a version of the same model with a mode and a weight, by the gate."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from models.manifest import REPORT, REPORT_PAGE
from tests.service.process import Service
from tests.training.conftest import WORDS
from tests.training.retraining.test_auto import documents
from tests.training.retraining.test_tuning import search
from training.errors import NothingToLearn
from training.retraining.config import Config, CorpusTable, GateTable, JudgementsTable
from training.retraining.gathered import gather
from training.retraining.one import Job
from training.retraining.publication import Outcome
from training.retraining.retune import USUAL, Half, crossed, retune, setting_of

Retune = Callable[..., Outcome]


@pytest.fixture
def tuned(job: Job, tmp_path: Path) -> Retune:
    """retune on documents whose titles are their first words, which the tiny model knows nothing of."""
    found = documents(WORDS, 420)

    def run(count: int = 420, titled: bool = True, judged: int = 0) -> Outcome:
        asked = [f"{' '.join(each['text'].split()[4:7])} {at}\t{each['id']}" for at, each in enumerate(found)]
        lines = "\n".join(["query\tid", *asked[:judged]])
        (tmp_path / "judged.tsv").write_text(lines + "\n", encoding="utf-8")
        rows = [each if titled else {"id": each["id"], "text": each["text"]} for each in found[:count]]
        (tmp_path / "documents.jsonl").write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
        config = Config(
            corpus=CorpusTable(file=tmp_path / "documents.jsonl", held_out=0.3, least=20),
            judgements=JudgementsTable(file=tmp_path / "judged.tsv"),
            gate=GateTable(),
        )
        gathered = gather(config, job.store, lambda _: None)
        return retune(gathered, config, job.store, lambda _: None)

    return run


def test_a_version_of_the_same_model_searches_by_words(job: Job, tuned: Retune, tmp_path: Path) -> None:
    active = str(job.store.wanted())
    outcome = tuned()
    assert outcome.published, outcome.reason
    version = str(outcome.version)
    assert job.store.wanted() == version
    served, made = job.store.verify(active), job.store.verify(version)
    assert made.fingerprint == served.fingerprint
    assert (made.parent, made.lineage["anchor"]) == (active, active)
    assert served.search == {}
    chosen = made.search["default"]
    report = json.loads((job.store.folder(version) / REPORT).read_bytes())
    means = report["meta"]["tuned"]["default"]
    assert means[str(setting_of(chosen))] > means[str(USUAL)] + 0.1, "vectors alone are worse by far"
    assert chosen.mode == ("lexical" if chosen.weight == 0 else "hybrid")
    assert {row["name"] for row in report["rows"]} == {
        f"own {search}{mode}" for search in ("titles", "known") for mode in ("", " hybrid", " served")
    }
    [titles] = [gain for gain in report["gains"] if gain["name"] == "own titles"]
    assert titles["shown"]
    assert report["candidate"]["own"]["titles"]["served"]["ndcg10"] == pytest.approx(titles["candidate"])
    assert report["candidate"]["own"]["titles"]["ndcg10"] == report["active"]["own"]["titles"]["ndcg10"]
    page = job.store.folder(version) / REPORT_PAGE
    for file in ("report.md", "report.html"):
        told = (page / file).read_text(encoding="utf-8")
        assert "Search for a text by its title, where a query names no mode" in told
    with Service(tmp_path, job.store.root) as service:
        listed = service.client.get("/models").raise_for_status().json()
        [shown] = [each for each in listed["models"] if each["version"] == version]
        assert shown["gate"] == "on"
        page_of = service.client.get(f"/models/{version}/report/report.md").raise_for_status()
        assert "where a query names no mode" in page_of.text
        found = service.client.get(f"/models/{version}/report").raise_for_status().json()
        assert found["meta"]["search"]["default"]["mode"] == chosen.mode


def test_a_search_that_is_as_good_already_is_left(job: Job, tuned: Retune) -> None:
    assert tuned().published
    before = [manifest.version for manifest in job.store.versions()]
    with pytest.raises(NothingToLearn, match="no other weight of words against vectors, and no other length"):
        tuned()
    assert [manifest.version for manifest in job.store.versions()] == before


def test_without_held_out_queries_nothing_can_be_chosen(tuned: Retune) -> None:
    with pytest.raises(NothingToLearn, match="too few held-out queries"):
        tuned(60, titled=False)


def test_judged_queries_choose_and_judge_in_two_halves(job: Job, tuned: Retune) -> None:
    """All of them judge but those kept to choose by, each under settings that it did not choose."""
    outcome = tuned(judged=160)
    assert outcome.published, outcome.reason
    report = json.loads((job.store.folder(str(outcome.version)) / REPORT).read_bytes())
    counts = report["meta"]["documents"]
    judged = report["candidate"]["own"]["judged"]
    half, other = counts["queries_held_out"], counts["queries_trained_on"]
    assert judged["queries"] == half + other
    assert min(half, other) > 40
    [gain] = [gain for gain in report["gains"] if gain["name"] == "own judged"]
    assert gain["queries"] == half + other
    assert gain["shown"]


def test_each_half_is_judged_by_what_the_other_chose() -> None:
    """One half asks for vectors and the other for words, so each is judged by what is wrong for it."""
    (near, model), (worded, _) = search("dense"), search("lexical")
    _, wrong = crossed([Half(near, worded), Half(worded, near)], model, {})
    _, right = crossed([Half(near, near), Half(worded, worded)], model, {})
    count = len(near.queries) + len(worded.queries)
    assert wrong["served"]["queries"] == len(wrong["served"]["each"]) == count
    assert right["served"]["ndcg10"] == 1.0
    assert wrong["served"]["ndcg10"] < 0.9
    assert wrong["ndcg10"] == right["ndcg10"], "dense search has no weight"
