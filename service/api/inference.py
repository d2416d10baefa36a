"""Helpers of every embedding route: inputs, prompts, the pinned version, vectors as bytes."""

import base64
import time
from collections.abc import Sequence, Sized
from typing import Annotated, Any, Literal

import numpy as np
from fastapi import Request
from numpy.typing import NDArray
from pydantic import BeforeValidator, StrictInt, WithJsonSchema

from models.manifest import Manifest, is_version
from models.words.nearest import did_you_mean
from service.api.json_schemas import DIMENSIONS, INPUTS
from service.batching.request import Answer
from service.errors import Empty, NotFound, Validation
from service.runtime.runtime import Runtime
from service.settings import Settings

VERSION_HEADER = "x-model-version"
Vectors = NDArray[np.float32]
Rows = list[str] | list[list[int]]

Inputs = Annotated[Any, WithJsonSchema(INPUTS)]
Dimensions = Annotated[StrictInt, WithJsonSchema(DIMENSIONS)]


def _direction(value: object) -> object:
    return value.capitalize() if isinstance(value, str) else value


Direction = Annotated[
    Literal["Right", "Left"],
    BeforeValidator(_direction),
    WithJsonSchema(
        {"type": "string", "pattern": "^([Rr][Ii][Gg][Hh][Tt]|[Ll][Ee][Ff][Tt])$", "default": "Right"}
    ),
]


def rows_of(inputs: object, settings: Settings, name: str = "inputs") -> Rows:
    """`inputs` as a list of texts or a list of rows of token ids.

    Raises:
        Empty: no input, or an empty one; its index is named.
        Validation: neither texts nor token ids, a mixture, or more than the settings allow.

    """
    limit = settings.max_inputs
    if isinstance(inputs, str):
        return texts_of([inputs], limit, name)
    if isinstance(inputs, list) and inputs and isinstance(inputs[0], str):
        return texts_of(inputs, limit, name)
    kinds = "a text, a list of texts, or token ids, all of one kind"
    return id_rows(inputs, limit, name, kinds, max_ids=settings.max_ids, setting="SIMILE_MAX_IDS")


def id_rows(ids: object, limit: int, name: str, kinds: str, *, max_ids: int, setting: str) -> list[list[int]]:
    """Token ids, or a list of rows of them, as rows. `kinds`: what there may be, for the message.

    Rows are counted before their ids are looked at. `setting` names the bound `max_ids`.

    Raises:
        Empty: no row, or an empty one; its index is named.
        Validation: something else, more rows than `limit`, or more than `max_ids` ids.

    """
    if not isinstance(ids, list):
        raise Validation(f"{name} must be {kinds}.", param=name)
    if ids and _is_id(ids[0]):
        ids = [ids]
    check_count(ids, limit, name)
    count = 0
    for at, row in enumerate(ids):
        count += len(row) if isinstance(row, list) else 0
        if count > max_ids:
            raise Validation(
                f"{name} holds more than {max_ids} token ids ({setting}). Send them in parts.", param=name
            )
        if not isinstance(row, list) or not set(map(type, row)) <= {int}:
            raise Validation(f"{name} must be {kinds}; look at {name}[{at}].", param=name)
        if not row:
            raise Empty(f"{name}[{at}] holds no token ids.", param=name)
    return ids


def texts_of(texts: Sequence[object], limit: int, name: str) -> list[str]:
    """`texts`, each a string with something in it."""
    check_count(texts, limit, name)
    checked: list[str] = []
    for at, text in enumerate(texts):
        if not isinstance(text, str):
            raise Validation(f"{name}[{at}] must be a text, as the first one is.", param=name)
        if not text or text.isspace():
            raise Empty(f"{name}[{at}] is empty, or white space only. Leave it out.", param=name)
        checked.append(text)
    return checked


def check_count(values: Sequence[object], limit: int, name: str) -> None:
    if not values:
        raise Empty(f"{name} is an empty list. Send at least one.", param=name)
    if len(values) > limit:
        raise Validation(
            f"{name} has {len(values)} entries; at most {limit} (SIMILE_MAX_INPUTS) go in one request.",
            param=name,
        )


