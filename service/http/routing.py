"""Routes of fixed paths are called at once, without the framework's way there.

The router asks one route after the other for a match. Around an endpoint it puts stacks of contexts for
dependencies and handlers of exceptions, which serve endpoints with parameters. An endpoint that takes the
request alone needs none of it, and refuses through the edge.
"""

from collections.abc import Callable, Coroutine, Sequence
from inspect import signature
from typing import Any
from urllib.parse import unquote_to_bytes

from fastapi import Request
from fastapi.routing import APIRoute
from starlette.responses import Response
from starlette.routing import BaseRoute
from starlette.types import ASGIApp, Receive, Scope, Send

from service.auth.keys import Role
from service.errors import Validation

OPEN = "open"  # the role of a route that needs no key
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


class ExactRouter:
    """`routes` that take only the request are called at once; all else is `app`'s."""

    def __init__(self, app: ASGIApp, routes: Sequence[BaseRoute]) -> None:
        self._app = app
        self._routes = {
            (method, route.path): route
            for route in routes
            if isinstance(route, Direct) and route.takes_only_request and "{" not in route.path
            for method in route.methods or ()
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        route = self._routes.get((scope["method"], scope["path"])) if scope["type"] == "http" else None
        if route is None:
            await self._app(scope, receive, send)
            return
        scope["route"] = route
        route.let_in(scope)
        response = await route.endpoint(Request(scope, receive))
        await response(scope, receive, send)


def check_utf8(scope: Scope) -> None:
    """Refuse a path or a query in another encoding: decoded all the same, it would name something else."""
    for part, name in ((scope.get("raw_path") or b"", "path"), (scope["query_string"], "query")):
        if b"%" in part:
            try:
                unquote_to_bytes(part).decode()
            except UnicodeDecodeError as error:
                raise Validation(f"The {name} is not UTF-8, percent-encoded.") from error
