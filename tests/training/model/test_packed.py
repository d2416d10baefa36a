"""Forward and training passes without padding compute the same as transformers with padding."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from torch import Tensor
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS, AttentionInterface

from models.graph.backbone import Backbone, read_backbone
from models.graph.reference import embed
from models.publishing.from_torch.backbone import load_backbone, quiet
from models.publishing.publish import publish
from models.sources.files import read_json
from models.sources.folder import read_source
from models.store import ModelStore
from models.tokens.texts import PROOF_TEXTS
from tests.tiny import HEADS, INNER, LAYERS, WIDTH
from tests.training.families import family_source
from tests.training.recipe_cases import raw_source
from training.methods.loading import load_encoder
from training.methods.recipe import load_recipe
from training.model import packed
from training.model.dropout import set_dropout
from training.model.packed import NAME, build_groups, build_packing, get_attention, pad, run_backbone, unpad
from training.text.tokens import Tokens, build_tokens

PACKED, PADDED = ("bert", "roberta", "roberta with padding 1"), ("distilbert", "mpnet")
GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
DEVICES = ["cpu", pytest.param("cuda", marks=GPU)]
PART_SIZES = {"one part": packed._SCORES, "parts": 32**2 * 3, "text by text": 1}  # Values of packed._SCORES.
# Texts of many lengths. Together, they have more tokens than a text may have.
ROWS = build_tokens([[2, *range(60, 60 + count), 3] for count in (1, 30, 7, 60, 2, 30, 11)])
PARTS = torch.Generator().manual_seed(0)


def build_backbone(folder: Path, family: str) -> Path:
    """Writes a random model of a family. MPNet and one RoBERTa have padding id 1, as in released models."""
    if family in ("bert", "roberta", "distilbert"):
        return family_source(folder, family)
    family_source(folder, "bert")
    sizes: dict[str, Any] = {"hidden_size": WIDTH, "num_hidden_layers": LAYERS, "num_attention_heads": HEADS}
    sizes |= {"intermediate_size": INNER, "max_position_embeddings": 128, "pad_token_id": 1}
    sizes |= {"vocab_size": read_json(folder / "config.json")["vocab_size"]}
    torch.manual_seed(0)
    of = transformers.MPNetConfig if family == "mpnet" else transformers.RobertaConfig
    opened: Any = transformers.AutoModel
    with quiet():
        opened.from_config(of(**sizes, initializer_range=0.2)).save_pretrained(folder)
    return folder


def both(folder: Path, tokens: Tokens, device: str = "cpu") -> tuple[Any, Tensor, Any, Tensor]:
    """Returns our backbone, its token vectors, transformers' backbone, and its token vectors, (tokens, D)."""
    config = read_json(folder / "config.json")
    family, pad_id = config["model_type"], config["pad_token_id"]
    ours, theirs = load_backbone(folder, get_attention(config)), load_backbone(folder)
    ours.to(device)
    theirs.to(device)
    found, _ = run_backbone(ours, tokens, build_packing(tokens, torch.device(device)), family, pad_id)
    ids, mask = (x.to(device) for x in tokens.padded(pad_id))
    expected = theirs(input_ids=ids, attention_mask=mask).last_hidden_state[mask.bool()]
    return ours, found, theirs, expected


@pytest.mark.parametrize(
    ("family", "device", "scores"),
    [
        *((family, "cpu", scores) for family in PACKED for scores in PART_SIZES.values()),
        *((family, "cpu", PART_SIZES["one part"]) for family in PADDED),
        *(pytest.param(family, "cuda", 1, marks=GPU) for family in [*PACKED, *PADDED]),
    ],
)
def test_token_vectors_and_all_gradients_are_those_of_transformers(
    tmp_path: Path, family: str, device: str, scores: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packed, "_SCORES", scores)
    ours, found, theirs, expected = both(build_backbone(tmp_path / "base", family), ROWS, device)
    assert (ours.config._attn_implementation == NAME) == (family in PACKED)
    assert found.shape == (len(ROWS.ids), WIDTH)
    assert (found - expected).abs().max() < 1e-5
    weights = torch.randn(found.shape, generator=PARTS).to(device)
    (found * weights).sum().backward()  # type: ignore[no-untyped-call]
    (expected * weights).sum().backward()  # type: ignore[no-untyped-call]
    theirs_by_name = dict(theirs.named_parameters())
    compared = 0
    for name, parameter in ours.named_parameters():
        other = theirs_by_name[name].grad
        assert (parameter.grad is None) == (other is None), name
        if other is not None:
            compared += 1
            assert (parameter.grad - other).abs().max() < 1e-5 * max(1.0, float(other.abs().max())), name
    assert compared > 16 * LAYERS


