"""Embeds the inputs of the TEI, OpenAI and Cohere routes. Start reading at `embed`.

Each route parses its fields into a `Plan`, and builds its answer from the resulting `Embedded`.
"""

import base64
import time
from collections.abc import Callable, Sequence, Sized
from dataclasses import dataclass

import numpy as np
from fastapi import Request
from numpy.typing import NDArray

from models.errors import WrongKind
from models.manifest import Manifest, is_version
from models.messages import did_you_mean
from service.batching.request import Answer
from service.errors import Conflict, Empty, NotFound, Validation
from service.index.kmeans import unit
from service.runtime.runtime import Runtime
from service.settings import Settings

VERSION_HEADER = "x-model-version"
Vectors = NDArray[np.float32]
Rows = list[str] | list[list[int]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The inputs of a request, and the options for embedding them.

    Args:
        rows: Texts, or rows of token ids, as sent.
        model: The `model` of the body.
        field: Name of the body's field that holds the rows, for errors of OpenAI's routes.
        prepare: Returns the rows with the model's prompt. Raises Validation if the model does not support the
            request.
        truncate: Whether to truncate rows that are too long. Otherwise they are rejected.
        left: Whether to remove tokens at the beginning of a long row, instead of at the end.
        normalize: Whether to scale vectors to length 1.
        dimensions: Number of components of each vector to return. None means all.
        dimensions_field: Name of the body's field that holds `dimensions`.

    """

    rows: Rows
    model: str | None
    field: str = "inputs"
    prepare: Callable[[Manifest], Rows]
    truncate: bool = True
    left: bool = False
    normalize: bool = True
    dimensions: int | None = None
    dimensions_field: str = "dimensions"


@dataclass(frozen=True, slots=True)
class Embedded:
    """The result of embedding the inputs of a `Plan`.

    Attributes:
        vectors: Vectors, shape (rows, dimensions).
        manifest: Manifest of the model that computed the vectors.
        tokens: Number of tokens computed.
        headers: Headers of the answer.

    """

    vectors: Vectors
    manifest: Manifest
    tokens: int
    headers: dict[str, str]


async def embed(request: Request, runtime: Runtime, plan: Plan) -> Embedded:
    """Embeds the rows of a plan with the active version, or with the version that the request names.

    Raises:
        NotFound: The request names an unknown version.
        Conflict: The request names a version that is not loaded.
        Validation: The model does not support the request.
        ServiceError: The batcher rejects the inputs, or the model fails.

    """
    with runtime.active.borrow(pinned(request, plan.model, runtime)) as generation:
        manifest = generation.manifest
        check_dimensions(plan.dimensions, manifest.dimension, plan.dimensions_field)
        try:
            answer = await runtime.batcher.embed(
                generation.encoder,
                plan.prepare(manifest),
                truncate=plan.truncate,
                left=plan.left,
                normalize=plan.normalize,
            )
        except Validation as error:
            error.param = error.param or plan.field
            raise
    headers = inference_headers(manifest.version, answer, plan.rows, request.scope["started"])
    vectors = shorten(answer.vectors, plan.dimensions, normalize=plan.normalize)
    return Embedded(vectors, manifest, sum(answer.tokens), headers)


def parse_inputs(inputs: object, settings: Settings, name: str = "inputs") -> Rows:
    """Returns `inputs` as a list of texts or a list of rows of token ids.

    Raises:
        Empty: The list is empty, or an input is empty. The message names the index of an empty input.
        Validation: The inputs are neither texts nor token ids, are mixed, or exceed a limit.

    """
    limit = settings.max_inputs
    single = isinstance(inputs, str)
    inputs = [inputs] if single else inputs
    if isinstance(inputs, list) and inputs and isinstance(inputs[0], str):
        return parse_texts(inputs, limit, name, single=single)
    kinds = "a text, a list of texts, or token ids, all of one kind"
    return parse_token_rows(inputs, limit, name, kinds, max_ids=settings.max_ids, setting="SIMILE_MAX_IDS")


def parse_token_rows(
    ids: object, limit: int, name: str, kinds: str, *, max_ids: int, setting: str
) -> list[list[int]]:
    """Parses a field that holds rows of token ids. A list of ids becomes a single row.

    The number of rows is checked before their ids.

    Args:
        ids: The value of the field: a list of ids, or a list of rows.
        limit: Maximum number of rows.
        name: Name of the field.
        kinds: The kinds of values that the field may hold, for the error message.
        max_ids: Maximum number of ids in all rows.
        setting: Name of the setting that limits the ids, for the error message.

    Raises:
        Empty: The field has no row, or a row is empty. The message names the index of an empty row.
        Validation: The value is neither ids nor rows of ids, or exceeds a limit.

    """
    if not isinstance(ids, list):
        raise Validation(f"{name} must be {kinds}.", param=name)
    if ids and type(ids[0]) is int:
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


def parse_texts(texts: Sequence[object], limit: int, name: str, *, single: bool = False) -> list[str]:
    """Returns `texts` after checking each value.

    Args:
        texts: The parsed JSON.
        limit: Largest number of texts.
        name: Name of the field, for error messages.
        single: Whether the field held one text instead of a list.

    Raises:
        Empty: The list is empty, or a text has no visible character.
        Validation: A value is not a string, or the list has more than `limit` entries.

    """
    check_count(texts, limit, name)
    checked: list[str] = []
    for at, text in enumerate(texts):
        if not isinstance(text, str):
            raise Validation(f"{name}[{at}] must be a text, as the first one is.", param=name)
        if not text or text.isspace():
            if single:
                raise Empty(f"{name} is empty, or white space only. Send a text.", param=name)
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


def get_prompt(name: str | None, manifest: Manifest) -> str:
    """Returns the prompt that the manifest lists under `name`. If `name` is None, returns the default prompt.

    Raises:
        Validation: The manifest has no prompt of this name.

    """
    if name is None:
        return manifest.default_prompt
    if name not in manifest.prompts:
        there_are = ", ".join(sorted(manifest.prompts)) or "none"
        raise Validation(f"The model has no prompt {name[:100]!r}; it has: {there_are}.")
    return manifest.prompts[name]


def with_prompt(rows: Rows, manifest: Manifest, name: str | None = None) -> Rows:
    """Returns the rows with a prompt before each text. Rows of token ids are returned without a prompt.

    Raises:
        Validation: `name` is unknown, or is given for rows of token ids.

    """
    prompt = get_prompt(name, manifest)
    texts = [row for row in rows if isinstance(row, str)]
    if len(texts) < len(rows):
        if name is None:
            return rows
        raise Validation("A prompt goes before a text; token ids take none. Leave prompt_name out.")
    return [prompt + text for text in texts]


def pinned(request: Request, model: str | None, runtime: Runtime) -> str | None:
    """Returns the version that must answer a request, or None for the active version.

    The header `x-model-version` names the version. Otherwise `model` does, if the value looks like a version.
    Other values of `model` are ignored, as in TEI.

    Raises:
        NotFound: `model` looks like a version, and no such version exists.
        Conflict: The version is a reranker.

    """
    header = request.headers.get(VERSION_HEADER)
    named = header or model
    if named is not None and named in runtime.rerankers.published:
        raise Conflict(f"{WrongKind(named, 'reranker')} POST /rerank uses it.")
    if header is not None:
        return header
    if model is None or not is_version(model):
        return None
    loaded = [generation.version for generation in runtime.active.generations]
    if model in runtime.controller.published or model in loaded:
        return model
    hint = did_you_mean(model, {*runtime.controller.published, *loaded})
    raise NotFound(f"There is no version {model[:100]!r}.{hint} GET /models lists them.", param="model")


def shorten(vectors: Vectors, dimensions: int | None, *, normalize: bool) -> Vectors:
    """Returns the first `dimensions` components of each vector.

    If `normalize` is True, shortened vectors are scaled to length 1.
    """
    if dimensions is None:
        return vectors
    cut = np.ascontiguousarray(vectors[:, :dimensions])
    return unit(cut) if normalize and dimensions < vectors.shape[1] else cut


def in_base64(vectors: Vectors) -> list[str]:
    """Encodes each vector as base64 of little-endian float32."""
    rows = vectors.astype("<f4", copy=False)
    return [base64.b64encode(row.tobytes()).decode() for row in rows]


def check_dimensions(dimensions: int | None, full: int, name: str = "dimensions") -> None:
    """Rejects an invalid number of dimensions. Call this before texts are embedded.

    Args:
        dimensions: Requested length of the vectors. None means the full length.
        full: Length of the model's vectors.
        name: Name of the field, for the error message.

    Raises:
        Validation: `dimensions` is less than 1 or more than `full`.

    """
    if dimensions is not None and not 1 <= dimensions <= full:
        raise Validation(f"{name} must be between 1 and {full}, not {dimensions}.", param=name)


def inference_headers(
    version: str, answer: Answer, inputs: Sequence[Sized], started: float
) -> dict[str, str]:
    """Returns headers with the version, times in whole milliseconds, and counts. TEI uses the same names.

    Args:
        version: The version that computed `answer`.
        answer: The batcher's answer.
        inputs: The texts or rows of token ids, as sent.
        started: time.perf_counter() when the request reached the route.

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
    if tokens := sum(answer.unknown):
        headers["x-unknown-tokens"] = str(tokens)
        headers["x-unknown-texts"] = str(sum(map(bool, answer.unknown)))
    return headers


def _milliseconds(seconds: float) -> str:
    return str(int(seconds * 1000))
