"""Routes with the field names of text-embeddings-inference (TEI): embeddings, similarity and tokens.

`/tokenize` and `/decode` do not truncate texts, so only settings bound the work of a request. A pool of two
threads does this work in steps. The work stops when its request ends.
"""

import asyncio
import threading
from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import islice
from typing import Annotated, Any, Literal, TypeAlias

import numpy as np
import orjson
from fastapi import APIRouter, Request
from pydantic import BaseModel, BeforeValidator, Field, RootModel, StrictBool, StrictStr
from starlette.responses import Response

from models.encoder import BadInput, Encoder
from models.manifest import Manifest
from service.api.embedding import (
    VERSION_HEADER,
    Plan,
    Rows,
    check_count,
    check_dimensions,
    embed,
    get_prompt,
    parse_inputs,
    parse_texts,
    parse_token_rows,
    pinned,
    with_prompt,
)
from service.api.openapi import (
    EMBEDS,
    TIMED,
    VERSIONED,
    Dimensions,
    Inputs,
    OpenTo,
    Role,
    ShownAs,
    Text,
    Texts,
    TokenIds,
    TokenRows,
    describe,
    exactly_one,
    example,
)
from service.errors import Conflict, Empty, NotFound, ServiceError, Tokenizer, Validation
from service.http.bodies import json_response, validated
from service.http.routing import RoleRoute
from service.runtime.runtime import Runtime, Service
from service.settings import Settings

router = APIRouter(route_class=RoleRoute, tags=["embedding"])

RAW = "application/octet-stream"
_ROWS = {"x-embedding-shape": {"description": f"Rows, columns; with {RAW}", "schema": {"type": "string"}}}
_INFERS: dict[str, Any] = {"open_to": OpenTo.SCOPED, "raises": EMBEDS, "headers": TIMED}
_EMBEDS: dict[str, Any] = _INFERS | {"headers": {**TIMED, **_ROWS}, "also": [RAW]}
_SAYS: dict[str, Any] = _INFERS | {"raises": (NotFound, Conflict, Tokenizer), "headers": VERSIONED}
_SLICE = 4096  # tokens written as JSON in one call, which holds the interpreter lock
Steps: TypeAlias = Generator[None, None, bytes]
_threads = ThreadPoolExecutor(2, thread_name_prefix="tokens")


Direction = Annotated[
    Literal["Right", "Left"],
    BeforeValidator(lambda value: value.capitalize() if isinstance(value, str) else value),
    ShownAs(Annotated[str, Field(pattern="^([Rr][Ii][Gg][Hh][Tt]|[Ll][Ee][Ff][Tt])$")]),
]


class Parameters(BaseModel):
    """Options of a request: how a long text is truncated, and which prompt is put before each text."""

    truncate: bool | None = Field(None, strict=True)  # null: the server's default, which is true
    truncation_direction: Direction = "Right"
    prompt_name: StrictStr | None = None


class EmbedParameters(Parameters):
    normalize: bool = Field(True, strict=True)
    dimensions: Dimensions | None = None


class EmbedRequest(EmbedParameters):
    model_config = example({"inputs": ["A first sentence.", "A second one."]})
    inputs: Inputs
    model: StrictStr | None = None
    # Clients of Hugging Face's hub send options here. The same option next to `inputs` takes precedence.
    parameters: EmbedParameters | None = None


class SimilarityInputs(BaseModel):
    source_sentence: Text
    sentences: Annotated[list[Any], ShownAs(Texts)]


_Pair = Annotated[list[Text], Field(min_length=2, max_length=2)]


class SimilarityRequest(BaseModel):
    """A request for cosines.

    `inputs` compares one sentence with others, as in TEI. `pairs` compares the two texts of each pair.
    """

    model_config = example(
        {"pairs": [["How old are you?", "What is your age?"]]}, **exactly_one(inputs="object", pairs="array")
    )
    inputs: SimilarityInputs | None = None
    parameters: Parameters | None = None
    pairs: Annotated[list[Any], ShownAs(Annotated[list[_Pair], Field(min_length=1)])] | None = None
    model: StrictStr | None = None