@pytest.mark.parametrize("scores", PART_SIZES.values(), ids=PART_SIZES)
@pytest.mark.parametrize("causal", [False, True])
def test_attention_that_does_not_learn_is_the_one_that_does(
    causal: bool, scores: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packed, "_SCORES", scores)
    ours = load_backbone(build_backbone(tmp_path / "base", "bert"), NAME)
    packing = build_packing(ROWS, torch.device("cpu"), causal=causal)
    learned, _ = run_backbone(ours, ROWS, packing, "bert", 0)
    with torch.no_grad():  # as a large batch is encoded before its gradients are: it must be exact
        assert torch.equal(run_backbone(ours, ROWS, packing, "bert", 0)[0], learned)
    with torch.inference_mode():
        found, _ = run_backbone(ours, ROWS, packing, "bert", 0)
    assert (found - learned).abs().max() < 1e-5


def test_a_cpu_pads_texts_to_those_of_like_length_beside_them_only() -> None:
    def shapes(*lengths: int) -> list[tuple[int, ...]]:
        tokens = build_tokens([[1] * length for length in lengths])
        packing = build_packing(tokens, torch.device("cpu"))
        assert packing.mask.shape == (len(lengths), max(lengths))
        assert [len(part.at) for part in packing.parts] == [int(part.mask.sum()) for part in packing.parts]
        assert not build_packing(tokens, torch.device("meta")).parts
        return [tuple(part.mask.shape) for part in packing.parts]

    parts = [(64, 10), (16, 128), (16, 128), (8, 128), (1, 600), (1, 5)]
    assert shapes(*[10] * 64, *[128] * 40, 600, 5) == parts
    assert shapes(*[10] * 8, *[128] * 8) == [(8, 10), (8, 128)]
    assert shapes(20, 30, 25, 12, 30) == [(5, 30)]


@pytest.mark.parametrize("scores", PART_SIZES.values(), ids=PART_SIZES)
@pytest.mark.parametrize("device", DEVICES)
def test_a_causal_packing_is_the_decoder_of_transformers(
    tmp_path: Path, device: str, scores: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packed, "_SCORES", scores)
    folder = build_backbone(tmp_path / "base", "bert")
    ours = load_backbone(folder, NAME).to(device)
    packing = build_packing(ROWS, torch.device(device), causal=True)
    found, _ = run_backbone(ours, ROWS, packing, "bert", 0)
    with quiet():
        decoder: Any = transformers.BertModel.from_pretrained(
            folder, is_decoder=True, attn_implementation="eager", add_pooling_layer=False
        )
    ids, mask = (x.to(device) for x in ROWS.padded(0))
    expected = decoder.to(device).eval()(input_ids=ids, attention_mask=mask).last_hidden_state[mask.bool()]
    assert (found - expected).abs().max() < 1e-5
    both_ways, _ = run_backbone(ours, ROWS, build_packing(ROWS, torch.device(device)), "bert", 0)
    assert (found - both_ways).abs().max() > 0.1


def test_packing_and_padding_undo_each_other_and_leave_zeros_between(tmp_path: Path) -> None:
    tokens = build_tokens([[5, 6, 7], [8]])
    packing = build_packing(tokens, torch.device("cpu"))
    x = torch.arange(8.0).reshape(4, 2).requires_grad_()
    padded = pad(x, packing)
    assert padded.tolist() == [[[0, 1], [2, 3], [4, 5]], [[6, 7], [0, 0], [0, 0]]]
    assert torch.equal(unpad(padded, packing), x)
    padded.backward(torch.arange(12.0).reshape(2, 3, 2))  # type: ignore[no-untyped-call]
    assert x.grad is not None
    assert x.grad.tolist() == [[0, 1], [2, 3], [4, 5], [6, 7]], "what is between them takes no gradient"


