"""Verifies the scores of a built cross-encoder, and adds its int8 graph. Start at `prove_scores`.

    1  the ONNX file's logits against an independent forward (numpy or torch)     |difference| ≤ 1e-4
    2  the scores of single pairs against the same pairs in padded batches        |difference| ≤ 1e-5
    3  every value finite

Differences of numbers above 1 are relative. golden.json stores logits and scores, and `check_golden_scores`
compares with them later. Lower precisions are compared by the correlation of their logits with those of fp32.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np
import onnx
from numpy.typing import NDArray

from models.engines.form import Precision
from models.engines.opening import INT8, INT8_NAME, has_int8
from models.errors import ProofFailed
from models.files.bounded import parse_json
from models.graph.backbone import Backbone, Tensors
from models.graph.head import Head
from models.graph.int8 import find_spans, int8_model
from models.manifest import GOLDEN, ONNX, Activation, QuantizedScores
from models.progress import Progress, Say, silent
from models.publishing.int8 import random_words
from models.publishing.proof import Reference, require_vocabulary
from models.reranker import Reranker, Shifted
from models.tokens.pairs import Pair
from models.tokens.texts import PROOF_TEXTS, example_texts

Numbers = NDArray[np.float32]

_ARABIC, _HEBREW = "ما هي عاصمة مصر؟", "קהיר היא בירת מצרים."
PROOF_PAIRS: tuple[Pair, ...] = (
    *(Pair(one, other) for one, other in pairwise(PROOF_TEXTS)),
    Pair(_ARABIC, _HEBREW),
    Pair(_HEBREW, _ARABIC),
    Pair("", ""),
    Pair("", PROOF_TEXTS[1]),
    Pair(PROOF_TEXTS[1], ""),
    Pair(" ", "\t\n "),
    Pair("what is [SEP]?", "[CLS] a text [SEP] with special tokens [PAD]"),
    Pair("<s> a </s>", "</s></s> b <pad>"),
    Pair(PROOF_TEXTS[2], PROOF_TEXTS[2]),
)
_PARITY, _INVARIANCE = 1e-4, 1e-5
_TOGETHER = 4096  # Tokens in a batch, with padding; limits the memory of attention.
# Smallest correlation of a precision's logits with those of fp32.
FORMS: dict[Precision, float] = {"bf16": 0.999, "fp16": 0.9999, "int8": 0.94}


def prove_scores(
    reranker: Reranker, reference: Reference | None = None, computed_in: str = "numpy", say: Say = silent
) -> Numbers:
    """Verifies a reranker before it is published.

    Args:
        reference: Computes the logits independently, in the library `computed_in`.
        computed_in: Name of the reference's library, for messages.

    Returns:
        The logits of PROOF_PAIRS, shape (pairs, outputs). Each pair was computed by itself.

    Raises:
        ProofFailed: A check failed.
    """
    rows = [tokens.ids for tokens in reranker.tokenize(PROOF_PAIRS)]
    require_vocabulary(reranker, rows)
    with Progress("pairs", (2 if reference is None else 3) * len(rows), "verifying", say=say) as progress:
        found = []
        for row in rows:
            found.append(reranker.forward([row], normalize=False))
            progress.add()
        logits = np.concatenate(found)
        if logits.shape[1] != reranker.dimension:
            raise ProofFailed(f"The model gives {logits.shape[1]} numbers, not {reranker.dimension}.")
        if not np.isfinite(logits).all():
            raise ProofFailed("The model returns a score that is not finite.")
        if reference is not None:
            expected = reference(rows)
            what = f"differs from the same weights computed in {computed_in}"
            _require(logits, expected, _PARITY, what, PROOF_PAIRS)
            progress.add(len(rows))
        alone = activate(logits, reranker.manifest.activation)
        for batch in _batches(rows):
            scores = reranker.forward([rows[at] for at in batch])
            some = [PROOF_PAIRS[at] for at in batch]
            _require(scores, alone[batch], _INVARIANCE, "depends on the other pairs of its batch", some)
            progress.add(len(batch))
    return logits


def _batches(rows: Sequence[Sequence[int]]) -> list[list[int]]:
    """Returns batches of rows of mixed lengths, each row once."""
    order = np.random.default_rng(0).permutation(len(rows)).tolist()
    size = min(8, max(2, _TOGETHER // max(map(len, rows))))
    return [order[start : start + size] for start in range(0, len(order), size)]


def activate(logits: Numbers, activation: Activation) -> Numbers:
    """Computes scores from logits, shape (n, outputs)."""
    if activation == "identity":
        return logits
    if activation == "sigmoid":
        with np.errstate(over="ignore"):  # exp of a large number is infinite, and the score is 0
            return np.asarray(1 / (1 + np.exp(-logits.astype(np.float64))), np.float32)
    raised = np.exp(logits - logits.max(axis=1, keepdims=True))
    return np.asarray(raised / raised.sum(axis=1, keepdims=True), np.float32)


def _require(found: Numbers, expected: Numbers, allowed: float, what: str, pairs: Sequence[Pair]) -> float:
    """Requires that the numbers of `pairs` are close. Returns the largest difference."""
    worst = (np.abs(found - expected) / np.maximum(1, np.abs(expected))).max(axis=1)
    at = int(np.argmax(worst))
    if not worst[at] <= allowed:  # The negation also rejects NaN.
        shown = " and ".join(ascii(text if len(text) <= 40 else text[:40] + "…") for text in pairs[at])
        raise ProofFailed(f"The score of {shown} {what}: {worst[at]:.2g}, allowed {allowed:.2g}.")
    return float(worst[at])


def write_golden_scores(folder: Path, logits: Numbers, activation: Activation) -> None:
    golden = {
        "pairs": PROOF_PAIRS,
        "logits": _numbers(logits),
        "scores": _numbers(activate(logits, activation)),
    }
    (folder / GOLDEN).write_text(json.dumps(golden, ensure_ascii=True) + "\n", encoding="utf-8")


def _numbers(rows: Numbers) -> list[list[float]]:
    return [[float(str(x)) for x in row] for row in rows]


def check_golden_scores(reranker: Reranker, folder: Path) -> float:
    """Scores the golden pairs of a version again, and compares with golden.json.

    In a precision below fp32, this sets `reranker.turned`, the difference from the fp32 scores.

    Returns:
        In fp32, the largest difference of a logit. In other precisions, 1 - the correlation of the logits.

    Raises:
        ProofFailed: The difference is above the limit.
    """
    golden = parse_json((folder / GOLDEN).read_bytes())
    pairs = [Pair(*pair) for pair in golden["pairs"]]
    known = np.asarray(golden["logits"], dtype=np.float32)
    logits = reranker.score(pairs, normalize=False)
    least = FORMS.get(reranker.form.precision)
    if least is None:
        return _require(logits, known, _PARITY, "differs from the published score", pairs)
    reranker.turned = shifted(logits, known, reranker.manifest.activation)
    alike = correlation(logits, known)
    if not alike >= least:
        raise ProofFailed(
            f"The scores in {reranker.form} have a correlation of {alike:.4f} with the published ones; "
            f"{least} is the least."
        )
    return 1 - alike


def shifted(logits: Numbers, expected: Numbers, activation: Activation) -> Shifted:
    apart = np.abs(activate(logits, activation) - activate(expected, activation))
    return Shifted(len(logits), round(float(apart.mean()), 5), round(float(apart.max()), 5))


def correlation(logits: Numbers, expected: Numbers) -> float:
    """Returns Pearson's correlation of two tables of logits, shape (n, outputs). Each output is centered."""
    one, other = (table - table.mean(axis=0) for table in (logits.astype(np.float64), expected))
    found = np.sum(one * other) / max(float(np.linalg.norm(one) * np.linalg.norm(other)), 1e-30)
    return float(np.clip(found, -1, 1))


