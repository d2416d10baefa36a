"""Routes call their endpoints at once, without the framework's way there.

The router asks one route after the other for a match. Around an endpoint the framework puts stacks of
contexts for dependencies and handlers of exceptions. Endpoints here take the request alone, need none of it,
and refuse through the edge.
"""

import re
from collections.abc import Sequence
from typing import Any
from urllib.parse import unquote_to_bytes

from fastapi import Request
from fastapi.routing import APIRoute
from starlette.responses import Response
from starlette.routing import BaseRoute
from starlette.types import ASGIApp, Receive, Scope, Send

from service.auth.keys import Role
from service.errors import Validation
from service.store.values import NO_KEY
from service.store.write_queue import caller

OPEN = "open"  # the role of a route that needs no key
CHANGING = {Role.WRITE, Role.ADMIN}
_IN_PATH = re.compile(r"{(\w+)")


class Direct(APIRoute):
    """A route that lets in whom its role allows, and calls its endpoint with the request.

    FastAPI's own way to an endpoint collects and validates parameters first, which costs a short embedding
    as much as all the rest of HTTP.
    """

    def __init__(self, path: str, endpoint: Any, **options: Any) -> None:
        # Without a media type of its own: describe() says which there are.
        options["response_class"] = Response
        extra = dict(options.get("openapi_extra") or {})
        if "x-role" not in extra:
            raise TypeError(f"{path} must say who may call it: describe(role).")
        described = extra.get("parameters", [])
        names = {one["name"] for one in described if one["in"] == "path"}
        if left := [name for name in _IN_PATH.findall(path) if name not in names]:
            text = {"in": "path", "required": True, "schema": {"type": "string"}}
            extra["parameters"] = [*described, *(text | {"name": name} for name in left)]
        super().__init__(path, endpoint, **options | {"openapi_extra": extra})
        self.role = None if extra["x-role"] == OPEN else Role(extra["x-role"])

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let a caller in, then answer."""
        self.let_in(scope)
        if scope["method"] not in (self.methods or ()):
            await super().handle(scope, receive, send)  # it is refused
            return
        response = await self.endpoint(Request(scope, receive))
        await response(scope, receive, send)

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
        account = scope.get("account")
        caller.set(NO_KEY if account is None else account.key.name)


class ExactRouter:
    """`routes` of fixed paths are found at once; all else is `app`'s."""

    def __init__(self, app: ASGIApp, routes: Sequence[BaseRoute]) -> None:
        self._app = app
        self._routes = {
            (method, route.path): route
            for route in routes
            if isinstance(route, Direct) and "{" not in route.path
            for method in route.methods or ()
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        route = self._routes.get((scope["method"], scope["path"])) if scope["type"] == "http" else None
        if route is None:
            await self._app(scope, receive, send)
        else:
            scope["route"] = route
            await route.handle(scope, receive, send)


def check_utf8(scope: Scope) -> None:
    """Refuse a path or a query in another encoding: decoded all the same, it would name something else."""
    for part, name in ((scope.get("raw_path") or b"", "path"), (scope["query_string"], "query")):
        if b"%" in part:
            try:
                unquote_to_bytes(part).decode()
            except UnicodeDecodeError as error:
                raise Validation(f"The {name} is not UTF-8, percent-encoded.") from error
