"""The order and the end of rounds; medians and ratios, compared with values worked out by hand."""

import json
from collections.abc import Iterator
from itertools import repeat

import pytest

from benchmarks.command import BenchError
from benchmarks.rounds import Job, Measured, Results, Scenario, Spread, Turns
from benchmarks.workloads import Workload
from tests.benchmarks.runs import BUSY, CLEAN, rates

SHORT = Scenario("64 x 1", Workload("sentences", ["a"], [[1]]), 64, 1)
LONG = Scenario("mix, 32 x 1", Workload("mixture", ["a"], [[1]]), 32, 1)
OURS, RAW, PEER = ("Simile fp32", "64 x 1"), ("raw fp32", "sentences"), ("infinity, ONNX", "64 x 1")


class Recorded:
    """A contestant that appends its turns to `order`. `foreign` has other programs' CPU share per turn."""

    def __init__(self, name: str, order: list[str], foreign: Iterator[float] | None = None) -> None:
        self.name = name
        self._order = order
        self._foreign = foreign or repeat(CLEAN)

    def measure(self, scenario: Scenario, turn: int) -> Measured:
        self._order.append(f"{self.name}{turn}")
        return Measured(1, next(self._foreign))


class Failing(Recorded):
    """A contestant that fails in the given turns."""

    def __init__(self, name: str, order: list[str], turns: range) -> None:
        super().__init__(name, order)
        self._turns = turns

    def measure(self, scenario: Scenario, turn: int) -> Measured:
        found = super().measure(scenario, turn)
        if turn in self._turns:
            raise BenchError("it broke")
        return found


def test_every_second_round_runs_backwards() -> None:
    order: list[str] = []
    turns = Turns([Job(Recorded(name, order), SHORT, True) for name in "abc"])
    turns.run(repeats=3)
    assert order == ["a0", "b0", "c0", "c1", "b1", "a1", "a2", "b2", "c2"]


def test_a_contended_measurement_is_repeated_with_all_contestants_of_its_workload() -> None:
    order: list[str] = []
    jobs = [
        Job(Recorded("a", order), SHORT, True),
        Job(Recorded("b", order, iter([BUSY, CLEAN, CLEAN])), SHORT, True),
        Job(Recorded("m", order), LONG, True),
    ]
    turns = Turns(jobs)
    turns.run(repeats=2)
    assert order == ["a0", "b0", "m0", "m1", "b1", "a1", "a2", "b2"]
    assert turns.cells["m", LONG.name][2] is None


def test_a_busy_machine_ends_the_run_after_twice_the_repeats() -> None:
    turns = Turns([Job(Recorded("a", [], repeat(BUSY)), SHORT, True)])
    turns.run(repeats=2)
    assert turns.rounds == 4


def test_a_peer_that_fails_is_left_out() -> None:
    order: list[str] = []
    turns = Turns(
        [Job(Recorded("a", order), SHORT, True), Job(Failing("p", order, range(1, 9)), SHORT, False)]
    )
    turns.run(repeats=3)
    assert (turns.broken, order) == ({"p": "it broke"}, ["a0", "p0", "p1", "a1", "a2"])
    assert [at for at, one in enumerate(turns.cells["p", SHORT.name]) if one is None] == [1, 2]


def test_a_failure_of_the_service_ends_the_run() -> None:
    with pytest.raises(BenchError, match="it broke"):
        Turns([Job(Failing("Simile", [], range(1)), SHORT, True)]).run(repeats=1)


def test_a_ratio_is_the_median_of_the_ratios_of_rounds() -> None:
    found = Results({OURS: rates(100, 300, 200), RAW: rates(200, 400, 800)})
    # 0.5, 0.75, 0.25. The ratio of the medians would be 200 / 400 as well, that of the means 600 / 1400.
    assert found.ratio(OURS, RAW) == Spread(0.5, 0.25, 0.75, 3)
    shifted = Results({OURS: rates(100, 300, 900), RAW: rates(200, 400, 800)})
    assert shifted.ratio(OURS, RAW) == Spread(0.75, 0.5, 1.125, 3)


def test_a_round_with_foreign_load_on_either_side_does_not_count() -> None:
    ours = [*rates(100), *rates(10, foreign=BUSY), *rates(120)]
    raw = [*rates(200), *rates(200), *rates(1, foreign=BUSY)]
    found = Results({OURS: ours, RAW: raw})
    assert found.ratio(OURS, RAW) == Spread(0.5, 0.5, 0.5, 1)
    assert found.spread(OURS) == Spread(110, 100, 120, 2)


def test_without_a_clean_round_all_rounds_count_and_the_figure_is_marked() -> None:
    found = Results({OURS: rates(100, 300, foreign=BUSY), RAW: rates(200, 200)})
    ratio = found.ratio(OURS, RAW)
    assert ratio == Spread(1.0, 0.5, 1.5, 0)
    assert ratio is not None
    assert ratio.text() == "1.00 (0.50 to 1.50) (c)"


def test_a_ratio_leaves_out_rounds_that_one_side_missed() -> None:
    found = Results({OURS: rates(100, 300), PEER: [None, *rates(100)]})
    assert found.ratio(OURS, PEER) == Spread(3, 3, 3, 1)
    assert found.ratio(OURS, RAW) is None
    assert found.spread(RAW) is None
    assert Results({PEER: [None, None]}).names == []


def test_json_has_all_measurements() -> None:
    one = Measured(100, CLEAN, cpu_ms=2.5, p50_ms=6, p99_ms=9)
    [cell] = json.loads(json.dumps(Results({OURS: [one, None]}).to_json()))
    assert (cell["contestant"], cell["scenario"]) == OURS
    assert [None if each is None else Measured(**each) for each in cell["rounds"]] == [one, None]


@pytest.mark.parametrize(("foreign", "contended"), [(0.15, False), (0.16, True)])
def test_a_measurement_is_contended_above_a_limit(foreign: float, contended: bool) -> None:
    assert Measured(1, foreign).contended is contended
