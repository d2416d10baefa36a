"""Every Prometheus series of the service, named once. docs/METRICS.md is the same list for people.

Labels are route templates, statuses, lanes and model versions: never a user's text, never a raw path.
"""

import math

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector

LANES = ("interactive", "background")
SWAP_OUTCOMES = ("done", "rollback", "failed", "dropped")

_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
_TOKENS = (8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096)


class Metrics:
    """The series of one service. Each app has its own registry, so two in one process never mix."""

    def __init__(self) -> None:
        registry = CollectorRegistry()
        self.registry = registry
        ProcessCollector(registry=registry)
        self.requests = Counter(
            "simile_requests", "Requests answered", ["method", "route", "status"], registry=registry
        )
        self.request_seconds = Histogram(
            "simile_request_seconds",
            "Seconds from a request's first byte to its last answered byte",
            ["route"],
            buckets=_SECONDS,
            registry=registry,
        )
        self.errors = Counter("simile_errors", "Refusals and failures", ["error_type"], registry=registry)
        self.tokens = Counter(
            "simile_tokens",
            "Tokens embedded, special tokens included",
            ["version", "lane"],
            registry=registry,
        )
        self.truncated = Counter(
            "simile_truncated_texts",
            "Texts cut at the model's maximum length",
            ["version"],
            registry=registry,
        )
        self.queue_tokens = Gauge(
            "simile_queue_tokens",
            "Tokens waiting to be embedded (estimated until tokenised)",
            registry=registry,
        )
        self.queue_seconds = Histogram(
            "simile_queue_seconds",
            "Seconds a text waited before its batch started",
            ["lane"],
            buckets=_SECONDS,
            registry=registry,
        )
        self.batch_tokens = Histogram(
            "simile_batch_tokens",
            "Tokens of a batch, padding included",
            ["lane"],
            buckets=_TOKENS,
            registry=registry,
        )
        self.padding_tokens = Counter(
            "simile_padding_tokens", "Padding computed beside the real tokens", ["lane"], registry=registry
        )
        self.inference_seconds = Histogram(
            "simile_inference_seconds",
            "Seconds of one forward pass",
            ["lane"],
            buckets=_SECONDS,
            registry=registry,
        )
        self.inference_failures = Counter(
            "simile_inference_failures",
            "Forward passes that raised, or gave a vector that is not finite",
            registry=registry,
        )
        self.healthy = Gauge(
            "simile_healthy", "1 when a forward pass succeeded since the last failure", registry=registry
        )
        self.ready = Gauge(
            "simile_ready", "1 while new work is taken and the index is whole", registry=registry
        )
        self.documents = Gauge("simile_documents", "Documents stored", registry=registry)
        self.index_bytes = Gauge("simile_index_bytes", "Memory of the vector index", registry=registry)
        self.index_missing = Gauge(
            "simile_index_missing_documents",
            "Stored documents that the index does not hold yet",
            registry=registry,
        )
        self.write_seconds = Histogram(
            "simile_write_commit_seconds",
            "Seconds of one commit of the document store, fsync included",
            buckets=_SECONDS,
            registry=registry,
        )
        self.feedback = Counter(
            "simile_feedback", "Judgements of searches that were stored", ["relevant"], registry=registry
        )
        self.model = Gauge(
            "simile_model_info", "1 for the active version", ["version", "fingerprint"], registry=registry
        )
        self.swaps = Counter(
            "simile_swaps",
            "Versions that were worked towards: came to live, were gone back to, failed, or were given up",
            ["outcome"],
            registry=registry,
        )
        self.swap_pause_seconds = Histogram(
            "simile_swap_pause_seconds",
            "Seconds from the swap's last look to the new generation being live; only writes wait for it",
            buckets=_SECONDS,
            registry=registry,
        )
        self.build_done = Gauge(
            "simile_build_done_documents",
            "Documents embedded by the version in the making",
            registry=registry,
        )
        self.build_total = Gauge(
            "simile_build_total_documents", "Documents that it has to embed in all", registry=registry
        )
        self.build_eta = Gauge(
            "simile_build_eta_seconds",
            "Seconds until they are embedded, at the recent rate; NaN while it is not known",
            registry=registry,
        )
        self.build_eta.set(math.nan)
        self.canary = Gauge(
            "simile_canary_overlap",
            "Mean share of common ids in the first ten hits of the live version and of the last one "
            "compared with it; NaN before",
            registry=registry,
        )
        self.canary.set(math.nan)
        self.retrain_last = Gauge(
            "simile_retrain_last_end_seconds",
            "When the last scheduled retraining ended, in seconds since 1970; NaN without a schedule",
            registry=registry,
        )
        self.retrain_status = Gauge(
            "simile_retrain_last_status",
            "Its exit status: 0 published, 3 refused, 4 nothing to learn, else failed; NaN before the first",
            registry=registry,
        )
        self.retrain_next = Gauge(
            "simile_retrain_next_seconds",
            "When the next one is due, in seconds since 1970; NaN without a schedule",
            registry=registry,
        )
        self._touch()

    def _touch(self) -> None:
        """Make labelled series exist from the first scrape, so that a rate over them is never empty."""
        for lane in LANES:
            for series in (
                self.queue_seconds,
                self.batch_tokens,
                self.padding_tokens,
                self.inference_seconds,
            ):
                series.labels(lane)
        for outcome in SWAP_OUTCOMES:
            self.swaps.labels(outcome)
        for relevant in ("true", "false"):
            self.feedback.labels(relevant)

    def build(self, done: int, total: int, eta_seconds: float | None = None) -> None:
        """How far the version in the making is; zeros when there is none."""
        self.build_done.set(done)
        self.build_total.set(total)
        self.build_eta.set(math.nan if eta_seconds is None else eta_seconds)

    def serve(self, version: str, fingerprint: str) -> None:
        """`version` is the active one from now on."""
        self.model.clear()
        self.model.labels(version, fingerprint).set(1)
        self.truncated.labels(version)
        for lane in LANES:
            self.tokens.labels(version, lane)
