"""Items of text get their token ids, and one that cannot be tokenized is refused alone."""

import asyncio
import logging
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import NamedTuple

from models.encoder import Encoder, Tokens
from models.errors import BadInput, BadText, BadTokens, TooLong
from service.batching.request import Item, Source
from service.errors import ServiceError, Tokenizer, Validation

log = logging.getLogger(__name__)

LONG_CHARACTERS = 100_000
_threads = ThreadPoolExecutor(2, thread_name_prefix="long-texts")
CHARACTERS_PER_TOKEN = 4  # English under WordPiece; only an estimate, until a text is tokenized


def estimate(source: Source, encoder: Encoder) -> int:
    """Number of tokens that `source` will have, about."""
    tokens = len(source) // CHARACTERS_PER_TOKEN + 2 if isinstance(source, str) else len(source)
    return min(tokens, encoder.max_length)


class Refusal(NamedTuple):
    """The reason why a text cannot be tokenized, without the exception: its frames would keep the text."""

    kind: type[ServiceError]
    words: str

    def at(self, position: int) -> ServiceError:
        """The error for a call whose input at `position` it is."""
        return self.kind(f"Input {position}{self.words}")


async def refuse_long_texts(encoder: Encoder, inputs: Sequence[Source]) -> None:
    """Count huge texts that must not be cut away from the workers: megabytes would hold one for seconds.

    On two threads, and no further once the caller is gone.

    Raises:
        Validation: one has more tokens than the model takes.

    """
    left = threading.Event()
    loop = asyncio.get_running_loop()
    try:
        for position, source in enumerate(inputs):
            if isinstance(source, str) and len(source) > LONG_CHARACTERS:
                try:
                    await loop.run_in_executor(_threads, partial(_count, encoder, source, left))
                except BadInput as error:
                    raise _refusal(error).at(position) from error
    finally:
        left.set()


def _count(encoder: Encoder, text: str, left: threading.Event) -> None:
    encoder.tokenize([text], truncate=False, wanted=lambda: not left.is_set())


def tokenize(items: list[Item]) -> list[tuple[Item, Refusal]]:
    """Fill in `ids` of each item; those that were refused stay without, and come back with the reason."""
    refused: list[tuple[Item, Refusal]] = []
    for alike in _by_options(items):
        for item, outcome in zip(alike, _tokens_of(alike), strict=True):
            if isinstance(outcome, Refusal):
                refused.append((item, outcome))
            elif not outcome.ids:  # a model without special tokens, and a text of which nothing is left
                nothing = ": the model's tokenizer leaves nothing of this text."
                refused.append((item, Refusal(Validation, nothing)))
            else:
                item.ids, item.truncated = outcome.ids, outcome.truncated
    return refused


def _by_options(items: list[Item]) -> list[list[Item]]:
    """Items that one tokenizer call can take together: same encoder and side, and none may be refused."""
    groups: dict[object, list[Item]] = {}
    for item in items:
        call = item.call
        apart = not call.truncate or not isinstance(item.source, str)
        groups.setdefault(id(item) if apart else (id(call.encoder), call.left), []).append(item)
    return list(groups.values())


def _tokens_of(items: list[Item]) -> list[Tokens | Refusal]:
    """An outcome for each item. When the tokenizer refuses the items together, each is tried by itself."""
    call = items[0].call
    try:
        if not isinstance(items[0].source, str):
            return [call.encoder.check_ids(items[0].source, truncate=call.truncate, left=call.left)]
        texts = [str(item.source) for item in items]
        return list(call.encoder.tokenize(texts, truncate=call.truncate, left=call.left))
    except Exception as error:  # noqa: BLE001  it belongs to one item
        if len(items) > 1:
            return [outcome for item in items for outcome in _tokens_of([item])]
        return [_refusal(error)]


def _refusal(error: Exception) -> Refusal:
    if isinstance(error, TooLong):
        words = f" has {error.given} tokens and the model takes {error.allowed}."
        return Refusal(Validation, f"{words} Shorten it, or leave truncation on.")
    if isinstance(error, BadTokens):
        return Refusal(
            Validation,
            f": {error} Another tokenizer's ids are the usual cause: send texts "
            "(in LangChain, check_embedding_ctx_length=False).",
        )
    if isinstance(error, BadText):
        return Refusal(Validation, f": {error}")
    log.error("The tokenizer failed", exc_info=error)
    return Refusal(Tokenizer, f" could not be tokenised: {type(error).__name__}: {error}")
