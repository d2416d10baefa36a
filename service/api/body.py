"""Reading a JSON body, and saying in the OpenAPI document what a route reads and who may call it.

FastAPI would read bodies itself, but with a looser parser (it takes NaN), another error shape, and no 415.
"""

from collections.abc import Callable, Coroutine
from enum import StrEnum
from inspect import signature
from typing import Any, TypeVar

import orjson
from fastapi import FastAPI, Request
from fastapi.openapi.utils import get_openapi
from fastapi.routing import APIRoute
from pydantic import BaseModel, ValidationError
from pydantic.json_schema import models_json_schema
from starlette.responses import Response

from service.errors import MediaType, Validation

M = TypeVar("M", bound=BaseModel)

_BODIES: dict[str, type[BaseModel]] = {}
_REFERENCE = "#/components/schemas/{model}"


class Role(StrEnum):
    """What a key must allow for a route. Each role includes the one before it."""

    READ = "read"
    WRITE = "write"
    ADMIN = "admin"


class Refusal(BaseModel):
    """The body of every failure on native and TEI routes."""

    error: str
    error_type: str


class Direct(APIRoute):
    """A route whose endpoint is called at once when it takes nothing but the request.

    FastAPI's own way to an endpoint collects and validates parameters first, which costs a short embedding
    as much as all the rest of HTTP.
    """

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        if list(signature(self.endpoint).parameters) == ["request"]:
            endpoint: Callable[[Request], Coroutine[Any, Any, Response]] = self.endpoint
            return endpoint
        return super().get_route_handler()


def describe(role: Role | None, body: type[BaseModel] | None = None) -> dict[str, Any]:
    """Keyword arguments of a route: its role (None: open to all) and the schema of the body it reads."""
    extra: dict[str, Any] = {"x-role": "open" if role is None else role.value}
    if body is not None:
        _BODIES[body.__name__] = body
        schema = {"$ref": _REFERENCE.format(model=body.__name__)}
        extra["requestBody"] = {"required": True, "content": {"application/json": {"schema": schema}}}
    failure = {"description": "A refusal; its status and type are listed in docs/ERRORS.md", "model": Refusal}
    return {"openapi_extra": extra, "responses": {"default": failure}}


def openapi(app: FastAPI) -> dict[str, Any]:
    """The OpenAPI document, with the schemas of the bodies that routes read themselves."""
    if app.openapi_schema is None:
        document = get_openapi(
            title=app.title, version=app.version, description=app.description, routes=app.routes
        )
        _, bodies = models_json_schema(
            [(model, "validation") for model in _BODIES.values()], ref_template=_REFERENCE
        )
        document.setdefault("components", {}).setdefault("schemas", {}).update(bodies["$defs"])
        app.openapi_schema = document
    return app.openapi_schema


async def read_body(request: Request, model: type[M]) -> M:
    """The request's JSON body as `model`.

    Raises:
        MediaType: the content is not declared as JSON.
        Validation: it does not parse, or a field is wrong; the field is named.

    """
    require_json(request)
    try:
        value = orjson.loads(await request.body())
    except orjson.JSONDecodeError as error:
        raise Validation(f"The body is not valid JSON: {error}.") from error
    return validated(model, value)


def validated(model: type[M], value: object, name: str = "") -> M:
    """`value` as `model`; a refusal names the field, behind `name`.

    Raises:
        Validation: a field is wrong.

    """
    try:
        return model.model_validate(value)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False)[0]
        where = ".".join(str(part) for part in (name, *first["loc"]) if part != "") or "the body"
        raise Validation(f"{where}: {first['msg']}.") from error


def require_json(request: Request) -> None:
    given = request.headers.get("content-type", "")
    kind = given.partition(";")[0].strip().lower()
    if kind == "application/json" or (kind.startswith("application/") and kind.endswith("+json")):
        return
    raise MediaType(f"Content-Type must be application/json, not {given or 'missing'}.")


def known_parameters(request: Request, *names: str) -> None:
    """Refuse a query parameter that the route does not have: a typing mistake must not pass unseen."""
    for name in request.query_params:
        if name not in names:
            raise Validation(f"There is no parameter {name!r} here; there are {', '.join(names)}.")
