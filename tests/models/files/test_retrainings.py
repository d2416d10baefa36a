"""The state of the schedule of retrainings, as people and GET /models read it."""

from datetime import UTC, datetime

import pytest

from models.files.retrainings import schedule_state

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
            "`python -m training schedule --config retrain.toml`",
        ),
        ({"next_run": "soon", "last_run": 4, "running": "x"}, "waiting", "is due soon"),
    ],
)
def test_a_schedule_that_does_not_run_says_so(runs: dict[str, object], state: str, says: str) -> None:
    found = schedule_state(runs, NOW)
    assert found is not None
    assert found["state"] == state
    assert says in found["says"]


def test_without_a_schedule_there_is_nothing_to_say() -> None:
    assert schedule_state({}, NOW) is None
