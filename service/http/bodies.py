"""Bodies of requests and answers.

JSON bodies: start reading at `read_body`. The JSON parser holds the interpreter lock until it returns, and
its objects take up to forty times the bytes of the body: 16 MiB of nested lists took 2 s and 635 MiB. So
values are counted in the bytes first. Large bodies are parsed one at a time on another thread, and other
requests run between two of them.

Answers: a stored text and its metadata come as JSON from the reading thread. `JsonChunks` joins them without
parsing or copying them, and sends a chunk at a time, no faster than the client reads. So a large answer never
holds the event loop.

Memory: most bodies are read whole before their route runs, so `BodyBudget` bounds each body and their sum.
The body of an import is a `StreamedBody` of any length. It is read as fast as the route processes it.
"""

import asyncio
import contextlib
import gc
import time
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from functools import partial
from itertools import chain, islice
from typing import Any, TypeVar

import numpy as np
import orjson
from fastapi import Request
from pydantic import BaseModel, RootModel, ValidationError
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from models.messages import MAX_CHARACTERS, no_field
from models.validation import sentence
from service import memory
from service.errors import MediaType, Overloaded, Timeout, TooLarge, Validation
from service.http import exact_json
from service.http.exact_json import structure
from service.settings import Settings

M = TypeVar("M", bound=BaseModel)

# Annotated[Model, STORED]: the body's values are stored, so none may change when it is parsed.
STORED = "stored"
LARGE_BYTES = 1 << 18  # Smaller bodies are parsed on the event loop, in microseconds to 60 ms.
SLICE_SECONDS = 0.005  # Several bodies may be in work at once, and an answer needs some rounds of the loop.
MAX_FIELDS = 100  # No object of our routes has as many fields.
MAX_IGNORED = 10  # names of ignored fields that an answer repeats
# Weights of values that take the parser longer than a number does.
CONTAINER_VALUES = 4  # a list or an object
KEY_VALUES = 2
CHUNK_BYTES = 1 << 18  # of an answer
_WEIGHTS = np.zeros(256, np.uint8)
for _mark, _weight in (b",", 1), (b":", KEY_VALUES), (b"[", CONTAINER_VALUES), (b"{", CONTAINER_VALUES):
    _WEIGHTS[ord(_mark)] = _weight
MEGABYTE = 1 << 20
NDJSON = "application/x-ndjson"
RAW_FILE = "application/octet-stream"
STREAMED = {NDJSON.encode(), RAW_FILE.encode()}  # media types of bodies of any length
ROOM_SECONDS = 0.05  # between two checks for free budget


async def read_body(request: Request, model: type[M], *, stored: bool = False) -> M:
    """Returns the request's JSON body as `model`.

    Args:
        request: Its body is read once and kept.
        model: Of the body.
        stored: Reject values that the parser would change.

    Raises:
        MediaType: The content is not declared as JSON.
        Validation: The body does not parse, holds too many values, or has a wrong field, which is named.

    """
    require_json(request)
    content = await request.body()
    if len(content) < LARGE_BYTES:  # `parsed_body` would do the same, but its context manager takes 4 µs.
        return _read(request, model, _parse(content, stored=stored))
    async with parsed_body(request, model, stored=stored) as body:
        return body


