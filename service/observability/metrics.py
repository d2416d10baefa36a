"""Defines all Prometheus metrics of the service. docs/METRICS.md documents them.

Label values are route templates, status codes, lanes, names of keys and model versions. They are never texts
or raw paths.
"""

import math
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
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

LANES = ("interactive", "rerank", "background", "candidate")
SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
_TOKENS = (8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096)
_TEXTS = (1, 2, 4, 8, 16, 32, 64, 128)


@dataclass(frozen=True, slots=True)
class Inference:
    """The metric series of one model version and one lane, so that batches need not look up each series."""

    tokens: Counter
    truncated: Counter
    unknown: Counter
    padding_tokens: Counter
    batch_texts: Histogram
    batch_tokens: Histogram
    tokenize_seconds: Histogram
    queue_seconds: Histogram
    inference_seconds: Histogram
    failures: Counter


class VersionMetrics:
    def __init__(self, registry: CollectorRegistry, namespace: str) -> None:
        ours: dict[str, Any] = {"registry": registry, "namespace": namespace}

        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(name, text, ["version", *labels], **ours)

        def histogram(name: str, text: str, buckets: Sequence[float] = SECONDS) -> Histogram:
            return Histogram(name, text, ["version", "lane"], buckets=buckets, **ours)

        # The keys are the fields of Inference.
        self._by_version = {
            "truncated": counter("truncated_texts", "Texts cut at the model's maximum length"),
            "unknown": counter("unknown_texts", "Texts with tokens outside the model's vocabulary"),
            "failures": counter("inference_failures", "Forward passes that failed or gave no finite vector"),
        }
        self._by_lane: dict[str, Counter | Histogram] = {
            "tokens": counter("tokens", "Tokens embedded, special tokens included", "lane"),
            "padding_tokens": counter("padding_tokens", "Padding tokens computed", "lane"),
            "batch_texts": histogram("batch_texts", "Texts of a batch", _TEXTS),
            "batch_tokens": histogram("batch_tokens", "Tokens of a batch, padding included", _TOKENS),
            "tokenize_seconds": histogram("tokenize_seconds", "Seconds that texts were tokenized together"),
            "queue_seconds": histogram(
                "queue_seconds", "Seconds from a text's arrival to the start of its batch"
            ),
            "inference_seconds": histogram("inference_seconds", "Seconds of one forward pass"),
        }
        text = "Memory of a version's vector index, dead rows included"
        self.index_bytes = Gauge("index_bytes", text, ["version"], **ours)
        self._inference: dict[str, dict[str, Inference]] = {}
        self._changing = threading.Lock()

    def keep(self, versions: Iterable[str]) -> None:
        """Creates the series of the given versions, and removes the series of all other versions."""
        kept = set(versions)
        for version in kept:
            self.open(version)
        with self._changing:
            for version in self._inference.keys() - kept:
                del self._inference[version]  # First, so that no batch recreates a removed series.
                for metric in (*self._by_version.values(), self.index_bytes):
                    metric.remove(version)
                for series in self._by_lane.values():
                    for lane in LANES:
                        series.remove(version, lane)

    def open(self, version: str) -> None:
        with self._changing:
            if version not in self._inference:
                self.index_bytes.labels(version)
                series = {lane: dict[str, Any]() for lane in LANES}
                for lane, found in series.items():
                    found |= {name: every.labels(version) for name, every in self._by_version.items()}
                    found |= {name: every.labels(version, lane) for name, every in self._by_lane.items()}
                self._inference[version] = {lane: Inference(**found) for lane, found in series.items()}

    def inference(self, version: str, lane: str) -> Inference | None:
        """Returns the series of a version and a lane, or None if the version is no longer in memory."""
        lanes = self._inference.get(version)
        return None if lanes is None else lanes[lane]


SWAP_OUTCOMES = ("done", "rollback", "failed", "dropped")
GENERATION_STATES = ("active", "building", "kept", "leaving")
CONNECTION_STATES = ("idle", "open")
LIVE_TEST_SIDES = ("active", "candidate")
UNMATCHED = "unmatched"  # label of paths without a route
MAX_SCORES = 100  # Limit per version, because manifests may come from elsewhere.

# Avoids a second series with the creation time of each counter.
disable_created_metrics()  # type: ignore[no-untyped-call]


