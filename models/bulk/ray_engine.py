"""Embeds on a Ray cluster. Start at `embed_on_ray`, the engine of `--engine ray`.

A dataset of units of work goes through `Dataset.map_batches` with a pool of actors. Each actor opens the
version once, reads its rows itself and writes their parts, so no text or vector passes through Ray. Inputs,
results and the models folder must be visible under the same names on every node.
"""

from __future__ import annotations

import logging
import pickle
from collections.abc import Iterator
from typing import Any

import ray
import ray.data

from models.bulk.inputs import Work
from models.bulk.job import Finished, Job, Step, embed_with
from models.engines.form import parse_place
from models.engines.malloc import keep_buffers
from models.errors import ModelError


def embed_on_ray(
    job: Job, work: list[Work], complete: frozenset[str], *, address: str | None, actors: int, processors: int
) -> Iterator[Step]:
    """Embeds units of work with a pool of actors.

    Args:
        job: The job.
        work: The units.
        complete: Parts that need no work.
        address: Address of the cluster. None: RAY_ADDRESS, or a cluster on this machine.
        actors: Number of actors. 0: one for each GPU, or for each `processors` processors.
        processors: Processors of an actor.

    Raises:
        ModelError: The cluster has no room for an actor, or an actor failed.
    """
    if not work:
        return
    if not ray.is_initialized():
        ray.init(address=address, log_to_driver=False, logging_level=logging.WARNING)
    on_gpu = parse_place(job.embedder.get("device", "cpu")).device == "cuda"
    there: dict[str, float] = ray.cluster_resources()  # type: ignore[no-untyped-call, unused-ignore]
    room = int(there.get("GPU", 0) if on_gpu else there.get("CPU", 0) // processors)
    if room < 1:
        needed = "a GPU" if on_gpu else f"{processors} processors"
        raise ModelError(
            f"No actor fits into the Ray cluster: it needs {needed}, and {dict(there)} is there."
        )
    ray.data.DataContext.get_current().enable_progress_bars = False
    rows = [{"work": pickle.dumps(each)} for each in work]
    dataset = ray.data.from_items(rows, override_num_blocks=len(rows)).map_batches(
        _Worker,
        fn_constructor_args=(job, complete, processors),
        batch_size=1,
        num_cpus=processors,
        num_gpus=1 if on_gpu else 0,
        compute=ray.data.ActorPoolStrategy(size=min(len(work), actors or room)),
    )
    try:
        for row in dataset.iter_rows():
            steps = row["rows"], row["work"]
            yield Step(*steps, Finished(row["part"], row["documents"], row["rejected"]))
    except ray.exceptions.RayError as error:
        raise ModelError(f"An actor of Ray failed: {_find_cause(error)}") from error


def _find_cause(error: Exception) -> str:
    cause = getattr(error, "cause", None)
    lines = str(cause or error).strip().splitlines()
    return lines[-1] if lines else type(error).__name__


class _Worker:
    """An actor, which keeps the version open."""

    def __init__(self, job: Job, complete: frozenset[str], processors: int) -> None:
        self._job = job
        self._complete = complete
        keep_buffers()
        self._embedder = job.open_embedder(workers=processors)

    def __call__(self, batch: dict[str, Any]) -> dict[str, list[Any]]:
        """Embeds the units of a batch. Returns the counts of each part that is now complete."""
        work = [pickle.loads(each) for each in batch["work"]]  # noqa: S301  the driver made it
        found: dict[str, list[Any]] = {name: [] for name in ("rows", "work", *Finished._fields)}
        rows = units = 0
        for step in embed_with(self._embedder, self._job, work, self._complete):
            rows, units = rows + step.rows, units + step.work
            if step.finished is not None:
                for name, value in zip(found, (rows, units, *step.finished), strict=True):
                    found[name].append(value)
                rows = units = 0
        return found
