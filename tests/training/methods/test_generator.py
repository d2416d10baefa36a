"""The generator of `rtd`: another model than the base, and a head for a base that has none."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.numpy import load_file

from tests.training.pretrained import CLS, PAD, ROWS, encoder_of, materials_of, padded, pretrained
from tests.training.recipe_cases import corpus_of, raw_source
from training.errors import TrainingError
from training.methods.recipe import load_recipe
from training.methods.token_objectives import Rtd
from training.runs.command import train
from training.runs.options import Options
from training.text.corpus import TEXTS


def test_a_generator_of_one_s_own_guesses_and_the_base_needs_no_head(tmp_path: Path) -> None:
    theirs = pretrained(tmp_path / "generator")
    encoder = encoder_of(raw_source(tmp_path / "raw", seed=5, language=False))
    module: Any = Rtd(generator=str(tmp_path / "generator")).build(materials_of(encoder))
    ids, mask = padded(ROWS)
    with torch.no_grad():
        guessed = theirs(ids, attention_mask=mask).logits.argmax(-1)
    guessed[:, 0] = CLS
    found, _ = module._replace(ROWS, ROWS, 0.0).padded(PAD)
    assert torch.equal(found, guessed * mask)
    own = dict(encoder.backbone.named_parameters())
    for name, tensor in module.discriminator.named_parameters():
        assert torch.equal(tensor, own[name]), "the discriminator begins as the base"


def test_a_generator_with_other_words_is_refused(tmp_path: Path) -> None:
    generator = raw_source(tmp_path / "generator")
    tokenizer = json.loads((generator / "tokenizer.json").read_bytes())
    vocabulary = tokenizer["model"]["vocab"]
    vocabulary["river"], vocabulary["stone"] = vocabulary["stone"], vocabulary["river"]
    (generator / "tokenizer.json").write_text(json.dumps(tokenizer))
    encoder = encoder_of(raw_source(tmp_path / "raw"))
    with pytest.raises(TrainingError, match="has another vocabulary than the base"):
        Rtd(generator=str(generator)).build(materials_of(encoder))


def test_mlm_head_gives_a_base_a_head_and_changes_nothing_else(tmp_path: Path) -> None:
    base = raw_source(tmp_path / "raw", language=False)
    options = Options(precision="fp32", device="cpu", threads=1, steps=6)
    head = train(
        load_recipe("mlm-head", {"optim.batch": 32}), corpus_of(TEXTS), base, tmp_path / "head", options
    )
    before, after = load_file(base / "model.safetensors"), load_file(head.last / "model.safetensors")
    for name, tensor in before.items():
        if name.startswith("pooler."):  # of the pre-training, which no model here has
            continue
        assert (after[f"bert.{name}"] == tensor).all(), name
    assert after["cls.predictions.transform.dense.weight"].std() > 0
    materials = materials_of(encoder_of(base))
    with pytest.raises(TrainingError, match="train mlm-head,diffcse"):
        Rtd().build(materials)
    options = Options(precision="fp32", device="cpu", threads=1, steps=1)
    recipe = load_recipe("diffcse", {"optim.batch": 8})
    assert train(recipe, corpus_of(TEXTS), head.last, tmp_path / "diffcse", options).finished