class RootRequest(EmbedRequest):
    """A request to `/`: the fields of `/embed`, or those of `/similarity` if `inputs` is an object."""

    inputs: Annotated[Any, ShownAs(Text | Texts | TokenIds | TokenRows | SimilarityInputs)]


class Embeddings(RootModel[list[list[float]]]):
    """A vector for each input."""


class Similarities(RootModel[list[float]]):
    """A cosine for each sentence, or for each pair."""


class RootAnswer(RootModel[list[list[float]] | list[float]]):
    """The answer of `/embed` or of `/similarity`."""


@router.post("/embed", **describe(Role.READ, Embeddings, **_EMBEDS))
async def embed_texts(request: Request, runtime: Service, body: EmbedRequest) -> Response:
    """Embed texts. The answer is a list of vectors.

    With `Accept: application/octet-stream` the answer is raw little-endian float32 values.
    """
    options = _options(body)

    rows = parse_inputs(body.inputs, runtime.settings)

    def prepare(manifest: Manifest) -> Rows:
        if body.parameters is not None:  # Also if the option next to `inputs` takes precedence.
            check_dimensions(body.parameters.dimensions, manifest.dimension)
        return with_prompt(rows, manifest, options.prompt_name)

    plan = Plan(
        rows=rows,
        model=body.model,
        prepare=prepare,
        truncate=options.truncate is not False,
        left=options.truncation_direction == "Left",
        normalize=options.normalize,
        dimensions=options.dimensions,
    )
    embedded = await embed(request, runtime, plan)
    vectors, headers = embedded.vectors, embedded.headers
    if RAW in request.headers.get("accept", ""):
        headers["x-embedding-shape"] = f"{vectors.shape[0]},{vectors.shape[1]}"
        return Response(vectors.astype("<f4", copy=False).tobytes(), 200, headers, RAW)
    return json_response(vectors, headers)


@router.post("/similarity", **describe(Role.READ, Similarities, **_INFERS))
async def compare_texts(request: Request, runtime: Service, body: SimilarityRequest) -> Response:
    """Compute cosines, between one sentence and each of several others, or between the texts of each pair."""
    left, right = _sides(body, runtime.settings.max_inputs)
    options = body.parameters or Parameters()
    rows = [*left, *right]
    plan = Plan(
        rows=rows,
        model=body.model,
        prepare=partial(with_prompt, rows, name=options.prompt_name),
        truncate=options.truncate is not False,
        left=options.truncation_direction == "Left",
    )
    embedded = await embed(request, runtime, plan)
    a, b = embedded.vectors[: len(left)], embedded.vectors[len(left) :]
    # A single left side is compared with every right side. Rounding may exceed the range of a cosine.
    cosines = np.einsum("nd,nd->n", np.broadcast_to(a, b.shape), b).clip(-1, 1)
    return json_response(cosines, embedded.headers)


@router.post("/", **describe(Role.READ, RootAnswer, **_EMBEDS))
async def embed_or_compare_texts(request: Request, runtime: Service, body: RootRequest) -> Response:
    """Embed texts as `/embed` does, or compare them as `/similarity` does if `inputs` is an object.

    huggingface_hub sends its requests to this route.
    """
    if not isinstance(body.inputs, dict):
        return await embed_texts(request, runtime, body)
    inputs = validated(SimilarityInputs, body.inputs, "inputs")
    compared = SimilarityRequest(inputs=inputs, parameters=_options(body), model=body.model)
    return await compare_texts(request, runtime, compared)


def _options(body: EmbedRequest) -> EmbedParameters:
    """Returns the options of the body, completed with options from the body's `parameters`."""
    inner = body.parameters
    if inner is None:
        return body
    unset = inner.model_fields_set - body.model_fields_set
    return body.model_copy(update={name: getattr(inner, name) for name in unset})


