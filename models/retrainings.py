"""schedule.json: what the schedule of retrainings did last and does next.

Written by `python -m training schedule` alone, beside the versions (atomic replace); read by the service, by
people, and by the next start. A reader that finds none, or none that it understands, has nothing to show.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from models.files.bounded import read_json
from models.files.fsync import replace_text

FILE_NAME = "schedule.json"
# The exit status of `retrain`, in a word.
OUTCOMES = {0: "published", 3: "refused", 4: "nothing to learn", 5: "busy", 130: "stopped"}
FAILED = "failed"


def outcome_of(status: int) -> str:
    return OUTCOMES.get(status, FAILED)


def read_runs(models: Path) -> dict[str, Any]:
    """Empty when there is none that can be read."""
    try:
        found = read_json(models / FILE_NAME)
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def write_runs(models: Path, content: dict[str, Any]) -> None:
    """Raise OSError."""
    replace_text(models / FILE_NAME, json.dumps(content, ensure_ascii=False, indent=2) + "\n")
