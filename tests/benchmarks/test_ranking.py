"""The ranking benchmarks: folds, figures and simulated nights."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from xml.etree import ElementTree as ET

import numpy as np
import pytest

pytest.importorskip("lightgbm", reason="needs the extra train")

from benchmarks import ranking_nights
from benchmarks.ranking import Prepared, draw, draw_recurring, learn_weights, leave_out
from benchmarks.ranking_nights import simulate, spoil
from models.search.ranking import Ranking, get_default
from tests.training.ranking.judged import HYBRID, judged_queries
from training.ranking.cross_validation import CANDIDATE_ORDER, COMING, NEW, cross_validate, keep_order
from training.ranking.examples import Example
from training.ranking.fitting import Procedure, Weights
from training.retraining import scoring
from training.retraining.rank import find_reasons


def test_the_figure_shows_the_gains_on_new_questions_of_each_set() -> None:
    rows = [
        ["cranfield", 225, "41.4", 0, NEW, "+0.2", "-0.1", "+0.4"],
        ["cranfield", 225, "41.4", 100, NEW, "+1.1", "+0.1", "+2.0"],
        ["cranfield", 225, "41.4", 100, COMING, "+9.9", "+9.0", "+9.9"],
        ["cranfield", 225, "41.4", "all", NEW, "+1.4", "+0.4", "+2.3"],
        ["mlqa_en", 1148, "89.3", "all", NEW, "+0.3", "-0.2", "+0.9"],
    ]
    root = ET.fromstring(draw(rows))
    said = root.findtext("{http://www.w3.org/2000/svg}desc")
    assert said == "cranfield: +1.1 with 100, +1.4 with 225; mlqa_en: +0.3 with 1,148."


@pytest.mark.parametrize("share", [0.0, 0.3, 0.65])
def test_a_share_of_the_test_queries_has_an_answer_that_was_judged_before(share: float) -> None:
    examples = judged_queries(150, repeats=3) + judged_queries(100, documents=9000, seed=1)
    tested: list[int] = []
    recurring = 0
    for fold in draw_recurring(examples, share, seed=0):
        known = {id for each in fold.train for id in each.relevant}
        tested += [*fold.test]
        recurring += sum(not known.isdisjoint(examples[at].relevant) for at in fold.test)
    assert len(tested) == len({*tested}) > 30
    assert recurring / len(tested) == pytest.approx(share, abs=0.05)


def find_at(example: Example, place: int) -> Example:
    """Returns a copy of a judged query, with its answer at position `place` of the hybrid order, from 0."""
    order = np.arange(len(example.ids))
    answer = int(np.argmax(example.gains))
    order[[place, answer]] = order[[answer, place]]
    features = example.features[order]
    features[:, HYBRID] = example.features[:, HYBRID]
    return example._replace(ids=[example.ids[each] for each in order.tolist()], features=features)


def test_a_night_with_wrong_judgments_publishes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benchmarks.ranking_nights.NIGHTS", 2)
    examples = [find_at(each, 3) for each in judged_queries(80, candidates=20)]
    prior = get_default().weights
    assert spoil(examples[0], np.random.default_rng(0)).relevant != examples[0].relevant
    monkeypatch.setattr("benchmarks.ranking_nights.WRONG", (1.0,))
    assert [row[2:] for row in simulate(examples, 0, 40, prior)] == [[0, pytest.approx(0, abs=50), 0]] * 2
    monkeypatch.setattr("benchmarks.ranking_nights.WRONG", (0.0,))
    *_, (count, wrong, published, gain, active) = simulate(examples, 0, 40, prior)
    assert (count, wrong, published) == (40, 0, 1)
    assert active == gain > 2


def test_the_nights_of_a_set_start_from_a_default_ranking_of_the_other_sets(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    sets = {name: judged_queries(30, seed=seed) for seed, name in enumerate(("a", "b", "c"))}
    weights = {name: learn_weights(examples) for name, examples in sets.items()}
    priors: list[Weights] = []

    def simulate(examples: Sequence[Example], seed: int, most: int, prior: Weights) -> list[list[float]]:
        priors.append(prior)
        return [[most, 0.0, 0.0, 0.0, 0.0]]

    monkeypatch.setattr(ranking_nights, "prepare", lambda name, _: Prepared(sets[name], np.zeros(30)))
    monkeypatch.setattr(ranking_nights, "simulate", simulate)
    monkeypatch.setattr(ranking_nights, "report", lambda *_: None)
    command = ["ranking_nights", "a", "b", "--runs", "1", "--prior"]
    monkeypatch.setattr(sys, "argv", [*command, "a", "c"])
    ranking_nights.main()
    assert priors == [leave_out(weights | {"b": weights["c"]}, "a"), leave_out(weights, "b")]
    monkeypatch.setattr(sys, "argv", [*command, "b"])
    with pytest.raises(SystemExit):
        ranking_nights.main()
    assert "--prior must name another set than b" in capsys.readouterr().err


def test_the_gate_fits_the_active_ranking_again_from_the_given_default(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    priors: list[Weights] = []

    def fit(_: Sequence[Example], prior: Weights, procedure: Procedure) -> Ranking:
        priors.append(prior)
        return CANDIDATE_ORDER

    monkeypatch.setattr(scoring, "fit", fit)
    examples, prior = judged_queries(40), {"hybrid": 1.5}
    rows = cross_validate(examples, keep_order)
    assert find_reasons(examples, examples, rows, CANDIDATE_ORDER, prior)
    assert priors == [prior] * 10
