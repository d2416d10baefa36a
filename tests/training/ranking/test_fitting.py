"""The fit of the linear model and the trees, and the choice of the procedure."""

from __future__ import annotations

import sys

import numpy as np
import pytest

pytest.importorskip("lightgbm", reason="needs the extra train")

from models.search.features import FEATURES, MEMORY, NO_MEMORY
from models.search.ranking import Ranking, get_default, standardize
from models.tokens.late import COMPARED, DIMENSIONS, LATE
from tests.training.ranking.judged import COVER, judged_queries
from training.ranking.examples import build_memory, remember
from training.ranking.fitting import Procedure, boost, can_boost, convert, fit, fit_linear

PRIOR = {"hybrid": 1.5}
LINEAR = Procedure(None, trees=False)


def test_the_linear_weights_minimize_the_cross_entropy_and_the_pull() -> None:
    rows = [(standardize(each.features), each.gains, each.features[:, 0]) for each in judged_queries(30)]
    prior = np.zeros(len(FEATURES))
    found = fit_linear(rows, prior)

    def loss(weights: np.ndarray) -> float:
        total = 0.0
        for features, gains, given in rows:
            scores = np.exp(features @ weights + given)
            shares = scores / scores.sum()
            total -= float(gains / gains.sum() @ np.log(shares))
        return total / len(rows) + 3 / len(rows) * float(weights @ weights)

    least = loss(found)
    for column in range(len(FEATURES)):
        for step in (-0.01, 0.01):
            assert loss(found + step * np.eye(len(FEATURES))[column]) > least
    assert int(np.argmax(found)) == COVER


def test_without_judgments_the_weights_are_the_prior() -> None:
    prior = np.arange(3.0)
    assert fit_linear([], prior) is prior


@pytest.mark.parametrize("count", [40, 200])
def test_converted_trees_predict_as_lightgbm(count: int) -> None:
    rows = [
        (np.hstack([each.features, standardize(each.features)]), each.gains, np.ones(len(each.ids)))
        for each in judged_queries(count)
    ]
    model = boost(rows)
    trees = convert(model)
    assert len(trees.roots) == (60 if count < 150 else 120)
    unseen = np.random.default_rng(1).normal(size=(500, 2 * len(FEATURES)))
    assert trees.score(unseen) == pytest.approx(model.predict(unseen), abs=1e-12)
    again = type(trees).model_validate_json(trees.model_dump_json())
    assert again.score(unseen).tolist() == trees.score(unseen).tolist()


@pytest.mark.parametrize("procedure", [LINEAR, Procedure(0.7, trees=False), Procedure(0.7, trees=True)])
def test_a_ranking_tells_its_procedure(procedure: Procedure) -> None:
    ranking = fit(judged_queries(30, candidates=20, repeats=3), PRIOR, procedure)
    assert Procedure.of(ranking) == procedure
    assert (ranking.memory_threshold != 0.95) == (procedure.threshold is not None)


def test_a_training_query_recalls_neither_itself_nor_its_fold() -> None:
    """Otherwise, the model would learn to repeat the judgment of the query itself."""
    examples = judged_queries(25)
    weights = fit(examples, PRIOR, Procedure(0.7, trees=False)).weights
    assert sum(abs(weights[name]) for name in MEMORY) < 0.5
    memory = build_memory(examples)
    assert remember(examples[0], memory, 0.5)[:, -3].max() == pytest.approx(1, abs=1e-6)


@pytest.mark.parametrize("trees", [False, True])
def test_an_unseen_hit_counts_as_wrong_as_far_as_it_was_examined(trees: bool) -> None:
    """If users examined only hits with a low `length`, a fit learns that such hits are wrong."""
    procedure = Procedure(None, trees=trees)
    length = FEATURES.index("length")
    examples = [
        each._replace(seen=(each.features[:, length] < 0).astype(np.float64)) for each in judged_queries(60)
    ]
    half = [each._replace(seen=each.seen / 2) for each in examples if each.seen is not None]
    others = [each._replace(seen=np.ones(len(each.ids))) for each in examples]
    weights = [fit(some, PRIOR, procedure).weights["length"] for some in (others, half, examples)]
    assert abs(weights[0]) < 0.2 < weights[2]
    assert fit(others, PRIOR, procedure) == fit(judged_queries(60), PRIOR, procedure)
    assert fit(half, PRIOR, procedure) != fit(examples, PRIOR, procedure)


