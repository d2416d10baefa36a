"""RTD and denoising objectives, compared with the same losses from transformers on padded rows."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812  its usual name
from safetensors.numpy import load_file
from torch import Tensor

from models.publishing.from_torch.backbone import quiet
from tests.training.families import family_source
from tests.training.pretrained import (
    CLS,
    FAMILIES,
    MASK,
    PAD,
    ROWS,
    SEP,
    bert_of,
    config_of,
    encoder_of,
    materials_of,
    padded,
    pretrained,
)
from tests.training.recipe_cases import build_corpus, raw_source
from training.errors import TrainingError
from training.methods.objectives import Reps
from training.methods.recipe import load_recipe
from training.methods.token_objectives import Denoise, DenoiseModule, Rtd, RtdModule
from training.model.encoder import TrainedEncoder
from training.runs.command import train
from training.runs.options import Options
from training.text.corpus import TEXTS
from training.text.tokens import NOT_A_TARGET, Tokens, build_tokens, join

# Positions to mask in each view. Some are first tokens ([CLS]), which the generator must not replace.
_HIDDEN = ({1, 4}, {7}, {0, 10, 12}, {14}), ({2}, {6}, {9, 11}, {15})


def masked(view: int) -> Tokens:
    ids, targets = ROWS.ids.clone(), torch.full_like(ROWS.ids, NOT_A_TARGET)
    at = sorted(set.union(*_HIDDEN[view]))
    targets[at], ids[at] = ids[at], MASK
    return Tokens(ids, ROWS.starts, targets)


def shaken(module: Any, seed: int) -> None:
    """Adds noise to the weights of a module, so that copies differ as after training."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(0.1 * torch.randn(parameter.shape, generator=generator))


