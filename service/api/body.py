"""A request's JSON body: read strictly, and parsed at a cost that is known before.

FastAPI would read bodies itself, but with a looser parser (it takes NaN), another error shape, and no 415.

The parser holds the interpreter until it is done, and makes objects of up to forty times the bytes: 16 MiB of
nested lists took 2 s and 635 MiB. So values are counted in the bytes first, and large bodies take turns, each
parsed on another thread: between two of them everybody else has a turn.
"""

import asyncio
import contextlib
import gc
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from functools import partial
from itertools import islice
from typing import Any, TypeVar

import numpy as np
import orjson
from fastapi import Request
from pydantic import BaseModel, RootModel, ValidationError

from models.words.nearest import MAX_CHARACTERS, no_field
from models.words.refusals import sentence
from service import memory
from service.errors import MediaType, Validation
from service.http import exact_json
from service.http.body_budget import NDJSON
from service.http.exact_json import structure

M = TypeVar("M", bound=BaseModel)

LARGE_BYTES = 1 << 18  # smaller bodies are parsed at once: in microseconds to 60 ms
SLICE_SECONDS = 0.005  # a few bodies may be worked on at once, and an answer needs some rounds of the loop
MAX_FIELDS = 100  # of an object of ours; none has as many
MAX_IGNORED = 10  # names of ignored fields that an answer repeats
# Weights of what counts for more than a number, by the time that the parser takes.
CONTAINER_VALUES = 4  # a list or an object
KEY_VALUES = 2
_WEIGHTS = np.zeros(256, np.uint8)
for _mark, _weight in (b",", 1), (b":", KEY_VALUES), (b"[", CONTAINER_VALUES), (b"{", CONTAINER_VALUES):
    _WEIGHTS[ord(_mark)] = _weight


async def read_body(request: Request, model: type[M], *, stored: bool = False) -> M:
    """The request's JSON body as `model`.

    stored: refuse values that a parser would change, because what the body says is stored.

    Raises:
        MediaType: the content is not declared as JSON.
        Validation: it does not parse, holds too many values, or a field is wrong; the field is named.

    """
    async with parsed_body(request, model, stored=stored) as body:
        return body


@contextlib.asynccontextmanager
async def parsed_body(request: Request, model: type[M], *, stored: bool = False) -> AsyncIterator[M]:
    """The body as `read_body` has it, for a block that turns it into something smaller.

    One large body is parsed and held at a time: parsed, it takes up to 25 times as much memory.
    """
    require_json(request)
    content = await request.body()
    if len(content) < LARGE_BYTES:
        yield _read(request, model, _parse(content, stored=stored))
        return
    runtime = request.app.state.runtime
    await runtime.large_bodies.acquire()
    parse = partial(_parse_large, content, runtime.settings.max_values, stored=stored)
    parsing = asyncio.ensure_future(asyncio.to_thread(parse))
    try:
        yield _read(request, model, await asyncio.shield(parsing))
    finally:
        # A thread that parses for a request that was given up keeps the turn until it is done.
        parsing.add_done_callback(lambda _: runtime.large_bodies.release())
        memory.give_back()


def validated(model: type[M], value: object, name: str = "") -> M:
    """`value` as `model`; a refusal names the field, behind `name`.

    Raises:
        Validation: a field is wrong.

    """
    if refuses_unknown(model) and isinstance(value, dict) and len(value) > MAX_FIELDS:
        # One error would be made of each: of a million in 5 s and 1.5 GiB.
        raise Validation(f"{name or 'the body'} has {len(value)} fields, far more than there are.")
    try:
        return model.model_validate(value)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = _path(name, first["loc"])
        param = str((name, *first["loc"])[0 if name else 1])[:MAX_CHARACTERS] if where else None
        raise Validation(sentence(first, model, where or "the body"), param=param) from error


def refuses_unknown(model: type[BaseModel]) -> bool:
    """True for bodies of our own routes; those of other APIs may have fields that are not known here."""
    return model.model_config.get("extra") == "forbid" or issubclass(model, RootModel)