@contextlib.asynccontextmanager
async def parsed_body(request: Request, model: type[M], *, stored: bool = False) -> AsyncIterator[M]:
    """Yields the body as `read_body` returns it, for a block that turns it into something smaller.

    One large body is parsed and held at a time, because it takes up to 25 times as much memory once parsed.
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
        # The thread may outlive its request, and keeps the lock until it ends.
        parsing.add_done_callback(lambda _: runtime.large_bodies.release())
        memory.give_back()


def validated(model: type[M], value: object, name: str = "") -> M:
    """Returns `value` as `model`. An error names the field after `name`.

    Raises:
        Validation: A field is wrong.

    """
    if refuses_unknown(model) and isinstance(value, dict) and len(value) > MAX_FIELDS:
        # pydantic makes an error of each one. A million of them took 5 s and 1.5 GiB.
        raise Validation(f"{name or 'the body'} has {len(value)} fields, far more than there are.")
    try:
        return model.model_validate(value)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = _path(name, first["loc"])
        param = str((name, *first["loc"])[0 if name else 1])[:MAX_CHARACTERS] if where else None
        raise Validation(sentence(first, model, where or "the body"), param=param) from error


def refuses_unknown(model: type[BaseModel]) -> bool:
    """Returns whether unknown fields are an error: on our own routes, but not on those of other APIs."""
    return model.model_config.get("extra") == "forbid" or issubclass(model, RootModel)


def _path(name: str, loc: tuple[int | str, ...]) -> str:
    """Returns a field's place as people write it: documents[0].text."""
    parts = (f"[{part}]" if isinstance(part, int) else f".{part[:MAX_CHARACTERS]}" for part in loc)
    return (name + "".join(parts)).removeprefix(".")


def _read(request: Request, model: type[M], value: Any) -> M:
    """Returns `value` as `model`. The middleware writes the names of ignored fields to a header of the
    answer.
    """
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
    """Parses without garbage collection, which many new values would start again and again."""
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
    """Returns about how many values JSON holds, and stops counting above `enough`.

    Members of lists and objects count, and keys, and lists and objects once more. Characters inside texts
    never count.
    """
    most = content.count(b",") + KEY_VALUES * content.count(b":")
    most += CONTAINER_VALUES * (content.count(b"[") + content.count(b"{"))
    if most <= enough:
        return most
    count = 0
    for plain in structure(content):
        count += int(_WEIGHTS[plain].sum(dtype=np.int64))
        if count > enough:
            break
    return count


class Slices:
    """Divides long work on the event loop into slices. Call `rest` between its steps."""

    def __init__(self) -> None:
        self._began = time.perf_counter()

    async def rest(self) -> None:
        """Lets other tasks run if the slice is over."""
        if time.perf_counter() - self._began > SLICE_SECONDS:
            await asyncio.sleep(0)
            self._began = time.perf_counter()


def read_query(request: Request, model: type[M]) -> M:
    """Returns the request's query parameters as `model`. A field that is part of the path is not a parameter.

    Raises:
        Validation: A parameter is unknown, is repeated, or is wrong.

    """
    check_parameters(request, *(name for name in model.model_fields if name not in request.path_params))
    return validated(model, dict(request.query_params))


def check_parameters(request: Request, *names: str) -> None:
    """Raises Validation for a query parameter that is not one of `names`, or that is repeated."""
    given = request.query_params.multi_items()
    for name, _ in given:
        if name not in names:
            raise Validation(no_field(name, names, "parameter"))
    if len(given) > len(request.query_params):
        raise Validation("A parameter comes more than once. Give each of them once.")


def collect_fields(model: type[BaseModel], *sources: object, **others: object) -> dict[str, object]:
    """Returns the fields of `model`: from `others`, or else from the first source that has the attribute."""
    return {
        name: others[name]
        if name in others
        else next(getattr(source, name) for source in sources if hasattr(source, name))
        for name in model.model_fields
    }


def json_response(value: object, headers: Mapping[str, str] | None = None, *, status: int = 200) -> Response:
    """Returns `value` as a JSON answer. Numpy arrays and numbers are written directly, float32 in its
    shortest form.
    """
    content = orjson.dumps(value, option=orjson.OPT_SERIALIZE_NUMPY)
    return Response(content, status, headers, "application/json")


def json_array(values: Iterable[Iterable[bytes]]) -> Iterator[bytes]:
    """Yields the parts of a JSON array, given the parts of each of its values."""
    yield b"["
    for at, value in enumerate(values):
        if at:
            yield b","
        yield from value
    yield b"]"


