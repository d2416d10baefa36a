"""Refusals as HTTP answers: one body for each family of routes.

TEI's and our own routes, OpenAI's `/v1` and Cohere's `/v2` each word a refusal in their own way.
"""

from typing import Any

import orjson
from fastapi import FastAPI, Request
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.routing import Match, Route

from models.words.nearest import did_you_mean
from service.errors import MethodNotAllowed, NotFound, ServiceError, Validation


def family(path: str) -> str:
    """Whose error body a path answers with: `openai`, `cohere` or `native`."""
    if path == "/v1" or path.startswith("/v1/") or path == "/embeddings":
        return "openai"
    return "cohere" if path == "/v2" or path.startswith("/v2/") else "native"


def status_in(family: str, status: int) -> int:
    """The status of a refusal as a family of routes has it.

    Clients of `/v1` and `/v2` know a bad request as 400, and a failed model as 500.
    """
    return status if family == "native" else {422: 400, 424: 500}.get(status, status)


def response(path: str, error: ServiceError) -> Response:
    """`error` as the family of `path` words it."""
    who = family(path)
    status = status_in(who, error.status)
    body: dict[str, Any]
    if who == "openai":
        kind = "invalid_request_error" if status < 500 else "server_error"
        kind = "rate_limit_error" if status == 429 else kind
        code = "invalid_api_key" if status == 401 else error.error_type
        body = {"error": {"message": error.message, "type": kind, "param": error.param, "code": code}}
    elif who == "cohere":
        body = {"message": error.message}
    else:
        body = {"error": error.message, "error_type": error.error_type}
    return Response(orjson.dumps(body), status, error.headers, "application/json")


def _methods(request: Request) -> set[str]:
    """The methods that the request's path takes."""
    routes = [route for route in request.app.router.routes if isinstance(route, Route)]
    matching = [route for route in routes if route.matches(request.scope)[0] is not Match.NONE]
    methods = {method for route in matching for method in route.methods or ()}
    return methods | {"HEAD"} if "GET" in methods else methods


def install(app: FastAPI) -> None:
    """Turn the framework's own refusals of `app` into ours; middleware.py answers them all."""

    async def on_http(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)  # noqa: S101  the type this handler is registered for
        path = request.url.path
        if error.status_code == 404:
            access = request.app.state.access
            if access is not None and "endpoint" not in request.scope:
                access.identify(request.scope)  # a stranger does not learn which paths there are
            plain = [route.path for route in request.app.router.routes if isinstance(route, Route)]
            hint = did_you_mean(path, (each for each in plain if "{" not in each))
            raise NotFound(
                f"There is no route {request.method} {path}.{hint} GET /docs lists them."
            ) from error
        if error.status_code == 405:
            allowed = ", ".join(sorted(_methods(request)))  # of all routes of this path, not of the first
            raise MethodNotAllowed(
                f"{path} does not take {request.method}; it takes {allowed}.", headers={"allow": allowed}
            ) from error
        raise Validation(str(error.detail)) from error

    app.add_exception_handler(HTTPException, on_http)
