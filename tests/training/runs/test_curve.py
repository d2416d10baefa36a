"""Loss and dev score of a run by step."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from training.runs.record import FILE_NAME, MOST, read_curve


def recorded(folder: Path, *events: dict[str, Any]) -> None:
    folder.mkdir(parents=True)
    lines = "".join(f"{json.dumps({'time': 'then'} | event)}\n" for event in events)
    (folder / FILE_NAME).write_text(lines, encoding="utf-8")


def step(number: int, loss: float) -> dict[str, Any]:
    return {"event": "step", "step": number, "loss": loss, "lr": 1e-5}


def test_what_came_after_a_lost_step_is_drawn_once(tmp_path: Path) -> None:
    recorded(
        tmp_path / "run",
        {"event": "start", "steps": 30},
        step(10, 3.0),
        {"event": "dev", "step": 10, "stsb_dev": 0.5},
        step(20, 2.0),
        {"event": "dev", "step": 20, "stsb_dev": 0.9},
        {"event": "resume", "step": 10, "steps": 30},
        step(20, 2.5),
        {"event": "dev", "step": 20, "stsb_dev": None},
        {"event": "share", "share": 0.5},
        {"event": "end", "step": 20, "loss": 2.5},
    )
    assert read_curve(tmp_path / "run") == {
        "loss": [(10, 3.0), (20, 2.5)],
        "dev": [(10, 0.5)],
        "dev_name": "stsb_dev",
    }


def test_stages_follow_each_other_by_their_numbers(tmp_path: Path) -> None:
    for number in (1, 2, 10):
        recorded(
            tmp_path / f"{number}-mlm",
            {"event": "start", "steps": 5},
            step(5, float(number)),
            {"event": "end", "step": 5},
        )
    assert read_curve(tmp_path)["loss"] == [(5, 1.0), (10, 2.0), (15, 10.0)]


def test_a_long_run_is_thinned_and_keeps_its_last_step(tmp_path: Path) -> None:
    recorded(tmp_path / "run", *(step(at, float(at)) for at in range(1, 1001)))
    found = read_curve(tmp_path / "run")["loss"]
    assert MOST / 2 < len(found) <= MOST
    assert found[-1] == (1000, 1000.0)
    assert read_curve(tmp_path / "none") == {"loss": [], "dev": [], "dev_name": ""}
