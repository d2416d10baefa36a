"""Rows of text become rows of token ids, and a row that cannot be tokenised is refused alone."""

import asyncio
import logging
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from models.encoder import Encoder, Tokens
from models.errors import BadInput, BadText, BadTokens, TooLong
from service.batching.request import Item, Source
from service.errors import ServiceError, Tokenizer, Validation

log = logging.getLogger(__name__)

LONG_CHARACTERS = 100_000
_threads = ThreadPoolExecutor(2, thread_name_prefix="long-texts")
CHARACTERS_PER_TOKEN = 4  # English under WordPiece; only an estimate, until a text is tokenised


def estimate(source: Source, encoder: Encoder) -> int:
    """About how many tokens `source` will have."""
    tokens = len(source) // CHARACTERS_PER_TOKEN + 2 if isinstance(source, str) else len(source)
    return min(tokens, encoder.max_length)


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
                    raise _refusal(error, position) from error
    finally:
        left.set()


def _count(encoder: Encoder, text: str, left: threading.Event) -> None:
    encoder.tokenize([text], truncate=False, wanted=lambda: not left.is_set())


def tokenise(rows: list[Item]) -> list[tuple[Item, ServiceError]]:
    """Fill in `ids` of each row; the rows that were refused stay without, and come back with the reason."""
    refused: list[tuple[Item, ServiceError]] = []
    for alike in _by_options(rows):
        for row, outcome in zip(alike, _tokens_of(alike), strict=True):
            if isinstance(outcome, ServiceError):
                refused.append((row, outcome))
            elif not outcome.ids:  # a model without special tokens, and a text of which nothing is left
                words = f"Input {row.position}: the model's tokenizer leaves nothing of this text."
                refused.append((row, Validation(words)))
            else:
                row.ids = outcome.ids
                row.call.truncated[row.position] = outcome.truncated
    return refused


def _by_options(rows: list[Item]) -> list[list[Item]]:
    """Rows that one tokenizer call can take together: same encoder and side, and none that may be refused."""
    groups: dict[object, list[Item]] = {}
    for row in rows:
        call = row.call
        alone = not call.truncate or not isinstance(row.source, str)
        groups.setdefault(id(row) if alone else (id(call.encoder), call.left), []).append(row)
    return list(groups.values())


def _tokens_of(rows: list[Item]) -> list[Tokens | ServiceError]:
    """One outcome per row. When the tokenizer refuses the rows together, each is tried alone."""
    call = rows[0].call
    try:
        if not isinstance(rows[0].source, str):
            return [call.encoder.check_ids(rows[0].source, truncate=call.truncate, left=call.left)]
        texts = [str(row.source) for row in rows]
        return list(call.encoder.tokenize(texts, truncate=call.truncate, left=call.left))
    except Exception as error:  # noqa: BLE001  worded below, for the row it belongs to
        if len(rows) > 1:
            return [outcome for row in rows for outcome in _tokens_of([row])]
        return [_refusal(error, rows[0].position)]


def _refusal(error: Exception, position: int) -> ServiceError:
    if isinstance(error, TooLong):
        return Validation(
            f"Input {position} has {error.given} tokens and the model takes {error.allowed}. "
            "Shorten it, or leave truncation on."
        )
    if isinstance(error, BadTokens):
        return Validation(
            f"Input {position}: {error} Another tokenizer's ids are the usual cause: send texts "
            "(in LangChain, check_embedding_ctx_length=False)."
        )
    if isinstance(error, BadText):
        return Validation(f"Input {position}: {error}")
    log.error("The tokenizer failed", exc_info=error)
    return Tokenizer(f"Input {position} could not be tokenised: {type(error).__name__}: {error}")
