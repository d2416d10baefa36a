"""Cosines of all vectors to sentence-transformers' own: a speed says nothing without them."""

from collections.abc import Sequence
from typing import Any

from benchmarks.contestant import Embedder
from benchmarks.environments import REFERENCE
from benchmarks.places import BenchError, say
from benchmarks.raw import cosines
from benchmarks.workloads import LONGEST, Workload

TEXTS = 500


def sample(workloads: Sequence[Workload]) -> list[str]:
    """The same number of texts of each workload; none so long that only some would cut it."""
    each = TEXTS // len(workloads)
    return [
        text
        for workload in workloads
        for text in [
            text for text, ids in zip(workload.texts, workload.ids, strict=True) if len(ids) < LONGEST
        ][:each]
    ]


def compared(embedders: Sequence[Embedder], fallback: str, texts: Sequence[str]) -> dict[str, Any]:
    """Cosines by name, to the reference if it is among them and else to `fallback`."""
    say(f"comparing the vectors of {len(texts)} texts")
    found = {}
    for embedder in embedders:
        try:
            found[embedder.name] = embedder.vectors(texts)
        except BenchError as error:
            say(f"{embedder.name} gave no vectors: {error}")
    reference = REFERENCE if REFERENCE in found else fallback
    rows = {}
    for name, vectors in found.items():
        near = cosines(vectors, found[reference])
        rows[name] = {"mean": float(near.mean()), "least": float(near.min())}
    return {"reference": reference, "texts": len(texts), "rows": rows}
