"""What every embedding route shares: reading inputs, prompts, the pinned version, vectors as bytes."""

from collections.abc import Container, Mapping, Sequence
from typing import Annotated, Any

import numpy as np
import orjson
from fastapi import Request
from numpy.typing import NDArray
from pydantic import BeforeValidator, WithJsonSchema
from starlette.responses import Response

from models.encoder import Encoded
from service.errors import Conflict, Empty, Unhealthy, Validation
from service.live import Generation
from service.runtime import Runtime

VERSION_HEADER = "x-model-version"
Vectors = NDArray[np.float32]
Rows = list[str] | list[list[int]]

_TEXT = {"type": "string", "minLength": 1}
_IDS = {"type": "array", "items": {"type": "integer", "minimum": 0}, "minItems": 1}
Inputs = Annotated[
    Any,
    WithJsonSchema(
        {
            "anyOf": [
                _TEXT,
                {"type": "array", "items": _TEXT, "minItems": 1},
                _IDS,
                {"type": "array", "items": _IDS, "minItems": 1},
            ]
        }
    ),
]


def _direction(value: object) -> object:
    return value.capitalize() if isinstance(value, str) else value


AnyCase = BeforeValidator(_direction)


def runtime_of(request: Request) -> Runtime:
    """The service, while it takes work.

    Raises:
        Unhealthy: it is stopping.

    """
    runtime: Runtime = request.app.state.runtime
    if runtime.stopping:
        raise Unhealthy("The service is stopping. Send again to the next one.", retry_after_seconds=1)
    return runtime


def rows_of(inputs: object, limit: int, name: str = "inputs") -> Rows:
    """`inputs` as a list of texts or a list of rows of token ids.

    Raises:
        Empty: no input, or an empty one; its index is named.
        Validation: neither texts nor token ids, a mixture, or more than `limit`.

    """
    if isinstance(inputs, str):
        return texts_of([inputs], limit, name)
    if not isinstance(inputs, list):
        raise Validation(f"{name} must be a text, a list of texts, or token ids.")
    if not inputs:
        raise Empty(f"{name} is an empty list. Send at least one text.")
    if isinstance(inputs[0], str):
        return texts_of(inputs, limit, name)
    if _is_id(inputs[0]):
        return [_ids_of(inputs, name)]
    check_count(inputs, limit, name)
    return [_ids_of(row, f"{name}[{at}]") for at, row in enumerate(inputs)]


def texts_of(texts: Sequence[object], limit: int, name: str) -> list[str]:
    """`texts`, each a string with something in it."""
    check_count(texts, limit, name)
    checked: list[str] = []
    for at, text in enumerate(texts):
        if not isinstance(text, str):
            raise Validation(f"{name}[{at}] must be a text, as the first one is.")
        if not text or text.isspace():
            raise Empty(f"{name}[{at}] is empty, or white space only. Leave it out.")
        checked.append(text)
    return checked


def check_count(values: Sequence[object], limit: int, name: str) -> None:
    if not values:
        raise Empty(f"{name} is an empty list. Send at least one.")
    if len(values) > limit:
        raise Validation(
            f"{name} has {len(values)} entries; at most {limit} (SIMILE_MAX_INPUTS) go in one request."
        )


def _ids_of(row: object, name: str) -> list[int]:
    if not isinstance(row, list) or not all(map(_is_id, row)):
        raise Validation(f"{name} must be a text, or a list of token ids; all inputs must be of one kind.")
    if not row:
        raise Empty(f"{name} holds no token ids.")
    return row


def _is_id(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def with_prompt(rows: Rows, name: str | None, prompts: Mapping[str, str]) -> Rows:
    """`rows` behind the prompt that the model publishes under `name`."""
    if name is None:
        return rows
    if name not in prompts:
        there_are = ", ".join(sorted(prompts)) or "none"
        raise Validation(f"The model has no prompt {name!r}; it has: {there_are}.")
    texts = [row for row in rows if isinstance(row, str)]
    if len(texts) < len(rows):
        raise Validation("A prompt goes before a text; token ids take none. Leave prompt_name out.")
    return [prompts[name] + text for text in texts]


def check_version(
    request: Request, generation: Generation, model: str | None, published: Container[str]
) -> None:
    """Refuse a request that names a published version which is not the one in service.

    A `model` that names no version is accepted and ignored, as TEI does; the header must name one.
    """
    pinned = request.headers.get(VERSION_HEADER)
    named = pinned if pinned is not None else model if model in published else None
    if named not in {None, generation.version}:
        raise Conflict(f"{named} is not served; {generation.version} is. GET /models lists the versions.")


def shorten(vectors: Vectors, dimensions: int | None, *, normalize: bool) -> Vectors:
    """The first `dimensions` of each vector: cut first, then normalised.

    Raises:
        Validation: not between 1 and the model's dimension.

    """
    if dimensions is None:
        return vectors
    full = vectors.shape[1]
    if not 1 <= dimensions <= full:
        raise Validation(f"dimensions must be between 1 and {full}, not {dimensions}.")
    cut = np.ascontiguousarray(vectors[:, :dimensions])
    if not normalize or dimensions == full:
        return cut
    return unit(cut)


def unit(vectors: Vectors) -> Vectors:
    """`vectors` (n, d) scaled to length 1; a zero vector stays zero."""
    norms = np.linalg.norm(vectors, axis=1, keepdims=True)
    scaled: Vectors = np.divide(vectors, norms, out=np.zeros_like(vectors), where=norms > 0)
    return scaled


def check_dimensions(dimensions: int | None, full: int) -> None:
    """Refuse a bad `dimensions` before any text is embedded."""
    shorten(np.empty((0, full), dtype=np.float32), dimensions, normalize=True)


def inference_headers(generation: Generation, encoded: Encoded | None = None) -> dict[str, str]:
    """Which version answered, and how many inputs it did not see whole."""
    headers = {VERSION_HEADER: generation.version}
    cut = 0 if encoded is None else sum(encoded.truncated)
    return headers | {"x-truncated": str(cut)} if cut else headers


def json_response(value: object, headers: Mapping[str, str] | None = None, *, status: int = 200) -> Response:
    """`value` as JSON, numpy arrays and numbers straight to text (float32 in its shortest form)."""
    return Response(
        orjson.dumps(value, option=orjson.OPT_SERIALIZE_NUMPY), status, headers, "application/json"
    )
