"""Routes of the OpenAI API: `/v1/embeddings` and the list of models."""

import asyncio
from datetime import datetime
from functools import partial
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Request
from pydantic import BaseModel, Field, StrictInt, StrictStr
from starlette.responses import Response

from service.api.embedding import Plan, embed, in_base64, parse_inputs, with_prompt
from service.api.openapi import EMBEDS, TIMED, Inputs, OpenTo, Role, describe, example
from service.http.bodies import json_response
from service.http.routing import RoleRoute
from service.runtime.runtime import Service

router = APIRouter(route_class=RoleRoute, tags=["openai"])

OWNER = "simile"


class EmbeddingsRequest(BaseModel):
    """A request with OpenAI's fields, and `truncate`. If `truncate` is null, long texts are truncated."""

    model_config = example({"input": ["A first sentence.", "A second one."], "model": "simile"})
    input: Inputs
    model: StrictStr | None = None
    encoding_format: Literal["float", "base64"] | None = "float"  # As in OpenAI's API, null is the default.
    dimensions: Annotated[StrictInt, Field(ge=0)] | None = None  # 0 also means all dimensions.
    truncate: bool | None = Field(None, strict=True)
    user: Any = None  # accepted and ignored


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


_EMBEDS = describe(Role.READ, EmbeddingList, open_to=OpenTo.SCOPED, raises=EMBEDS, headers=TIMED)


@router.post("/v1/embeddings", **_EMBEDS)
@router.post("/embeddings", **_EMBEDS)
async def embed_texts(request: Request, runtime: Service, body: EmbeddingsRequest) -> Response:
    """Embed texts.

    Each vector is a list of numbers, or base64 of little-endian float32. `usage` counts all tokens.
    """
    rows = parse_inputs(body.input, runtime.settings, "input")
    plan = Plan(
        rows=rows,
        model=body.model,
        field="input",
        prepare=partial(with_prompt, rows),
        truncate=body.truncate is not False,
        dimensions=body.dimensions or None,
    )
    embedded = await embed(request, runtime, plan)
    vectors = in_base64(embedded.vectors) if body.encoding_format == "base64" else embedded.vectors
    content = {
        "object": "list",
        "data": [
            {"object": "embedding", "index": index, "embedding": vector}
            for index, vector in enumerate(vectors)
        ],
        "model": embedded.manifest.version,
        "usage": {"prompt_tokens": embedded.tokens, "total_tokens": embedded.tokens},
    }
    return json_response(content, embedded.headers)


@router.get("/v1/models", **describe(Role.READ, ModelList, open_to=OpenTo.SCOPED))
async def list_versions(runtime: Service) -> Response:
    """List the published versions."""
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
