"""To a route of a fixed path at once, without the framework's way there.

The router asks one route after the other for a match, and what stands around an endpoint (stacks of contexts
for dependencies, handlers of its exceptions) serves those that have parameters. An endpoint that takes the
request alone needs none of it, and refuses through the edge.
"""

from collections.abc import Sequence

from starlette.requests import Request
from starlette.routing import BaseRoute
from starlette.types import ASGIApp, Receive, Scope, Send

from service.api.body import Direct


class Straight:
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