@pytest.fixture(params=FAMILIES)
def family(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def rtd_of(folder: Path, family: str = "bert") -> tuple[Any, TrainedEncoder, RtdModule]:
    """Returns transformers' masked language model, our encoder with its weights, and the RTD objective."""
    theirs = pretrained(folder, family)
    encoder = encoder_of(folder)
    module = Rtd().build(materials_of(encoder))
    assert isinstance(module, RtdModule)
    shaken(module.discriminator, 1)
    shaken(module.classifier, 2)
    return theirs, encoder, module


def rtd_by_hand(theirs: Any, module: RtdModule, family: str, h: Tensor, masks: list[Tokens]) -> Tensor:
    """Returns DiffCSE's RTD loss on padded rows. `h` replaces the first embedding of each row."""
    original, mask = padded(join([ROWS] * len(masks)))
    hidden_ids, _ = padded(join(masks))
    with torch.no_grad():
        replaced = theirs(input_ids=hidden_ids, attention_mask=mask).logits.argmax(-1)
    replaced[:, 0] = original[:, 0]
    replaced = replaced.where(mask.bool(), original)
    backbone = getattr(FAMILIES[family].guesser(config_of(family)), FAMILIES[family].prefix).eval()
    backbone.load_state_dict(module.discriminator.state_dict())
    x = backbone.embeddings(input_ids=replaced)
    x = torch.cat([h[:, None], x[:, 1:]], dim=1)
    unseen = (1.0 - mask[:, None, None].float()) * torch.finfo(torch.float32).min
    for layer in backbone.encoder.layer:
        x = layer(x, unseen)
    logits = F.linear(x, module.classifier.weight, module.classifier.bias)
    return F.cross_entropy(logits[mask.bool()], (replaced != original)[mask.bool()].long())


def rtd_reps(z: Tensor, masks: list[Tokens], dropout: float = 0.0) -> Reps:
    return Reps(z, torch.zeros(z.shape[:2]), views=(*[ROWS] * len(masks), *masks), dropout=dropout)


def test_replaced_tokens_are_found_as_in_a_padded_reimplementation(family: str, tmp_path: Path) -> None:
    theirs, _, module = rtd_of(tmp_path / "raw", family)
    masks = [masked(0), masked(1)]
    z = torch.randn(4, 2, 32, generator=torch.Generator().manual_seed(0)).requires_grad_()
    found = module(rtd_reps(z, masks))
    (gradient,) = torch.autograd.grad(found, z)
    expected = rtd_by_hand(theirs, module, family, torch.cat([z[:, 0], z[:, 1]]), masks)
    (expected_gradient,) = torch.autograd.grad(expected, z)
    assert found.item() == pytest.approx(expected.item(), rel=1e-5)
    assert torch.allclose(gradient, expected_gradient, rtol=1e-3, atol=1e-7)


def test_the_generator_has_its_dropout_on(tmp_path: Path) -> None:
    _, _, module = rtd_of(tmp_path / "raw")
    torch.manual_seed(0)
    found = {tuple(module._replace(masked(0), ROWS, 0.3).ids.tolist()) for _ in range(5)}
    assert len(found) > 1


def embedded_by(module: RtdModule) -> list[Tensor]:
    """Returns a list that receives the embeddings that the discriminator's encoder reads from now on."""
    found: list[Tensor] = []
    encoder: Any = module.discriminator.encoder
    encoder.register_forward_pre_hook(lambda _module, given: found.append(given[0][0].detach()))
    return found


def test_the_vector_is_put_in_behind_the_dropout_of_the_embeddings(tmp_path: Path) -> None:
    _, _, module = rtd_of(tmp_path / "raw")
    h = torch.randn(4, 32, generator=torch.Generator().manual_seed(0))
    embedded = embedded_by(module)
    module._discriminate(ROWS, h, 0.5)
    assert torch.equal(embedded[0][ROWS.starts[:-1]], h)
    assert (embedded[0] == 0).float().mean() > 0.2, "its dropout is on"


def test_the_encoder_learns_through_the_vector_and_the_generator_nothing(tmp_path: Path) -> None:
    _, encoder, module = rtd_of(tmp_path / "raw")
    z = torch.stack([encoder(ROWS).pooled, encoder(ROWS).pooled], dim=1)
    module(rtd_reps(z, [masked(0), masked(1)])).backward()
    layer: Any = encoder.backbone.encoder.layer[0]
    assert layer.attention.self.query.weight.grad.abs().max() > 1e-8
    frozen = [*module.generator.parameters(), *module.language.parameters()]
    assert all(parameter.grad is None and not parameter.requires_grad for parameter in frozen)
    assert module.discriminator.embeddings.word_embeddings.weight.grad.any()
    before = module(rtd_reps(z.detach(), [masked(0), masked(1)])).item()
    shaken(encoder.backbone, 9)  # the three share no weights
    assert module(rtd_reps(z.detach(), [masked(0), masked(1)])).item() == before


def test_rtd_without_a_masked_language_head_is_refused(tmp_path: Path) -> None:
    encoder = encoder_of(raw_source(tmp_path / "raw", language=False))
    with pytest.raises(TrainingError, match="no masked-language head"):
        Rtd().build(materials_of(encoder))


@pytest.mark.parametrize("objective", [Rtd(), Denoise()])
def test_objectives_that_need_a_berts_insides_refuse_others(objective: Any, tmp_path: Path) -> None:
    encoder = bert_of(tmp_path / "raw")
    with pytest.raises(TrainingError, match="as wide as its tokens"):
        objective.build(materials_of(encoder)._replace(width=16))
    other = encoder_of(family_source(tmp_path / "distilbert", "distilbert"))
    with pytest.raises(TrainingError, match="needs a base of bert, roberta"):
        objective.build(materials_of(other))


DAMAGED = build_tokens([[CLS, 91, SEP], [CLS, 95, SEP], [CLS, 100, 102, SEP], [CLS, SEP]])


def decoder_of(module: DenoiseModule, encoder: TrainedEncoder, family: str) -> Any:
    """Returns transformers' decoder with the encoder's weights and our cross-attention and head."""
    kind = FAMILIES[family]
    with quiet():
        decoder = kind.decoder(config_of(family, is_decoder=True, add_cross_attention=True)).eval()
    backbone = getattr(decoder, kind.prefix)
    missing = backbone.load_state_dict(encoder.backbone.state_dict(), strict=False).missing_keys
    assert all("crossattention" in name for name in missing)
    crosses: Any = module.cross
    for layer, cross in zip(backbone.encoder.layer, crosses, strict=True):
        attention = layer.crossattention
        attention.self.value.load_state_dict(cross.value.state_dict())
        attention.output.dense.load_state_dict(cross.output.state_dict())
        attention.output.LayerNorm.load_state_dict(cross.norm.state_dict())
    head = decoder.cls.predictions if family == "bert" else decoder.lm_head
    named = head.transform if family == "bert" else head
    named.dense.load_state_dict(module.head.dense.state_dict())
    (named.LayerNorm if family == "bert" else named.layer_norm).load_state_dict(module.head.norm.state_dict())
    with torch.no_grad():
        head.bias.copy_(module.head.bias)
    return decoder


def denoise_of(folder: Path, family: str = "bert") -> tuple[TrainedEncoder, DenoiseModule]:
    pretrained(folder, family)
    encoder = encoder_of(folder)
    module = DenoiseModule(materials_of(encoder))
    shaken(module.cross, 3)
    return encoder, module


def denoise_reps(z: Tensor, dropout: float = 0.0) -> Reps:
    return Reps(z[:, None], torch.zeros(4, 1), views=(DAMAGED, ROWS), dropout=dropout)


def next_token_loss(decoder: Any, z: Tensor) -> Tensor:
    """Returns the mean loss of predicting each token from those before it, within each text."""
    ids, mask = padded(ROWS)
    logits = decoder(input_ids=ids, attention_mask=mask, encoder_hidden_states=z[:, None]).logits
    has_next = mask[:, 1:].bool()
    return F.cross_entropy(logits[:, :-1][has_next], ids[:, 1:][has_next])


def test_denoising_is_transformers_own_decoder_with_tied_weights(family: str, tmp_path: Path) -> None:
    encoder, module = denoise_of(tmp_path / "raw", family)
    z = torch.randn(4, 32, generator=torch.Generator().manual_seed(0)).requires_grad_()
    decoder = decoder_of(module, encoder, family)
    found, expected = module(denoise_reps(z)), next_token_loss(decoder, z)
    assert found.item() == pytest.approx(expected.item(), rel=1e-5)
    found.backward()
    assert z.grad is not None
    ours = z.grad.clone()
    expected.backward()  # type: ignore[no-untyped-call]
    assert torch.allclose(ours, z.grad - ours, rtol=1e-3, atol=1e-6)
    backbone = getattr(decoder, FAMILIES[family].prefix)
    theirs = {name: each.grad for name, each in backbone.named_parameters() if "crossattention" not in name}
    own = dict(encoder.backbone.named_parameters())
    assert theirs.keys() == own.keys()
    for name, gradient in theirs.items():  # the decoder's gradient is the encoder's: they are one
        assert torch.allclose(own[name].grad, gradient, rtol=1e-3, atol=1e-5), name


def test_attention_to_the_vector_begins_at_berts_spread(tmp_path: Path) -> None:
    encoder = bert_of(tmp_path / "raw")
    first, again = (DenoiseModule(materials_of(encoder, seed=4)).cross for _ in range(2))
    for name, tensor in first.named_parameters():
        assert torch.equal(tensor, dict(again.named_parameters())[name])
        if name.endswith(("value.weight", "output.weight")):
            assert tensor.std().item() == pytest.approx(0.02, rel=0.1)


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
    recipe = load_recipe("mlm-head", {"optim.batch": 32})
    head = train(recipe, build_corpus(TEXTS), base, tmp_path / "head", options)
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
    assert train(recipe, build_corpus(TEXTS), head.last, tmp_path / "diffcse", options).finished
