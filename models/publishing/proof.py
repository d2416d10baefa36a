"""Verifies that a built folder computes correct vectors, before the folder is published. Start at `prove`.

    1  the ONNX file against an independent forward (numpy or torch)     cosine ≥ 0.99999, |difference| ≤ 1e-4
    2  single texts against the same texts in padded batches             |difference| ≤ 1e-6
    3  every value finite, every vector of length 1
    4  known vectors, if any                                             |difference| ≤ 1e-5

golden.json stores the vectors, and `check_golden` compares with them later. These limits are for fp32;
`FORMS` has the limits of lower precisions.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from models.encoder import Encoder, Turned
from models.engines.form import Precision
from models.errors import ProofFailed
from models.files.bounded import parse_json
from models.manifest import GOLDEN, QUERIES
from models.open_version import OpenVersion
from models.progress import Progress, Say, silent
from models.tokens.texts import PROOF_TEXTS

Vectors = NDArray[np.float32]
Reference = Callable[[Sequence[Sequence[int]]], Vectors]  # From rows of token ids to unit vectors or logits.

_COSINE, _PARITY, _INVARIANCE, _GOLDEN = 0.99999, 1e-4, 1e-6, 1e-5
_TOGETHER = 4096  # Tokens in a batch, with padding; limits the memory of attention.
# Smallest cosine to the fp32 vectors. int8.py publishes int8 from 0.95 on, and machines round differently.
FORMS: dict[Precision, float] = {"bf16": 0.9995, "fp16": 0.9999, "int8": 0.94}


def prove(
    encoder: Encoder,
    reference: Reference | None = None,
    known: Vectors | None = None,
    computed_in: str = "numpy",
    say: Say = silent,
) -> Vectors:
    """Verifies an encoder before it is published.

    Args:
        reference: Computes the same vectors independently, in the library `computed_in`.
        known: Expected vectors from another source.
        computed_in: Name of the reference's library, for messages.

    Returns:
        The vectors of PROOF_TEXTS. Each text was encoded by itself.

    Raises:
        ProofFailed: A check failed.
    """
    rows = [tokens.ids for tokens in encoder.tokenize(PROOF_TEXTS)]
    require_vocabulary(encoder, rows)
    with Progress("texts", (2 if reference is None else 3) * len(rows), "verifying", say=say) as progress:
        vectors = []
        for row in rows:
            vectors.append(encoder.forward([row]))
            progress.add()
        alone = np.concatenate(vectors)
        if alone.shape[1] != encoder.dimension:
            raise ProofFailed(f"The model gives {alone.shape[1]} numbers, not {encoder.dimension}.")
        _prove_finite(alone)
        if reference is not None:
            # One call for all rows, because many small products are slow on a busy machine.
            expected, other = reference(rows), f"the same weights computed in {computed_in}"
            _require(1 - np.sum(alone * expected, axis=1), 1 - _COSINE, f"points away from {other}")
            _require(_worst(alone, expected), _PARITY, f"differs from {other}")
            progress.add(len(rows))
        _prove_invariance(encoder, rows, alone, progress)
        if known is not None:
            _require(_worst(alone, known), _GOLDEN, "differs from the known vectors of this model")
        return alone


def require_vocabulary(version: OpenVersion, rows: Sequence[Sequence[int]]) -> None:
    """Raises ProofFailed if the tokenizer returns an id outside the model's vocabulary."""
    if (highest := max(map(max, filter(None, rows)))) >= version.vocabulary:
        raise ProofFailed(
            f"The tokenizer returns the id {highest}, but the model's vocabulary has {version.vocabulary} "
            "rows. Take both from one folder."
        )


def write_golden(folder: Path, vectors: Vectors) -> None:
    golden = {"texts": PROOF_TEXTS, "vectors": [[float(str(x)) for x in vector] for vector in vectors]}
    (folder / GOLDEN).write_text(json.dumps(golden, ensure_ascii=True) + "\n", encoding="utf-8")


def check_golden(encoder: Encoder, folder: Path) -> float:
    """Encodes the golden texts of a version again, and compares the vectors with golden.json.

    The query encoder of a pair is checked as well. In a precision below fp32, this sets `encoder.turned`, the
    difference from the fp32 vectors.

    Returns:
        In fp32, the largest difference of a number. In other precisions, the largest 1 - cosine.

    Raises:
        ProofFailed: The difference is above the limit.
    """
    golden = parse_json((folder / GOLDEN).read_bytes())
    known = np.asarray(golden["vectors"], dtype=np.float32)
    vectors = encoder.encode(golden["texts"]).vectors
    least = FORMS.get(encoder.form.precision)
    if least is None:
        worst, allowed = _worst(vectors, known), _GOLDEN
    else:
        cosines = np.minimum(np.sum(vectors * known, axis=1), 1)
        encoder.turned = Turned(len(cosines), float(cosines.mean()), float(cosines.min()))
        worst, allowed = 1 - cosines, 1 - least
    as_published = "differs from the published vector"
    what = as_published if least is None else f"in {encoder.form} points away from the published vector"
    _require(worst, allowed, what)
    other = 0.0 if encoder.queries is None else check_golden(encoder.queries, folder / QUERIES)
    return max(float(worst.max()), other)


def _prove_finite(vectors: Vectors) -> None:
    lengths = np.linalg.norm(vectors, axis=1)
    if not np.isfinite(vectors).all() or abs(lengths - 1).max() > _PARITY:
        broken = PROOF_TEXTS[int(np.argmax(~(abs(lengths - 1) <= _PARITY)))]
        raise ProofFailed(f"The model returns no finite vector of length 1 for {_short(broken)}.")


def _prove_invariance(
    encoder: Encoder, rows: Sequence[Sequence[int]], alone: Vectors, progress: Progress
) -> None:
    """Requires that a text has the same vector by itself, in a large batch, and in a batch of four.

    Batches of four have other padding than large batches.
    """
    many = max(2, _TOGETHER // max(map(len, rows)))
    together = np.concatenate([encoder.forward(rows[at : at + many]) for at in range(0, len(rows), many)])
    _require(_worst(together, alone), _INVARIANCE, "depends on the other texts of its batch")
    for start in range(0, len(rows), 4):
        batch = list(rows[start : start + 4])
        worst = _worst(encoder.forward(batch[::-1])[::-1], alone[start : start + 4])
        _require(worst, _INVARIANCE, "depends on its padding", start)
        progress.add(len(batch))


def _worst(vectors: Vectors, expected: Vectors) -> Vectors:
    worst: Vectors = np.abs(vectors - expected).max(axis=1)
    return worst


def _require(found: Vectors, allowed: float, what: str, first: int = 0) -> None:
    at = int(np.argmax(found))
    if not found[at] <= allowed:  # The negation also rejects NaN.
        raise ProofFailed(
            f"The vector of {_short(PROOF_TEXTS[first + at])} {what}: {found[at]:.2g}, allowed {allowed:.2g}."
        )


def _short(text: str) -> str:
    return ascii(text if len(text) <= 40 else text[:40] + "…")
