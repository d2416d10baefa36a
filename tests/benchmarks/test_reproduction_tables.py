"""The tables of the reproduction, from runs whose gains are known."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from typing import Any

import pytest

pytest.importorskip("matplotlib", reason="needs the extra train")

from benchmarks.reproduction_tables import picture, scores


def run(
    stage: str, loss: float, seed: int, *scores: float, batch: int = 64, name: str = "none"
) -> dict[str, Any]:
    dev = {str(at * 640 // batch): score for at, score in enumerate(scores)}
    return {
        "part": "ladder",
        "stage": stage,
        "name": name,
        "seed": seed,
        "batch": batch,
        "loss": loss,
        "dev": dev,
    }


def test_a_gain_is_the_last_score_less_the_first_and_seeds_have_a_spread() -> None:
    found = [
        run("weak", 7.0, 1, 0.4, 0.5, 0.3),
        run("weak", 7.0, 2, 0.4, 0.5, 0.32),
        run("strong", 5.0, 1, 0.5, 0.6, 0.7),
    ]
    header, _, weak, strong = scores(found).splitlines()
    assert header == "| backbone | its loss | SimCSE | seeds | 0 | 640 | 1280 | gain |"
    assert weak == "| weak | 7.00 | none | 2 | 40.0 | 50.0 | 31.0 ± 1.4 | -9.0 ± 1.4 |"
    assert strong == "| strong | 5.00 | none | 1 | 50.0 | 60.0 | 70.0 | 20.0 |"


def test_a_run_that_an_alarm_ended_has_no_gain() -> None:
    row = scores([run("one", 6.0, 1, 0.5) | {"ended": "The loss was 0.0002 at most."}]).splitlines()[-1]
    assert row == "| one | 6.00 | none | 1 | 50.0 | ended by an alarm |"


def test_scores_stand_by_the_sentences_seen_whatever_the_batch() -> None:
    small, large = (
        run("one", 6.0, 1, 0.5, 0.6, batch=32),
        run("one", 6.0, 1, 0.5, 0.7, batch=128, name="batch 128"),
    )
    rows = scores([small, large]).splitlines()[2:]
    assert [row.split(" | ")[4:6] for row in rows] == [["50.0", "60.0"], ["50.0", "70.0"]]


def test_the_picture_says_in_words_what_it_shows() -> None:
    drawn = picture([run("weak", 7.0, 1, 0.4, 0.3), run("strong", 5.0, 1, 0.5, 0.7)])
    assert drawn.description == "head none: -10.0 at loss 7.00, +20.0 at loss 5.00."
    ET.fromstring(drawn.svg())
