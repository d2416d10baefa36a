"""The order of the turns and their end, on contestants that take no time."""

from collections.abc import Iterator
from itertools import repeat

import pytest

from benchmarks.contestant import Measured, Scenario
from benchmarks.places import BenchError
from benchmarks.turns import Job, Turns
from benchmarks.workloads import Workload
from tests.benchmarks.runs import BUSY, CLEAN

SHORT = Scenario("64 x 1", Workload("sentences", ["a"], [[1]]), 64, 1)
LONG = Scenario("mix, 32 x 1", Workload("mixture", ["a"], [[1]]), 32, 1)


class Told:
    """A contestant that notes its turns; the machine is as busy as `foreign` says, turn by turn."""

    def __init__(self, name: str, order: list[str], foreign: Iterator[float] | None = None) -> None:
        self.name = name
        self._order = order
        self._foreign = foreign or repeat(CLEAN)

    def measure(self, scenario: Scenario, turn: int) -> Measured:
        self._order.append(f"{self.name}{turn}")
        return Measured(1, next(self._foreign))


class Broken(Told):
    def measure(self, scenario: Scenario, turn: int) -> Measured:
        super().measure(scenario, turn)
        if turn:
            raise BenchError("it broke")
        return Measured(1, CLEAN)


class Stopped(Told):
    """Somebody types Ctrl-C in a round."""

    def __init__(self, name: str, order: list[str], at: int) -> None:
        super().__init__(name, order)
        self._at = at

    def measure(self, scenario: Scenario, turn: int) -> Measured:
        if turn == self._at:
            raise KeyboardInterrupt
        return super().measure(scenario, turn)


def turns(*jobs: Job) -> Turns:
    return Turns(jobs)


def test_every_other_round_goes_backwards() -> None:
    order: list[str] = []
    everybody = turns(*(Job(Told(name, order), SHORT, True) for name in "abc"))
    everybody.run(repeats=3, minutes=1)
    assert order == ["a0", "b0", "c0", "c1", "b1", "a1", "a2", "b2", "c2"]


def test_a_spoilt_measurement_is_made_up_for_by_all_who_are_compared_with_it() -> None:
    order: list[str] = []
    jobs = [
        Job(Told("a", order), SHORT, True),
        Job(Told("b", order, iter([BUSY, CLEAN, CLEAN])), SHORT, True),
        Job(Told("m", order), LONG, True),
    ]
    everybody = turns(*jobs)
    everybody.run(repeats=2, minutes=1)
    assert order == ["a0", "b0", "m0", "m1", "b1", "a1", "a2", "b2"]
    assert everybody.cells["m", LONG.name][2] is None


def test_a_stop_keeps_the_whole_rounds_and_one_without_a_round_is_a_stop() -> None:
    order: list[str] = []
    everybody = turns(Job(Told("a", order), SHORT, True), Job(Stopped("b", order, 2), SHORT, True))
    everybody.run(repeats=5, minutes=1)
    assert order == ["a0", "b0", "b1", "a1", "a2"]
    assert (everybody.rounds, [*map(len, everybody.cells.values())]) == (2, [2, 2])
    with pytest.raises(KeyboardInterrupt):
        turns(Job(Stopped("b", order, 0), SHORT, True)).run(repeats=5, minutes=1)


def test_a_machine_that_is_never_quiet_ends_the_rounds_at_twice_as_many() -> None:
    order: list[str] = []
    everybody = turns(Job(Told("a", order, repeat(BUSY)), SHORT, True))
    everybody.run(repeats=2, minutes=1)
    assert everybody.rounds == 4


def test_no_more_rounds_than_asked_for_are_begun_when_the_time_is_over() -> None:
    order: list[str] = []
    everybody = turns(Job(Told("a", order, repeat(BUSY)), SHORT, True))
    everybody.run(repeats=2, minutes=0)
    assert everybody.rounds == 2


def test_a_peer_that_fails_again_and_again_is_left_out_and_named() -> None:
    order: list[str] = []
    everybody = turns(Job(Told("a", order), SHORT, True), Job(Broken("p", order), SHORT, False))
    everybody.run(repeats=5, minutes=1)
    assert everybody.broken == {"p": "it broke"}
    assert order == ["a0", "p0", "p1", "a1", "a2", "p2", "p3", "a3", "a4"]
    assert [one is None for one in everybody.cells["p", SHORT.name]] == [False, True, True, True, True]


class Stumbling(Told):
    def measure(self, scenario: Scenario, turn: int) -> Measured:
        found = super().measure(scenario, turn)
        if turn == 1:
            raise BenchError("it broke once")
        return found


def test_a_peer_that_fails_once_misses_that_measurement_and_goes_round_again() -> None:
    order: list[str] = []
    everybody = turns(Job(Told("a", order), SHORT, True), Job(Stumbling("p", order), SHORT, False))
    everybody.run(repeats=2, minutes=1)
    assert everybody.broken == {}
    assert order == ["a0", "p0", "p1", "a1", "a2", "p2"]
    assert [one is None for one in everybody.cells["p", SHORT.name]] == [False, True, False]


def test_what_breaks_the_service_itself_ends_the_run() -> None:
    class Ours(Told):
        def measure(self, scenario: Scenario, turn: int) -> Measured:
            raise BenchError("another text's vector")

    with pytest.raises(BenchError, match="another text's vector"):
        turns(Job(Ours("Simile", []), SHORT, True)).run(repeats=1, minutes=1)
