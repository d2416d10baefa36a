"""The state of the retraining schedule, as GET /models shows it to people."""

import os
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from models.files.retrainings import (
    ABSENT,
    FILE_NAME,
    PROGRESS,
    SILENT,
    give_sign,
    read_request,
    remove_progress,
    request_run,
    schedule_state,
    take_request,
    write_progress,
    write_runs,
)

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    ("runs", "state", "says"),
    [
        (
            {"running": {"started": "2026-03-01T11:00:00+00:00"}, "next_run": None},
            "running",
            "is running since",
        ),
        ({"running": None, "next_run": "2026-03-01T13:00:00+00:00"}, "waiting", "is due 2026-03-01T13:00"),
        ({"running": None, "next_run": "2026-03-01T11:58:00+00:00"}, "waiting", "is due"),
        ({"running": None, "next_run": "2026-03-01T11:00:00+00:00"}, "overdue", "did not begin"),
        (
            {"running": None, "next_run": None},
            "stopped",
            "`simile schedule --config retrain.toml`",
        ),
        ({"next_run": "soon", "last_run": 4, "running": "x"}, "waiting", "is due soon"),
    ],
)
def test_a_schedule_that_does_not_run_says_so(
    tmp_path: Path, runs: dict[str, object], state: str, says: str
) -> None:
    write_runs(tmp_path, runs)
    found = schedule_state(tmp_path, NOW)
    assert found is not None
    assert found["state"] == state
    assert says in found["says"]


def test_without_a_schedule_there_is_nothing_to_say(tmp_path: Path) -> None:
    assert schedule_state(tmp_path, NOW) is None


def test_the_progress_of_a_run_by_hand_is_told_until_it_has_been_silent_for_long(tmp_path: Path) -> None:
    write_progress(tmp_path, {"started": "2026-03-01T11:40:00+00:00", "updated": NOW.isoformat(), "step": 4})
    found = schedule_state(tmp_path, NOW)
    assert found is not None
    assert (found["state"], found["progress"]["step"]) == ("running", 4)
    assert "since 2026-03-01T11:40" in found["says"]
    assert schedule_state(tmp_path, NOW + SILENT + timedelta(seconds=1)) is None
    remove_progress(tmp_path)
    assert schedule_state(tmp_path, NOW) is None


@pytest.mark.parametrize("content", [b"", b"[]", b"{", b"\xff", b"4"])
def test_progress_that_is_not_understood_is_none(tmp_path: Path, content: bytes) -> None:
    (tmp_path / PROGRESS).write_bytes(content)
    write_runs(tmp_path, {"next_run": "2026-03-01T13:00:00+00:00"})
    found = schedule_state(tmp_path, NOW)
    assert found is not None
    assert (found["state"], found["progress"]) == ("waiting", None)


@pytest.mark.parametrize("running", [None, {"started": "2026-03-01T11:00:00+00:00"}])
def test_a_killed_schedule_gives_no_sign_of_life(tmp_path: Path, running: object) -> None:
    write_runs(tmp_path, {"next_run": "2026-03-01T13:00:00+00:00", "running": running})
    for age, trainer in ((0, True), (ABSENT.seconds + 1, False)):
        seen = NOW.timestamp() - age
        os.utime(tmp_path / FILE_NAME, (seen, seen))
        found = schedule_state(tmp_path, NOW)
        assert found is not None
        assert found["trainer"] == trainer
        assert found["state"] == (("running" if running else "waiting") if trainer else "stopped")
        assert trainer or "Start it with `simile schedule" in found["says"]
    give_sign(tmp_path)
    assert (tmp_path / FILE_NAME).stat().st_mtime > seen
    (tmp_path / FILE_NAME).unlink()
    give_sign(tmp_path)
    assert not (tmp_path / FILE_NAME).exists()


def test_a_request_is_pending_until_it_is_taken(tmp_path: Path) -> None:
    write_runs(tmp_path, {"next_run": "2026-03-01T13:00:00+00:00"})
    assert read_request(tmp_path) is None
    assert not take_request(tmp_path)
    request_run(tmp_path)
    with pytest.raises(FileExistsError):
        request_run(tmp_path)
    found = schedule_state(tmp_path, NOW)
    assert found is not None
    assert found["state"] == "requested"
    assert datetime.fromisoformat(found["requested"]["at"]) <= datetime.now(UTC)
    (tmp_path / "retrain.json").write_bytes(b"{")
    assert read_request(tmp_path) == {}, "it is pending all the same"
    assert take_request(tmp_path)
    found = schedule_state(tmp_path, NOW)
    assert found is not None
    assert (found["state"], found["requested"]) == ("waiting", None)
