"""Routes and a router that skip FastAPI's per-request work.

Starlette's router tries one route after another, and FastAPI wraps each endpoint in dependency and exception
contexts. Endpoints here take only the request and need neither. middleware.py answers their errors.
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

OPEN = "open"  # role of a route that needs no key
CHANGING = {Role.WRITE, Role.ADMIN}
_IN_PATH = re.compile(r"{(\w+)")


class Direct(APIRoute):
    """A route that checks the caller's role and calls its endpoint with the request.

    FastAPI would collect and validate parameters first. For a short embedding that costs as much as the rest
    of HTTP.
    """

    def __init__(self, path: str, endpoint: Any, **options: Any) -> None:
        # Plain Response has no media type. describe() documents the media types.
        options["response_class"] = Response
        extra = dict(options.get("openapi_extra") or {})
        if "x-role" not in extra:
            raise TypeError(f"{path} needs a role: describe(role).")
        described = extra.get("parameters", [])
        names = {one["name"] for one in described if one["in"] == "path"}
        if left := [name for name in _IN_PATH.findall(path) if name not in names]:
            text = {"in": "path", "required": True, "schema": {"type": "string"}}
            extra["parameters"] = [*described, *(text | {"name": name} for name in left)]
        super().__init__(path, endpoint, **options | {"openapi_extra": extra})
        self.role = None if extra["x-role"] == OPEN else Role(extra["x-role"])

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.let_in(scope)
        if scope["method"] not in (self.methods or ()):
            await super().handle(scope, receive, send)  # answers 405
            return
        response = await self.endpoint(Request(scope, receive))
        await response(scope, receive, send)

    def let_in(self, scope: Scope) -> None:
        """Rejects a caller without the right key, before the body is read.

        A wrong method leads to 405, but only for callers with a valid key.
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
    """Finds routes with fixed paths in a dictionary, and passes other requests to `app`."""

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
    """Rejects a path or query that is not UTF-8, because lossy decoding would name something else."""
    for part, name in ((scope.get("raw_path") or b"", "path"), (scope["query_string"], "query")):
        if b"%" in part:
            try:
                unquote_to_bytes(part).decode()
            except UnicodeDecodeError as error:
                raise Validation(f"The {name} is not UTF-8, percent-encoded.") from error
