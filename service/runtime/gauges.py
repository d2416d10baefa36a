"""Gauges that are computed at each scrape of the metrics.

`show` and `show_database` register the gauges, and `scrape` returns all metrics. `sample` is a background
task that measures delays of the event loop.
"""

import asyncio
import math
import shutil
import time
from collections.abc import Callable, Mapping
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

from prometheus_client import generate_latest

from models.files.retrainings import read_runs
from service import memory
from service.active import ActiveGeneration, Generation
from service.observability.metrics import GENERATION_STATES, Metrics
from service.runtime.health import Health, Readiness
from service.store.sql import records

SAMPLE_SECONDS = 0.5


def show(
    metrics: Metrics,
    active: ActiveGeneration,
    health: Health,
    readiness: Readiness,
    folders: Mapping[str, Path],
) -> None:
    """Registers the gauges of the service, the machine and the retraining schedule.

    Args:
        metrics: The metrics of the service.
        active: The active generation and its followers.
        health: The state that `/health` shows.
        readiness: The state that `/ready` shows.
        folders: Folders whose free disk space is shown, by name. The folder `models` contains schedule.json,
            the schedule of retraining.

    """
    encoder = active.generation.encoder
    metrics.serve(encoder.manifest, encoder.form)
    metrics.documents.set_function(lambda: active.generation.indexes.documents + active.generation.missing)
    metrics.index_missing.set_function(lambda: active.generation.missing)
    metrics.index_recall.set_function(
        lambda: getattr(active.generation.indexes.largest.measured, "recall", math.nan)
    )
    metrics.damaged_documents.set_function(lambda: len(records.known_damage))
    loop = asyncio.get_running_loop()
    metrics.tasks.set_function(lambda: len(asyncio.all_tasks(loop)))
    metrics.healthy.set_function(lambda: health.illness is None)
    metrics.ready.set_function(lambda: readiness.check() is None)
    for name, folder in folders.items():
        metrics.disk_free.labels(name).set_function(partial(_disk, folder, "free"))
        metrics.disk_total.labels(name).set_function(partial(_disk, folder, "total"))
    metrics.memory_limit.set_function(lambda: memory.limit() or math.nan)
    models = folders["models"]
    metrics.retrain_last.set_function(lambda: _timestamp(_last_run(models).get("ended")))
    metrics.retrain_status.set_function(lambda: _number(_last_run(models).get("status")))
    metrics.retrain_running.set_function(lambda: read_runs(models).get("running") is not None)
    metrics.retrain_next.set_function(lambda: _timestamp(read_runs(models).get("next_run")))


def _disk(folder: Path, what: str) -> float:
    try:
        return float(getattr(shutil.disk_usage(folder), what))
    except OSError:  # The folder is missing.
        return math.nan


def show_database(metrics: Metrics, shared: Any) -> None:
    """Registers gauges about PostgreSQL: this replica's lease, the connection pool, and the standby servers.

    Args:
        metrics: The metrics of the service.
        shared: The PostgresStore.

    """

    def number(name: str) -> Callable[[], float]:
        return lambda: shared.pool.get_stats().get(name, 0)

    metrics.lease_age.set_function(lambda: shared.lease_age)
    metrics.connections.labels("open").set_function(number("pool_size"))
    metrics.connections.labels("idle").set_function(number("pool_available"))
    metrics.connections_limit.set_function(number("pool_max"))
    metrics.connections_waiting.set_function(number("requests_waiting"))
    metrics.replication_lag.set_function(lambda: shared.lag_seconds)


def _last_run(models: Path) -> dict[str, Any]:
    found = read_runs(models).get("last_run")
    return found if isinstance(found, dict) else {}


def _timestamp(moment: object) -> float:
    """Converts an ISO 8601 time to seconds since 1970. Returns NaN for any other value."""
    try:
        return datetime.fromisoformat(str(moment)).timestamp()
    except ValueError:
        return math.nan


def _number(value: object) -> float:
    return float(value) if isinstance(value, int) else math.nan


def scrape(metrics: Metrics, active: ActiveGeneration, building: Generation | None) -> bytes:
    """Returns all metrics in Prometheus' text format. Blocks for some milliseconds.

    Args:
        metrics: The metrics of the service.
        active: The active generation and its followers.
        building: The generation that is being built, if any.

    """
    metrics.by_version.keep(active.encoding)
    sizes: dict[str, int] = {}
    states = dict.fromkeys(GENERATION_STATES, 0)
    for generation in active.generations:
        sizes[generation.version] = sizes.get(generation.version, 0) + generation.indexes.nbytes
        states[_state(generation, active.generation, building)] += 1
    for version, size in sizes.items():
        metrics.by_version.index_bytes.labels(version).set(size)
    for state, count in states.items():
        metrics.generations.labels(state).set(count)
    return generate_latest(metrics.registry)


def _state(generation: Generation, active: Generation, building: Generation | None) -> str:
    if generation is active:
        return "active"
    if generation is building:
        return "building"
    return "kept" if generation.is_rollback_target else "leaving"


async def sample(metrics: Metrics) -> None:
    """Measures how late the event loop wakes a sleeping task. Runs until it is cancelled."""
    while True:
        asleep = time.monotonic()
        await asyncio.sleep(SAMPLE_SECONDS)
        metrics.loop_lag_seconds.observe(max(0.0, time.monotonic() - asleep - SAMPLE_SECONDS))