def _path(name: str, loc: tuple[int | str, ...]) -> str:
    """A field's place as people write it: documents[0].text."""
    parts = (f"[{part}]" if isinstance(part, int) else f".{part[:MAX_CHARACTERS]}" for part in loc)
    return (name + "".join(parts)).removeprefix(".")


def _read(request: Request, model: type[M], value: Any) -> M:
    """`value` as `model`; names of ignored fields go to the answer's header, by way of the scope."""
    body = validated(model, value)
    if not refuses_unknown(model) and (ignored := list(islice(_ignored(body, value), MAX_IGNORED))):
        request.scope["ignored_fields"] = ignored
    return body


def _ignored(body: BaseModel, value: Mapping[str, Any]) -> Iterator[str]:
    for name, member in value.items():
        if name not in type(body).model_fields:
            yield name
        elif isinstance(read := getattr(body, name), BaseModel):
            yield from (f"{name}.{inner}" for inner in _ignored(read, member))


def require_json(request: Request) -> None:
    given = request.headers.get("content-type", "")
    kind = given.partition(";")[0].strip().lower()
    if kind == "application/json" or (kind.startswith("application/") and kind.endswith("+json")):
        return
    if kind == NDJSON:
        raise MediaType("NDJSON is taken by POST /documents alone. Send application/json.")
    found = f"must be application/json, not {given}" if given else "is missing"
    raise MediaType(f"Content-Type {found}. Send the header Content-Type: application/json.")


def _parse(content: bytes, *, stored: bool = False) -> Any:
    if not content:
        raise Validation("The body is empty. Send a JSON object.")
    try:
        return exact_json.loads(content) if stored else orjson.loads(content)
    except exact_json.Inexact as error:
        raise Validation(str(error)) from None
    except orjson.JSONDecodeError as error:
        raise Validation(f"The body is not valid JSON: {error}.") from None


def _parse_large(content: bytes, max_values: int, *, stored: bool = False) -> Any:
    """Parse with the garbage collector off: many new values would start it again and again."""
    count = values_in(content, max_values)
    if count > max_values:
        raise Validation(
            f"The body holds more than {max_values} JSON values (SIMILE_MAX_VALUES; a key counts as "
            f"{KEY_VALUES}, a list or an object as {CONTAINER_VALUES}). Send it in parts."
        )
    gc.disable()
    try:
        return _parse(content, stored=stored)
    finally:
        gc.enable()


def values_in(content: bytes, enough: int) -> int:
    """About how many values JSON holds: members of lists and objects, keys, and lists and objects once more.

    Beyond `enough` nothing is counted. What stands in texts never counts.
    """
    most = content.count(b",") + KEY_VALUES * content.count(b":")
    most += CONTAINER_VALUES * (content.count(b"[") + content.count(b"{"))
    return most if most <= enough else _outside_texts(content, enough)


def _outside_texts(content: bytes, enough: int) -> int:
    count = 0
    for plain in structure(content):
        count += int(_WEIGHTS[plain].sum(dtype=np.int64))
        if count > enough:
            break
    return count


class Slices:
    """Work on one body on the event loop, in slices. Call `rest` between its steps."""

    def __init__(self) -> None:
        self._began = time.perf_counter()

    async def rest(self) -> None:
        """Let the event loop go round once, when the slice is over."""
        if time.perf_counter() - self._began > SLICE_SECONDS:
            await asyncio.sleep(0)
            self._began = time.perf_counter()


def parameters(request: Request, model: type[M]) -> M:
    """The request's query parameters as `model`; a part of the path is none of them.

    Raises:
        Validation: a parameter is unknown, comes twice, or is wrong.

    """
    known_parameters(request, *(name for name in model.model_fields if name not in request.path_params))
    return validated(model, dict(request.query_params))


def known_parameters(request: Request, *names: str) -> None:
    """Refuse a query parameter that the route does not have, or that comes twice: no mistake passes."""
    given = request.query_params.multi_items()
    for name, _ in given:
        if name not in names:
            raise Validation(no_field(name, names, "parameter"))
    if len(given) > len(request.query_params):
        raise Validation("A parameter comes more than once. Give each of them once.")