def _is_id(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def prompt_of(name: str | None, manifest: Manifest) -> str:
    """The prompt that the model publishes under `name`; its default one for no name."""
    if name is None:
        return manifest.default_prompt
    if name not in manifest.prompts:
        there_are = ", ".join(sorted(manifest.prompts)) or "none"
        raise Validation(f"The model has no prompt {name[:100]!r}; it has: {there_are}.")
    return manifest.prompts[name]


def with_prompt(rows: Rows, name: str | None, manifest: Manifest) -> Rows:
    """`rows` behind the prompt that the model publishes under `name`; token ids take no default one."""
    prompt = prompt_of(name, manifest)
    texts = [row for row in rows if isinstance(row, str)]
    if len(texts) < len(rows):
        if name is None:
            return rows
        raise Validation("A prompt goes before a text; token ids take none. Leave prompt_name out.")
    return [prompt + text for text in texts]


def pinned(request: Request, model: str | None, runtime: Runtime) -> str | None:
    """The version that must answer, None for the one in service.

    A `model` that is no version's name is accepted and ignored, as TEI does; the header must name one.

    Raises:
        NotFound: `model` looks like a version's name, and there is no such version.

    """
    header = request.headers.get(VERSION_HEADER)
    if header is not None:
        return header
    if model is None or not is_version(model):
        return None
    loaded = [generation.version for generation in runtime.live.generations]
    if model in runtime.controller.published or model in loaded:
        return model
    hint = did_you_mean(model, {*runtime.controller.published, *loaded})
    raise NotFound(f"There is no version {model[:100]!r}.{hint} GET /models lists them.", param="model")


def shorten(
    vectors: Vectors, dimensions: int | None, *, normalize: bool, name: str = "dimensions"
) -> Vectors:
    """The first `dimensions` of each vector: cut first, then normalised.

    Raises:
        Validation: not between 1 and the model's dimension.

    """
    if dimensions is None:
        return vectors
    full = vectors.shape[1]
    if not 1 <= dimensions <= full:
        raise Validation(f"{name} must be between 1 and {full}, not {dimensions}.", param=name)
    cut = np.ascontiguousarray(vectors[:, :dimensions])
    if not normalize or dimensions == full:
        return cut
    return unit(cut)


def unit(vectors: Vectors) -> Vectors:
    """`vectors` (n, d) scaled to length 1; a zero vector stays zero."""
    norms = np.linalg.norm(vectors, axis=1, keepdims=True)
    scaled: Vectors = np.divide(vectors, norms, out=np.zeros_like(vectors), where=norms > 0)
    return scaled


def in_base64(vectors: Vectors) -> list[str]:
    """Each vector's bytes, little-endian float32, as base64."""
    rows = vectors.astype("<f4", copy=False)
    return [base64.b64encode(row.tobytes()).decode() for row in rows]


def check_dimensions(dimensions: int | None, full: int, name: str = "dimensions") -> None:
    """Refuse a bad `dimensions` before any text is embedded."""
    shorten(np.empty((0, full), dtype=np.float32), dimensions, normalize=True, name=name)


def inference_headers(
    version: str, answer: Answer, inputs: Sequence[Sized], started: float
) -> dict[str, str]:
    """The version, the times (TEI's names, whole milliseconds), and how much was computed and cut.

    Args:
        version: the one that made `answer`.
        answer: from the batcher.
        inputs: the texts or rows of token ids, as they were sent.
        started: time.perf_counter() when the request arrived.

    """
    timing = answer.timing
    headers = {
        VERSION_HEADER: version,
        "x-total-time": _milliseconds(time.perf_counter() - started),
        "x-tokenization-time": _milliseconds(timing.tokenize_seconds),
        "x-queue-time": _milliseconds(timing.queue_seconds),
        "x-inference-time": _milliseconds(timing.inference_seconds),
        "x-compute-tokens": str(sum(answer.tokens)),
        "x-compute-characters": str(sum(map(len, inputs))),
    }
    cut = sum(answer.truncated)
    if cut:
        headers["x-truncated"] = str(cut)
    return headers


def _milliseconds(seconds: float) -> str:
    return str(int(seconds * 1000))