def test_without_a_memory_of_its_own_a_ranking_has_that_of_the_prior() -> None:
    ranking = fit(judged_queries(30, candidates=10), {"hybrid": 1.0, "memory_best": 8.0}, LINEAR)
    assert ranking.weights["memory_best"] == 8
    assert ranking.memory_threshold == 0.95
    assert ranking.queries == 30


def test_a_judgment_outweighs_trees() -> None:
    """A hit that is judged right for the same query becomes first. One that is not, leaves the first rank."""
    examples = judged_queries(300)
    for each in examples:
        each.features[:, FEATURES.index("cover")] += 3 * (each.gains > 0)
    ranking = fit(examples, get_default().weights, Procedure(None, trees=True))
    for each in examples[:30]:
        features = remember(each, NO_MEMORY, 0.5)
        order = np.argsort(-ranking.score(features))
        features[order[25], FEATURES.index("memory_best")] = 1.0
        assert np.argmax(ranking.score(features)) == order[25]
        features[order[25], FEATURES.index("memory_not")] = 1.0
        assert np.argmax(ranking.score(features)) == order[0], "both cancel out"
        features[order[0], FEATURES.index("memory_not")] = 1.0
        assert np.argmax(ranking.score(features)) != order[0]


def test_a_removed_judgment_makes_its_document_neither_right_nor_wrong() -> None:
    examples = judged_queries(60)
    without = [each.without({min(each.relevant)}) for each in examples]
    for before, after in zip(examples, without, strict=True):
        assert after.relevant.keys() == before.relevant.keys() - {min(before.relevant)}
        assert after.seen is not None
        assert [id for id, seen in zip(after.ids, after.seen, strict=True) if not seen] == [
            id for id in before.ids if id == min(before.relevant)
        ]


def test_without_its_library_lightgbm_is_left_out(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    boosted = fit(judged_queries(30, candidates=10), PRIOR, Procedure(None, trees=True))
    monkeypatch.setitem(sys.modules, "lightgbm", None)
    can_boost.cache_clear()
    assert not can_boost()
    assert Procedure.of(boosted) == LINEAR, "such a ranking can be fitted again"
    can_boost.cache_clear()
    assert "without trees" in caplog.text


def test_a_fit_is_the_same_every_time() -> None:
    examples = judged_queries(40)
    first, second = (fit(examples, PRIOR, Procedure(0.7, trees=True)) for _ in range(2))
    assert isinstance(first, Ranking)
    assert first == second


def test_the_linear_model_learns_late_interaction_only_if_the_procedure_says_so() -> None:
    random = np.random.default_rng(0)
    examples = []
    for each in judged_queries(40):
        late = random.normal(size=(len(each.ids), len(LATE))) + 2 * each.gains[:, None] * [1, 0, 0]
        late[COMPARED:] = np.nan
        examples.append(each._replace(late=late))
    without = fit(examples, PRIOR, LINEAR)
    assert without.weights.keys() == {*FEATURES}
    assert fit([each._replace(late=None) for each in examples], PRIOR, LINEAR) == without
    ranking = fit(examples, PRIOR, LINEAR._replace(late=True))
    assert ranking.weights.keys() == {*FEATURES, *LATE}
    assert Procedure.of(ranking.model_copy(update={"late": bytes(2 * DIMENSIONS)})).late
    assert not Procedure.of(without).late
    assert ranking.weights["maxsim"] > 3 * abs(ranking.weights["maxsim_rare"])
    scores = [
        np.mean([each.score(some.score(each.features, each.late)) for each in examples])
        for some in (without, ranking)
    ]
    assert scores[1] > scores[0] + 0.05


@pytest.mark.parametrize("threshold", [0.5, 0.9])
def test_memory_is_learned_on_top_of_late_interaction(threshold: float) -> None:
    examples = [
        each._replace(late=np.tile(each.gains[:, None], len(LATE))) for each in judged_queries(40, repeats=2)
    ]
    alone = fit(examples, PRIOR, LINEAR._replace(late=True))
    ranking = fit(examples, PRIOR, Procedure(threshold, trees=False, late=True))
    assert {name: ranking.weights[name] for name in (*FEATURES, *LATE) if name not in MEMORY} == {
        name: alone.weights[name] for name in (*FEATURES, *LATE) if name not in MEMORY
    }
