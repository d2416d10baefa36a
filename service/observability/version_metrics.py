"""Metrics of the versions in memory, by version and lane.

Series are removed together with their version, so their number does not grow with each swap.
"""

import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

LANES = ("interactive", "background", "candidate")
SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
_TOKENS = (8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096)
_TEXTS = (1, 2, 4, 8, 16, 32, 64, 128)


@dataclass(frozen=True, slots=True)
class Inference:
    """Child series of one version and lane, so batches need not look them up."""

    tokens: Counter
    truncated: Counter
    padding_tokens: Counter
    batch_texts: Histogram
    batch_tokens: Histogram
    tokenise_seconds: Histogram
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
            "failures": counter(
                "inference_failures", "Forward passes that failed, or returned a vector that is not finite"
            ),
        }
        self._by_lane: dict[str, Counter | Histogram] = {
            "tokens": counter("tokens", "Tokens embedded, special tokens included", "lane"),
            "padding_tokens": counter("padding_tokens", "Padding tokens computed", "lane"),
            "batch_texts": histogram("batch_texts", "Texts of a batch", _TEXTS),
            "batch_tokens": histogram("batch_tokens", "Tokens of a batch, padding included", _TOKENS),
            "tokenise_seconds": histogram("tokenise_seconds", "Seconds that texts were tokenized together"),
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
        """Creates the series of `versions` and removes those of all others."""
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
        """Returns the series of a version in a lane, or None if the version is not in memory any more."""
        lanes = self._inference.get(version)
        return None if lanes is None else lanes[lane]