def in_chunks(parts: Iterable[bytes]) -> list[bytes]:
    """Returns `parts` as chunks to send: small parts are joined, large parts stay as they are."""
    chunks: list[bytes] = []
    held: list[bytes] = []
    held_bytes = 0
    for part in chain(parts, [b""]):
        if held and (not part or held_bytes + len(part) > CHUNK_BYTES):
            chunks.append(b"".join(held) if len(held) > 1 else held[0])
            held, held_bytes = [], 0
        held.append(part)
        held_bytes += len(part)
    return chunks


class JsonChunks(Response):
    """An answer whose parts are JSON when joined, sent in chunks."""

    media_type = "application/json"

    def __init__(self, parts: Iterable[bytes], headers: Mapping[str, str] | None = None) -> None:
        self._chunks = in_chunks(parts)
        size = sum(map(len, self._chunks))
        super().__init__(None, 200, {**(headers or {}), "content-length": str(size)})

    async def __call__(self, _scope: Scope, _receive: Receive, send: Send) -> None:
        start = {"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers}
        await send(start)
        last = len(self._chunks) - 1
        for at, chunk in enumerate(self._chunks):
            for begin in range(0, len(chunk), CHUNK_BYTES):
                piece = chunk[begin : begin + CHUNK_BYTES]
                more = at < last or begin + CHUNK_BYTES < len(chunk)
                await send({"type": "http.response.body", "body": piece, "more_body": more})


class BodyBudget:
    """Counts `admitted_bytes`: bytes that were read for requests without an answer yet."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self.admitted_bytes = 0

    @property
    def full(self) -> bool:
        return self.admitted_bytes >= self._settings.max_admitted_mb * MEGABYTE

    def admit(self, count: int, read_bytes: int) -> None:
        """Rejects `count` more bytes of a body if they exceed a limit. `read_bytes` were read before."""
        limit = self._settings.max_body_mb
        if read_bytes + count > limit * MEGABYTE:
            raise TooLarge(f"The body is larger than {limit} MiB (SIMILE_MAX_BODY_MB). Send it in parts.")
        total = self._settings.max_admitted_mb
        if self.admitted_bytes + count > total * MEGABYTE:
            raise Overloaded(
                f"The bodies of pending requests exceed {total} MiB in total (SIMILE_MAX_ADMITTED_MB). "
                "Send again later.",
                retry_after_seconds=1,
            )


class StreamedBody:
    """A body of any length. Each step of progress extends its deadline."""

    def __init__(self, bodies: BodyBudget) -> None:
        self._bodies = bodies
        self._deadline: asyncio.Timeout
        self._seconds = 0.0
        self.held_bytes = 0  # read, but not processed yet
        self.done = ""  # Sentence about the finished part, for the error answer.

    def begin(self, deadline: asyncio.Timeout, seconds: float) -> None:
        """Sets the deadline that each step moves to `seconds` from now."""
        self._deadline, self._seconds = deadline, seconds

    def moved(self) -> None:
        """Extends the deadline after progress."""
        if self._deadline.expired():  # An expired timeout cannot be rescheduled.
            return
        self._deadline.reschedule(asyncio.get_running_loop().time() + self._seconds)

    async def read(self, receive: Receive) -> Message:
        """Returns the next message after the budget has room for it."""
        while self._bodies.full:  # noqa: ASYNC110  no event reports free budget
            await asyncio.sleep(ROOM_SECONDS)
        message = await receive()
        count = len(message.get("body", b""))
        if count:
            self.held_bytes += count
            self._bodies.admitted_bytes += count
            self.moved()
        return message

    def release(self, count: int) -> None:
        self.held_bytes -= count
        self._bodies.admitted_bytes -= count

    def timeout(self) -> Timeout:
        return Timeout(
            f"The body made no progress for {self._seconds:g} s (x-timeout-ms, or "
            f"SIMILE_TIMEOUT_SECONDS). {self.done}".rstrip()
        )
