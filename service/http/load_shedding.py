"""Rejects requests before their body is read: a wrong `Host`, too many connections, or a full queue.

Early rejection is cheap. Under overload most requests are rejected, and parsing them first would slow down
the others.
"""

from collections.abc import Callable, Sequence

from starlette.routing import BaseRoute
from starlette.types import Scope

from service.auth.access import Access
from service.errors import ServiceError
from service.http.connections import Connections
from service.http.hosts import Hosts
from service.http.routing import RoleRoute

# Routes that always need the encoder.
PATHS = {"/", "/embed", "/similarity", "/embeddings", "/v1/embeddings", "/v2/embed"}
METHOD = "POST"
# Routes for monitoring, which also work on spare connections.
WATCHED = {"/health", "/ready", "/metrics"}


class LoadShedder:
    """Decides on each request before its route runs.

    Args:
        overloaded: Returns the error for a new text, or None if the queue has room.
        access: Checks API keys. None if clients need no key.

    """

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
        direct = (
            route for route in routes if isinstance(route, RoleRoute) and METHOD in (route.methods or ())
        )
        self._routes = {route.path: route for route in direct if route.path in PATHS}

    def refusal(self, scope: Scope) -> ServiceError | None:
        """Returns the error for a request, or None if it may proceed.

        Clients without a valid key learn nothing about the queue. A rejected request counts against the limit
        of its key.
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
            return error.with_traceback(None)  # See Batcher.overloaded.
        return overloaded
