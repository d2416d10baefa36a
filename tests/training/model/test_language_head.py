"""The head of a masked language model: the checkpoint that it comes from, and the loss of `mlm`."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.numpy import load_file, save_file
from torch import Tensor

from models.publishing.from_torch.backbone import quiet
from models.sources.folder import read_source
from tests.training.pretrained import (
    FAMILIES,
    MASK,
    ROWS,
    bert_of,
    encoder_of,
    materials_of,
    padded,
    pretrained,
)
from tests.training.recipe_cases import raw_source
from training.methods.objectives import Reps
from training.methods.token_objectives import MlmModule, published_language
from training.model.encoder import TrainedEncoder
from training.model.language_head import language_head, stored_head
from training.text.tokens import NOT_A_TARGET, Tokens, join


def masked(seed: int) -> Tokens:
    """Returns ROWS with random target tokens, whose ids are masked, replaced or kept."""
    chance = random.Random(seed)
    ids, targets = ROWS.ids.clone(), torch.full_like(ROWS.ids, NOT_A_TARGET)
    for at in [at for at, id in enumerate(ids.tolist()) if id > 4]:
        if chance.random() < 0.6:
            targets[at] = ids[at]
            ids[at] = chance.choice([MASK, MASK, 120, int(ids[at])])
    return Tokens(ids, ROWS.starts, targets)


def reps_of(encoder: TrainedEncoder, *views: Tokens) -> Reps:
    hidden = encoder(join(views)).hidden
    split = torch.split(hidden, [len(view.ids) for view in views])
    return Reps(torch.zeros(4, 2, 32), torch.zeros(4, 2), views=views, hidden=split)


def transformers_loss(model: Any, views: list[Tokens]) -> Tensor:
    """Returns transformers' loss over padded rows: the mean over all positions whose label is not -100."""
    tokens = join(views)
    ids, mask = padded(tokens)
    labels = torch.full_like(ids, -100)
    assert tokens.targets is not None
    labels[mask.bool()] = tokens.targets
    loss: Tensor = model(input_ids=ids, attention_mask=mask, labels=labels).loss
    return loss


@pytest.mark.parametrize("family", FAMILIES)
def test_mlm_is_the_loss_of_transformers_with_the_same_gradients(family: str, tmp_path: Path) -> None:
    theirs = pretrained(tmp_path / "raw", family)
    encoder = encoder_of(tmp_path / "raw")
    module = MlmModule(materials_of(encoder))
    views = [masked(0), masked(1)]
    found = module(reps_of(encoder, views[0], ROWS, views[1]))  # the middle view has no targets
    expected = transformers_loss(theirs, views)
    assert found.item() == pytest.approx(expected.item(), rel=1e-5)
    found.backward()
    expected.backward()  # type: ignore[no-untyped-call]
    own, their = dict(encoder.backbone.named_parameters()), getattr(theirs, FAMILIES[family].prefix)
    for name, parameter in their.named_parameters():
        assert torch.allclose(own[name].grad, parameter.grad, rtol=1e-3, atol=1e-5), name
    head = theirs.cls.predictions if family == "bert" else theirs.lm_head
    assert module.head.bias.grad is not None
    assert torch.allclose(module.head.bias.grad, head.bias.grad, rtol=1e-3, atol=1e-6)


def test_the_word_table_is_the_encoders_own_and_learns_through_the_head(tmp_path: Path) -> None:
    encoder = bert_of(tmp_path / "raw")
    module = MlmModule(materials_of(encoder))
    assert not any(tensor.shape == (250, 32) for tensor in module.parameters())
    view = masked(0)
    with torch.no_grad():
        hidden = encoder(view).hidden
    module(Reps(torch.zeros(4, 1, 32), torch.zeros(4, 1), views=(view,), hidden=(hidden,))).backward()
    gradient = encoder.backbone.get_input_embeddings().weight.grad
    assert gradient is not None
    assert gradient[120:].abs().max() > 1e-6, "also of words that no text has"


