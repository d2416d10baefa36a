"""schedule.json: what the schedule of retrainings did last and does next.

Written by `python -m training schedule` alone, beside the versions (atomic replace); read by the service, by
people, and by the next start. A reader that finds none, or none that it understands, has nothing to show.
"""

from __future__ import annotations

import json
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from models.files.bounded import read_json
from models.files.fsync import replace_text

FILE_NAME = "schedule.json"
# The exit status of `retrain`, in a word.
OUTCOMES = {0: "published", 3: "refused", 4: "nothing to learn", 5: "busy", 130: "stopped"}
FAILED = "failed"
_PARTS = ("last_run", "running")
LATE = timedelta(minutes=5)  # a run that is due begins at once, where its schedule lives
_START = " Start it with `python -m training schedule --config retrain.toml`."


def outcome_of(status: int) -> str:
    return OUTCOMES.get(status, FAILED)


def read_runs(models: Path) -> dict[str, Any]:
    """Empty when there is none that can be read."""
    try:
        found = read_json(models / FILE_NAME)
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def schedule_state(runs: dict[str, Any], now: datetime) -> dict[str, Any] | None:
    """`runs` with `state`, one of running, waiting, stopped and overdue, and `says`, the same as a sentence.

    None where there was never a schedule.
    """
    if not runs:
        return None
    last, running = (found if isinstance(found := runs.get(name), dict) else {} for name in _PARTS)
    before = f" The last run ended {last['ended']}: {last.get('outcome')}." if last.get("ended") else ""
    due = runs.get("next_run")
    if running:
        state, says = "running", f"A retraining is running since {running.get('started')}."
    elif not due:
        state, says = "stopped", f"The schedule of retrainings is stopped: no run will begin.{_START}"
    elif _is_past(str(due), now):
        state, says = "overdue", f"The retraining of {due} did not begin: the schedule does not run.{_START}"
    else:
        state, says = "waiting", f"The next retraining is due {due}."
    return {"state": state, "says": says + before} | runs


def _is_past(due: str, now: datetime) -> bool:
    try:
        return datetime.fromisoformat(due) + LATE < now
    except (ValueError, TypeError):
        return False


def write_runs(models: Path, content: dict[str, Any]) -> None:
    """Raise OSError."""
    replace_text(models / FILE_NAME, json.dumps(content, ensure_ascii=False, indent=2) + "\n")
