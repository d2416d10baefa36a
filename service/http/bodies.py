"""Reads the bodies of requests and writes the bodies of answers.

JSON requests: start reading at `read_body`. The JSON parser holds the interpreter lock until it returns, and
parsed objects take up to forty times as much memory as the body. For example, 16 MiB of nested lists took 2 s
and 635 MiB. Therefore the values of a large body are counted before it is parsed. Large bodies are parsed one
at a time on another thread, and other requests run between two large bodies.

Answers: the store returns texts and metadata as JSON. `JsonChunks` sends them without parsing them. It sends
one chunk at a time, and no faster than the client reads. A large answer therefore never blocks the event
loop.

Memory: most bodies are read completely before the route runs, so `BodyBudget` limits the size of each body
and of all bodies together. The body of an import is a `StreamedBody` of any length, which is read as fast as
the route processes it.
"""

import asyncio
import codecs
import contextlib
import gc
import re
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

from models.files import exact_json
from models.files.exact_json import structure
from models.messages import MAX_CHARACTERS, no_field
from models.validation import sentence
from service import memory
from service.errors import MediaType, Overloaded, Timeout, TooLarge, Validation
from service.settings import Settings

M = TypeVar("M", bound=BaseModel)

# Annotated[Model, STORED]: the body's values are stored, so none may change when it is parsed.
STORED = "stored"
LARGE_BYTES = 1 << 18  # Smaller bodies are parsed on the event loop, in microseconds to 60 ms.
SLICE_SECONDS = 0.005  # Short, because several bodies may be processed at once.
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
_CHARSET = re.compile(r';\s*charset\s*=\s*"?([^\s";]+)', re.IGNORECASE)


async def read_body(request: Request, model: type[M], *, stored: bool = False) -> M:
    """Parses and validates the JSON body of a request.

    Args:
        request: The request. It keeps the body after the first read.
        model: The Pydantic model of the body.
        stored: Whether the values will be stored. Then values that the parser would change are rejected.

    Raises:
        MediaType: The content type is not JSON.
        Validation: The body is not JSON, contains too many values, or has a wrong field. The message names
            the field.

    """
    async with parsed_body(request, model, stored=stored) as body:
        return body


@contextlib.asynccontextmanager
async def parsed_body(request: Request, model: type[M], *, stored: bool = False) -> AsyncIterator[M]:
    """Context manager that yields the body as `read_body` returns it.

    The block should turn the body into something smaller. Only one large parsed body is in memory at a time,
    because it takes up to 25 times as much memory as its JSON.
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
    """Validates a parsed JSON value and returns it as an object of `model`.

    Args:
        model: The Pydantic model.
        value: The parsed JSON.
        name: Name of the value. Error messages put it before the name of a field.

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
    """Returns whether a body of this type is rejected if it has unknown fields.

    Only the bodies of the TEI, OpenAI and Cohere routes may have unknown fields.
    """
    return model.model_config.get("extra") == "forbid" or issubclass(model, RootModel)


def _path(name: str, loc: tuple[int | str, ...]) -> str:
    """Formats the location of a field for a message, such as `documents[0].text`."""
    parts = (f"[{part}]" if isinstance(part, int) else f".{part[:MAX_CHARACTERS]}" for part in loc)
    return (name + "".join(parts)).removeprefix(".")


def _read(request: Request, model: type[M], value: Any) -> M:
    """Validates a parsed body.

    Stores the names of ignored fields, which the middleware writes to a header.
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


def media_type(request: Request) -> str:
    """Returns the media type of a body, without parameters.

    Raises:
        MediaType: The body is compressed (Content-Encoding), or is text in another charset than UTF-8.

    """
    encodings = ", ".join(request.headers.getlist("content-encoding"))
    if any(each.strip().lower() not in {"", "identity"} for each in encodings.split(",")):
        raise MediaType(
            f"Content-Encoding {encodings[:MAX_CHARACTERS]} is not supported. Send the body uncompressed, "
            "without this header."
        )
    given = request.headers.get("content-type", "")
    kind = given.partition(";")[0].strip().lower()
    charset = _CHARSET.search(given)
    if charset is not None and kind != RAW_FILE:
        try:
            name = codecs.lookup(charset[1]).name
        except LookupError:
            name = ""
        if name not in {"utf-8", "ascii"}:
            raise MediaType(
                f"The charset {charset[1][:MAX_CHARACTERS]} is not supported. Send the body in UTF-8."
            )
    return kind


def require_json(request: Request) -> None:
    given = request.headers.get("content-type", "")
    kind = media_type(request)
    if kind == "application/json" or (kind.startswith("application/") and kind.endswith("+json")):
        return
    if kind == NDJSON:
        raise MediaType("NDJSON is taken by POST /documents alone. Send application/json.")
    found = f"must be application/json, not {given}" if given else "is missing"
    documents = request.method == "POST" and request.url.path.endswith("/documents")
    files = f" Or send NDJSON ({NDJSON}). `simile import FILE` stores CSV and other files."
    raise MediaType(
        f"Content-Type {found}. Send the header Content-Type: application/json.{files if documents else ''}"
    )


def _parse(content: bytes, *, stored: bool = False) -> Any:
    text = content.removeprefix(codecs.BOM_UTF8)
    if not text:
        raise Validation("The body is empty. Send a JSON object.")
    try:
        return exact_json.loads(text) if stored else orjson.loads(text)
    except exact_json.Inexact as error:
        raise Validation(str(error)) from None
    except orjson.JSONDecodeError as error:
        raise Validation(not_utf8("The body", content) or f"The body is not valid JSON: {error}.") from None


def not_utf8(name: str, content: bytes) -> str:
    """Returns the message for text that is not UTF-8, or an empty string. Its first byte is byte 0.

    Args:
        name: What `content` is, at the beginning of a sentence.
        content: Text that could not be parsed as JSON.

    """
    start = content.find(0, 0, 4)  # Only UTF-16 and UTF-32 begin JSON with null bytes.
    try:
        content.decode()
    except UnicodeDecodeError as error:
        start = min(start, error.start) if start >= 0 else error.start
    return "" if start < 0 else f"{name} is not UTF-8 (byte {start}). Send UTF-8, uncompressed."


def _parse_large(content: bytes, max_values: int, *, stored: bool = False) -> Any:
    """Counts the values of a large body, then parses the body.

    Garbage collection is off during parsing, because many new objects would trigger it again and again.

    Raises:
        Validation: The body contains more than `max_values` values, or is not JSON.

    """
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
    """Estimates the number of values in JSON text, without parsing it. Stops counting above `enough`.

    Commas, keys, lists and objects count, with different weights. A fast first estimate includes characters
    within strings. If that estimate exceeds `enough`, a second pass excludes them.
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
    """Divides long work on the event loop into short slices. Call `rest` between two steps of the work."""

    def __init__(self) -> None:
        self._began = time.perf_counter()

    async def rest(self) -> None:
        """Lets other tasks run, if the current slice has taken SLICE_SECONDS."""
        if time.perf_counter() - self._began > SLICE_SECONDS:
            await asyncio.sleep(0)
            self._began = time.perf_counter()