def test_the_loss_of_a_share_is_over_the_targets_of_all_processes(tmp_path: Path) -> None:
    encoder = bert_of(tmp_path / "raw")
    module = MlmModule(materials_of(encoder))
    views = [masked(0), masked(1)]
    whole = module(reps_of(encoder, *views)).item()
    counts = [int((view.targets != NOT_A_TARGET).sum()) for view in views if view.targets is not None]
    assert counts[0] != counts[1]
    parts = [
        module(reps_of(encoder, view)._replace(total=lambda _count: torch.tensor(sum(counts) / 2))).item()
        for view in views
    ]
    assert sum(parts) / 2 == pytest.approx(whole, rel=1e-5)


def test_a_head_converted_from_tensorflow_is_found_by_its_old_names(tmp_path: Path) -> None:
    pretrained(tmp_path / "raw")
    expected = stored_head(read_source(tmp_path / "raw"))
    weights = load_file(tmp_path / "raw" / "model.safetensors")
    old = {
        name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta"): array
        for name, array in weights.items()
    }
    assert old.keys() != weights.keys()
    save_file(old, tmp_path / "raw" / "model.safetensors", metadata={"format": "pt"})
    found = stored_head(read_source(tmp_path / "raw"))
    assert expected is not None
    assert found is not None
    assert {name: tensor.tolist() for name, tensor in found.items()} == {
        name: tensor.tolist() for name, tensor in expected.items()
    }


def test_a_base_without_a_head_gets_a_random_one_of_its_own_generator(tmp_path: Path) -> None:
    source = read_source(raw_source(tmp_path / "raw", language=False))
    heads = [language_head(source, torch.Generator().manual_seed(seed)) for seed in (1, 1, 2)]
    assert [stored for _, stored in heads] == [False] * 3
    first, again, other = (head.dense.weight for head, _ in heads)
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert first.std().item() == pytest.approx(0.02, rel=0.1)
    head = heads[0][0]
    assert not head.dense.bias.any()
    assert not head.bias.any()
    assert (head.norm.weight == 1).all()
    assert not head.norm.bias.any()


def test_half_a_head_is_none(tmp_path: Path) -> None:
    pretrained(tmp_path / "raw")
    weights = load_file(tmp_path / "raw" / "model.safetensors")
    del weights["cls.predictions.bias"]
    save_file(weights, tmp_path / "raw" / "model.safetensors", metadata={"format": "pt"})
    assert stored_head(read_source(tmp_path / "raw")) is None


@pytest.mark.parametrize("family", FAMILIES)
def test_transformers_opens_what_is_published_and_guesses_the_same(family: str, tmp_path: Path) -> None:
    pretrained(tmp_path / "raw", family)
    encoder = encoder_of(tmp_path / "raw")
    module = MlmModule(materials_of(encoder))
    with torch.no_grad():
        for parameter in [*module.parameters(), *encoder.parameters()]:
            parameter.add_(0.01 * torch.randn_like(parameter))
    out = tmp_path / "out"
    out.mkdir()
    model = torch.nn.ModuleDict({"objectives": torch.nn.ModuleList([module])})
    encoder.save_backbone(out, published_language(model))
    with quiet():
        theirs, report = FAMILIES[family].guesser.from_pretrained(out, output_loading_info=True)
    assert not report["missing_keys"]
    ids, mask = padded(ROWS)
    with torch.no_grad():
        expected = theirs(input_ids=ids, attention_mask=mask).logits[mask.bool()]
        hidden = encoder(ROWS).hidden
        found = module.head(hidden, encoder.backbone.get_input_embeddings().weight)
    assert torch.allclose(found, expected, rtol=1e-4, atol=1e-4)
    again = stored_head(read_source(out))
    assert again is not None
    assert all(torch.equal(again[name], tensor) for name, tensor in module.head.state_dict().items())
    assert torch.equal(encoder_of(out)(ROWS).hidden, hidden)
