"""Tokens of texts and texts of tokens, with text-embeddings-inference's field names.

Texts are not cut, so only settings bound the work. Two threads of their own do it in steps, and stop when the
request ends.
"""

import asyncio
import threading
from collections.abc import Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from typing import Annotated, Any

import orjson
from fastapi import APIRouter, Request
from pydantic import BaseModel, Field, RootModel, StrictBool, StrictStr
from starlette.responses import Response

from models.encoder import BadInput, Encoder, Piece
from service.api.embedding import VERSION_HEADER, get_prompt, parse_texts, parse_token_rows, pinned
from service.api.openapi import VERSIONED, Role, ShownAs, Text, Texts, TokenIds, TokenRows, describe, example
from service.errors import Conflict, NotFound, ServiceError, Tokenizer, Validation
from service.http.routing import RoleRoute
from service.runtime.runtime import Service
from service.settings import Settings

router = APIRouter(route_class=RoleRoute, tags=["embedding"])
_SAYS: dict[str, Any] = {"raises": (NotFound, Conflict, Tokenizer), "headers": VERSIONED}

_SLICE = 4096  # tokens written as JSON in one call, which holds the interpreter lock
_threads = ThreadPoolExecutor(2, thread_name_prefix="tokens")


class TokenizeRequest(BaseModel):
    model_config = example({"inputs": "A first sentence."})
    inputs: Annotated[Any, ShownAs(Text | Texts)]
    add_special_tokens: StrictBool = True
    prompt_name: StrictStr | None = None
    model: StrictStr | None = None


class DecodeRequest(BaseModel):
    model_config = example({"ids": [[5, 6, 7]]})
    ids: Annotated[Any, ShownAs(TokenIds | TokenRows)]
    skip_special_tokens: StrictBool = True
    model: StrictStr | None = None


class Token(BaseModel):
    id: int
    text: str
    special: bool
    start: int | None = Field(description="In characters of the text, a prompt included; null when special")
    stop: int | None


class Tokens(RootModel[list[list[Token]]]):
    """The tokens of each input."""


class DecodedTexts(RootModel[list[str]]):
    """The text of each row of ids."""


@router.post("/tokenize", **describe(Role.READ, Tokens, **_SAYS))
async def split_texts_into_tokens(request: Request, runtime: Service, body: TokenizeRequest) -> Response:
    """The tokens of each text, none cut; `start` and `stop` count characters, and are null on specials."""
    inputs = [body.inputs] if isinstance(body.inputs, str) else body.inputs
    if not isinstance(inputs, list):
        raise Validation("inputs must be a text, or a list of texts.")
    texts = parse_texts(inputs, runtime.settings.max_inputs, "inputs")
    with runtime.live.borrow(pinned(request, body.model, runtime)) as generation:
        encoder = generation.encoder
        prompt = get_prompt(body.prompt_name, encoder.manifest)
        _check_characters(len(prompt) * len(texts) + sum(map(len, texts)), runtime.settings)
        content = await _on_a_thread(_tokens(encoder, prompt, texts, body.add_special_tokens))
        return Response(content, 200, {VERSION_HEADER: generation.version}, "application/json")


@router.post("/decode", **describe(Role.READ, DecodedTexts, **_SAYS))
async def turn_token_ids_into_texts(request: Request, runtime: Service, body: DecodeRequest) -> Response:
    """The text of each row of ids, as far as the tokenizer can tell it."""
    settings = runtime.settings
    with runtime.live.borrow(pinned(request, body.model, runtime)) as generation:
        encoder = generation.encoder
        content = await _on_a_thread(_texts(encoder, body.ids, settings, body.skip_special_tokens))
        return Response(content, 200, {VERSION_HEADER: generation.version}, "application/json")


def _check_characters(count: int, settings: Settings) -> None:
    limit = settings.max_tokenize_characters
    if count > limit:
        raise Validation(
            f"inputs have {count} characters; at most {limit} (SIMILE_MAX_TOKENIZE_CHARACTERS) are tokenised "
            "in one request. Send them in parts."
        )


async def _on_a_thread(work: Generator[None, None, bytes]) -> bytes:
    """Returns the result of `work`, which stops at its next step when the request ends."""
    left = threading.Event()
    try:
        return await asyncio.get_running_loop().run_in_executor(_threads, _stepwise, work, left)
    finally:
        left.set()


def _stepwise(work: Generator[None, None, bytes], left: threading.Event) -> bytes:
    while not left.is_set():
        try:
            next(work)
        except StopIteration as end:
            content: bytes = end.value
            return content
    return b""


def _tokens(
    encoder: Encoder, prompt: str, texts: list[str], add_special_tokens: bool
) -> Generator[None, None, bytes]:
    rows = []
    for at, text in enumerate(texts):
        yield
        try:
            pieces = encoder.pieces(prompt + text, add_special_tokens=add_special_tokens)
        except Exception as error:  # of any type: the tokenizers library has no common one
            raise _refusal(error, f"inputs[{at}]") from error
        parts = []
        for part in _slices(pieces):
            parts.append(part)
            yield
        rows.append(b"[" + b",".join(parts) + b"]")
    return b"[" + b",".join(rows) + b"]"


def _slices(pieces: Iterator[Piece]) -> Iterator[bytes]:
    """Yields a JSON array in parts, without its brackets."""
    while part := [piece._asdict() for piece in islice(pieces, _SLICE)]:
        yield orjson.dumps(part)[1:-1]


def _texts(
    encoder: Encoder, ids: object, settings: Settings, skip_special_tokens: bool
) -> Generator[None, None, bytes]:
    kinds = "token ids, or a list of rows of them"
    most = settings.max_decode_ids
    rows = parse_token_rows(
        ids, settings.max_inputs, "ids", kinds, max_ids=most, setting="SIMILE_MAX_DECODE_IDS"
    )
    texts = []
    for at, row in enumerate(rows):
        yield
        try:
            texts.append(encoder.decode(row, skip_special_tokens=skip_special_tokens))
        except Exception as error:  # of any type: the tokenizers library has no common one
            raise _refusal(error, f"ids[{at}]") from error
    return orjson.dumps(texts)


def _refusal(error: Exception, where: str) -> ServiceError:
    if isinstance(error, BadInput):
        return Validation(f"{where}: {error}")
    return Tokenizer(f"{where} could not be tokenised: {type(error).__name__}: {error}")