def _sides(body: SimilarityRequest, limit: int) -> tuple[list[str], list[str]]:
    """Returns two lists of texts to compare.

    The first list has one text, or as many texts as the second list.
    """
    if (body.inputs is None) == (body.pairs is None):
        raise Validation(
            "Send either inputs (source_sentence and sentences) or pairs, not both and not neither."
        )
    if body.inputs is not None:
        left = parse_texts([body.inputs.source_sentence], limit, "source_sentence", single=True)
        return left, parse_texts(body.inputs.sentences, limit, "sentences")
    pairs = body.pairs or []
    if not pairs:
        raise Empty("pairs is an empty list. Send at least one pair.")
    for at, pair in enumerate(pairs):
        if not isinstance(pair, list) or len(pair) != 2:
            raise Validation(f"pairs[{at}] must be a list of two texts.")
    check_count([text for pair in pairs for text in pair], limit, "pairs, as a flat list,")
    checked = [parse_texts(pair, 2, f"pairs[{at}]") for at, pair in enumerate(pairs)]
    return [left for left, _ in checked], [right for _, right in checked]


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
    """Tokenize texts without truncation.

    `start` and `stop` count characters of the text with its prompt, and are null for special tokens.
    """
    single = isinstance(body.inputs, str)
    inputs = [body.inputs] if single else body.inputs
    if not isinstance(inputs, list):
        raise Validation("inputs must be a text, or a list of texts.")
    texts = parse_texts(inputs, runtime.settings.max_inputs, "inputs", single=single)
    limit = runtime.settings.max_tokenize_characters

    def work(encoder: Encoder) -> Steps:
        prompt = get_prompt(body.prompt_name, encoder.manifest)
        count = len(prompt) * len(texts) + sum(map(len, texts))
        if count > limit:
            raise Validation(
                f"inputs have {count} characters; at most {limit} (SIMILE_MAX_TOKENIZE_CHARACTERS) are "
                "tokenized in one request. Send them in parts."
            )
        return _tokens(encoder, prompt, texts, body.add_special_tokens)

    return await _answer_in_steps(request, runtime, body.model, work)


@router.post("/decode", **describe(Role.READ, DecodedTexts, **_SAYS))
async def turn_token_ids_into_texts(request: Request, runtime: Service, body: DecodeRequest) -> Response:
    """Decode rows of token ids into one text per row. A text may differ from the one that was tokenized."""
    settings = runtime.settings

    def work(encoder: Encoder) -> Steps:
        return _texts(encoder, body.ids, settings, body.skip_special_tokens)

    return await _answer_in_steps(request, runtime, body.model, work)


async def _answer_in_steps(
    request: Request, runtime: Runtime, model: str | None, work: Callable[[Encoder], Steps]
) -> Response:
    """Runs `work` on another thread and answers with the result.

    If the request ends early, the work stops at the next step.
    """
    left = threading.Event()
    with runtime.active.borrow(pinned(request, model, runtime)) as generation:
        steps = work(generation.encoder)
        try:
            content = await asyncio.get_running_loop().run_in_executor(_threads, _stepwise, steps, left)
        finally:
            left.set()
        return Response(content, 200, {VERSION_HEADER: generation.version}, "application/json")


def _stepwise(steps: Steps, left: threading.Event) -> bytes:
    while not left.is_set():
        try:
            next(steps)
        except StopIteration as end:
            content: bytes = end.value
            return content
    return b""


def _tokens(encoder: Encoder, prompt: str, texts: list[str], add_special_tokens: bool) -> Steps:
    rows = []
    for at, text in enumerate(texts):
        yield
        try:
            pieces = encoder.pieces(prompt + text, add_special_tokens=add_special_tokens)
        except Exception as error:  # of any type: the tokenizers library has no common one
            raise _refusal(error, f"inputs[{at}]") from error
        parts = []
        while part := [piece._asdict() for piece in islice(pieces, _SLICE)]:
            parts.append(orjson.dumps(part)[1:-1])
            yield
        rows.append(b"[" + b",".join(parts) + b"]")
    return b"[" + b",".join(rows) + b"]"


def _texts(encoder: Encoder, ids: object, settings: Settings, skip_special_tokens: bool) -> Steps:
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
    return Tokenizer(f"{where} could not be tokenized: {type(error).__name__}: {error}")
