"""Adds an int8 graph to a version when it is published, if it loses little accuracy.

    half of the example corpus, PROOF_TEXTS, random words ─▶ spans ─▶ onnx/int8.graph
    the other half ─▶ float32 and int8 vectors ─▶ their difference, for the manifest

Random words cover the vocabulary that English texts do not use.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx

from models.encoder import ONNX, Encoder
from models.engines.opening import INT8, INT8_NAME, has_int8
from models.graph.backbone import Backbone, Tensors
from models.graph.head import Head
from models.graph.int8 import int8_model
from models.graph.ranges import find_spans
from models.manifest import Quantised as Cost
from models.publishing.nearness import Vectors, cosines, encoded, same_neighbours
from models.tokens.texts import PROOF_TEXTS, example_texts, short_texts
from models.words.progress import Progress, Say

_SHORT, _RANDOM, _LONGEST = 32, 120, 60
# Smallest cosines of an int8 graph. all-MiniLM-L6-v2 has 0.998 and 0.985, without a loss in evaluations.
_LEAST_MEAN, _LEAST_PROOF = 0.99, 0.95


def add_int8(
    folder: Path,
    encoder: Encoder,
    proved: Vectors,
    backbone: Backbone,
    tensors: Tensors,
    head: Head,
    say: Say,
) -> Cost | None:
    """Writes the int8 graph into a version's folder.

    Args:
        encoder: The float32 encoder of that folder.
        proved: Its vectors of PROOF_TEXTS.

    Returns:
        The loss of accuracy; None if the graph was left out.
    """
    if head.tokens == "static" or not has_int8():
        return None  # A word table has no layers to quantize, and other processors cannot measure int8.
    examples = example_texts()
    texts = [*examples[::2], *PROOF_TEXTS, *short_texts(_SHORT), *_random_texts(encoder)]
    rows = [row.ids for row in encoder.tokenize(texts)]
    file = (folder / ONNX).with_name(INT8_NAME)
    say("calibrating int8")
    with Progress("texts", len(texts) + 2 * len(examples[1::2]), "calibrating int8", say=say) as progress:
        spans = find_spans(backbone, tensors, head.tokens, rows, progress)
        onnx.save(int8_model(backbone, tensors, head, spans), file)
        quantized = Encoder(folder, encoder.manifest, form=INT8)
        cost = _measure(encoder, quantized, examples[1::2], len(texts), progress)
    turned = cosines(quantized.encode(PROOF_TEXTS).vectors, proved)
    quantized.close()
    if cost.cosine_mean >= _LEAST_MEAN and turned.min() >= _LEAST_PROOF:
        return cost
    say(f"leaving int8 out: its vectors have a mean cosine of {cost.cosine_mean:.3f} to those of fp32")
    file.unlink()
    return None


def _random_texts(encoder: Encoder) -> list[str]:
    random = np.random.default_rng(0)
    lengths = random.integers(4, _LONGEST, _RANDOM)
    return [encoder.decode(random.integers(0, encoder.vocabulary, length).tolist()) for length in lengths]


def _measure(
    exact: Encoder, quantized: Encoder, texts: list[str], calibrated_on: int, progress: Progress
) -> Cost:
    expected, found = (encoded(encoder, texts, progress) for encoder in (exact, quantized))
    turned = cosines(expected, found)
    return Cost(
        calibrated_on=calibrated_on,
        measured_on=len(texts),
        cosine_mean=round(float(turned.mean()), 5),
        cosine_least=round(float(turned.min()), 5),
        same_neighbours=round(same_neighbours((expected, expected), (found, found)), 4),
    )
