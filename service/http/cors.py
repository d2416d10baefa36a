"""CORS for the origins that `SIMILE_CORS_ORIGINS` names. Without any, the layer is not installed."""

from collections.abc import Collection

from starlette.datastructures import Headers
from starlette.middleware.cors import CORSMiddleware
from starlette.responses import Response
from starlette.types import ASGIApp

from service.errors import Forbidden
from service.http.error_responses import response
from service.http.hosts import Hosts
from service.observability.logs import request_id_of

METHODS = ("GET", "POST", "DELETE")
SENT = ("Authorization", "Content-Type", "x-request-id", "x-model-version", "x-timeout-ms")
READ = ("x-request-id", "x-embedding-shape", "x-content-type-options", "retry-after")


class Cors(CORSMiddleware):
    """Starlette's CORS with our error answers and request ids. A preflight needs no API key.

    Args:
        exposed: Answer headers that pages may read, in addition to READ.

    """

    def __init__(
        self, app: ASGIApp, allow_origins: Collection[str], hosts: Hosts, exposed: Collection[str]
    ) -> None:
        self._hosts = hosts
        super().__init__(
            app,
            allow_origins=allow_origins,
            allow_methods=METHODS,
            allow_headers=SENT,
            expose_headers=(*READ, *exposed),
        )

    def preflight_response(self, request_headers: Headers) -> Response:
        answer = super().preflight_response(request_headers)
        misdirected = self._hosts.refusal(request_headers.raw)
        if misdirected is not None:
            answer = response("/", misdirected)
        elif answer.status_code != 200:
            refusal = Forbidden(
                f"{bytes(answer.body).decode()}. SIMILE_CORS_ORIGINS names the origins that may call this; "
                f"their pages may use {', '.join(METHODS)} and send {', '.join(SENT)}."
            )
            kept = {name: value for name, value in answer.headers.items() if not name.startswith("content-")}
            answer = response("/", refusal)
            answer.headers.update(kept)
        answer.headers["x-content-type-options"] = "nosniff"
        given = request_headers.get("x-request-id")
        answer.headers["x-request-id"] = request_id_of(None if given is None else given.encode("latin-1"))
        return answer
