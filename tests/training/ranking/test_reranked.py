"""The weight of a reranker, learned from judged queries on top of a ranking."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("scipy", reason="needs the extra train")

from models.search.measures import judge
from models.search.ranking import RERANKED, Ranking, RerankerWeight, get_default
from tests.training.ranking.judged import HYBRID, judged_queries
from training.ranking.cross_validation import COMING, cross_validate
from training.ranking.examples import Example
from training.ranking.fitting import Procedure, fit
from training.ranking.reranked import ALONE, add_weight

PRIOR = get_default().weights
FINGERPRINT = "f" * 64
LINEAR = Procedure(None, trees=False)


def with_scores(examples: list[Example], signal: float, *, share: float = 1.0) -> list[Example]:
    """Returns the queries with scores of a reranker: noise, plus `signal` for answers.

    Args:
        share: Share of the candidates with a score.
    """
    random = np.random.default_rng(1)
    found = []
    for each in examples:
        scores = random.normal(size=len(each.ids)) + signal * each.gains
        scores[random.random(len(scores)) >= share] = np.nan
        found.append(each._replace(reranked=scores))
    return found


def learn_weight(examples: list[Example], procedure: Procedure = LINEAR) -> float:
    found = add_weight(fit(examples, PRIOR, procedure), examples, PRIOR, FINGERPRINT)
    assert found.reranker is not None
    assert found.reranker.fingerprint == FINGERPRINT
    return found.reranker.weight


@pytest.mark.parametrize("share", [1.0, 0.7])
@pytest.mark.parametrize("procedure", [LINEAR, Procedure(0.5, trees=False)])
def test_judgments_decide_how_much_a_reranker_counts(share: float, procedure: Procedure) -> None:
    examples = judged_queries(120)
    random, fair, right = (
        learn_weight(with_scores(examples, signal, share=share), procedure) for signal in (0, 2, 20)
    )
    assert random < 0.25
    assert min(fair, right) > 1.5, "the score of an answer deviates by up to four"
    assert learn_weight(with_scores(examples, -20), procedure) == 0, "no hit loses by a good score"


def test_without_scores_a_reranker_does_not_count() -> None:
    examples = judged_queries(40)
    assert learn_weight(examples) == 0
    assert learn_weight(with_scores(examples, 20, share=0.0)) == 0


@pytest.mark.parametrize("signal", [0.0, 1.0, 20.0])
def test_a_weighted_reranker_is_at_least_as_good_as_the_better_of_both(signal: float) -> None:
    examples = with_scores(judged_queries(120), signal)

    def score(reranker: RerankerWeight | None, *, learned: bool = False) -> float:
        def train(some: list[Example]) -> Ranking:
            ranking = fit(some, PRIOR, LINEAR)
            if learned:
                return add_weight(ranking, some, PRIOR, FINGERPRINT)
            return ranking.model_copy(update={"reranker": reranker})

        return float(cross_validate(examples, train)[COMING].after.mean())  # type: ignore[arg-type]

    ranking, alone, both = score(None), score(ALONE), score(None, learned=True)
    assert both > max(ranking, alone) - 0.01
    if signal == 0:
        assert alone < ranking - 0.1
    if signal == 1:
        assert both > max(ranking, alone) + 0.02


@pytest.mark.parametrize("weight", [0.0, 0.5, 3.0, ALONE.weight])
@pytest.mark.parametrize("share", [1.0, 0.6, 0.0])
def test_only_the_best_candidates_with_a_score_change_places(weight: float, share: float) -> None:
    [example] = with_scores(judged_queries(1), 1.0, share=share)
    assert example.reranked is not None
    scores = np.random.default_rng(2).normal(size=len(example.ids))
    ranked = sorted(range(len(scores)), key=lambda at: -scores[at])
    best = [at for at in ranked[:RERANKED] if not np.isnan(example.reranked[at])]
    known = example.reranked[best]
    sums = {
        at: scores[at] + weight * np.std(scores[best]) * (one - known.mean()) / known.std()
        for at, one in zip(best, known, strict=True)
    }
    again = iter(sorted(best, key=lambda at: -sums[at]))
    expected = [next(again) if at in best else at for at in ranked]
    found = example.rerank(scores, RerankerWeight(fingerprint=FINGERPRINT, weight=weight))
    assert np.argsort(-found).tolist() == expected
    order = [example.ids[at] for at in expected]
    assert example.score(found) == pytest.approx(judge(order, example.relevant)["ndcg10"])


def test_a_ranking_without_differences_leaves_the_order_to_the_reranker() -> None:
    [example] = with_scores(judged_queries(1), 1.0)
    assert example.reranked is not None
    found = example.rerank(np.zeros(len(example.ids)), RerankerWeight(fingerprint=FINGERPRINT, weight=0.1))
    assert np.argsort(-found)[:RERANKED].tolist() == np.argsort(-example.reranked[:RERANKED]).tolist()
    assert example.features[0, HYBRID] >= example.features[1, HYBRID], (
        "the first are the best by hybrid search"
    )
