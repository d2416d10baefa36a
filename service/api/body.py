"""A request's JSON body.

FastAPI would read bodies itself, but with a looser parser (it takes NaN), another error shape, and no 415.
"""

import contextlib
from collections.abc import AsyncIterator
from typing import TypeVar

from fastapi import Request
from pydantic import BaseModel, RootModel, ValidationError

from service import memory
from service.api.json_body import LARGE_BYTES, parse
from service.errors import MediaType, Validation
from service.http.body_budget import NDJSON

M = TypeVar("M", bound=BaseModel)

MAX_FIELDS = 100  # of an object of ours; none has as many
MAX_NAME_CHARACTERS = 80  # of a field's name, in a refusal


async def read_body(request: Request, model: type[M]) -> M:
    """The request's JSON body as `model`.

    Raises:
        MediaType: the content is not declared as JSON.
        Validation: it does not parse, or a field is wrong; the field is named.

    """
    async with parsed_body(request, model) as body:
        return body


@contextlib.asynccontextmanager
async def parsed_body(request: Request, model: type[M]) -> AsyncIterator[M]:
    """As `read_body`, for a block that turns the body into something smaller.

    Large bodies take turns: parsed they take up to 25 times as much memory.
    """
    require_json(request)
    content = await request.body()
    runtime = request.app.state.runtime
    limit = runtime.settings.max_values
    if len(content) < LARGE_BYTES:
        yield validated(model, await parse(content, limit))
        return
    async with runtime.large_bodies:
        try:
            yield validated(model, await parse(content, limit))
        finally:
            memory.give_back()


def validated(model: type[M], value: object, name: str = "") -> M:
    """`value` as `model`; a refusal names the field, behind `name`.

    Raises:
        Validation: a field is wrong.

    """
    reads_all = model.model_config.get("extra") == "forbid" or issubclass(model, RootModel)
    if reads_all and isinstance(value, dict) and len(value) > MAX_FIELDS:
        # One error would be made of each: of a million in 5 s and 1.5 GiB.
        raise Validation(f"{name or 'the body'} has {len(value)} fields, far more than there are.")
    try:
        return model.model_validate(value)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False)[0]
        parts = [str(part)[:MAX_NAME_CHARACTERS] for part in (name, *first["loc"]) if part != ""]
        where = ".".join(parts) or "the body"
        raise Validation(f"{where}: {first['msg']}.", param="".join(parts[:1]) or None) from error


def require_json(request: Request) -> None:
    given = request.headers.get("content-type", "")
    kind = given.partition(";")[0].strip().lower()
    if kind == "application/json" or (kind.startswith("application/") and kind.endswith("+json")):
        return
    if kind == NDJSON:
        raise MediaType("NDJSON is taken by POST /documents alone. Send application/json.")
    raise MediaType(f"Content-Type must be application/json, not {given or 'missing'}.")


def known_parameters(request: Request, *names: str) -> None:
    """Refuse a query parameter that the route does not have, or that comes twice: no mistake passes."""
    given = request.query_params.multi_items()
    for name, _ in given:
        if name not in names:
            there_are = f"there are {', '.join(names)}" if names else "there is none"
            raise Validation(f"There is no parameter {name[:80]!r} here; {there_are}.")
    if len(given) > len(request.query_params):
        raise Validation("A parameter comes more than once. Give each of them once.")
