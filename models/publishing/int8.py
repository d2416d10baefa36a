"""Adds an int8 graph to a version, unless the graph loses too much accuracy. Start at `add_int8`.

    half of the example corpus, PROOF_TEXTS, random words ─▶ spans ─▶ onnx/int8.graph
    the other half ─▶ float32 and int8 vectors ─▶ their difference, for the manifest

The random words cover the part of the vocabulary that English texts do not use. `nearness` compares the
vectors of two encoders.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from models.encoder import Encoder
from models.engines.opening import INT8, INT8_NAME, has_int8
from models.graph.backbone import Backbone, Tensors
from models.graph.head import Head
from models.graph.int8 import find_spans, int8_model
from models.manifest import ONNX
from models.manifest import Quantized as Cost
from models.open_version import OpenVersion
from models.progress import Progress, Say
from models.tokens.texts import PROOF_TEXTS, example_texts, short_texts

_NEAREST = 10
_AT_ONCE = 32  # Texts per progress update.

Vectors = NDArray[np.float32]


def encoded(encoder: Encoder, texts: list[str], progress: Progress) -> Vectors:
    """Encodes texts and reports the progress. Returns vectors, shape (n, dimension)."""
    parts = []
    for start in range(0, len(texts), _AT_ONCE):
        parts.append(encoder.encode(texts[start : start + _AT_ONCE]).vectors)
        progress.add(len(parts[-1]))
    return np.concatenate(parts)


def cosines(one: Vectors, other: Vectors) -> Vectors:
    """Returns the cosine of each row of `one` and the same row of `other`, shape (n,).

    Both are matrices of unit vectors, shape (n, dimension).
    """
    found: Vectors = np.clip(np.sum(one * other, axis=1), -1, 1)
    return found


def nearness(
    expected: Vectors, found: Vectors, documents: Vectors, found_documents: Vectors
) -> dict[str, Any]:
    """Compares the query vectors of two encoders. Returns figures for the manifest.

    Args:
        expected: Query vectors of the first encoder, shape (n, dimension).
        found: Query vectors of the second encoder.
        documents: Document vectors that the first encoder's queries search.
        found_documents: Document vectors that the second encoder's queries search.
    """
    turned = cosines(expected, found)
    return {
        "cosine_mean": round(float(turned.mean()), 5),
        "cosine_least": round(float(turned.min()), 5),
        "same_neighbours": round(same_neighbours((expected, documents), (found, found_documents)), 4),
    }


def same_neighbours(one: tuple[Vectors, Vectors], other: tuple[Vectors, Vectors]) -> float:
    """Returns the share of the ten nearest documents that two encoders have in common, averaged over queries.

    Query n never finds document n, because the two are the same text.

    Args:
        one: Vectors of queries and of documents by the first encoder.
        other: The same by the second encoder.
    """
    pairs = zip(_nearest(*one), _nearest(*other), strict=True)
    return float(np.mean([len(nearest & others) / _NEAREST for nearest, others in pairs]))


def _nearest(queries: Vectors, documents: Vectors) -> list[set[int]]:
    similarity = queries @ documents.T
    np.fill_diagonal(similarity, -np.inf)
    return [set(row[:_NEAREST].tolist()) for row in np.argsort(-similarity, axis=1)]


_SHORT, _RANDOM, _LONGEST = 32, 120, 60
# Smallest cosines of an int8 graph. all-MiniLM-L6-v2 has 0.998 and 0.985, without a loss in evaluations.
_MIN_MEAN, _MIN_PROOF = 0.99, 0.95


def random_words(version: OpenVersion) -> list[str]:
    """Returns texts of random tokens, for the part of the vocabulary that English texts do not use."""
    random = np.random.default_rng(0)
    lengths = random.integers(4, _LONGEST, _RANDOM)
    return [version.decode(random.integers(0, version.vocabulary, length).tolist()) for length in lengths]


def add_int8(
    folder: Path,
    encoder: Encoder,
    verified: Vectors,
    backbone: Backbone,
    tensors: Tensors,
    head: Head,
    say: Say,
) -> Cost | None:
    """Writes the int8 graph into a version's folder.

    Args:
        encoder: The float32 encoder of that folder.
        verified: Vectors of PROOF_TEXTS by that encoder.

    Returns:
        The loss of accuracy, or None if no graph was written.
    """
    if head.tokens == "static" or not has_int8():
        return None  # A word table has no layers to quantize, and other processors cannot measure int8.
    examples = example_texts()
    others = examples[1::2]
    texts = [*examples[::2], *PROOF_TEXTS, *short_texts(_SHORT), *random_words(encoder)]
    rows = [row.ids for row in encoder.tokenize(texts)]
    file = (folder / ONNX).with_name(INT8_NAME)
    say("calibrating int8")
    with Progress("texts", len(texts) + 2 * len(others), "calibrating int8", say=say) as progress:
        spans = find_spans(backbone, tensors, head.tokens, rows, progress)
        onnx.save(int8_model(backbone, tensors, head, spans), file)
        quantized = Encoder(folder, encoder.manifest, form=INT8)
        expected, found = (encoded(each, others, progress) for each in (encoder, quantized))
    near = nearness(expected, found, expected, found)
    cost = Cost(calibrated_on=len(texts), measured_on=len(others), **near)
    turned = cosines(quantized.encode(PROOF_TEXTS).vectors, verified)
    quantized.close()
    if cost.cosine_mean >= _MIN_MEAN and turned.min() >= _MIN_PROOF:
        return cost
    say(f"leaving int8 out: its vectors have a mean cosine of {cost.cosine_mean:.3f} to those of fp32")
    file.unlink()
    return None
