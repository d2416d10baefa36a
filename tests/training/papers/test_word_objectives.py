"""Objectives between a text's vector and words, against loops and transformers' own prediction layer."""

from __future__ import annotations

import itertools
import math
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812  its usual name

from tests.training.methods.test_pair_objectives import check_gradient, softplus, vectors
from tests.training.pretrained import CLS, ROWS, SEP, encoder_of, materials_of, pretrained
from tests.training.recipe_cases import raw_source
from training.errors import TrainingError
from training.methods.objectives import Reps
from training.papers.objectives import MiJsd, MiJsdModule, WordCe
from training.text.tokens import tokens_of

WORDS = tokens_of([[CLS, 90, SEP], [CLS, 91, 92, SEP], [CLS, 93, SEP], [CLS, SEP]])  # one, two, one, no token


def test_a_definition_names_its_word_by_the_prediction_layer_of_transformers(tmp_path: Path) -> None:
    theirs = pretrained(tmp_path / "raw")
    encoder = encoder_of(tmp_path / "raw")
    module = WordCe().build(materials_of(encoder))
    z = vectors(4, 2, 32)
    reps = Reps(z, torch.arange(8).reshape(4, 2), views=(ROWS, WORDS))
    with torch.no_grad():
        logits = theirs.cls(z[[0, 2], 0])
    expected = F.cross_entropy(logits, torch.tensor([90, 93])).item()
    assert module(reps).item() == pytest.approx(expected, rel=1e-5)
    assert not any(tensor.requires_grad for tensor in module.parameters()), "the prediction layer is frozen"
    with torch.no_grad():
        encoder.backbone.get_input_embeddings().weight.zero_()
    assert module(reps).item() == pytest.approx(expected, rel=1e-5), "and so is its word table"
    check_gradient(lambda x: module(reps._replace(z=x)), z)


def test_word_ce_without_a_prediction_layer_says_how_to_get_one(tmp_path: Path) -> None:
    encoder = encoder_of(raw_source(tmp_path / "raw", language=False))
    with pytest.raises(TrainingError, match="train mlm-head,defsent"):
        WordCe().build(materials_of(encoder))


def test_runs_are_convolutions_within_a_text(tmp_path: Path) -> None:
    """Token by token: what stands beyond an end of its text is zero."""
    encoder = encoder_of(raw_source(tmp_path / "raw"))
    module = MiJsd().build(materials_of(encoder))
    assert isinstance(module, MiJsdModule)
    convolutions: Any = module.convolutions
    hidden = vectors(len(ROWS.ids), 32)
    found = module.runs(hidden, ROWS).detach()
    assert found.shape == (len(ROWS.ids), 32)
    for begin, end in itertools.pairwise(ROWS.starts.tolist()):
        for at in range(begin, end):
            parts = []
            for run, conv in zip((1, 3, 5), convolutions, strict=True):
                weight, bias = (tensor.detach() for tensor in (conv.weight, conv.bias))
                part = bias.clone()
                for offset in range(run):
                    place = at + offset - run // 2
                    if begin <= place < end:
                        part += weight[:, :, offset] @ hidden[place]
                parts.append(part)
            assert (found[at] - torch.cat(parts)).abs().max() < 1e-5


def test_mutual_information_by_loops_over_tokens_and_texts(tmp_path: Path) -> None:
    encoder = encoder_of(raw_source(tmp_path / "raw"))
    module = MiJsd().build(materials_of(encoder))
    assert isinstance(module, MiJsdModule)
    hidden, z = vectors(len(ROWS.ids), 32), vectors(4, 1, 32, seed=1)
    texts = torch.tensor([[1], [2], [3], [2]])  # the last is the second again
    found = module(Reps(z, texts, views=(ROWS,), hidden=(hidden,))).item()
    local = module.runs(hidden, ROWS).detach()
    total = 0.0
    for token, text in enumerate(ROWS.rows().tolist()):
        scores = [float(local[token] @ z[other, 0]) for other in range(4)]
        others = [other for other in range(4) if texts[other] != texts[text]]
        negative = sum(softplus(scores[other]) - math.log(2) for other in others) / len(others)
        total += negative - (math.log(2) - softplus(-scores[text]))
    assert found == pytest.approx(total / len(ROWS.ids), rel=1e-4)
    check_gradient(lambda x: module(Reps(x, texts, views=(ROWS,), hidden=(hidden,))), z)
