"""Run a transformer without padding: the tokens of all texts form one long sequence ("packed").

    ids (tokens,) ─▶ embeddings ─▶ linear, norm … on (tokens, D) ─▶ attention: (tokens, …) ⇄ (texts, T, …)

Start reading at `run_backbone`. Only the attention function pads texts, so all other layers compute no
padding. A CPU computes attention for a few neighboring texts at a time. The attention function is registered
with the library transformers, so the models themselves are unchanged. Models of `FAMILIES` accept positions
and attention from outside. Texts for models of other families are padded.
"""

# ruff: noqa: N803, N806  shapes live in names
from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F  # noqa: N812  its usual name
from torch import Tensor, nn
from transformers.modeling_utils import AttentionInterface

from training.model.dropout import drop
from training.text.tokens import Tokens

NAME = "simile_packed"  # as transformers' attn_implementation
FAMILIES = ("bert", "roberta", "xlm-roberta")
_AFTER_PAD = ("roberta", "xlm-roberta")  # their first position follows that of the padding
_TEXTS = 128  # texts of one forward pass without gradients; larger passes are not faster
# Tokens including padding, on a CPU. glibc maps an array over 32 MB again each time, which took a third more
# time.
_TOKENS = 4096
# R T^2 of the texts whose attention a CPU computes at once. With the scores of a whole batch of documents, a
# step took 28 % more time (docs/PERFORMANCE.md).
_SCORES = 1 << 18
# Maximum ratio of padded to real scores, so that queries are not padded to the length of documents.
_PADDED = 4


class Packing(NamedTuple):
    """The positions of packed tokens in the padded layout of R texts with T tokens each, shape (R, T)."""

    at: Tensor  # int64 (tokens,): r * T + t
    mask: Tensor  # bool (R, T), true on tokens
    causal: bool = False  # a token sees only itself and earlier tokens
    full: bool = False  # no text needs padding
    parts: tuple[Packing, ...] = ()  # neighboring texts whose attention is computed at once


def build_packing(tokens: Tokens, device: torch.device, *, causal: bool = False) -> Packing:
    lengths, rows, places = tokens.lengths, tokens.rows(), tokens.places()
    ends = lengths.cumsum(0).tolist()

    def packing_of_texts(texts: slice) -> Packing:
        own = slice(ends[texts.start - 1] if texts.start else 0, ends[texts.stop - 1])
        longest = int(lengths[texts].max())
        mask_RT = torch.arange(longest) < lengths[texts, None]
        at = (rows[own] - texts.start) * longest + places[own]
        return Packing(at.to(device), mask_RT.to(device), causal, bool(mask_RT.all()))

    whole = packing_of_texts(slice(0, len(lengths)))
    if device.type != "cpu":
        return whole
    return whole._replace(parts=tuple(map(packing_of_texts, _parts(lengths.tolist()))))


def _parts(lengths: Sequence[int]) -> Iterator[slice]:
    """Splits texts into groups of neighbors with similar lengths.

    The attention scores of a group have at most _SCORES elements, unless the group is a single text.
    """
    start, longest, real = 0, 0, 0
    for text, length in enumerate(lengths):
        longest, real = max(longest, length), real + length**2
        padded = (text + 1 - start) * longest**2
        if text > start and padded > min(_SCORES, _PADDED * real):
            yield slice(start, text)
            start, longest, real = text, length, length**2
    yield slice(start, len(lengths))


def build_groups(lengths: Tensor, device: torch.device) -> Iterator[Tensor]:
    """Groups texts of similar length for forward passes without gradients.

    The longest texts come first, so memory errors occur early.

    Args:
        lengths: Tokens of each text, int64, shape (R,).
        device: Device of the forward passes.

    Yields:
        The indices of the texts of one forward pass, int64.

    """
    order = lengths.argsort(descending=True, stable=True)
    at = 0
    while at < len(order):
        room = _TOKENS // max(1, int(lengths[order[at]])) if device.type == "cpu" else _TEXTS
        group = order[at : at + min(_TEXTS, max(1, room))]
        at += len(group)
        yield group


def compute_positions(tokens: Tokens, family: str, pad_id: int) -> Tensor:
    """Returns the position id of each token, as models of `family` count them, int64, shape (tokens,)."""
    places = tokens.places() if tokens.positions is None else tokens.positions
    return places + (pad_id + 1 if family in _AFTER_PAD else 0)


def get_attention(config: Mapping[str, Any]) -> str | None:
    """Returns the name of the attention with which to load a backbone, or None for the default."""
    return NAME if config.get("model_type") in FAMILIES else None


