"""Medians and ratios, on rounds whose answer is known."""

import json

import pytest

from benchmarks.contestant import Measured
from benchmarks.results import Results, Spread
from tests.benchmarks.runs import BUSY, CLEAN, rates, results

OURS, RAW, PEER = ("Simile fp32", "64 x 1"), ("raw fp32", "sentences"), ("infinity, ONNX", "64 x 1")


def test_a_ratio_is_the_median_of_the_rounds_ratios_and_not_of_the_medians() -> None:
    found = results({OURS: rates(100, 300, 200), RAW: rates(200, 400, 800)})
    # 0.5, 0.75, 0.25; the ratio of the medians would be 200 / 400 too, so of the means: 600 / 1400.
    assert found.ratio(OURS, RAW) == Spread(0.5, 0.25, 0.75, 3)
    shifted = results({OURS: rates(100, 300, 900), RAW: rates(200, 400, 800)})
    assert shifted.ratio(OURS, RAW) == Spread(0.75, 0.5, 1.125, 3)


def test_a_round_in_which_either_side_was_disturbed_does_not_count() -> None:
    ours = [*rates(100), *rates(10, foreign=BUSY), *rates(120)]
    raw = [*rates(200), *rates(200), *rates(1, foreign=BUSY)]
    found = results({OURS: ours, RAW: raw})
    assert found.ratio(OURS, RAW) == Spread(0.5, 0.5, 0.5, 1)
    assert found.spread(OURS) == Spread(110, 100, 120, 2)


def test_without_a_clean_round_all_count_and_it_is_said() -> None:
    found = results({OURS: rates(100, 300, foreign=BUSY), RAW: rates(200, 200)})
    ratio = found.ratio(OURS, RAW)
    assert ratio == Spread(1.0, 0.5, 1.5, 0)
    assert ratio is not None
    assert ratio.words() == "1.00 (0.50 to 1.50) (c)"


def test_rounds_that_one_side_missed_are_left_out_of_a_ratio() -> None:
    found = results({OURS: rates(100, 300), PEER: [None, *rates(100)]})
    assert found.ratio(OURS, PEER) == Spread(3, 3, 3, 1)
    assert found.ratio(OURS, RAW) is None
    assert found.spread(RAW) is None
    assert results({PEER: [None, None]}).names == []


def test_what_json_keeps_is_what_was_measured() -> None:
    one = Measured(100, CLEAN, cpu_ms=2.5, p50_ms=6, p99_ms=9, longest_p99_ms=8, client_us=30)
    kept = results({OURS: [one, None]}).kept
    again = Results(json.loads(json.dumps(kept)))
    assert again.spread(OURS, lambda found: found.longest_p99_ms) == Spread(8, 8, 8, 1)
    assert again.spread(OURS, lambda found: found.client_us) == Spread(30, 30, 30, 1)
    assert again.kept == kept


@pytest.mark.parametrize(("foreign", "contended"), [(0.15, False), (0.16, True)])
def test_others_may_use_so_much_of_the_machine_and_no_more(foreign: float, contended: bool) -> None:
    assert Measured(1, foreign).contended is contended
