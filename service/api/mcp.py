"""The route `POST /mcp`: tools for agents, by the Model Context Protocol. service/agents/ has the tools."""

import asyncio
import time
from functools import cache
from types import ModuleType

from fastapi import APIRouter, Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from models.errors import install_command
from service.api.openapi import OpenTo, Role, describe
from service.errors import Conflict, TooLarge, Validation
from service.http.bodies import MEGABYTE, require_json, values_in
from service.http.routing import RoleRoute

MAX_BODY_BYTES = 4 * MEGABYTE
# The package parses a body on the event loop. This many nested values took 0.1 s on a shared machine.
MAX_VALUES = 50_000
PASSED_ON = ("authorization", "traceparent", "tracestate")

router = APIRouter(route_class=RoleRoute, include_in_schema=False)


@cache
def _import_server() -> ModuleType:
    """Imports the server on its first use, because this takes about a second and 25 MB."""
    from service.agents import server  # noqa: PLC0415

    return server


@router.post("/mcp", **describe(Role.READ, open_to=OpenTo.SCOPED, raises=[Conflict, TooLarge]))
async def answer_agent(request: Request) -> ASGIApp:
    """Answer a message of the Model Context Protocol (Streamable HTTP without sessions).

    The requests of a tool go through the whole service again, with the same key and the rest of the time.
    """
    request.app.state.hosts.refuse_pages(request.scope)
    require_json(request)
    content = await request.body()
    if len(content) > MAX_BODY_BYTES:
        limit = MAX_BODY_BYTES // MEGABYTE
        raise TooLarge(f"A message of an agent has at most {limit} MiB. Send fewer documents at once.")
    if values_in(content, MAX_VALUES) > MAX_VALUES:
        raise Validation(f"The body holds more than {MAX_VALUES} JSON values. Send it in parts.")
    try:
        server = await asyncio.to_thread(_import_server)
    except ModuleNotFoundError as error:
        raise Conflict(
            f"This service has no tools for agents, because {error.name} is not installed: "
            f"{install_command('mcp')}"
        ) from error
    headers = {name: request.headers[name] for name in PASSED_ON if name in request.headers}
    headers["x-request-id"] = request.scope["request_id"]
    left = request.scope["ends"] - time.monotonic()
    headers["x-timeout-ms"] = str(max(1, int(left * 1000)))
    unread: list[Message] = [{"type": "http.request", "body": content}]

    async def receive() -> Message:
        return unread.pop() if unread else await request.receive()

    async def answer(scope: Scope, _: Receive, send: Send) -> None:
        await server.answer_http(scope["app"], headers, MAX_BODY_BYTES, scope, receive, send)

    return answer
