"""Embedding and similarity, with text-embeddings-inference's field names."""

from typing import Annotated, Any, Literal

import numpy as np
from fastapi import APIRouter, Request
from pydantic import BaseModel, ConfigDict, Field, StrictInt, StrictStr
from starlette.responses import Response

from models.encoder import Encoded
from service.api.body import Direct, Role, describe, read_body
from service.api.inference import (
    AnyCase,
    Inputs,
    Rows,
    check_dimensions,
    check_version,
    inference_headers,
    json_response,
    rows_of,
    runtime_of,
    shorten,
    texts_of,
    with_prompt,
)
from service.errors import Empty, Validation
from service.live import Generation
from service.runtime import Runtime

router = APIRouter(route_class=Direct, tags=["embedding"])

Direction = Annotated[Literal["Right", "Left"], AnyCase]


class Parameters(BaseModel):
    """How a text that is too long is cut, and what goes before it."""

    truncate: bool | None = Field(None, strict=True)  # null: the server's default, which is true
    truncation_direction: Direction = "Right"
    prompt_name: StrictStr | None = None


class EmbedRequest(Parameters):
    inputs: Inputs
    normalize: bool = Field(True, strict=True)
    dimensions: StrictInt | None = None
    model: StrictStr | None = None


class SimilarityInputs(BaseModel):
    source_sentence: StrictStr
    sentences: list[Any]


class SimilarityRequest(BaseModel):
    """Either one sentence against others (TEI), or `pairs`."""

    model_config = ConfigDict(extra="ignore")
    inputs: SimilarityInputs | None = None
    parameters: Parameters | None = None
    pairs: list[Any] | None = None
    model: StrictStr | None = None


@router.post("/embed", **describe(Role.READ, EmbedRequest))
async def embed(request: Request) -> Response:
    """Vectors, always a list of lists; for `Accept: application/octet-stream` raw little-endian float32."""
    runtime = runtime_of(request)
    body = await read_body(request, EmbedRequest)
    rows = rows_of(body.inputs, runtime.settings.max_inputs)
    with runtime.live.borrow() as generation:
        check_version(request, generation, body.model, runtime.watcher.published)
        check_dimensions(body.dimensions, generation.encoder.dimension)
        encoded = await _encode(runtime, generation, rows, body, normalize=body.normalize)
        headers = inference_headers(generation, encoded)
    vectors = shorten(encoded.vectors, body.dimensions, normalize=body.normalize)
    if "application/octet-stream" in request.headers.get("accept", ""):
        headers["x-embedding-shape"] = f"{vectors.shape[0]},{vectors.shape[1]}"
        return Response(vectors.astype("<f4", copy=False).tobytes(), 200, headers, "application/octet-stream")
    return json_response(vectors, headers)


@router.post("/similarity", **describe(Role.READ, SimilarityRequest))
async def similarity(request: Request) -> Response:
    """Cosine of one sentence with each of others, or of each pair."""
    runtime = runtime_of(request)
    body = await read_body(request, SimilarityRequest)
    limit = runtime.settings.max_inputs
    left, right = _sides(body, limit)
    with runtime.live.borrow() as generation:
        check_version(request, generation, body.model, runtime.watcher.published)
        encoded = await _encode(
            runtime, generation, [*left, *right], body.parameters or Parameters(), normalize=True
        )
        headers = inference_headers(generation, encoded)
    a, b = encoded.vectors[: len(left)], encoded.vectors[len(left) :]
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
    runtime: Runtime, generation: Generation, rows: Rows, options: Parameters, *, normalize: bool
) -> Encoded:
    return await runtime.batcher.embed(
        generation.encoder,
        with_prompt(rows, options.prompt_name, generation.manifest.prompts),
        truncate=options.truncate is not False,
        left=options.truncation_direction == "Left",
        normalize=normalize,
    )
