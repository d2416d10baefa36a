"""Embedding and similarity, with text-embeddings-inference's field names."""

import time
from typing import Annotated, Any

import numpy as np
from fastapi import APIRouter, Request
from pydantic import BaseModel, ConfigDict, Field, RootModel, StrictStr, WithJsonSchema
from starlette.responses import Response

from models.encoder import Encoder
from service.api.body import read_body, validated
from service.api.contract import EMBEDS, TIMED, Role, describe
from service.api.inference import (
    Dimensions,
    Direction,
    Inputs,
    Rows,
    check_dimensions,
    inference_headers,
    pinned,
    rows_of,
    shorten,
    texts_of,
    with_prompt,
)
from service.api.json_schemas import INPUTS, MANY_TEXTS, TEXT
from service.api.responses import json_response
from service.batching.request import Answer
from service.errors import Empty, Validation
from service.http.routing import Direct
from service.runtime.runtime import Runtime, runtime_of

router = APIRouter(route_class=Direct, tags=["embedding"])

RAW = "application/octet-stream"
_ROWS = {"x-embedding-shape": {"description": f"Rows, columns; with {RAW}", "schema": {"type": "string"}}}
_INFERS: dict[str, Any] = {"raises": EMBEDS, "headers": TIMED}
_EMBEDS: dict[str, Any] = {"raises": EMBEDS, "headers": {**TIMED, **_ROWS}, "also": [RAW]}


class Parameters(BaseModel):
    """Options: the cut of a text that is too long, and the prompt before it."""

    truncate: bool | None = Field(None, strict=True)  # null: the server's default, which is true
    truncation_direction: Direction = "Right"
    prompt_name: StrictStr | None = None


class EmbedParameters(Parameters):
    normalize: bool = Field(True, strict=True)
    dimensions: Dimensions | None = None


class EmbedRequest(EmbedParameters):
    inputs: Inputs
    model: StrictStr | None = None
    # Clients of Hugging Face's hub send options here; one beside `inputs` counts before one in here.
    parameters: EmbedParameters | None = None


class SimilarityInputs(BaseModel):
    source_sentence: Annotated[StrictStr, WithJsonSchema(TEXT)]
    sentences: Annotated[list[Any], WithJsonSchema(MANY_TEXTS)]


_ONE_TO_MANY = SimilarityInputs.model_json_schema()
_PAIR: dict[str, Any] = {"type": "array", "items": TEXT, "minItems": 2, "maxItems": 2}
_PAIRS: dict[str, Any] = {"type": "array", "items": _PAIR, "minItems": 1}


class SimilarityRequest(BaseModel):
    """Either one sentence against others (TEI), or `pairs`."""

    model_config = ConfigDict(
        json_schema_extra={
            "oneOf": [
                {"required": ["inputs"], "properties": {"inputs": _ONE_TO_MANY, "pairs": {"type": "null"}}},
                {"required": ["pairs"], "properties": {"pairs": _PAIRS, "inputs": {"type": "null"}}},
            ]
        }
    )
    inputs: SimilarityInputs | None = None
    parameters: Parameters | None = None
    pairs: Annotated[list[Any], WithJsonSchema(_PAIRS)] | None = None
    model: StrictStr | None = None


class RootRequest(EmbedRequest):
    """A request as for /embed; when `inputs` is an object, as for /similarity."""

    inputs: Annotated[Any, WithJsonSchema({"anyOf": [INPUTS, _ONE_TO_MANY]})]


class Embeddings(RootModel[list[list[float]]]):
    """A vector for each input."""


class Similarities(RootModel[list[float]]):
    """A cosine for each sentence, or pair."""


@router.post("/embed", **describe(Role.READ, EmbedRequest, Embeddings, **_EMBEDS))
async def embed(request: Request) -> Response:
    """Vectors, always a list of lists; for `Accept: application/octet-stream` raw little-endian float32."""
    started = time.perf_counter()
    runtime = runtime_of(request)
    return await _embed(request, runtime, await read_body(request, EmbedRequest), started)


@router.post("/similarity", **describe(Role.READ, SimilarityRequest, Similarities, **_INFERS))
async def similarity(request: Request) -> Response:
    """Cosine of one sentence with each of others, or of each pair."""
    started = time.perf_counter()
    runtime = runtime_of(request)
    return await _similarity(request, runtime, await read_body(request, SimilarityRequest), started)


