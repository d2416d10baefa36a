"""Reads and writes the files with the state of retrainings in the models folder.

schedule.json   the last and the next run of the schedule; only `simile schedule` writes it, and
                sets its modification time every few seconds while it runs
progress.json   the progress of the current retraining; removed at its end
retrain.json    a request to retrain now; the service creates it, and the schedule removes it
refused.json    the gains of the ranking or search settings that were refused last

Files are replaced atomically. Readers treat a damaged file like a missing file.
"""

from __future__ import annotations

import contextlib
import json
import os
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from models.files.bounded import read_json
from models.files.fsync import replace_text

FILE_NAME, PROGRESS, REQUEST, _REFUSED = "schedule.json", "progress.json", "retrain.json", "refused.json"
# Names for the exit statuses of `retrain`.
OUTCOMES = {0: "published", 3: "refused", 4: "nothing to learn", 5: "busy", 130: "stopped"}
FAILED = "failed"
_PARTS = ("last_run", "running")
LATE = timedelta(minutes=5)  # A schedule that runs starts due retrainings within this time.
SILENT = timedelta(hours=1)  # Older progress belongs to a killed retraining.
ABSENT = timedelta(minutes=1)  # A schedule without a sign of life for this time does not run.
_START = " Start it with `simile schedule --config retrain.toml`."
NO_TRAINER = f"No schedule of retrainings runs on this models folder.{_START}"


def now() -> str:
    """Returns the time in the format of these files: ISO 8601, UTC, in seconds."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def read_runs(models: Path) -> dict[str, Any]:
    """Reads schedule.json. Returns an empty dict if it is missing or damaged."""
    return _read(models / FILE_NAME)


def read_progress(models: Path, now: datetime) -> dict[str, Any]:
    """Reads progress.json. Returns an empty dict if it is missing, damaged or old."""
    found = _read(models / PROGRESS)
    return {} if _is_past(found.get("updated"), now, SILENT) else found


def _read(file: Path) -> dict[str, Any]:
    try:
        found = read_json(file)
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def schedule_state(models: Path, now: datetime) -> dict[str, Any] | None:
    """Describes the schedule and the current retraining.

    Returns:
        The content of schedule.json with `state` (running, requested, waiting, stopped or overdue), `says` (a
        sentence), `trainer` (whether a schedule runs), `requested` (the request to retrain now, or None) and
        `progress` (None without a current retraining). None if all files are missing.
    """
    runs, progress, requested = read_runs(models), read_progress(models, now), read_request(models)
    if not runs and not progress and requested is None:
        return None
    last, running = (found if isinstance(found := runs.get(name), dict) else {} for name in _PARTS)
    before = f" The last run ended {last['ended']}: {last.get('outcome')}." if last.get("ended") else ""
    due, alive = runs.get("next_run"), _is_alive(models, now)
    if progress or (running and alive):
        state, says = "running", f"A retraining is running since {(progress or running).get('started')}."
    elif not due:
        state, says = "stopped", f"The schedule of retrainings is stopped: no run will begin.{_START}"
    elif _is_past(due, now, LATE):
        state, says = "overdue", f"The retraining of {due} did not begin: the schedule does not run.{_START}"
    elif not alive:
        state, says = "stopped", NO_TRAINER
    elif requested is not None:
        state, says = "requested", "A retraining was requested, and begins within seconds."
    else:
        state, says = "waiting", f"The next retraining is due {due}."
    told = {"state": state, "says": says + before, "trainer": alive and bool(due)}
    return told | {"requested": requested, "progress": progress or None} | runs


def _is_alive(models: Path, now: datetime) -> bool:
    """Returns True if the schedule touched schedule.json within ABSENT."""
    try:
        seen = datetime.fromtimestamp((models / FILE_NAME).stat().st_mtime, UTC)
    except OSError:
        return False
    return seen + ABSENT >= now


def give_sign(models: Path) -> None:
    """Touches schedule.json, to show that the schedule runs."""
    with contextlib.suppress(OSError):  # The folder may be away for a while.
        os.utime(models / FILE_NAME)


def request_run(models: Path) -> None:
    """Requests that the schedule retrains now.

    Raises:
        FileExistsError: A request is pending.
        OSError: The models folder cannot be written.
    """
    with (models / REQUEST).open("x", encoding="utf-8") as file:  # Of two requests at once, one succeeds.
        json.dump({"at": now()}, file)


def read_request(models: Path) -> dict[str, Any] | None:
    """Returns the pending request with its time `at`, {} if it cannot be read, or None without a request."""
    return _read(models / REQUEST) if (models / REQUEST).exists() else None


def take_request(models: Path) -> bool:
    """Removes the request, and returns whether one was pending."""
    try:
        (models / REQUEST).unlink()
    except OSError:
        return False
    return True


def _is_past(moment: object, now: datetime, after: timedelta) -> bool:
    try:
        return datetime.fromisoformat(str(moment)) + after < now
    except (ValueError, TypeError):
        return False


def write_runs(models: Path, content: dict[str, Any]) -> None:
    replace_text(models / FILE_NAME, json.dumps(content, ensure_ascii=False, indent=2) + "\n")


def write_progress(models: Path, content: dict[str, Any]) -> None:
    replace_text(models / PROGRESS, json.dumps(content, ensure_ascii=False) + "\n")


def read_refused(models: Path) -> list[dict[str, Any]]:
    """Reads refused.json. Returns an empty list if it is missing or damaged."""
    gains = _read(models / _REFUSED).get("gains")
    return gains if isinstance(gains, list) else []


def write_refused(models: Path, gains: list[dict[str, Any]]) -> None:
    replace_text(models / _REFUSED, json.dumps({"gains": gains}) + "\n")


def remove_progress(models: Path) -> None:
    (models / PROGRESS).unlink(missing_ok=True)
