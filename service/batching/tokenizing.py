"""Tokenizes items in groups, and rejects single items that fail. Start reading at `tokenize`."""

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
CHARACTERS_PER_TOKEN = 4  # estimate for English with WordPiece


def estimate(source: Source, encoder: Encoder) -> int:
    tokens = len(source) // CHARACTERS_PER_TOKEN + 2 if isinstance(source, str) else len(source)
    return min(tokens, encoder.max_length)


class Refusal(NamedTuple):
    """The reason why a text is rejected. Holds no exception, because its frames would keep the text."""

    kind: type[ServiceError]
    words: str

    def at(self, position: int) -> ServiceError:
        return self.kind(f"Input {position}{self.words}")


async def refuse_long_texts(encoder: Encoder, inputs: Sequence[Source]) -> None:
    """Rejects huge texts that exceed the model's limit.

    Counts their tokens on two separate threads, because megabytes of text would block a worker for seconds.
    Stops counting when the caller is cancelled.

    Raises:
        Validation: A text has more tokens than the model accepts.

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
    """Sets the `ids` of each item. Returns the rejected items with their reasons."""
    refused: list[tuple[Item, Refusal]] = []
    for alike in _by_options(items):
        for item, outcome in zip(alike, _tokens_of(alike), strict=True):
            if isinstance(outcome, Refusal):
                refused.append((item, outcome))
            elif not outcome.ids:  # The model has no special tokens, and the text has no tokens.
                nothing = ": the model's tokenizer finds no tokens in this text."
                refused.append((item, Refusal(Validation, nothing)))
            else:
                item.ids, item.truncated = outcome.ids, outcome.truncated
    return refused


def _by_options(items: list[Item]) -> list[list[Item]]:
    """Groups items that one tokenizer call can process: same encoder and side, without rejections."""
    groups: dict[object, list[Item]] = {}
    for item in items:
        call = item.call
        apart = not call.truncate or not isinstance(item.source, str)
        groups.setdefault(id(item) if apart else (id(call.encoder), call.left), []).append(item)
    return list(groups.values())


def _tokens_of(items: list[Item]) -> list[Tokens | Refusal]:
    """Returns the outcome of each item. If the tokenizer rejects a group, each item is tried by itself."""
    call = items[0].call
    try:
        if not isinstance(items[0].source, str):
            return [call.encoder.check_ids(items[0].source, truncate=call.truncate, left=call.left)]
        texts = [str(item.source) for item in items]
        return list(call.encoder.tokenize(texts, truncate=call.truncate, left=call.left))
    except Exception as error:  # noqa: BLE001  the error belongs to one item
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
            f": {error} The ids probably come from another tokenizer. Send texts instead "
            "(in LangChain, check_embedding_ctx_length=False).",
        )
    if isinstance(error, BadText):
        return Refusal(Validation, f": {error}")
    log.error("The tokenizer failed", exc_info=error)
    return Refusal(Tokenizer, f" could not be tokenised: {type(error).__name__}: {error}")