def run_backbone(
    backbone: Any, tokens: Tokens, packing: Packing, family: str, pad_id: int, *, states: bool = False
) -> tuple[Tensor, tuple[Tensor, ...]]:
    """Runs a backbone on packed tokens. Pads them for families that are not in `FAMILIES`.

    Returns:
        The token vectors of the last layer, shape (tokens, D). And, if `states` is True, the token vectors of
        the embeddings and of every layer. Otherwise the second value has no meaning.

    """
    device = packing.at.device
    if family in FAMILIES and not len(tokens.ids):  # empty texts, and a tokenizer without special tokens
        nothing = torch.empty(0, backbone.config.hidden_size, device=device)
        return nothing, (nothing, nothing)  # pooling reads the first and the last state
    if family in FAMILIES:
        found = backbone(
            input_ids=tokens.ids[None].to(device),
            position_ids=compute_positions(tokens, family, pad_id)[None].to(device),
            packing=packing,
            output_hidden_states=states,
        )
        return found.last_hidden_state[0], tuple(state[0] for state in found.hidden_states or ())
    ids_RT, mask_RT = (x.to(device) for x in tokens.padded(pad_id))
    found = backbone(input_ids=ids_RT, attention_mask=mask_RT, output_hidden_states=states)
    packed = tuple(unpad(state, packing) for state in found.hidden_states or ())
    return unpad(found.last_hidden_state, packing), packed


def pad(x: Tensor, packing: Packing) -> Tensor:
    """Converts a packed tensor of shape (tokens, …) to (R, T, …), padded with zeros."""
    rows, longest = packing.mask.shape
    if packing.full:
        return x.reshape(rows, longest, *x.shape[1:])
    padded = x.new_zeros((rows * longest, *x.shape[1:])).index_copy_(0, packing.at, x)
    return padded.reshape(rows, longest, *x.shape[1:])


def unpad(x_RT: Tensor, packing: Packing) -> Tensor:
    """Converts a padded tensor of shape (R, T, …) to (tokens, …)."""
    if packing.full:
        return x_RT.flatten(0, 1)
    packed: Tensor = _Collect.apply(x_RT.flatten(0, 1), packing.at)  # type: ignore[no-untyped-call]
    return packed


class _Collect(torch.autograd.Function):
    """Selects rows at distinct indices. The gradient is a copy, because no row is selected twice."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, at: Tensor) -> Tensor:
        ctx.save_for_backward(at)
        ctx.shape = x.shape
        return x.index_select(0, at)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        zeros = gradients[0].new_zeros(ctx.shape)
        return zeros.index_copy_(0, ctx.saved_tensors[0], gradients[0]), None


def _attention(
    _module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    _mask: Tensor | None,
    *,
    packing: Packing,
    dropout: float = 0.0,
    scaling: float | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    """Computes attention for packed tokens, with the signature that transformers expects.

    Inputs have shape (1, heads, tokens, d), and the result has shape (1, tokens, heads, d).
    """
    parts = packing.parts or (packing,)
    # Split instead of sliced: the gradient of a slice is as large as the whole tensor.
    sizes = [len(part.at) for part in parts]
    split = (torch.split(x[0].transpose(0, 1), sizes) for x in (query, key, value))
    mixed = [_mixed(q, k, v, part, dropout, scaling) for q, k, v, part in zip(*split, parts, strict=True)]
    return (mixed[0] if len(mixed) == 1 else torch.cat(mixed))[None], None


def _mixed(
    query: Tensor, key: Tensor, value: Tensor, packing: Packing, dropout: float, scaling: float | None
) -> Tensor:
    """Computes attention within each text. All tensors have shape (tokens, heads, d)."""
    q_RHTd, k_RHTd, v_RHTd = (pad(x, packing).transpose(1, 2) for x in (query, key, value))
    mask_R1TT = None if packing.full else packing.mask[:, None, None, :]
    if packing.causal:
        longest = packing.mask.shape[1]
        earlier = torch.ones(longest, longest, dtype=torch.bool, device=query.device).tril()
        mask_R1TT = earlier if mask_R1TT is None else mask_R1TT & earlier
    # On a CPU, fused attention trains three times as slowly, but takes half to three quarters of the time in
    # inference. It is not used under no_grad, because a large batch is encoded once without and once
    # with gradients.
    if query.device.type == "cpu" and not torch.is_inference_mode_enabled():
        scale = q_RHTd.shape[-1] ** -0.5 if scaling is None else scaling
        scores = (q_RHTd * scale) @ k_RHTd.transpose(-1, -2)
        if mask_R1TT is not None:
            # A sum, because the gradient of masked_fill is another pass over all scores.
            scores += torch.zeros_like(mask_R1TT, dtype=scores.dtype).masked_fill_(~mask_R1TT, -torch.inf)
        weights = scores.softmax(-1).to(v_RHTd.dtype)
        mixed = drop(weights, dropout) @ v_RHTd
    else:
        mixed = F.scaled_dot_product_attention(
            q_RHTd, k_RHTd, v_RHTd, attn_mask=mask_R1TT, dropout_p=dropout, scale=scaling
        )
    return unpad(mixed.transpose(1, 2), packing)


AttentionInterface.register(NAME, _attention)