_QUERY_WORDS = 8
# Smallest correlations of an int8 graph. The second is above FORMS, because machines round differently.
_MIN_MEASURED, _MIN_PROOF = 0.98, 0.95


def add_int8_scores(
    folder: Path, reranker: Reranker, backbone: Backbone, tensors: Tensors, head: Head, say: Say
) -> QuantizedScores | None:
    """Writes the int8 graph into a version's folder.

    Args:
        reranker: The float32 reranker of that folder.

    Returns:
        The loss of accuracy, or None if no graph was written.
    """
    if not has_int8():
        return None  # Other processors cannot measure int8.
    examples = _example_pairs()
    words = random_words(reranker)
    pairs = [*examples[::2], *PROOF_PAIRS, *map(Pair, words[::2], words[1::2])]
    others = examples[1::2]
    rows = [row.ids for row in reranker.tokenize(pairs)]
    file = (folder / ONNX).with_name(INT8_NAME)
    say("calibrating int8")
    with Progress("pairs", len(pairs), "calibrating int8", say=say) as progress:
        spans = find_spans(backbone, tensors, head.graph_tokens, rows, progress)
        onnx.save(int8_model(backbone, tensors, head, spans), file)
    quantized = Reranker(folder, reranker.manifest, form=INT8)
    expected, found = (each.score(others, normalize=False) for each in (reranker, quantized))
    proof, found_proof = (each.score(PROOF_PAIRS, normalize=False) for each in (reranker, quantized))
    quantized.close()
    alike, on_proof = correlation(found, expected), correlation(found_proof, proof)
    apart = shifted(found, expected, reranker.manifest.activation)
    if alike >= _MIN_MEASURED and on_proof >= _MIN_PROOF:
        return QuantizedScores(
            calibrated_on=len(pairs),
            measured_on=len(others),
            score_mean=apart.mean,
            score_most=apart.most,
            correlation=round(alike, 5),
        )
    say(f"leaving int8 out: its scores have a correlation of {alike:.3f} with those of fp32")
    file.unlink()
    return None


def _example_pairs() -> list[Pair]:
    """Returns pairs of a text's first words with that text, and with another text."""
    texts = example_texts()
    pairs = []
    for at, text in enumerate(texts):
        query = " ".join(text.split()[:_QUERY_WORDS])
        pairs.append(Pair(query, texts[at - at % 2 * 7]))
    return pairs
