"""Prompt templates: text around every text, and the [MASK] in it whose vector stands for the text.

    this sentence of "{}" means [MASK].

The tokenizer itself puts the template around a text: in tokenizer.json its ids are special tokens of the
post-processor, as [CLS] and [SEP] are. So every reader of the file does it, truncation cuts the text and
leaves the template whole, and a [MASK] in somebody's text is a token like any other. The method: PromptBERT
(Jiang et al., 2022). Not here: the templates themselves, and training with them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from models.errors import Unsupported
from models.graph.head import mask_distance
from models.tokens.opening import affixes, open_tokenizer

SLOT = "{}"
MASK = "[MASK]"
_BEFORE, _AFTER = "template:before", "template:after"


def with_template(tokenizer: Mapping[str, Any], template: str) -> tuple[dict[str, Any], int]:
    """A tokenizer.json that puts `template` around each text, and K: the pooling is `mask:K`.

    tokenizer: the content of tokenizer.json. template: with one `{}` and after it one [MASK], which stands
        for the tokenizer's own mask token; what is before and after `{}` is tokenised by itself.
    K: how many tokens before the row's last one the [MASK] is. Raise Unsupported.
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
    """True if `with_template` made it."""
    return _BEFORE in ((tokenizer.get("post_processor") or {}).get("special_tokens") or {})


def check_places(tokenizer: Mapping[str, Any], pooling: Iterable[str]) -> None:
    """Raise Unsupported when a `mask:K` of `pooling` is no mask token of the tokenizer's template."""
    distances = [mask_distance(mode) or 0 for mode in pooling if mode.startswith("mask:")]
    if not distances:
        return
    opened = open_tokenizer(tokenizer)
    _, mask = _mask(tokenizer)
    _, after = affixes(opened)
    for distance in distances:
        if distance >= len(after) or after[-1 - distance] != mask:
            raise Unsupported(
                f"The pooling mask:{distance} does not meet the {MASK} of a template: "
                f"after a text tokenizer.json puts {[opened.id_to_token(id) for id in after]}."
            )


def _mask(tokenizer: Mapping[str, Any]) -> tuple[str, int]:
    """The mask token and its id."""
    for token in tokenizer.get("added_tokens") or []:
        if token["content"] in (MASK, "<mask>"):
            return token["content"], token["id"]
    raise Unsupported("The tokenizer has no mask token: a template needs a masked language model.")


def _special(name: str) -> dict[str, Any]:
    return {"SpecialToken": {"id": name, "type_id": 0}}


def _text(name: str, type_id: int) -> dict[str, Any]:
    return {"Sequence": {"id": name, "type_id": type_id}}