def read_query(request: Request, model: type[M]) -> M:
    """Parses and validates the query parameters of a request.

    Fields of `model` whose names are in the path are not query parameters.

    Raises:
        Validation: A parameter is unknown, is repeated, or is wrong.

    """
    check_parameters(request, *(name for name in model.model_fields if name not in request.path_params))
    return validated(model, dict(request.query_params))


def check_parameters(request: Request, *names: str) -> None:
    """Checks the names of a request's query parameters.

    Raises:
        Validation: A parameter is not one of `names`, or is repeated.

    """
    given = request.query_params.multi_items()
    for name, _ in given:
        if name not in names:
            raise Validation(no_field(name, names, "parameter"))
    if len(given) > len(request.query_params):
        raise Validation("A parameter comes more than once. Give each of them once.")


def collect_fields(model: type[BaseModel], *sources: object, **others: object) -> dict[str, object]:
    """Returns a value for each field of `model`.

    The value comes from `others`, or otherwise from the first object in `sources` that has an attribute of
    this name.
    """
    return {
        name: others[name]
        if name in others
        else next(getattr(source, name) for source in sources if hasattr(source, name))
        for name in model.model_fields
    }


def json_response(value: object, headers: Mapping[str, str] | None = None, *, status: int = 200) -> Response:
    """Returns a response with `value` as JSON. `value` may contain numpy arrays and numbers.

    A float32 is written with as few digits as identify it.
    """
    content = orjson.dumps(value, option=orjson.OPT_SERIALIZE_NUMPY)
    return Response(content, status, headers, "application/json")


def json_array(values: Iterable[Iterable[bytes]]) -> Iterator[bytes]:
    """Yields the parts of a JSON array. `values` contains the parts of each element."""
    yield b"["
    for at, value in enumerate(values):
        if at:
            yield b","
        yield from value
    yield b"]"


def in_chunks(parts: Iterable[bytes]) -> list[bytes]:
    """Returns `parts` as chunks to send. Small parts are joined, and large parts stay as they are."""
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
    """A JSON response that is sent in chunks. The body is the concatenation of the given parts."""

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
    """Limits the size of request bodies in memory.

    Attributes:
        admitted_bytes: Bytes of bodies whose request has no answer yet. Of a `StreamedBody`, only those that
            are not processed yet.

    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self.admitted_bytes = 0

    @property
    def full(self) -> bool:
        return self.admitted_bytes >= self._settings.max_admitted_mb * MEGABYTE

    def admit(self, count: int, read_bytes: int) -> None:
        """Checks whether more bytes of a body may be read.

        Args:
            count: Number of further bytes.
            read_bytes: Number of bytes of this body that were read before.

        Raises:
            TooLarge: The body exceeds SIMILE_MAX_BODY_MB.
            Overloaded: All bodies together exceed SIMILE_MAX_ADMITTED_MB.

        """
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
    """A request body of any length. The deadline of the request is extended after each step of progress."""

    def __init__(self, bodies: BodyBudget) -> None:
        self._bodies = bodies
        self._deadline: asyncio.Timeout
        self._seconds = 0.0
        self.held_bytes = 0  # read, but not processed yet
        self.done = ""  # Sentence about the finished part, for the error answer.

    def begin(self, deadline: asyncio.Timeout, seconds: float) -> None:
        """Sets the deadline of the request, which each step of progress moves to `seconds` from then."""
        self._deadline, self._seconds = deadline, seconds

    def moved(self) -> None:
        """Extends the deadline after progress."""
        if self._deadline.expired():  # An expired timeout cannot be rescheduled.
            return
        self._deadline.reschedule(asyncio.get_running_loop().time() + self._seconds)

    async def read(self, receive: Receive) -> Message:
        """Waits until the budget has room, then returns the next message of the body."""
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
