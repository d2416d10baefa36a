"""Every Prometheus series of the service, named once. docs/METRICS.md is the same list for people.

Labels are route templates, statuses, lanes, names of keys and model versions: never a user's text, never a
raw path. Series with a version exist while it is in memory and go with it, so a service that swaps every
night for years has no more of them than on its first day.
"""

import math
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from itertools import islice
from typing import Any

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    ProcessCollector,
    disable_created_metrics,
)

from models.engines.form import Form
from models.manifest import Manifest
from service.errors import error_types
from service.observability.version_metrics import LANES, SECONDS, VersionMetrics

SWAP_OUTCOMES = ("done", "rollback", "failed", "dropped")
GENERATION_STATES = ("active", "building", "kept", "leaving")
CONNECTION_STATES = ("idle", "open")
UNMATCHED = "unmatched"  # the route of a path that no route has
MAX_SCORES = 100  # of one version; a manifest may come from anywhere

# A second series for each counter would say when it was made.
disable_created_metrics()  # type: ignore[no-untyped-call]


class Metrics:
    """The series of one service. Each app has its own registry, so two in one process never mix."""

    def __init__(self) -> None:
        registry = CollectorRegistry()
        self.registry = registry
        ProcessCollector(registry=registry)
        before = "simile"  # the name of each series, and an underscore
        self.by_version = VersionMetrics(registry, before)
        self._counter = partial(Counter, registry=registry, namespace=before)
        self._gauge = partial(Gauge, registry=registry, namespace=before)
        self._seconds = partial(Histogram, registry=registry, namespace=before, buckets=SECONDS)
        self._make_requests()
        self._make_inference()
        self._make_documents()
        self._make_models()
        self._make_replicas()
        self._make_machine()
        self._touch()

    def _make_requests(self) -> None:
        self.requests = self._counter("requests", "Requests answered", ["method", "route", "status"])
        self.key_requests = self._counter(
            "key_requests", "Requests let in, by the name of their key", ["key"]
        )
        self.key_tokens = self._counter("key_tokens", "Tokens computed for them", ["key"])
        self.request_seconds = self._seconds(
            "request_seconds", "Seconds from a request's first byte to its last answered byte", ["route"]
        )
        self.errors = self._counter("errors", "Refusals and failures", ["error_type"])
        self.in_flight = self._gauge("requests_in_flight", "Requests that are not answered yet")
        self.admitted_bytes = self._gauge(
            "admitted_bytes", "Bytes of bodies that were read and are not answered yet"
        )
        self.loop_lag_seconds = self._seconds(
            "loop_lag_seconds",
            "Seconds by which the event loop woke a sleeper too late, sampled twice a second",
        )
        self.tasks = self._gauge("tasks", "Tasks of the event loop")

    def _make_inference(self) -> None:
        self.queue_texts = self._gauge("queue_texts", "Texts waiting to be embedded", ["lane"])
        self.queue_tokens = self._gauge(
            "queue_tokens", "Tokens waiting to be embedded (estimated until tokenised)", ["lane"]
        )
        self.queue_wait = self._gauge(
            "queue_wait_seconds",
            "Seconds that a request which comes now would wait for its turn, as predicted",
        )
        self.queue_limit_tokens = self._gauge(
            "queue_limit_tokens", "Tokens that may wait in a lane; more are refused"
        )
        self.queue_limit_seconds = self._gauge(
            "queue_limit_seconds", "How long that wait may be, or requests are refused; +Inf: no bound"
        )

        self.cache_hits = self._counter(
            "cache_hits", "Texts whose vectors were kept from before, and cost no forward pass"
        )
        self.cache_misses = self._counter("cache_misses", "Texts that were looked for in vain, and computed")
        self.cache_shared = self._counter(
            "cache_shared", "Texts that waited for an equal one which was being computed"
        )
        self.cache_bytes = self._gauge(
            "cache_bytes", "Memory of the kept vectors, their names and tables included"
        )
        self.cache_evictions = self._counter("cache_evictions", "Vectors that left for want of room")

        self.batch_timeouts = self._counter(
            "batch_timeouts", "Batches that hung in a worker and were given up"
        )
        self.worker_restarts = self._counter("worker_restarts", "Workers that died and were replaced")

        self.healthy = self._gauge(
            "healthy", "1 when a forward pass succeeded since the last failure and nothing hangs"
        )

    def _make_documents(self) -> None:
        self.ready = self._gauge("ready", "1 while new work is taken and the index is whole")
        self.documents = self._gauge("documents", "Documents stored")
        self.index_missing = self._gauge(
            "index_missing_documents", "Stored documents that the index does not hold yet"
        )
        self.index_recall = self._gauge(
            "index_recall_at_10", "Share of the ten nearest documents found, where search is approximate"
        )
        self.index_lag_seconds = self._seconds(
            "index_lag_seconds", "Seconds from a commit to its documents being searchable"
        )
        self.write_seconds = self._seconds(
            "write_commit_seconds", "Seconds of one commit of the document store, fsync included"
        )
        self.damaged_documents = self._gauge(
            "damaged_documents", "Documents that this process did not answer, because their checksum fails"
        )
        self.feedback = self._counter("feedback", "Judgements of searches that were stored", ["relevant"])
        self.events = self._counter("events", "Events of searches that were stored", ["type"])
        self.events_refused = self._counter("events_refused", "Events of searches that could not be stored")

    def _make_models(self) -> None:
        labels = ["version", "fingerprint", "form"]
        self.model = self._gauge("model_info", "1 for the active version, in its form", labels)
        self.score = self._gauge(
            "model_score", "Scores of the active version, as its manifest has them", ["version", "name"]
        )
        self.generations = self._gauge("generations", "Versions in memory with their indexes", ["state"])
        self.swaps = self._counter(
            "swaps",
            "Versions that were worked towards: came to live, were gone back to, failed, or were given up",
            ["outcome"],
        )
        self.swap_pause_seconds = self._seconds(
            "swap_pause_seconds",
            "Seconds from the swap's last look to the new generation being live; only writes wait for it",
        )
        self.swap_waiting = self._gauge(
            "swap_waiting",
            "1 while a version in the making waits: for memory, a disk, a queue or somebody's decision",
        )
        self.build_done = self._gauge(
            "build_done_documents", "Documents embedded by the version in the making"
        )
        self.build_total = self._gauge("build_total_documents", "Documents that it has to embed in all")
        self.build_eta = self._gauge(
            "build_eta_seconds",
            "Seconds until they are embedded, at the recent rate; NaN while it is not known",
        )
        self.canary = self._gauge(
            "canary_overlap",
            "Mean share of common ids in the first ten hits of the live version and of the one in the "
            "making, or that came last; NaN while it was not compared",
        )
        self.retrain_last = self._gauge(
            "retrain_last_end_seconds",
            "When the last scheduled retraining ended, in seconds since 1970; NaN without a schedule",
        )
        self.retrain_status = self._gauge(
            "retrain_last_status",
            "Its exit status: 0 published, 3 refused, 4 nothing to learn, else failed; NaN before the first",
        )
        self.retrain_next = self._gauge(
            "retrain_next_seconds", "When the next one is due, in seconds since 1970; NaN without a schedule"
        )
        self.retrain_running = self._gauge("retrain_running", "1 while the schedule has a retraining in hand")

    def _make_replicas(self) -> None:
        """The last five stay as they are without SIMILE_DATABASE."""
        self.replicas = self._gauge(
            "replicas", "Processes that share the store and have renewed their lease, this one included"
        )
        self.lease_age = self._gauge(
            "lease_age_seconds",
            "Seconds since this replica last renewed its lease; at ten it answers nothing",
        )
        self.connections = self._gauge(
            "database_connections",
            "Connections of the pool to the database: open, and idle among them",
            ["state"],
        )
        self.connections_limit = self._gauge(
            "database_connections_limit", "The most connections that the pool opens"
        )
        self.connections_waiting = self._gauge(
            "database_waiting", "Reads and writes that wait for a connection of the pool"
        )
        self.replication_lag = self._gauge(
            "database_replication_lag_seconds",
            "By how much the database's slowest standby is behind it; NaN without one that may be seen",
        )

    def _make_machine(self) -> None:
        self.disk_free = self._gauge(
            "disk_free_bytes",
            "Bytes that may still be written to the disk of a folder; NaN while it cannot be asked",
            ["folder"],
        )
        self.disk_total = self._gauge(
            "disk_total_bytes", "Bytes that this disk has in all; NaN while it cannot be asked", ["folder"]
        )
        self.memory_limit = self._gauge(
            "memory_limit_bytes",
            "Memory that the process may have, by its cgroups and the machine; NaN where none tells",
        )

    def _touch(self) -> None:
        """Make labelled series exist from the first scrape, so that a rate over them is never empty."""
        for series, values in (
            (self.queue_texts, LANES),
            (self.queue_tokens, LANES),
            (self.errors, error_types()),
            (self.generations, GENERATION_STATES),
            (self.swaps, SWAP_OUTCOMES),
            (self.feedback, ("true", "false")),
            (self.events, ("click", "open", "convert", "skip")),
            (self.connections, CONNECTION_STATES),
        ):
            for value in values:
                series.labels(value)
        self.build_eta.set(math.nan)
        self.canary.set(math.nan)
        self.replication_lag.set(math.nan)

    def routes(self, routes: Iterable[tuple[str, str, int]]) -> None:
        """Make the series of each (method, route template, status when all is well) exist."""
        for method, route, status in routes:
            self.requests.labels(method, route, str(status))
            self.request_seconds.labels(route)
        self.requests.labels("GET", UNMATCHED, "404")
        self.request_seconds.labels(UNMATCHED)

    def build(self, done: int, total: int, eta_seconds: float | None = None) -> None:
        """Show the progress of the version in the making; zeros when there is none."""
        self.build_done.set(done)
        self.build_total.set(total)
        self.build_eta.set(math.nan if eta_seconds is None else eta_seconds)

    def serve(self, manifest: Manifest, form: Form) -> None:
        """Show the version of `manifest` as the active one."""
        self.by_version.open(manifest.version)
        self.model.clear()
        self.model.labels(manifest.version, manifest.fingerprint, str(form)).set(1)
        self.score.clear()
        for name, value in islice(_numbers(manifest.scores), MAX_SCORES):
            self.score.labels(manifest.version, name).set(value)


def _numbers(scores: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, float]]:
    """The numbers of nested scores, by their path: `{"sts": {"dev": 0.8}}` gives `("sts.dev", 0.8)`."""
    for name, value in scores.items():
        if isinstance(value, Mapping):
            yield from _numbers(value, f"{prefix}{name}.")
        elif isinstance(value, int | float) and not isinstance(value, bool):
            yield f"{prefix}{name}", float(value)
