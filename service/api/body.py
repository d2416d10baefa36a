"""Who is let in to a route, and its JSON body.

FastAPI would read bodies itself, but with a looser parser (it takes NaN), another error shape, and no 415.
"""

import gc
from collections.abc import Callable, Coroutine
from inspect import signature
from typing import Any, TypeVar

import orjson
from fastapi import Request
from fastapi.routing import APIRoute
from pydantic import BaseModel, ValidationError
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from service.api.contract import OPEN, Role
from service.bodies import NDJSON
from service.errors import MediaType, Validation

M = TypeVar("M", bound=BaseModel)

LARGE_BYTES = 1 << 20
CHANGING = {Role.WRITE, Role.ADMIN}


class Direct(APIRoute):
    """A route that lets in whom its role allows, and calls an endpoint that takes only the request at once.

    FastAPI's own way to an endpoint collects and validates parameters first, which costs a short embedding
    as much as all the rest of HTTP.
    """

    def __init__(self, *arguments: Any, **options: Any) -> None:
        # Without a media type of its own: describe() says which there are.
        options["response_class"] = Response
        super().__init__(*arguments, **options)
        if self.openapi_extra is None or "x-role" not in self.openapi_extra:
            raise TypeError(f"{self.path} must say who may call it: describe(role).")
        role = self.openapi_extra["x-role"]
        self.role = None if role == OPEN else Role(role)

    @property
    def takes_only_request(self) -> bool:
        return list(signature(self.endpoint).parameters) == ["request"]

    def handle(self, scope: Scope, receive: Receive, send: Send) -> Coroutine[Any, Any, None]:
        """Let a caller in, then answer as any route does. Not `async`: it must cost next to nothing."""
        self.let_in(scope)
        return super().handle(scope, receive, send)

    def let_in(self, scope: Scope) -> None:
        """Refuse a caller without the right key before a byte of the body is read.

        A wrong method is 405 for whoever has a key.
        """
        state = scope["app"].state
        if self.role in CHANGING:
            state.hosts.refuse_pages(scope)
        access = state.access
        if access is not None and self.role is not None:
            if scope["method"] in (self.methods or ()):
                access.admit(scope, self.role)
            else:
                access.identify(scope)

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        if self.takes_only_request:
            endpoint: Callable[[Request], Coroutine[Any, Any, Response]] = self.endpoint
            return endpoint
        return super().get_route_handler()


async def read_body(request: Request, model: type[M]) -> M:
    """The request's JSON body as `model`.

    Raises:
        MediaType: the content is not declared as JSON.
        Validation: it does not parse, or a field is wrong; the field is named.

    """
    require_json(request)
    try:
        value = _parsed(await request.body())
    except orjson.JSONDecodeError as error:
        raise Validation(f"The body is not valid JSON: {error}.") from error
    return validated(model, value)


def _parsed(content: bytes) -> Any:
    """`content` as JSON. A large one is parsed with the collector of garbage at rest.

    Each of its millions of values would set it off again and again while the event loop waits: 16 MiB of
    `[],` took 1.0 s and take 0.3 s now.
    """
    if len(content) < LARGE_BYTES:
        return orjson.loads(content)
    gc.disable()
    try:
        return orjson.loads(content)
    finally:
        gc.enable()


def validated(model: type[M], value: object, name: str = "") -> M:
    """`value` as `model`; a refusal names the field, behind `name`.

    Raises:
        Validation: a field is wrong.

    """
    try:
        return model.model_validate(value)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False)[0]
        parts = [str(part) for part in (name, *first["loc"]) if part != ""]
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
