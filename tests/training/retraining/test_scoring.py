"""Versions are scored as they are served, with their rankings, on queries that may judge them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("lightgbm", reason="needs the extra train")

from models.progress import silent
from models.search.ranking import Ranking, RerankerWeight
from tests.training.conftest import WORDS
from tests.training.jobs import configured
from tests.training.retraining.test_auto import documents
from training.methods.recipe import load_recipe
from training.ranking.cross_validation import COMING, NEW, Comparison
from training.retraining import searches as own
from training.retraining.documents import Document
from training.retraining.gate.rules import Thresholds
from training.retraining.gather import gather
from training.retraining.judgements import Judged, Judgment, judged
from training.retraining.one import Job, compute_scores, retrain
from training.retraining.plan import build_job, let_judge
from training.retraining.publication import Learned, publish_learned
from training.retraining.scoring import read_rankings
from training.retraining.split import Split
from training.text.service import Searches

WEIGHT = RerankerWeight(fingerprint="a" * 64, weight=0.7)
LOOSE = Thresholds(mean_fall=1, set_fall=1, uniformity_loss=1, slower=1, own_fall=1, drift=1)


@pytest.fixture
def ranked(job: Job, tmp_path: Path) -> Job:
    """A job with 60 judged queries, each with words of its answer. The active version has a ranking."""
    rows = documents(WORDS, 120)
    queried = [(" ".join(each["text"].split()[4:7]), each["id"]) for each in rows[:60]]
    found = gather(configured(tmp_path, rows, queried, least=20), job.store, silent)
    served = job.store.verify(str(job.store.requested()))
    scores, ranks = np.ones(2), np.ones((2, 2), np.int64)
    rows_of = dict.fromkeys((NEW, COMING), Comparison(scores, scores, scores, np.arange(2), ranks))
    ranking = Ranking(weights={"hybrid": 1.0}, fingerprint=served.fingerprint, reranker=WEIGHT)
    learned = {"default": Learned(rows_of, [], [], "digest", ranking)}
    version = publish_learned(job.store, served, "ranking", learned, silent).version
    searches = {"judged": own.judged_search(found.split, found.found.answers, 1000, found.found.held)}
    return replace(job, searches=searches, found=found.found, active=version, thresholds=LOOSE)


def test_judged_queries_are_scored_with_a_ranking_where_one_is_served(ranked: Job) -> None:
    store, version, found = ranked.store, str(ranked.active), ranked.found
    assert found is not None
    given = replace(ranked, data=None)
    without = replace(given, active=store.verify(version).parent)
    plain, served, dense = (
        compute_scores(each, store, version, {}, silent)
        for each in (without, given, replace(given, served=Searches(mode="dense")))
    )
    for scores in (plain, served, dense):
        for row in (NEW, COMING):
            figures = scores["own"][row]
            assert [name.removeprefix("query\0") for name in figures["names"]] == [
                query for query in ranked.searches["judged"].queries.values() if query in found.held
            ]
            assert len(figures["each"]) == len(figures["hits"]) == len(found.held)
            assert figures["ndcg10"] == pytest.approx(np.mean(figures["each"]))
    assert plain["own"][NEW]["each"] == plain["own"][COMING]["each"], "nothing is learned"
    assert served["own"][NEW]["each"] != plain["own"][NEW]["each"]
    assert served["rankings"]["default"].queries == len(found.answers), "all judged queries train"
    assert served["rankings"]["default"].reranker == WEIGHT, "the reranker is the same"
    assert plain["rankings"] == dense["rankings"] == {}, "a ranking orders hybrid search"
    assert dense["own"][NEW]["ndcg10"] < plain["own"][NEW]["ndcg10"], "the tiny model knows no words"


def test_an_accepted_encoder_takes_a_ranking_of_its_own_with_it(ranked: Job) -> None:
    outcome = retrain(ranked)
    assert outcome.published, outcome.reason
    made = ranked.store.verify(str(outcome.version))
    [ranking] = read_rankings(ranked.store, made).values()
    assert ranking.fingerprint == made.fingerprint != ranked.store.verify(str(ranked.active)).fingerprint
    assert ranking.mean_query
    assert outcome.verdict is not None
    assert {f"own {NEW}", f"own {COMING}"} <= {row.name for row in outcome.verdict.rows}


def test_it_does_so_with_clicks_alone_which_judge_no_encoder(ranked: Job, tmp_path: Path) -> None:
    rows = documents(WORDS, 120)
    gathered = gather(configured(tmp_path, rows, least=20, held_out=0.6), ranked.store, silent)
    clicks = [
        Judgment(" ".join(each["text"].split()[4:7]), each["id"], True, "shop", user, of_use=True)
        for each in rows[:60]
        for user in ("ann", "ben")
    ]
    found = judged(clicks, {each["id"]: each["id"] for each in rows}, 0.5)
    assert found.held == {}
    gathered = gathered._replace(found=found, split=gathered.split.moved(found.parts))
    searches = build_job(gathered, load_recipe("pairs"), tmp_path).searches
    outcome = retrain(replace(ranked, searches=searches, found=found))
    assert outcome.published, outcome.reason
    made = ranked.store.verify(str(outcome.version))
    [ranking] = read_rankings(ranked.store, made).values()
    assert (ranking.fingerprint, ranking.queries) == (made.fingerprint, len(found.answers))
    assert outcome.verdict is not None
    names = {row.name for row in outcome.verdict.rows}
    assert "own titles" in names
    assert not {f"own {NEW}", f"own {COMING}"} & names


def build_judged(documents: int, queries: int) -> tuple[Split, Judged]:
    known = {f"d{at}": f"d{at}" for at in range(documents)}
    found = judged([Judgment(f"ask {at * 7919}", f"d{at}", True) for at in range(queries)], known, 0.5)
    return Split(tuple(Document(id, "", "text") for id in known), (), {}).moved(found.parts), found


def test_what_learns_from_text_alone_is_judged_by_all_that_may_judge() -> None:
    split, found = build_judged(1000, 60)
    moved, both = let_judge(split, found)
    assert both.held.keys() == (found.held.keys() | found.train.keys()) & found.judges
    assert not both.held.keys() & both.train.keys()
    assert not {id for ids in both.held.values() for id in ids} & {each.id for each in moved.train}


def test_no_more_than_a_tenth_of_the_text_is_held_back_for_them() -> None:
    split, found = build_judged(200, 60)
    assert let_judge(split, found) == (split, found)