class Metrics:
    """All metrics of a service. Each app has a separate registry, so two apps in one process do not mix."""

    def __init__(self) -> None:
        registry = CollectorRegistry()
        self.registry = registry
        ProcessCollector(registry=registry)
        prefix = "simile"
        self.by_version = VersionMetrics(registry, prefix)
        self._counter = partial(Counter, registry=registry, namespace=prefix)
        self._gauge = partial(Gauge, registry=registry, namespace=prefix)
        self._seconds = partial(Histogram, registry=registry, namespace=prefix, buckets=SECONDS)
        self._make_requests()
        self._make_inference()
        self._make_documents()
        self._make_models()
        self._make_replicas()
        self._make_machine()
        self._touch()

    def _make_requests(self) -> None:
        self.requests = self._counter("requests", "Requests answered", ["method", "route", "status"])
        self.key_requests = self._counter("key_requests", "Accepted requests by name of the key", ["key"])
        self.key_tokens = self._counter("key_tokens", "Tokens computed for a key", ["key"])
        self.request_seconds = self._seconds(
            "request_seconds", "Seconds from a request's first byte to its last answered byte", ["route"]
        )
        self.errors = self._counter("errors", "Error answers", ["error_type"])
        self.in_flight = self._gauge("requests_in_flight", "Requests that are not answered yet")
        self.admitted_bytes = self._gauge("admitted_bytes", "Bytes of the bodies of unanswered requests")
        self.loop_lag_seconds = self._seconds(
            "loop_lag_seconds", "Delay of the event loop in seconds, sampled twice a second"
        )
        self.tasks = self._gauge("tasks", "Tasks of the event loop")

    def _make_inference(self) -> None:
        self.queue_texts = self._gauge("queue_texts", "Texts waiting to be embedded", ["lane"])
        self.queue_tokens = self._gauge(
            "queue_tokens", "Tokens waiting to be embedded (estimated until tokenized)", ["lane"]
        )
        self.queue_wait = self._gauge("queue_wait_seconds", "Predicted wait in seconds of a new request")
        self.queue_limit_tokens = self._gauge("queue_limit_tokens", "Limit of the tokens that wait in a lane")
        self.queue_limit_seconds = self._gauge(
            "queue_limit_seconds", "Limit of the predicted wait in seconds; +Inf without a limit"
        )

        self.cache_hits = self._counter("cache_hits", "Texts whose vectors were in the cache")
        self.cache_misses = self._counter("cache_misses", "Texts computed because they were not in the cache")
        self.cache_shared = self._counter("cache_shared", "Texts that waited for an equal one in progress")
        self.cache_bytes = self._gauge("cache_bytes", "Bytes of cached vectors, keys and tables included")
        self.cache_evictions = self._counter("cache_evictions", "Vectors removed because the cache was full")

        self.batch_timeouts = self._counter("batch_timeouts", "Batches that hung and were given up")
        self.worker_restarts = self._counter("worker_restarts", "Workers that died and were replaced")

        self.healthy = self._gauge("healthy", "1 if the last forward pass succeeded and nothing hangs")

    def _make_documents(self) -> None:
        self.ready = self._gauge("ready", "1 while new work is accepted and the index is complete")
        self.documents = self._gauge("documents", "Documents stored")
        self.index_missing = self._gauge("index_missing_documents", "Stored documents not in the index yet")
        self.index_recall = self._gauge(
            "index_recall_at_10", "Share of the ten nearest documents that approximate search finds"
        )
        self.index_lag_seconds = self._seconds(
            "index_lag_seconds", "Seconds from a commit to its documents being searchable"
        )
        self.write_seconds = self._seconds(
            "write_commit_seconds", "Seconds of one commit of the document store, fsync included"
        )
        self.damaged_documents = self._gauge(
            "damaged_documents", "Documents that this process did not return because their checksum is wrong"
        )
        self.unranked = self._counter(
            "unranked_searches", "Searches in hybrid order because the second stage was late or failed"
        )
        self.unreranked = self._counter(
            "unreranked_searches", "Searches whose hits the reranker did not order, or not all in time"
        )
        self.live_test_seconds = self._seconds(
            "live_test_seconds", "Seconds to compute the hits of one side of a tested search", ["side"]
        )
        self.feedback = self._counter("feedback", "Stored judgments of searches", ["relevant"])
        self.events = self._counter("events", "Stored events of searches", ["type"])
        self.events_refused = self._counter("events_refused", "Events of searches that could not be stored")

    def _make_models(self) -> None:
        labels = ["version", "fingerprint", "form"]
        self.model = self._gauge("model_info", "1 for the active version, with its engine", labels)
        self.score = self._gauge("model_score", "Scores of the active version", ["version", "name"])
        self.generations = self._gauge("generations", "Versions in memory with their indexes", ["state"])
        self.swaps = self._counter("swaps", "Swaps that ended, by outcome", ["outcome"])
        self.swap_pause_seconds = self._seconds(
            "swap_pause_seconds", "Seconds for which writes wait while a new version becomes active"
        )
        self.swap_waiting = self._gauge(
            "swap_waiting", "1 while the candidate waits for memory, a disk, a queue or a decision"
        )
        self.build_done = self._gauge("build_done_documents", "Documents that the candidate has embedded")
        self.build_total = self._gauge("build_total_documents", "Documents the candidate must embed")
        self.build_eta = self._gauge(
            "build_eta_seconds",
            "Seconds until the candidate has embedded them, at the recent rate; NaN if unknown",
        )
        self.canary = self._gauge(
            "canary_overlap",
            "Mean share of common ids in the first ten hits of the active version and the last candidate; "
            "NaN before a comparison",
        )
        self.retrain_last = self._gauge(
            "retrain_last_end_seconds",
            "When the last scheduled retraining ended, in seconds since 1970; NaN without a schedule",
        )
        self.retrain_status = self._gauge(
            "retrain_last_status",
            "Exit status of the last retraining: 0 published, 3 rejected, 4 nothing to learn, else failed; "
            "NaN before the first",
        )
        self.retrain_next = self._gauge(
            "retrain_next_seconds",
            "When the next retraining is due, in seconds since 1970; NaN without a schedule",
        )
        self.retrain_running = self._gauge("retrain_running", "1 while a scheduled retraining runs")

        self.reranker = self._gauge("reranker_info", "1 for the active reranker, with its engine", labels)

    def _make_replicas(self) -> None:
        # Only the first metric is updated without SIMILE_DATABASE.
        self.replicas = self._gauge(
            "replicas", "Replicas that share the store and have renewed their lease, this one included"
        )
        self.lease_age = self._gauge(
            "lease_age_seconds",
            "Seconds since this replica last renewed its lease; at ten it stops answering",
        )
        self.connections = self._gauge(
            "database_connections",
            "Connections of the pool to the database: all open ones, and the idle ones",
            ["state"],
        )
        self.connections_limit = self._gauge("database_connections_limit", "Limit of the pool's connections")
        self.connections_waiting = self._gauge("database_waiting", "Reads and writes waiting for the pool")
        self.replication_lag = self._gauge(
            "database_replication_lag_seconds",
            "Replication lag of the database's slowest standby; NaN without a visible standby",
        )

    def _make_machine(self) -> None:
        self.disk_free = self._gauge(
            "disk_free_bytes", "Free bytes on the disk of a folder; NaN if it cannot be read", ["folder"]
        )
        self.disk_total = self._gauge(
            "disk_total_bytes", "Total bytes of the disk of a folder; NaN if it cannot be read", ["folder"]
        )
        self.memory_limit = self._gauge(
            "memory_limit_bytes", "Memory limit of the process by cgroups and machine; NaN if unknown"
        )

    def _touch(self) -> None:
        """Creates the labeled series before the first scrape, so that rates over them are never empty."""
        for series, values in (
            (self.queue_texts, LANES),
            (self.queue_tokens, LANES),
            (self.errors, error_types()),
            (self.generations, GENERATION_STATES),
            (self.swaps, SWAP_OUTCOMES),
            (self.feedback, ("true", "false")),
            (self.events, ("click", "open", "convert", "skip")),
            (self.connections, CONNECTION_STATES),
            (self.live_test_seconds, LIVE_TEST_SIDES),
        ):
            for value in values:
                series.labels(value)
        self.build_eta.set(math.nan)
        self.canary.set(math.nan)
        self.replication_lag.set(math.nan)

    def routes(self, routes: Iterable[tuple[str, str, int]]) -> None:
        """Creates the series of each route.

        Args:
            routes: Method, path template and success status of each route.

        """
        for method, route, status in routes:
            self.requests.labels(method, route, str(status))
            self.request_seconds.labels(route)
        self.requests.labels("GET", UNMATCHED, "404")
        self.request_seconds.labels(UNMATCHED)

    def build(self, done: int, total: int, eta_seconds: float | None = None) -> None:
        self.build_done.set(done)
        self.build_total.set(total)
        self.build_eta.set(math.nan if eta_seconds is None else eta_seconds)

    def rerank(self, manifest: Manifest, form: Form) -> None:
        """Shows the active reranker."""
        self.by_version.open(manifest.version)
        self.reranker.clear()
        self.reranker.labels(manifest.version, manifest.fingerprint, str(form)).set(1)

    def serve(self, manifest: Manifest, form: Form) -> None:
        self.by_version.open(manifest.version)
        self.model.clear()
        self.model.labels(manifest.version, manifest.fingerprint, str(form)).set(1)
        self.score.clear()
        for name, value in islice(_numbers(manifest.scores), MAX_SCORES):
            self.score.labels(manifest.version, name).set(value)


def _numbers(scores: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, float]]:
    """Flattens nested scores. For example, `{"sts": {"dev": 0.8}}` yields `("sts.dev", 0.8)`."""
    for name, value in scores.items():
        if isinstance(value, Mapping):
            yield from _numbers(value, f"{prefix}{name}.")
        elif isinstance(value, int | float) and not isinstance(value, bool):
            yield f"{prefix}{name}", float(value)
