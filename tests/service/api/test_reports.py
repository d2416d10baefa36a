"""Reports of the gate, and the state of the retraining schedule, over HTTP."""

import math
from collections.abc import Iterator
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from models.files.retrainings import read_request, take_request, write_progress, write_refused, write_runs
from models.manifest import REPORT_PAGE, Manifest
from models.store import ModelStore
from service.runtime.runtime import Runtime
from tests.service.conftest import new_settings, serving
from tests.service.observability.test_metrics import samples


@pytest.fixture(scope="module")
def judged(runtime: Runtime) -> str:
    """Publishes a copy of the active version with a report of the gate. Returns the copy's name."""
    store = ModelStore(runtime.store.root)
    active = store.verify(str(store.requested()))
    version = active.version[:-8] + "0" * 8

    def build(folder: Path) -> Manifest:
        (folder / REPORT_PAGE).mkdir()
        (folder / REPORT_PAGE / "report.md").write_text("# Größe\n", encoding="utf-8")
        (folder / REPORT_PAGE / "report.html").write_text("<h1>Größe</h1>", encoding="utf-8")
        (folder / REPORT_PAGE / "gains.svg").write_text("<svg/>", encoding="utf-8")
        (folder / REPORT_PAGE / "answers.jsonl").write_text('{"query": "q"}\n', encoding="utf-8")
        (folder / "secret.md").write_text("not of the report", encoding="utf-8")
        return active.model_copy(update={"version": version, "fingerprint": "0" * 64, "files": {}})

    return store.publish(build).version


def test_the_page_and_its_pictures_are_served(client: TestClient, judged: str) -> None:
    page = client.get(f"/models/{judged}/report/report.md")
    assert (page.status_code, page.text) == (200, "# Größe\n")
    assert page.headers["content-type"] == "text/markdown; charset=utf-8"
    picture = client.get(f"/models/{judged}/report/gains.svg")
    assert (picture.text, picture.headers["content-type"]) == ("<svg/>", "image/svg+xml")
    assert picture.headers["content-security-policy"].startswith("default-src 'none'")
    answers = client.get(f"/models/{judged}/report/answers.jsonl")
    assert (answers.json(), answers.headers["content-type"]) == ({"query": "q"}, "application/x-ndjson")


@pytest.mark.parametrize(
    "path",
    [
        "/ui/",
        "/docs",
        *(f"/models/VERSION/report/{file}" for file in ("report.html", "report.md", "gains.svg")),
    ],
)
def test_every_page_forbids_forms_other_bases_frames_and_scripts_of_others(
    client: TestClient, judged: str, path: str
) -> None:
    """default-src does not cover base-uri, form-action and frame-ancestors (CSP level 3, section 6.1)."""
    answer = client.get(path.replace("VERSION", judged))
    assert answer.status_code == 200
    pairs = (part.split(maxsplit=1) for part in answer.headers["content-security-policy"].split(";"))
    policy = dict(pairs)
    assert policy["default-src"] == "'none'"
    for name in ("base-uri", "form-action", "frame-ancestors"):
        assert policy[name] == "'none'"
    assert policy.get("script-src", "'none'") in {"'none'", "'self'"}
    assert answer.headers["x-content-type-options"] == "nosniff"


@pytest.mark.parametrize(
    "file",
    [
        "..%2Fsecret.md",
        "%2E%2E/secret.md",
        "..\\secret.md",
        "manifest.json",
        "none.svg",
        "report.md%00",
        "%00.md",
        "x" * 300 + ".md",
    ],
)
def test_nothing_else_is_served(client: TestClient, judged: str, file: str) -> None:
    answer = client.get(f"/models/{judged}/report/{file}")
    assert answer.status_code == 404
    assert "not of the report" not in answer.text


@pytest.fixture
def scheduled(tmp_path: Path, tiny_models_dir: Path) -> Iterator[tuple[TestClient, Path]]:
    settings = new_settings(tmp_path, tiny_models_dir)
    with serving(settings) as client:
        yield client, settings.models_dir


def test_the_schedule_is_shown_where_there_is_one(scheduled: tuple[TestClient, Path]) -> None:
    client, models = scheduled
    assert client.get("/models").json()["schedule"] is None
    assert math.isnan(samples(client)["simile_retrain_last_end_seconds"])
    assert samples(client)["simile_retrain_running"] == 0
    said = {
        "next_run": "2026-01-02T03:30:00+00:00",
        "last_run": {"ended": "1970-01-01T00:01:00+00:00", "status": 3, "outcome": "refused"},
    }
    write_runs(models, said)
    shown = client.get("/models").json()["schedule"]
    assert said.items() <= shown.items()
    assert shown["state"] in {"waiting", "overdue", "stopped", "running"}
    found = samples(client)
    assert found["simile_retrain_last_end_seconds"] == 60
    assert found["simile_retrain_last_status"] == 3
    assert found["simile_retrain_next_seconds"] == 1767324600
    assert found["simile_retrain_running"] == 0
    write_runs(models, said | {"running": {"started": "2026-01-02T03:30:00+00:00", "pid": 7}})
    assert samples(client)["simile_retrain_running"] == 1
    (models / "schedule.json").write_text('{"last_run": 4, "next', encoding="utf-8")
    assert client.get("/models").json()["schedule"] is None
    assert math.isnan(samples(client)["simile_retrain_last_status"])


def test_a_retraining_is_requested_where_a_trainer_runs(scheduled: tuple[TestClient, Path]) -> None:
    client, models = scheduled
    found = client.get("/retraining").json()
    assert (found["state"], found["trainer"], found["gains"]) == ("stopped", False, [])
    write_refused(models, [{"name": "own questions as they come of default", "queries": 40}])
    assert client.get("/retraining").json()["gains"] == [
        {"name": "own questions as they come of default", "queries": 40}
    ]
    refused = client.post("/retraining")
    assert (refused.status_code, refused.json()["error"]) == (409, found["says"])
    assert "Start it with `simile schedule --config retrain.toml`" in found["says"]
    runs = {
        "next_run": "2099-01-02T03:30:00+00:00",
        "last_run": {"ended": "2026-01-01T00:01:00+00:00", "outcome": "refused", "reason": "no gain"},
    }
    write_runs(models, runs)
    assert read_request(models) is None
    accepted = client.post("/retraining")
    assert (accepted.status_code, accepted.json()["state"]) == (202, "requested")
    assert client.get("/retraining").json() == accepted.json()
    assert accepted.json()["last_run"] == runs["last_run"]
    again = client.post("/retraining")
    assert (again.status_code, again.json()["error_type"]) == (409, "Conflict")
    assert "A retraining was requested, and begins within seconds." in again.json()["error"]
    assert take_request(models)
    write_progress(
        models,
        {"started": "2026-01-02T03:30:00+00:00", "updated": "2099-01-01T00:00:00+00:00", "doing": "training"},
    )
    running = client.get("/retraining").json()
    assert (running["state"], running["running"]) == ("running", None), "an operator started it"
    assert running["progress"]["doing"] == "training"
    again = client.post("/retraining")
    assert again.status_code == 409
    assert "A retraining is running since 2026-01-02T03:30:00+00:00." in again.json()["error"]
    assert read_request(models) is None
