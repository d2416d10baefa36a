"""Objectives over tokens, which train the encoder to predict hidden, replaced or missing tokens.

    mlm        predicts the tokens that a mask hides (BERT; also in SimCSE and DeCLUTR)
    rtd        predicts which tokens a generator has replaced, given the sentence's vector (DiffCSE)
    denoise    predicts the whole text from the vector of its damaged copy (TSDAE)

A loss is the mean over all tokens, without padding. The published code of some methods also counts padding.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

import torch
import torch.nn.functional as F  # noqa: N812  its usual name
from torch import Tensor, nn

from models.publishing.from_torch.backbone import load_backbone
from models.sources.folder import Source, read_source
from training.errors import TrainingError
from training.methods.objectives import Materials, Objective, Reps
from training.model.dropout import drop, replace_dropouts, set_dropout
from training.model.encoder import TrainedEncoder
from training.model.language_head import bert_linear, language_head, published_head
from training.model.packed import FAMILIES, build_packing, compute_positions, get_attention, run_backbone
from training.text.tokens import NOT_A_TARGET, Tokens, join


class MlmModule(nn.Module):
    def __init__(self, materials: Materials) -> None:
        super().__init__()
        self.head, self.stored = language_head(materials.encoder.source, materials.generator)
        self.family = materials.encoder.family
        self._shared = (materials.encoder,)  # a tuple hides the encoder's weights from this module

    def forward(self, reps: Reps) -> Tensor:
        table = word_table(self._shared[0])
        device = table.device
        losses, count = torch.zeros((), device=device), torch.zeros((), device=device)
        for view, hidden in zip(reps.views, reps.hidden, strict=True):
            if view.targets is None:
                continue
            at = (view.targets != NOT_A_TARGET).nonzero()[:, 0]  # only targets need logits
            logits = self.head(hidden[at.to(device)], table)
            losses = losses + F.cross_entropy(logits.float(), view.targets[at].to(device), reduction="sum")
            count = count + len(at)
        return reps.mean(losses, count)


@dataclass(frozen=True)
class Mlm(Objective):
    """Masked language modeling: cross-entropy of the hidden tokens (Devlin et al. 2019, section 3.1)."""

    name: Literal["mlm"] = "mlm"
    reads: ClassVar[frozenset[str]] = frozenset({"hidden"})
    module: ClassVar = MlmModule


class RtdModule(nn.Module):
    """The loss of `Rtd`: a frozen generator replaces tokens, and a discriminator finds the replaced ones.

    The generator has dropout. The discriminator also reads the vector h of the sentence.
    """

    def __init__(self, materials: Materials, generator: str) -> None:
        super().__init__()
        encoder = materials.encoder
        _require_packed("rtd", materials)
        source = _generator_source(generator, encoder) if generator else encoder.source
        found = (
            load_backbone(source.backbone, get_attention(source.config)) if generator else encoder.backbone
        )
        self.generator: Any = copy.deepcopy(found).requires_grad_(requires_grad=False)
        replace_dropouts(self.generator)
        self.language, stored = language_head(source, materials.generator)
        if not stored:
            raise TrainingError(
                f"{source.folder} has no masked-language head (cls.predictions.*), which rtd needs. "
                "Take a pre-trained BERT as it was released, or let the base learn one first: "
                "`train mlm-head,diffcse …`."
            )
        self._kind = str(source.config.get("model_type")), int(source.config.get("pad_token_id") or 0)
        self.language.requires_grad_(requires_grad=False)
        # The discriminator is not published, so all its weights train even if the encoder is partly frozen.
        self.discriminator: Any = copy.deepcopy(encoder.backbone).requires_grad_(requires_grad=True)
        self.classifier = bert_linear(encoder.source.width, 2, materials.generator)
        self._family, self._pad_id = encoder.family, encoder.pad_id

    def forward(self, reps: Reps) -> Tensor:
        masked = [view for view in reps.views if view.targets is not None]
        original = join(reps.views[: len(masked)])
        replaced = self._replace(join(masked), original, reps.dropout)
        h = reps.z[reps.share, : len(masked)].transpose(0, 1).flatten(0, 1)  # each view's own
        hidden = self._discriminate(replaced, h, reps.dropout)
        changed = (replaced.ids != original.ids).long().to(hidden.device)
        losses = F.cross_entropy(self.classifier(hidden).float(), changed, reduction="sum")
        return reps.mean(losses, torch.tensor(float(len(changed)), device=hidden.device))

    @torch.no_grad()
    def _replace(self, masked: Tokens, original: Tokens, dropout: float) -> Tokens:
        """Replaces all tokens except the first of each text by the most likely tokens of the generator."""
        device = self.classifier.weight.device
        set_dropout(self.generator, dropout)
        hidden, _ = run_backbone(self.generator, masked, build_packing(masked, device), *self._kind)
        guessed = self.language(hidden, self.generator.get_input_embeddings().weight).argmax(-1).cpu()
        guessed[original.starts[:-1]] = original.ids[original.starts[:-1]]
        return Tokens(guessed, original.starts)

    def _discriminate(self, tokens: Tokens, h: Tensor, dropout: float) -> Tensor:
        """Returns the token vectors of the discriminator, in which h replaces each text's first embedding.

        The embedding is replaced after normalization and dropout.
        """
        starts = tokens.starts[:-1].to(h.device)

        def condition(_module: nn.Module, _inputs: Any, embedded: Tensor) -> Tensor:
            return embedded.index_copy(1, starts, h.to(embedded.dtype)[None])

        set_dropout(self.discriminator, dropout)
        packing = build_packing(tokens, h.device)
        with self.discriminator.embeddings.register_forward_hook(condition):
            return run_backbone(self.discriminator, tokens, packing, self._family, self._pad_id)[0]


@dataclass(frozen=True)
class Rtd(Objective):
    """Replaced token detection (Chuang et al. 2022, DiffCSE, equations 2 and 3).

    As in the published code, the generator inserts its most likely tokens instead of drawing tokens. The
    masked views stand aside. For masked view k, the discriminator reads the vector of contrasted view k.

    Attributes:
        generator: Folder of a masked language model with the same vocabulary as the base. The paper uses a
            distilled model with half the layers. Empty means the base with its initial weights.

    """

    generator: str = ""
    name: Literal["rtd"] = "rtd"
    reads: ClassVar[frozenset[str]] = frozenset({"aside"})

    def build(self, materials: Materials) -> nn.Module:
        return RtdModule(materials, self.generator)


class CrossAttention(nn.Module):
    """Cross-attention to a single vector. The softmax over one key is 1, so query and key have no weights.

    Dropout of attention weights is left out, because with a single key it would drop a whole head.
    """

    def __init__(self, width: int, epsilon: float, generator: torch.Generator) -> None:
        super().__init__()
        self.value, self.output = (bert_linear(width, width, generator) for _ in range(2))
        self.norm = nn.LayerNorm(width, eps=epsilon)

    def forward(self, x: Tensor, memory: Tensor, dropout: float) -> Tensor:
        normed: Tensor = self.norm(x + drop(self.output(self.value(memory)), dropout))
        return normed


class DenoiseModule(nn.Module):
    """The loss of `Denoise`: a decoder predicts the tokens of a text from the vector of its damaged copy.

    The decoder shares the layers of the encoder. The cross-attention to the vector and the prediction head
    are extra modules.
    """

    def __init__(self, materials: Materials) -> None:
        super().__init__()
        encoder = materials.encoder
        _require_packed("denoise", materials)
        config = encoder.source.config
        epsilon = float(config.get("layer_norm_eps", 1e-12))
        layers = int(config["num_hidden_layers"])
        self.cross = nn.ModuleList(
            CrossAttention(encoder.source.width, epsilon, materials.generator) for _ in range(layers)
        )
        self.head, self.stored = language_head(encoder.source, materials.generator)
        self._shared = (encoder,)  # a tuple hides the encoder's weights from this module

    def forward(self, reps: Reps) -> Tensor:
        encoder, whole = self._shared[0], reps.views[-1]
        set_dropout(encoder.backbone, reps.dropout)
        memory = reps.z[reps.share, 0]
        x = self._decode(encoder, whole, memory[whole.rows().to(memory.device)], reps.dropout)
        last = torch.zeros(len(whole.ids), dtype=torch.bool)
        last[whole.starts[1:] - 1] = True
        at = (~last).nonzero()[:, 0]
        logits = self.head(x[at.to(x.device)], word_table(encoder))
        losses = F.cross_entropy(logits.float(), whole.ids[at + 1].to(x.device), reduction="sum")
        return reps.mean(losses, torch.tensor(float(len(at)), device=x.device))

    def _decode(self, encoder: TrainedEncoder, whole: Tokens, memory: Tensor, dropout: float) -> Tensor:
        """Runs the decoder. A token sees the earlier tokens of its text and the text's vector.

        Args:
            encoder: The encoder whose layers the decoder uses.
            whole: Tokens of the whole texts.
            memory: Vector of each token's text, shape (all tokens, P).
            dropout: Dropout probability of the cross-attention.

        Returns:
            Token vectors, shape (all tokens, D).

        """
        device = memory.device
        packing = build_packing(whole, device, causal=True)
        backbone: Any = encoder.backbone
        positions = compute_positions(whole, encoder.family, encoder.pad_id)[None].to(device)
        x = backbone.embeddings(input_ids=whole.ids[None].to(device), position_ids=positions)
        for layer, cross in zip(backbone.encoder.layer, self.cross, strict=True):
            x, _ = layer.attention(x, None, packing=packing)
            x = layer.feed_forward_chunk(cross(x, memory[None], dropout))
        found: Tensor = x[0]
        return found


@dataclass(frozen=True)
class Denoise(Objective):
    """Denoising autoencoder (Wang et al. 2021, TSDAE, equation 2).

    The first view is the damaged text, and the last view is the whole text to predict.
    """

    name: Literal["denoise"] = "denoise"
    reads: ClassVar[frozenset[str]] = frozenset({"aside"})
    module: ClassVar = DenoiseModule


def _generator_source(folder: str, encoder: TrainedEncoder) -> Source:
    """Reads the folder of a generator.

    Raises:
        TrainingError: The vocabularies of the generator and the base differ.

    """
    source = read_source(Path(folder))
    theirs, own = (each.tokenizer.get("model", {}).get("vocab") for each in (source, encoder.source))
    if theirs != own:
        raise TrainingError(
            f"{folder} has another vocabulary than the base, so its predictions would mean other words. Give "
            "rtd a generator with the base's own tokenizer, or none."
        )
    return source


def _require_packed(name: str, materials: Materials) -> None:
    """Raises TrainingError if pooled and token vectors differ in width, or the base is not of `FAMILIES`."""
    encoder = materials.encoder
    if materials.width != encoder.source.width or encoder.family not in FAMILIES:
        raise TrainingError(
            f"{name} needs a base of {', '.join(FAMILIES)}, and vectors as wide as its tokens'."
        )


def published_language(model: nn.ModuleDict) -> Mapping[str, Tensor]:
    """Returns the weights of the head that mlm trained, named as in checkpoints of the base's family."""
    objectives: Any = model["objectives"]
    module = next(each for each in objectives if isinstance(each, MlmModule))
    return published_head(module.head, module.family)


def word_table(encoder: TrainedEncoder) -> Tensor:
    table: Tensor = encoder.backbone.get_input_embeddings().weight
    return table
