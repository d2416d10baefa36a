"""Unattended retraining: a service under load, a schedule, and all that may happen to a run.

All programs are real processes. The schedule is due every two seconds. Tests edit retrain.toml, as a
person would, and a run reads it when it begins.
"""

import faulthandler
import json
import os
import random
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from models.encoder import Encoder
from models.files.retrainings import read_runs
from models.manifest import REPORT
from tests import waiting
from tests.service.load import STATIC, Load
from tests.service.process import Service, plain_environment
from tests.service.swapping import QUERIES, TEXTS, WORDS, Oracle, published
from tests.training.jobs import gold, noised, tiny_config

pytestmark = pytest.mark.long

DOCUMENTS = 200


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A folder with a published version, a copy of it with noise, documents, and an evaluation set."""
    [version] = published(tmp_path / "models", 1)
    folder = tmp_path / "models" / version
    noised(tmp_path / "noised", folder, 0.5)
    encoder = Encoder.open(folder)
    gold(tmp_path / "sets", lambda texts: encoder.encode(texts).vectors, tuple(TEXTS[:40]))
    encoder.close()
    rng = random.Random(1)
    with (tmp_path / "documents.jsonl").open("w", encoding="utf-8") as file:
        for at in range(DOCUMENTS):
            words = rng.choices(WORDS, k=12)
            document = {"id": f"d{at}", "title": " ".join(words[:3]), "text": " ".join(words)}
            file.write(json.dumps(document) + "\n")
    return tmp_path


def write_config(place: Path, base: str, steps: int) -> None:
    """Writes retrain.toml by a rename, so a run never reads a half-written file."""
    text = tiny_config(
        'file = "documents.jsonl"',
        base,
        models=Path("models"),
        work=Path("work"),
        sets=Path("sets"),
        steps=steps,
        batch=16,
        schedule='cron = "*/2 * * * * *"\njitter_seconds = 0',
    )
    (place / "new.toml").write_text(text, encoding="utf-8")
    (place / "new.toml").replace(place / "retrain.toml")


@contextmanager
def scheduled(place: Path) -> Iterator[None]:
    command = [sys.executable, "-m", "training", "schedule", "--config", str(place / "retrain.toml")]
    with (place / "schedule.log").open("ab") as log:
        process = subprocess.Popen(command, env=plain_environment(), stdout=log, stderr=log)
    try:
        yield
        process.send_signal(signal.SIGTERM)
        assert process.wait(waiting.LIMIT) == 0
    finally:
        process.kill()
        process.wait()


def until(place: Path, true: Callable[[dict[str, Any]], object], load: Load) -> dict[str, Any]:
    """Returns the record of runs once `true` accepts it. A failure of `load` fails the test."""

    def there() -> dict[str, Any]:
        assert not load.failures, load.failures
        found = read_runs(place / "models")
        return found if true(found) else {}

    return waiting.until(
        there, lambda: (read_runs(place / "models"), (place / "schedule.log").read_text()[-3000:])
    )


def ran(outcome: str, times: int = 1) -> Callable[[dict[str, Any]], bool]:
    return lambda found: found.get("runs", {}).get(outcome, 0) >= times


def test_a_service_under_load_is_retrained_by_a_schedule_that_nobody_watches(place: Path) -> None:
    faulthandler.cancel_dump_traceback_later()  # This test waits longer than pytest's limit.
    models = place / "models"
    with Service(place) as service:
        first = service.client.get("/info").json()["model_version"]
        load = Load(service, Oracle(models, [first]), pause_seconds=0.1)  # leaves time for runs
        assert service.put(STATIC).status_code == 200
        load.start()
        try:
            write_config(place, "noised", 4)
            with scheduled(place):
                # A worse candidate is refused and kept with its report. The next run learns nothing new.
                until(place, ran("refused"), load)
                [refused] = {path.name for path in models.glob("2*")} - {first}
                report = json.loads((models / refused / REPORT).read_bytes())
                assert report["accepted"] is False
                assert any(reason.startswith(("stsb", "Search", "mean")) for reason in report["reasons"])
                until(place, ran("nothing to learn"), load)
                assert service.client.get("/info").json()["model_version"] == first

                # A run that is killed during its steps is resumed at its checkpoint.
                write_config(place, "active", 400)
                until(place, lambda _: [*(place / "work").glob("*/run/checkpoint.safetensors")], load)
                os.kill(
                    until(place, lambda found: found.get("running"), load)["running"]["pid"], signal.SIGKILL
                )
                until(place, ran("failed"), load)
                found = until(place, ran("published"), load)
                assert found["last_run"]["outcome"] in {"published", "nothing to learn"}
                [third] = {path.name for path in models.glob("2*")} - {first, refused}
                assert [step for step in resumed_at(place) if step >= 100], "it began anew"
                until(place, lambda _: service.client.get("/info").json()["model_version"] == third, load)
                before = read_runs(models)["runs"]["nothing to learn"]
                until(place, ran("nothing to learn", before + 1), load)
            assert read_runs(models)["runs"]["published"] == 1
            assert read_runs(models)["runs"]["refused"] == 1

            # Regretted.
            assert service.client.post("/models/rollback").json() == {"wanted": first}
            until(place, lambda _: service.client.get("/info").json()["model_version"] == first, load)
        finally:
            load.end()
        assert not load.failures, load.failures
        assert load.versions_seen == {first, third}
        expected = STATIC | load.written
        assert service.stored() == expected
        everything = service.client.get(
            "/search", params={"q": QUERIES[0], "mode": "dense", "k": 1000}
        ).json()
        assert {hit["id"]: hit["text"] for hit in everything["hits"]} == expected
        answer = service.client.get("/models").json()
        states = {model["version"]: model["state"] for model in answer["models"]}
        assert read_runs(models).items() <= answer["schedule"].items()
        assert answer["schedule"]["last_run"]["outcome"] == "nothing to learn"
        assert states == {first: "active", refused: "refused", third: "retired"}
        print(f"{len(load.done)} requests, none failed")


def resumed_at(place: Path) -> list[int]:
    """Returns the steps at which runs were resumed."""
    lines = [
        line
        for file in (place / "work").glob("*/run/record.jsonl")
        for line in file.read_text(encoding="utf-8").splitlines()
    ]
    events = [
        json.loads(line) for line in lines if line.endswith("}")
    ]  # The killed run may have left an incomplete line.
    return [event["step"] for event in events if event["event"] == "resume"]
