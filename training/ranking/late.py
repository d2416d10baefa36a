"""Compute the features of late interaction for judged queries. Start at `compare_tokens`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from models.encoder import Encoder
from models.progress import Progress
from models.tokens.late import COMPARED, Tokens, compare, compress, fit_projection
from training.ranking.examples import Example

MAX_DOCUMENTS = 3000  # Whose token vectors are computed, those of the first queries.
MIN_QUERIES = 100  # With fewer judged queries, a gain is hardly ever certain.
_FITTED = 256  # Documents that the projection is fitted to.
_STEP = 64


def list_compared(examples: Sequence[Example]) -> list[str]:
    """Returns the ids of the candidates that are compared, at most MAX_DOCUMENTS."""
    ids = dict.fromkeys(id for each in examples for id in each.ids[:COMPARED])
    return [*ids][:MAX_DOCUMENTS]


def compare_tokens(
    examples: Sequence[Example],
    encoder: Encoder,
    texts: Mapping[str, str],
    projection: NDArray[np.float32] | None = None,
) -> tuple[list[Example], NDArray[np.float32], float]:
    """Computes the features of late interaction.

    Args:
        examples: Judged queries, their candidates in hybrid order.
        encoder: An encoder with `has_tokens`.
        texts: Title and text of the candidates by id. Candidates without a text have no features.
        projection: None: it is fitted to the first candidates.

    Returns:
        The examples with their features, the projection, and the stored bytes per document.
    """
    manifest = encoder.manifest
    chosen = [id for id in list_compared(examples) if id in texts]
    if projection is None:
        fitted = encoder.encode_tokens([manifest.document_prompt + texts[id] for id in chosen[:_FITTED]])
        projection = fit_projection(np.concatenate(fitted))

    def encode(prompt: str, some: Sequence[str]) -> list[Tokens]:
        found: list[Tokens] = []
        with Progress("texts", len(some), "encoding tokens") as progress:
            for at in range(0, len(some), _STEP):
                step = encoder.encode_tokens([prompt + text for text in some[at : at + _STEP]])
                found += [compress(tokens, projection) for tokens in step]
                progress.add(len(step))
        return found

    stored = dict(zip(chosen, encode(manifest.document_prompt, [texts[id] for id in chosen]), strict=True))
    queries = encode(manifest.search_prompt, [each.query for each in examples])
    compared = [
        each._replace(late=compare(tokens, [*map(stored.get, each.ids)]))
        for each, tokens in zip(examples, queries, strict=True)
    ]
    return compared, projection, sum(tokens.nbytes for tokens in stored.values()) / max(1, len(stored))
