"""progress.json, as a retraining writes it and the service reads it."""

from __future__ import annotations

import json
import re
import shutil
import time
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from models.engines.opening import has_int8
from models.files.retrainings import PROGRESS, read_progress
from training.retraining.one import Job, retrain
from training.retraining.watch import Watch, watched

PAGE = Path(__file__).parents[3] / "service" / "ui" / "views" / "versions.js"


@pytest.mark.long
def test_a_retraining_tells_its_step_its_lines_and_how_long_it_takes(job: Job) -> None:
    seen: list[dict[str, Any]] = []
    said: list[str] = []
    with watched(job.store.root, said.append) as watch:

        def told(event: Any) -> None:
            watch.told(event)
            seen.append(read_progress(job.store.root, datetime.now(UTC)))

        options = replace(job.options, told=told, record_steps=1, eval_steps=1)
        retrain(replace(job, options=options), watch.say)
        last = read_progress(job.store.root, datetime.now(UTC))
    assert not (job.store.root / PROGRESS).exists(), "it is over"
    training = seen[:1] + seen[-1:]
    assert (training[0]["doing"], training[0]["step"]) == ("training", 0)
    assert training[0]["eta_seconds"] is None, "there is no pace yet"
    assert [name for name, _ in training[-1]["loss"]] == [1, 2, 3]
    assert training[-1]["step"] == training[-1]["steps"] == 3
    assert training[-1]["eta_seconds"] == 0
    assert training[-1]["dev_name"] == "stsb_dev"
    assert [step for step, _ in training[-1]["dev"]] == [1, 2, 3]
    assert last["doing"] == said[-1] == "timing both"
    [line_of_phases] = re.findall(r"const PHASES = \[(.*)\];", PAGE.read_text(encoding="utf-8"))
    patterns = re.findall(r"/(\^[^/]+)/", line_of_phases)
    known = [[at for at, one in enumerate(patterns, 1) if re.match(one, line)] for line in said]
    trained = next(at for at, phases in enumerate(known) if 5 in phases)
    phases = [found[0] if at < trained else found[-1] for at, found in enumerate(known) if found]
    assert phases == sorted(phases)
    calibrating = set() if has_int8() else {7}  # left out where the processor has no int8
    assert {*phases, 1, 2, 4} == set(range(1, 10)) - calibrating, f"the page names these phases: {said}"


def test_steps_are_written_once_a_second_at_most(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [1000.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    watch = Watch(tmp_path, lambda _: None)
    watch.told({"event": "start", "steps": 100})
    for step, second in ((10, 0.5), (20, 0.9), (30, 1.1)):
        now[0] = 1000 + second
        watch.told({"event": "step", "step": step, "loss": 1.0})
        found = json.loads((tmp_path / PROGRESS).read_bytes())
        assert found["step"] == (30 if step == 30 else 0)
    assert found["eta_seconds"] == pytest.approx(1.1 * 70 / 30, abs=0.1)


def test_a_models_folder_that_is_away_ends_no_training(tmp_path: Path) -> None:
    models = tmp_path / "models"
    models.mkdir()
    with watched(models, lambda _: None) as watch:
        watch.say("scoring")
        assert (models / PROGRESS).exists()
        shutil.rmtree(models)
        watch.say("training")
