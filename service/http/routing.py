"""Routes that check the caller's role, read the parameters that an endpoint declares, and call the endpoint.

An endpoint declares its parameters in FastAPI's way, and FastAPI describes them in the OpenAPI document.
Start reading at `RoleRoute.handle`.
"""

import inspect
import re
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Annotated, Any, get_args, get_origin
from urllib.parse import unquote_to_bytes

from fastapi import Request, params
from fastapi.routing import APIRoute
from pydantic import BaseModel
from starlette.responses import Response
from starlette.routing import BaseRoute
from starlette.types import ASGIApp, Receive, Scope, Send

from service.auth.key_scope import OpenTo
from service.auth.keys import Role
from service.errors import Validation
from service.http.bodies import STORED, read_body, read_query
from service.store.scheduling import caller
from service.store.values import NO_KEY, Moved

OPEN = "open"  # role of a route that needs no key
CHANGING = {Role.WRITE, Role.ADMIN}
_IN_PATH = re.compile(r"{(\w+)")


class RoleRoute(APIRoute):
    """A route that only callers with a certain role may use.

    The route itself reads the body, the query, the parts of the path and the dependencies that the endpoint
    declares. FastAPI's code for this would add 40 µs to a request without a body and 65 µs to a request with
    a body (AMD EPYC, 2026-11-26). This is more than all other HTTP work for a short embedding. FastAPI's code
    would also accept NaN, and would answer errors with another body.
    """

    def __init__(self, path: str, endpoint: Any, **options: Any) -> None:
        # Without a media type of its own: describe() names the media types.
        options["response_class"] = Response
        extra = dict(options.get("openapi_extra") or {})
        if "x-role" not in extra:
            raise TypeError(f"{path} must say who may call it: describe(role).")
        options.setdefault("summary", endpoint.__name__.replace("_", " ").capitalize())
        self.role = None if extra["x-role"] == OPEN else Role(extra["x-role"])
        self.open_to = OpenTo(extra["x-open-to"])
        self.body: type[BaseModel] | None = None  # the model of its JSON body
        self._stored = False  # the body's values are stored
        self._readers: dict[str, Callable[[Request], Any]] = {}
        for parameter in inspect.signature(endpoint).parameters.values():
            self._declare(parameter.name, parameter.annotation)
        described = extra.get("parameters", [])
        names = {*self._readers, *(each["name"] for each in described if each["in"] == "path")}
        text = {"in": "path", "required": True, "schema": {"type": "string"}}
        missing = [text | {"name": name} for name in _IN_PATH.findall(path) if name not in names]
        if missing:
            extra["parameters"] = [*described, *missing]
        super().__init__(path, endpoint, **options | {"openapi_extra": extra})

    def _declare(self, name: str, annotation: Any) -> None:
        """Stores how to read one parameter of the endpoint from a request."""
        kind, *notes = get_args(annotation) if get_origin(annotation) is Annotated else [annotation]
        dependency = next((note.dependency for note in notes if isinstance(note, params.Depends)), None)
        if kind is Request:
            self._readers[name] = lambda request: request
        elif dependency is not None:
            self._readers[name] = dependency
        elif any(isinstance(note, params.Query) for note in notes):
            self._readers[name] = partial(read_query, model=kind)
        elif issubclass(kind, BaseModel):
            self.body, self._stored = kind, STORED in notes
        else:
            self._readers[name] = lambda request: request.path_params[name]

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.let_in(scope)
        if scope["method"] not in (self.methods or ()):
            await super().handle(scope, receive, send)  # FastAPI answers 405
            return
        scope["started"] = time.perf_counter()
        request = Request(scope, receive)
        arguments = {name: read(request) for name, read in self._readers.items()}
        if self.body is not None:
            arguments["body"] = await read_body(request, self.body, stored=self._stored)
        while True:
            try:
                response = await self.endpoint(**arguments)
                break
            except Moved:  # A new version became active during the request, and answers it.
                continue
        await response(scope, receive, send)

    def let_in(self, scope: Scope) -> None:
        """Rejects callers without the required role, before the body is read.

        Routes that change data also reject web pages of other sites. If the route does not support the
        method, any valid key is accepted, and the answer is 405.
        """
        state = scope["app"].state
        if self.role in CHANGING:
            state.hosts.refuse_pages(scope)
        access = state.access
        if access is not None and self.role is not None:
            if scope["method"] in (self.methods or ()):
                access.admit(scope, self.role, self.open_to)
            else:
                access.identify(scope)
        account = scope.get("account")
        caller.set(NO_KEY if account is None else account.key.name)


class ExactRouter:
    """ASGI app that finds routes with fixed paths by one dictionary lookup.

    Args:
        app: Handles all other requests.
        routes: All routes of the service.

    """

    def __init__(self, app: ASGIApp, routes: Sequence[BaseRoute]) -> None:
        self._app = app
        self._routes = {
            (method, route.path): route
            for route in routes
            if isinstance(route, RoleRoute) and "{" not in route.path
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
    """Rejects a path or a query that is not UTF-8. With replaced bytes it would name another object."""
    for part, name in ((scope.get("raw_path") or b"", "path"), (scope["query_string"], "query")):
        if b"%" in part:
            try:
                unquote_to_bytes(part).decode()
            except UnicodeDecodeError as error:
                raise Validation(f"The {name} is not UTF-8, percent-encoded.") from error
