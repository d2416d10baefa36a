"""How near everybody's vectors are to sentence-transformers' own: a speed says nothing without it."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from benchmarks.contestant import ContestantError, Embedder
from benchmarks.environments import REFERENCE
from benchmarks.places import say
from benchmarks.raw import cosines
from benchmarks.server import ServerError
from benchmarks.workloads import LONGEST, Workload

TEXTS = 500


@dataclass(frozen=True, slots=True)
class Nearness:
    """Cosines to the reference's vectors of the same texts."""

    mean: float
    least: float


def sample(workloads: Sequence[Workload]) -> list[str]:
    """Of each workload as many; none so long that some cut it and some do not."""
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
        except (ContestantError, ServerError) as error:
            say(f"{embedder.name} gave no vectors: {error}")
    reference = REFERENCE if REFERENCE in found else fallback
    rows = {}
    for name, vectors in found.items():
        near = cosines(vectors, found[reference])
        rows[name] = asdict(Nearness(float(near.mean()), float(near.min())))
    return {"reference": reference, "texts": len(texts), "rows": rows}
