"""What retrainings leave beside the versions for others to read.

schedule.json   what the schedule did last and does next; written by `python -m training schedule` alone
progress.json   how far the retraining in hand is, whoever began it; removed at its end

Each is replaced as a whole. A reader that finds none, or none that it understands, has nothing to show.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from models.files.bounded import read_json
from models.files.fsync import replace_text

FILE_NAME, PROGRESS = "schedule.json", "progress.json"
# The exit status of `retrain`, in a word.
OUTCOMES = {0: "published", 3: "refused", 4: "nothing to learn", 5: "busy", 130: "stopped"}
FAILED = "failed"
_PARTS = ("last_run", "running")
LATE = timedelta(minutes=5)  # a run that is due begins at once, where its schedule lives
SILENT = timedelta(hours=1)  # progress that is older was left behind by a run that was killed
_START = " Start it with `python -m training schedule --config retrain.toml`."


def now() -> str:
    """The time as these files have it: ISO 8601, UTC, to the second."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def outcome_of(status: int) -> str:
    return OUTCOMES.get(status, FAILED)


def read_runs(models: Path) -> dict[str, Any]:
    """Empty when there is none that can be read."""
    return _read(models / FILE_NAME)


def read_progress(models: Path, now: datetime) -> dict[str, Any]:
    """Empty when no retraining is in hand, or none that can be read."""
    found = _read(models / PROGRESS)
    return {} if _is_past(found.get("updated"), now, SILENT) else found


def _read(file: Path) -> dict[str, Any]:
    try:
        found = read_json(file)
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def schedule_state(models: Path, now: datetime) -> dict[str, Any] | None:
    """The schedule with `state`, one of running, waiting, stopped and overdue, and `says`, a sentence.

    `progress` is that of the retraining in hand, null without one. None where there was never a schedule and
    no retraining is in hand.
    """
    runs, progress = read_runs(models), read_progress(models, now)
    if not runs and not progress:
        return None
    last, running = (found if isinstance(found := runs.get(name), dict) else {} for name in _PARTS)
    before = f" The last run ended {last['ended']}: {last.get('outcome')}." if last.get("ended") else ""
    due = runs.get("next_run")
    if running or progress:
        state, says = "running", f"A retraining is running since {(progress or running).get('started')}."
    elif not due:
        state, says = "stopped", f"The schedule of retrainings is stopped: no run will begin.{_START}"
    elif _is_past(due, now, LATE):
        state, says = "overdue", f"The retraining of {due} did not begin: the schedule does not run.{_START}"
    else:
        state, says = "waiting", f"The next retraining is due {due}."
    return {"state": state, "says": says + before, "progress": progress or None} | runs


def _is_past(moment: object, now: datetime, after: timedelta) -> bool:
    try:
        return datetime.fromisoformat(str(moment)) + after < now
    except (ValueError, TypeError):
        return False


def write_runs(models: Path, content: dict[str, Any]) -> None:
    """Raise OSError."""
    replace_text(models / FILE_NAME, json.dumps(content, ensure_ascii=False, indent=2) + "\n")


def write_progress(models: Path, content: dict[str, Any]) -> None:
    """Raise OSError."""
    replace_text(models / PROGRESS, json.dumps(content, ensure_ascii=False) + "\n")


def remove_progress(models: Path) -> None:
    """Raise OSError."""
    (models / PROGRESS).unlink(missing_ok=True)
