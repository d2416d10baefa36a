"""Compute the features of late interaction for judged queries. Start at `compare_tokens`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from models.encoder import Encoder
from models.progress import Progress
from models.search.late import COMPARED, Tokens, compare, compress, fit_projection
from training.ranking.examples import Example

MAX_DOCUMENTS = 5000  # Whose token vectors are computed, for the first queries.
_FITTED = 256  # Documents that the projection is fitted to.
_STEP = 64


def compare_tokens(
    examples: Sequence[Example], encoder: Encoder, texts: Mapping[str, str]
) -> tuple[list[Example], NDArray[np.float32], float]:
    """Computes the features of late interaction.

    Args:
        examples: Judged queries, their candidates in hybrid order.
        encoder: An encoder with `has_tokens`.
        texts: Title and text of the candidates by id. Candidates without a text have no features.

    Returns:
        The examples with their features, the projection, and the stored bytes per document.
    """
    manifest = encoder.manifest
    ids = dict.fromkeys(id for each in examples for id in each.ids[:COMPARED] if id in texts)
    chosen = [*ids][:MAX_DOCUMENTS]
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