class RootAnswer(RootModel[list[list[float]] | list[float]]):
    """The answer of /embed or /similarity."""


@router.post("/", **describe(Role.READ, RootRequest, RootAnswer, **_EMBEDS))
async def root(request: Request) -> Response:
    """Embedding as huggingface_hub asks for it: as `/embed`; when `inputs` is an object, as `/similarity`."""
    started = time.perf_counter()
    runtime = runtime_of(request)
    body = await read_body(request, RootRequest)
    if not isinstance(body.inputs, dict):
        return await _embed(request, runtime, body, started)
    inputs = validated(SimilarityInputs, body.inputs, "inputs")
    asked = SimilarityRequest(inputs=inputs, parameters=_options(body), model=body.model)
    return await _similarity(request, runtime, asked, started)


async def _embed(request: Request, runtime: Runtime, body: EmbedRequest, started: float) -> Response:
    options = _options(body)
    rows = rows_of(body.inputs, runtime.settings)
    with runtime.live.borrow(pinned(request, body.model, runtime)) as generation:
        manifest = generation.manifest
        for given in (options, body.parameters or options):  # also one that does not count
            check_dimensions(given.dimensions, manifest.dimension)
        texts = with_prompt(rows, options.prompt_name, manifest)
        answer = await _encode(runtime, generation.encoder, texts, options, normalize=options.normalize)
    headers = inference_headers(manifest.version, answer, rows, started)
    vectors = shorten(answer.vectors, options.dimensions, normalize=options.normalize)
    if RAW in request.headers.get("accept", ""):
        headers["x-embedding-shape"] = f"{vectors.shape[0]},{vectors.shape[1]}"
        return Response(vectors.astype("<f4", copy=False).tobytes(), 200, headers, RAW)
    return json_response(vectors, headers)


def _options(body: EmbedRequest) -> EmbedParameters:
    """The options of a body, those in its `parameters` included."""
    inner = body.parameters
    if inner is None:
        return body
    unsaid = inner.model_fields_set - body.model_fields_set
    return body.model_copy(update={name: getattr(inner, name) for name in unsaid})


async def _similarity(
    request: Request, runtime: Runtime, body: SimilarityRequest, started: float
) -> Response:
    left, right = _sides(body, runtime.settings.max_inputs)
    texts = [*left, *right]
    options = body.parameters or Parameters()
    with runtime.live.borrow(pinned(request, body.model, runtime)) as generation:
        rows = with_prompt(texts, options.prompt_name, generation.manifest)
        answer = await _encode(runtime, generation.encoder, rows, options, normalize=True)
        version = generation.version
    headers = inference_headers(version, answer, texts, started)
    a, b = answer.vectors[: len(left)], answer.vectors[len(left) :]
    # One left side broadcasts over every right one.
    return json_response(np.einsum("nd,nd->n", np.broadcast_to(a, b.shape), b), headers)


def _sides(body: SimilarityRequest, limit: int) -> tuple[list[str], list[str]]:
    """The left texts (one, or as many as right ones) and the right texts."""
    if (body.inputs is None) == (body.pairs is None):
        raise Validation(
            "Send either inputs (source_sentence and sentences) or pairs, not both and not neither."
        )
    if body.inputs is not None:
        left = texts_of([body.inputs.source_sentence], limit, "source_sentence")
        return left, texts_of(body.inputs.sentences, limit, "sentences")
    pairs = body.pairs or []
    if not pairs:
        raise Empty("pairs is an empty list. Send at least one pair.")
    for at, pair in enumerate(pairs):
        if not isinstance(pair, list) or len(pair) != 2:
            raise Validation(f"pairs[{at}] must be a list of two texts.")
    # One pair is two inputs, so half of the limit.
    texts = texts_of([text for pair in pairs for text in pair], limit, "pairs, as a flat list,")
    return texts[::2], texts[1::2]


async def _encode(
    runtime: Runtime, encoder: Encoder, rows: Rows, options: Parameters, *, normalize: bool
) -> Answer:
    return await runtime.batcher.embed(
        encoder,
        rows,
        truncate=options.truncate is not False,
        left=options.truncation_direction == "Left",
        normalize=normalize,
    )
