"""Refusals before anything is read: a wrong `Host`, a connection too many, a text too late.

Under overload most requests are such, and each that is parsed, validated and routed first takes its time from
those that are served.
"""

from collections.abc import Callable, Sequence

from starlette.routing import BaseRoute
from starlette.types import Scope

from service.auth.access import Access
from service.errors import ServiceError
from service.http.connections import Connections
from service.http.hosts import Hosts
from service.http.routing import Direct

# Whoever asks for one of these waits for the encoder, whatever the body says.
PATHS = {"/", "/embed", "/similarity", "/embeddings", "/v1/embeddings", "/v2/embed"}
METHOD = "POST"
# Asked by whatever watches the service, also when every connection is in use.
WATCHED = {"/health", "/ready", "/metrics"}


class LoadShedder:
    """Stands before the routes; `access` knows the keys, where there are some."""

    def __init__(
        self,
        overloaded: Callable[[], ServiceError | None],
        access: Access | None,
        routes: Sequence[BaseRoute],
        hosts: Hosts,
        connections: Connections,
    ) -> None:
        self._overloaded = overloaded
        self._access = access
        self._hosts = hosts
        self._connections = connections
        direct = (route for route in routes if isinstance(route, Direct) and METHOD in (route.methods or ()))
        self._routes = {route.path: route for route in direct if route.path in PATHS}

    def refusal(self, scope: Scope) -> ServiceError | None:
        """Why a request is refused: its headers, the connections, the queue, or its key. None: it may try.

        A stranger is told nothing of the queue, and whoever has a key spends a request on it as on any other.
        """
        refusal = self._hosts.refusal(scope["headers"])
        if refusal is not None:
            return refusal
        if scope.get("spare") and scope["path"] not in WATCHED:
            return self._connections.refusal()
        route = self._routes.get(scope["path"])
        if route is None or scope["method"] != METHOD:
            return None
        overloaded = self._overloaded()
        if overloaded is None:
            return None
        scope["route"] = route
        try:
            if self._access is not None and route.role is not None:
                self._access.admit(scope, route.role)
        except ServiceError as error:
            return error.with_traceback(None)  # as in Batcher.overloaded
        return overloaded
