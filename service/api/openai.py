"""OpenAI's embeddings, and its list of models: what is served here under the names that its clients know."""

import asyncio
import time
from datetime import datetime
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Request
from pydantic import BaseModel, Field, StrictInt, StrictStr
from starlette.responses import Response

from service.api.body import read_body
from service.api.contract import EMBEDS, TIMED, Role, describe
from service.api.inference import (
    Inputs,
    check_dimensions,
    in_base64,
    inference_headers,
    pinned,
    rows_of,
    shorten,
    with_prompt,
)
from service.api.responses import json_response
from service.errors import Validation
from service.http.routing import Direct
from service.runtime.runtime import runtime_of

router = APIRouter(route_class=Direct, tags=["openai"])

OWNER = "simile"


class EmbeddingsRequest(BaseModel):
    """OpenAI's fields, and `truncate`: null is the server's default, which is true."""

    input: Inputs
    model: StrictStr | None = None
    encoding_format: Literal["float", "base64"] | None = "float"  # null is the default, as there
    dimensions: Annotated[StrictInt, Field(ge=0)] | None = None  # 0, too, is the model's own
    truncate: bool | None = Field(None, strict=True)
    user: Any = None  # taken, and not used


class Embedding(BaseModel):
    object: Literal["embedding"]
    index: int
    embedding: list[float] | str


class Usage(BaseModel):
    prompt_tokens: int
    total_tokens: int


class EmbeddingList(BaseModel):
    object: Literal["list"]
    data: list[Embedding]
    model: str
    usage: Usage


class Model(BaseModel):
    id: str
    object: Literal["model"]
    created: int = Field(description="Seconds since 1970")
    owned_by: str


class ModelList(BaseModel):
    object: Literal["list"]
    data: list[Model]


_EMBEDS = describe(Role.READ, EmbeddingsRequest, EmbeddingList, family="openai", raises=EMBEDS, headers=TIMED)


@router.post("/v1/embeddings", **_EMBEDS)
@router.post("/embeddings", **_EMBEDS)
async def embeddings(request: Request) -> Response:
    """A vector for each input, as numbers or base64 of little-endian float32; `usage` counts all tokens."""
    started = time.perf_counter()
    runtime = runtime_of(request)
    body = await read_body(request, EmbeddingsRequest)
    rows = rows_of(body.input, runtime.settings, "input")
    dimensions = body.dimensions or None
    with runtime.live.borrow(pinned(request, body.model, runtime)) as generation:
        version = generation.version
        check_dimensions(dimensions, generation.encoder.dimension)
        try:
            texts = with_prompt(rows, None, generation.manifest)
            answer = await runtime.batcher.embed(
                generation.encoder, texts, truncate=body.truncate is not False
            )
        except Validation as error:  # one of the texts, whoever found it
            error.param = error.param or "input"
            raise
    headers = inference_headers(version, answer, rows, started)
    vectors = shorten(answer.vectors, dimensions, normalize=True)
    shown = in_base64(vectors) if body.encoding_format == "base64" else vectors
    tokens = sum(answer.tokens)
    content = {
        "object": "list",
        "data": [
            {"object": "embedding", "index": index, "embedding": embedding}
            for index, embedding in enumerate(shown)
        ],
        "model": version,
        "usage": {"prompt_tokens": tokens, "total_tokens": tokens},
    }
    return json_response(content, headers)


@router.get("/v1/models", **describe(Role.READ, None, ModelList, family="openai"))
async def models(request: Request) -> Response:
    """The published versions."""
    runtime = runtime_of(request)
    manifests = await asyncio.to_thread(runtime.store.versions)
    data: list[dict[str, Any]] = [
        {
            "id": manifest.version,
            "object": "model",
            "created": int(datetime.fromisoformat(manifest.created).timestamp()),
            "owned_by": OWNER,
        }
        for manifest in manifests
    ]
    return json_response({"object": "list", "data": data})
