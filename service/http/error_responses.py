"""Turns errors into HTTP answers.

Errors have three formats: one for the native and TEI routes, one for OpenAI's `/v1`, and one for Cohere's
`/v2`.
"""

from typing import Any

import orjson
from fastapi import FastAPI, Request
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.routing import Match, Route

from models.messages import did_you_mean
from service.errors import MethodNotAllowed, NotFound, ServiceError, Validation

MAIN_ROUTES = "POST /embed, /similarity, /search and /documents"
# Advice for a method that a route does not accept, by the route's path in its collection.
INSTEAD = {
    "/documents": "POST /documents stores documents, and replaces those with the same id.",
    "/documents/{id:anything}": "POST /documents with the same id replaces it.",
    "/collections": "A collection's first document makes it: POST /collections/NAME/documents.",
    "/collections/{collection}": "Its first document makes a collection: POST /collections/NAME/documents.",
}
NOSNIFF = (b"x-content-type-options", b"nosniff")  # Browsers must not guess the media type.


def family(path: str) -> str:
    """Returns the API of a path, which decides the format of errors: `openai`, `cohere` or `native`."""
    if path == "/v1" or path.startswith("/v1/") or path == "/embeddings":
        return "openai"
    return "cohere" if path == "/v2" or path.startswith("/v2/") else "native"


def status_in(family: str, status: int) -> int:
    """Returns the status code of an error in a family of routes.

    Clients of OpenAI and Cohere expect 400 for a bad request, and 500 if the model failed. Native routes
    return 422 and 424.
    """
    return status if family == "native" else {422: 400, 424: 500}.get(status, status)


def response(path: str, error: ServiceError) -> Response:
    style = family(path)
    status = status_in(style, error.status)
    body: dict[str, Any]
    if style == "openai":
        kind = "invalid_request_error" if status < 500 else "server_error"
        kind = "rate_limit_error" if status == 429 else kind
        code = "invalid_api_key" if status == 401 else error.error_type
        body = {"error": {"message": error.message, "type": kind, "param": error.param, "code": code}}
        if path == "/v1/rerank":  # Jina's clients read this field.
            body["detail"] = error.message
    elif style == "cohere":
        body = {"message": error.message}
    else:
        body = {"error": error.message, "error_type": error.error_type}
    return Response(orjson.dumps(body), status, error.headers, "application/json")


def _other_method(request: Request) -> MethodNotAllowed:
    path = request.url.path
    routes = [route for route in request.app.router.routes if isinstance(route, Route)]
    matching = [route for route in routes if route.matches(request.scope)[0] is not Match.NONE]
    methods = {method for route in matching for method in route.methods or ()}
    allowed = ", ".join(sorted(methods | {"HEAD"} if "GET" in methods else methods))
    plain = (route.path.removeprefix("/collections/{collection}") or route.path for route in matching)
    instead = next((f" {INSTEAD[each]}" for each in plain if each in INSTEAD), "")
    if request.method not in {"PUT", "PATCH", "POST"}:
        instead = ""
    message = f"{path} does not take {request.method}; it takes {allowed}.{instead}"
    return MethodNotAllowed(message, headers={"allow": allowed})


def install(app: FastAPI) -> None:
    """Registers a handler that replaces FastAPI's HTTP errors with errors of the service."""

    async def on_http(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)  # noqa: S101  this handler is registered for this type
        path = request.url.path
        if error.status_code == 404:
            access = request.app.state.access
            if access is not None and "endpoint" not in request.scope:
                access.identify(request.scope)  # Clients without a key must not learn which paths exist.
            plain = [route.path for route in request.app.router.routes if isinstance(route, Route)]
            hint = did_you_mean(path, (each for each in plain if "{" not in each))
            hint = hint or f" There are {MAIN_ROUTES}."
            raise NotFound(
                f"There is no route {request.method} {path}.{hint} GET /docs lists all."
            ) from error
        if error.status_code == 405:
            raise _other_method(request) from error
        raise Validation(str(error.detail)) from error

    app.add_exception_handler(HTTPException, on_http)
