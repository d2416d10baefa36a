"""The series of what the versions in memory do, by version and lane.

They exist while their version is in memory and go with it, so a service that swaps every night for years has
no more of them than on its first day.
"""

import threading
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

LANES = ("interactive", "background", "candidate")
SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
_TOKENS = (8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096)
_TEXTS = (1, 2, 4, 8, 16, 32, 64, 128)


@dataclass(frozen=True, slots=True)
class Inference:
    """What one version does in one lane: its share of each series, found once and not for every batch."""

    tokens: Counter
    truncated: Counter
    padding_tokens: Counter
    batch_texts: Histogram
    batch_tokens: Histogram
    tokenise_seconds: Histogram
    queue_seconds: Histogram
    inference_seconds: Histogram
    failures: Counter


class VersionSeries:
    """A part of Metrics: `versions` says which there are, `inference` where to count what one does."""

    def __init__(self, registry: CollectorRegistry) -> None:
        counter, histogram = partial(Counter, registry=registry), partial(Histogram, registry=registry)
        seconds = partial(histogram, buckets=SECONDS)
        by_lane = ["version", "lane"]
        self.tokens = counter("simile_tokens", "Tokens embedded, special tokens included", by_lane)
        self.truncated = counter(
            "simile_truncated_texts", "Texts cut at the model's maximum length", ["version"]
        )
        self.queue_seconds = seconds(
            "simile_queue_seconds", "Seconds from a text's arrival to the start of its batch", by_lane
        )
        self.tokenise_seconds = seconds(
            "simile_tokenise_seconds", "Seconds that texts were tokenised together", by_lane
        )
        self.inference_seconds = seconds("simile_inference_seconds", "Seconds of one forward pass", by_lane)
        self.batch_texts = histogram("simile_batch_texts", "Texts of a batch", by_lane, buckets=_TEXTS)
        self.batch_tokens = histogram(
            "simile_batch_tokens", "Tokens of a batch, padding included", by_lane, buckets=_TOKENS
        )
        self.padding_tokens = counter(
            "simile_padding_tokens", "Padding computed beside the real tokens", by_lane
        )
        self.inference_failures = counter(
            "simile_inference_failures",
            "Forward passes that raised, or gave a vector that is not finite",
            ["version"],
        )
        self.index_bytes = Gauge(
            "simile_index_bytes",
            "Memory of a version's vector index, dead rows included",
            ["version"],
            registry=registry,
        )
        self._inference: dict[str, dict[str, Inference]] = {}
        self._changing = threading.Lock()

    def versions(self, open: Iterable[str]) -> None:
        """The versions in memory: their series exist from now on, and those of others go."""
        wanted = set(open)
        for version in wanted:
            self._open(version)
        with self._changing:
            for version in self._inference.keys() - wanted:
                del self._inference[version]  # first, so that nobody counts into it again
                for alone in (self.truncated, self.inference_failures, self.index_bytes):
                    alone.remove(version)
                for series in self._by_lane():
                    for lane in LANES:
                        series.remove(version, lane)

    def _open(self, version: str) -> None:
        with self._changing:
            if version not in self._inference:
                self.index_bytes.labels(version)
                self._inference[version] = {lane: self._inference_of(version, lane) for lane in LANES}

    def _by_lane(self) -> tuple[Counter | Histogram, ...]:
        return (
            self.tokens,
            self.padding_tokens,
            self.batch_texts,
            self.batch_tokens,
            self.tokenise_seconds,
            self.queue_seconds,
            self.inference_seconds,
        )

    def _inference_of(self, version: str, lane: str) -> Inference:
        return Inference(
            tokens=self.tokens.labels(version, lane),
            truncated=self.truncated.labels(version),
            padding_tokens=self.padding_tokens.labels(version, lane),
            batch_texts=self.batch_texts.labels(version, lane),
            batch_tokens=self.batch_tokens.labels(version, lane),
            tokenise_seconds=self.tokenise_seconds.labels(version, lane),
            queue_seconds=self.queue_seconds.labels(version, lane),
            inference_seconds=self.inference_seconds.labels(version, lane),
            failures=self.inference_failures.labels(version),
        )

    def inference(self, version: str, lane: str) -> Inference | None:
        """Where to count what a version does; None when it is not in memory any more."""
        scheduler = self._inference.get(version)
        return None if scheduler is None else scheduler[lane]