def test_attention_has_the_dropout_that_was_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ours = load_backbone(build_backbone(tmp_path / "base", "bert"), NAME)
    seen: list[float] = []
    attention = ALL_ATTENTION_FUNCTIONS[NAME]

    def spy(*given: Any, **named: Any) -> Any:
        seen.append(named["dropout"])
        return attention(*given, **named)

    monkeypatch.setitem(AttentionInterface._global_mapping, NAME, spy)
    packing = build_packing(ROWS, torch.device("cpu"))
    for dropout in (0.3, 0.0):
        set_dropout(ours, dropout)
        run_backbone(ours, ROWS, packing, "bert", 0)
    assert seen == [0.3] * LAYERS + [0.0] * LAYERS


@pytest.mark.parametrize("device", DEVICES)
def test_dropout_in_attention_leaves_its_mean_alone(device: str) -> None:
    attention = ALL_ATTENTION_FUNCTIONS[NAME]
    packing = build_packing(build_tokens([[1, 2, 3], [4, 5]]), torch.device(device))
    q, k, v = (torch.randn(1, 2, 5, 4, generator=PARTS).to(device) for _ in range(3))
    exact = attention(None, q, k, v, None, packing=packing)[0]
    torch.manual_seed(0)
    draws = torch.stack(
        [attention(None, q, k, v, None, packing=packing, dropout=0.2)[0] for _ in range(4000)]
    )
    assert (draws[0] - draws[1]).abs().max() > 0.05
    assert (draws.mean(0) - exact).abs().max() < 0.05
    assert (draws[:, 0, 4] == 0).all(-1).any(), "a weight that is dropped is dropped whole"


def test_autocast_in_bfloat16_stays_near_and_pools_in_float32(tmp_path: Path) -> None:
    encoder, _ = load_encoder(raw_source(tmp_path / "raw"), load_recipe("first-last"), torch.device("cpu"))
    exact = encoder(ROWS).pooled
    with torch.autocast("cpu", torch.bfloat16):
        half = encoder(ROWS, 0.0)
    assert half.pooled.dtype == torch.float32
    assert half.hidden.dtype == torch.float32  # of a norm
    difference = (half.pooled - exact).abs().max().item()
    assert 0 < difference < 0.05 * exact.abs().max().item()
    half.pooled.sum().backward()
    gradients = [parameter.grad for parameter in encoder.parameters() if parameter.grad is not None]
    assert all(gradient.dtype == torch.float32 and gradient.isfinite().all() for gradient in gradients)


POOLS = {
    "mean": ("simcse-unsup", {"pool": "mean"}),
    "cls": ("simcse-unsup", {}),
    "max": ("simcse-unsup", {"pool": "max"}),
    "first_last": ("first-last", {}),
    "static": ("static-average", {}),
    "mask": ("promptbert", {}),
    "a kept head": ("simcse-sup", {}),
}


@pytest.mark.parametrize("pool", POOLS)
def test_the_encoder_is_what_is_published_and_what_numpy_says(tmp_path: Path, pool: str) -> None:
    name, changes = POOLS[pool]
    encoder, _ = load_encoder(raw_source(tmp_path / "raw"), load_recipe(name, changes), torch.device("cpu"))
    (tmp_path / "saved").mkdir()
    encoder.save(tmp_path / "saved")
    store = ModelStore(tmp_path / "models")
    published = store.open(publish(store, tmp_path / "saved").version)
    found = encoder.encode(PROOF_TEXTS)
    assert np.abs(found - published.encode(PROOF_TEXTS).vectors).max() < 1e-5
    source = read_source(tmp_path / "saved")
    backbone = Backbone.from_config(source.config)
    rows = [tokens.ids for tokens in published.tokenize(PROOF_TEXTS)]
    expected = embed(backbone, read_backbone(source.weights, backbone), source.head, rows)
    assert np.abs(found - expected).max() < 1e-5
    assert np.abs(found[0] - found[1]).max() > 1e-2


def test_a_forward_on_a_cpu_has_128_texts_or_4096_tokens_with_padding() -> None:
    lengths = torch.tensor([3] * 300 + [5000, 100] + [128] * 70)
    groups = [group.tolist() for group in build_groups(lengths, torch.device("cpu"))]
    assert sorted(text for group in groups for text in group) == list(range(len(lengths)))
    assert [len(group) for group in groups] == [1, 32, 32, 32, 128, 128, 19]
    assert groups[0] == [300]
    assert 301 in groups[3]
    elsewhere = build_groups(lengths, torch.device("meta"))
    assert [len(group) for group in elsewhere] == [128, 128, 116]
