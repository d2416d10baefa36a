"""HEALTHCHECK of the trainer: exit status 0 while a retraining runs, or until LATE after the next one is due.

The schedule writes the time of the next run to schedule.json. When the schedule ends, it removes the time. If
the time is long past, the schedule hangs or cannot write.
"""

import json
import os
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

FILE = Path(os.environ.get("SIMILE_MODELS_DIR", "models")) / "schedule.json"
LATE = timedelta(minutes=5)  # a run counts the documents before it says that it runs


def main() -> int:
    try:
        found = json.loads(FILE.read_bytes())
    except (OSError, ValueError) as error:
        print(f"{FILE}: {error}")
        return 1
    running, due = found.get("running"), found.get("next_run")
    if running is not None:
        print("a retraining runs")
        return 0
    if due is None:
        print(f"{FILE} names no next run: the schedule has ended or has not begun")
        return 1
    print(f"the next retraining is due at {due}")
    return 0 if datetime.fromisoformat(due) + LATE > datetime.now(UTC) else 1


if __name__ == "__main__":
    sys.exit(main())
