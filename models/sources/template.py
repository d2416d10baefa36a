"""Reads prompt templates of PromptBERT (Jiang et al., 2022). Start at `with_template`.

In such a model, the vector of the token [MASK] represents the text. This is a template:

    this sentence of "{}" means [MASK].

The template becomes a part of tokenizer.json: its ids are special tokens, like [CLS] and [SEP]. So every tool
adds the template, and truncation never cuts it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from models.errors import Unsupported
from models.graph.head import mask_distance
from models.tokens.tokenizer import affixes, open_tokenizer

SLOT = "{}"
MASK = "[MASK]"
_BEFORE, _AFTER = "template:before", "template:after"


def with_template(tokenizer: Mapping[str, Any], template: str) -> tuple[dict[str, Any], int]:
    """Adds a template to a tokenizer.

    Args:
        tokenizer: The content of tokenizer.json.
        template: A text that contains `{}` once, and [MASK], the tokenizer's mask token, once after it.

    Returns:
        The new content of tokenizer.json, and K, the number of tokens from the [MASK] to the last token. The
        pooling for this template is `mask:K`.

    Raises:
        Unsupported: The template is malformed, or the tokenizer already has a template, or has no mask token.
    """
    opened = open_tokenizer(tokenizer)
    start, end = affixes(opened)
    if has_template(tokenizer):
        raise Unsupported("The tokenizer has a template already: give one without.")
    mask_token, mask = _mask(tokenizer)
    left, slot, right = template.partition(SLOT)
    if not slot or SLOT in right:
        raise Unsupported(f"The template must have {SLOT} once, for the text: {template!r}.")
    before, after = (
        opened.encode(part.replace(MASK, mask_token), add_special_tokens=False).ids for part in (left, right)
    )
    if before.count(mask) or after.count(mask) != 1:
        raise Unsupported(f"The template must have {MASK} once, and after the text: {template!r}.")
    affix = {_BEFORE: [*start, *before], _AFTER: [*after, *end]}
    around = [_special(_BEFORE), _text("A", 0), _special(_AFTER)]
    processor = {
        "type": "TemplateProcessing",
        "single": around,
        "pair": [*around, _text("B", 1)],
        "special_tokens": {
            name: {"id": name, "ids": ids, "tokens": [opened.id_to_token(id) for id in ids]}
            for name, ids in affix.items()
        },
    }
    return dict(tokenizer) | {"post_processor": processor}, len(affix[_AFTER]) - 1 - after.index(mask)


def has_template(tokenizer: Mapping[str, Any]) -> bool:
    """Returns True if the tokenizer has a template."""
    return _BEFORE in ((tokenizer.get("post_processor") or {}).get("special_tokens") or {})


def check_places(tokenizer: Mapping[str, Any], pooling: Iterable[str]) -> None:
    """Raises Unsupported if a pooling `mask:K` does not point to the mask token of the template."""
    distances = [mask_distance(mode) or 0 for mode in pooling if mode.startswith("mask:")]
    if not distances:
        return
    opened = open_tokenizer(tokenizer)
    _, mask = _mask(tokenizer)
    _, after = affixes(opened)
    for distance in distances:
        if distance >= len(after) or after[-1 - distance] != mask:
            raise Unsupported(
                f"The pooling mask:{distance} does not point to the {MASK} of a template: "
                f"tokenizer.json adds {[opened.id_to_token(id) for id in after]} after a text."
            )


def _mask(tokenizer: Mapping[str, Any]) -> tuple[str, int]:
    """Returns the text and the id of the mask token."""
    for token in tokenizer.get("added_tokens") or []:
        if token["content"] in (MASK, "<mask>"):
            return token["content"], token["id"]
    raise Unsupported("The tokenizer has no mask token: a template needs a masked language model.")


def _special(name: str) -> dict[str, Any]:
    return {"SpecialToken": {"id": name, "type_id": 0}}


def _text(name: str, type_id: int) -> dict[str, Any]:
    return {"Sequence": {"id": name, "type_id": type_id}}
