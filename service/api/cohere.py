"""Route of the Cohere API: `/v2/embed`, with prompts by `input_type` and quantized vectors.

    float    The vector as numbers.
    base64   The vector as base64 of little-endian float32.
    int8     The components in steps of limit/127. The model's calibration defines the limit.
    uint8    The int8 values plus 128.
    ubinary  One bit per component: 1 if the component is above 0. The highest bit comes first.
    binary   The ubinary bytes minus 128.

If the dimension is not a multiple of eight, zero bits fill the last byte, as in numpy.packbits.
"""

import uuid
from collections.abc import Callable
from typing import Annotated, Any, Literal

import numpy as np
from fastapi import APIRouter, Request
from pydantic import BaseModel, Field, StrictInt, StrictStr
from starlette.responses import Response

from models.manifest import Manifest
from models.publishing.calibration import to_int8
from service.api.embedding import Plan, Rows, Vectors, embed, in_base64, parse_texts
from service.api.openapi import (
    EMBEDS,
    TIMED,
    Dimensions,
    OpenTo,
    Role,
    ShownAs,
    Text,
    Texts,
    describe,
    exactly_one,
    example,
)
from service.errors import Validation
from service.http.bodies import json_response
from service.http.routing import RoleRoute
from service.runtime.runtime import Service

router = APIRouter(route_class=RoleRoute, tags=["cohere"])

Kind = Literal["float", "int8", "uint8", "binary", "ubinary", "base64"]


class Content(BaseModel):
    type: Literal["text"]
    text: Text


class EmbedInput(BaseModel):
    content: Annotated[list[Content], Field(min_length=1, max_length=1)]


class EmbedByTypeRequest(BaseModel):
    """A request with Cohere's fields. The texts are in `texts`, or in `inputs`, one text per input."""

    model_config = example(
        {"texts": ["A first sentence."], "model": "simile", "embedding_types": ["float"]},
        **exactly_one(texts="array", inputs="array"),
    )
    texts: Annotated[list[Any], ShownAs(Texts)] | None = None
    inputs: Annotated[list[Any], ShownAs(Annotated[list[EmbedInput], Field(min_length=1)])] | None = None
    images: Annotated[Any, ShownAs(None)] = None
    model: StrictStr | None = None
    input_type: Literal["search_document", "search_query", "classification", "clustering"] | None = None
    embedding_types: Annotated[list[Kind], Field(fail_fast=True)] | None = None
    output_dimension: Dimensions | None = None
    truncate: Literal["NONE", "START", "END"] | None = None
    max_tokens: StrictInt | None = None


class ByType(BaseModel):
    """The answer's vectors, as one list for each requested type."""

    float_: list[list[float]] | None = Field(None, alias="float")
    int8: list[list[int]] | None = None
    uint8: list[list[int]] | None = None
    binary: list[list[int]] | None = None
    ubinary: list[list[int]] | None = None
    base64: list[str] | None = None


class Meta(BaseModel):
    api_version: dict[Literal["version"], Literal["2"]]
    tokens: dict[Literal["input_tokens"], int]


class EmbeddingsByType(BaseModel):
    response_type: Literal["embeddings_by_type"]
    id: str
    embeddings: ByType
    texts: list[str]
    meta: Meta


@router.post(
    "/v2/embed", **describe(Role.READ, EmbeddingsByType, open_to=OpenTo.SCOPED, raises=EMBEDS, headers=TIMED)
)
async def embed_texts(request: Request, runtime: Service, body: EmbedByTypeRequest) -> Response:
    """Embed texts. The answer has one list of vectors for each requested type."""
    texts = parse_texts(
        _given(body), runtime.settings.max_inputs, "inputs" if body.texts is None else "texts"
    )
    requested: list[Kind] = body.embedding_types or ["float"]
    kinds = list(dict.fromkeys(requested))

    def prepare(manifest: Manifest) -> Rows:
        for kind in kinds:
            if kind in {"int8", "uint8"} and manifest.calibration.int8 is None:
                raise Validation(
                    f"{manifest.version} was published without the calibration that {kind} needs. Publish it "
                    "again, or ask for float, base64, binary or ubinary."
                )
        if body.max_tokens is not None and body.max_tokens < manifest.max_length:
            raise Validation(
                f"max_tokens cannot be less than the model's own {manifest.max_length}. Leave it out."
            )
        own = {"search_document": manifest.document_prompt, "search_query": manifest.search_prompt}
        prompt = (manifest.prompts | own).get(body.input_type or "", manifest.default_prompt)
        return [prompt + text for text in texts]

    plan = Plan(
        rows=texts,
        model=body.model,
        prepare=prepare,
        truncate=body.truncate != "NONE",
        left=body.truncate == "START",
        dimensions=body.output_dimension,
        dimensions_field="output_dimension",
    )
    embedded = await embed(request, runtime, plan)
    content = {
        "response_type": "embeddings_by_type",
        "id": str(uuid.uuid4()),
        "embeddings": {kind: _SHOWN[kind](embedded.vectors, embedded.manifest) for kind in kinds},
        "texts": texts,
        "meta": {"api_version": {"version": "2"}, "tokens": {"input_tokens": embedded.tokens}},
    }
    return json_response(content, embedded.headers)


def _given(body: EmbedByTypeRequest) -> list[Any]:
    """Returns the values to embed. The caller checks that they are texts.

    Raises:
        Validation: The body has images, does not have exactly one of `texts` and `inputs`, or has an input
            that is not exactly one text.

    """
    if body.images is not None:
        raise Validation("images cannot be embedded: the model reads text only. Send texts.")
    if body.texts is not None and body.inputs is None:
        return body.texts
    if body.texts is not None or body.inputs is None:
        raise Validation("Send either texts or inputs, not both and not neither.")
    return [_get_text(at, given) for at, given in enumerate(body.inputs)]


def _get_text(at: int, given: object) -> object:
    content = given.get("content") if isinstance(given, dict) else None
    if isinstance(content, list) and len(content) == 1:
        [part] = content
        if isinstance(part, dict) and part.get("type") == "text":
            return part.get("text")
    raise Validation(f'inputs[{at}].content must be one text: [{{"type": "text", "text": "…"}}].')


def _int8(vectors: Vectors, manifest: Manifest) -> Any:
    calibrated = manifest.calibration.int8
    assert calibrated is not None  # noqa: S101  `prepare` checks it
    return to_int8(vectors, calibrated, manifest.dimension)


_SHOWN: dict[Kind, Callable[[Vectors, Manifest], Any]] = {
    "float": lambda vectors, _: vectors,
    "int8": _int8,
    "uint8": lambda vectors, manifest: (_int8(vectors, manifest).astype(np.int16) + 128).astype(np.uint8),
    "binary": lambda vectors, _: (np.packbits(vectors > 0, axis=1) ^ 128).view(np.int8),
    "ubinary": lambda vectors, _: np.packbits(vectors > 0, axis=1),
    "base64": lambda vectors, _: in_base64(vectors),
}
