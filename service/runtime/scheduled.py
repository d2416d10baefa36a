"""What the schedule of retrainings says of itself, as gauges. It is another process: this reads its file."""

import math
from datetime import datetime
from pathlib import Path
from typing import Any

from models.retrainings import read_runs
from service.observability.metrics import Metrics


def show_schedule(metrics: Metrics, models: Path) -> None:
    """Point the gauges at MODELS_DIR/schedule.json, which is read at each scrape."""
    metrics.retrain_last.set_function(lambda: _seconds(_last(models).get("ended")))
    metrics.retrain_status.set_function(lambda: _number(_last(models).get("status")))
    metrics.retrain_running.set_function(lambda: read_runs(models).get("running") is not None)
    metrics.retrain_next.set_function(lambda: _seconds(read_runs(models).get("next_run")))


def _last(models: Path) -> dict[str, Any]:
    found = read_runs(models).get("last_run")
    return found if isinstance(found, dict) else {}


def _seconds(moment: object) -> float:
    """Since 1970; NaN when there is none."""
    try:
        return datetime.fromisoformat(str(moment)).timestamp()
    except ValueError:
        return math.nan


def _number(value: object) -> float:
    return float(value) if isinstance(value, int) else math.nan
