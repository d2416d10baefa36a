"""The MCP server of agents: lists and calls the tools of tools.py. Start reading at `build_server`.

The low-level server of the package `mcp` is used, because the list of tools depends on the role of the key,
and because the high-level one logs arguments of tools.
"""

import json
import logging
from typing import Any
from urllib.parse import unquote

import httpx2
from mcp.server.lowlevel import Server
from mcp.server.stdio import stdio_server
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from mcp.shared.exceptions import MCPError
from mcp_types import (
    INTERNAL_ERROR,
    INVALID_PARAMS,
    CallToolRequestParams,
    CallToolResult,
    ListResourcesResult,
    ListResourceTemplatesResult,
    ListToolsResult,
    ReadResourceRequestParams,
    ReadResourceResult,
    ResourceTemplate,
    TextContent,
    TextResourceContents,
)
from mcp_types import Tool as DescribedTool
from starlette.types import ASGIApp, Receive, Scope, Send

from models.version import VERSION
from service.agents.tools import (
    MAX_TEXT_CHARACTERS,
    MAX_URI_CHARACTERS,
    NOTICE,
    TOOLS,
    URI,
    ReadInput,
    Service,
    Tool,
    ToolFailed,
    read_document,
)
from service.errors import CommandError, ServiceError
from service.http.bodies import validated

log = logging.getLogger(__name__)
# Messages below this level contain names that clients send.
logging.getLogger("mcp").setLevel(logging.ERROR)

INSTRUCTIONS = (
    "Simile searches the documents of a team. Call search, then read_document for each document that you "
    f"rely on, then give_feedback if it is listed. {NOTICE}"
)
_JSON = "application/json"


def build_server(client: httpx2.AsyncClient) -> Server[Any]:
    """Returns a server for one agent.

    Args:
        client: Client with the address of the service and the headers of the agent.

    """
    service = Service(client)

    async def list_tools(*_: object) -> ListToolsResult:
        """Lists the tools that the agent's key may use."""
        try:
            allowed = (await service.get_role()).allows
        except ToolFailed as error:
            raise MCPError(INTERNAL_ERROR, str(error)) from error
        return ListToolsResult(
            tools=[_describe(name, tool) for name, tool in TOOLS.items() if tool.role in allowed]
        )

    async def call_tool(_: object, params: CallToolRequestParams) -> CallToolResult:
        tool = TOOLS.get(params.name)
        if tool is None:
            return _fail(f"There is no tool {params.name[:80]!r}. There are {', '.join(TOOLS)}.")
        try:
            given = validated(tool.input, params.arguments or {}, "arguments")
            found = (await tool.run(service, given)).model_dump(mode="json")
        except (ToolFailed, ServiceError) as error:
            return _fail(str(error))
        return CallToolResult(content=[TextContent(text=_to_json(found))], structured_content=found)

    async def list_resources(*_: object) -> ListResourcesResult:
        """Lists nothing: documents are found by searching. A client would read millions of them here."""
        return ListResourcesResult(resources=[])

    async def list_templates(*_: object) -> ListResourceTemplatesResult:
        return ListResourceTemplatesResult(resource_templates=[_TEMPLATE])

    async def read_resource(_: object, params: ReadResourceRequestParams) -> ReadResourceResult:
        try:
            found = await read_document(service, _parse_uri(params.uri))
        except (ToolFailed, ServiceError) as error:
            raise MCPError(INVALID_PARAMS, str(error)) from error
        shown = found.model_dump(mode="json", exclude={"event_stored"})
        contents = TextResourceContents(uri=params.uri, mime_type=_JSON, text=_to_json(shown))
        return ReadResourceResult(contents=[contents])

    server: Server[Any] = Server(
        "simile",
        version=VERSION,
        title="Simile",
        instructions=INSTRUCTIONS,
        get_tool_input_schema=_INPUTS.get,
        on_list_tools=list_tools,
        on_call_tool=call_tool,
        on_list_resources=list_resources,
        on_list_resource_templates=list_templates,
        on_read_resource=read_resource,
    )
    server.middleware.clear()  # Its spans would go to a provider that another library registered.
    return server


_INPUTS = {name: tool.input.model_json_schema() for name, tool in TOOLS.items()}
_OUTPUTS = {name: tool.output.model_json_schema(mode="serialization") for name, tool in TOOLS.items()}
_TEMPLATE = ResourceTemplate(
    name="document",
    title="Document",
    uri_template=f"{URI}{{collection}}/{{id}}",
    mime_type=_JSON,
    description=f"A document as JSON, at most {MAX_TEXT_CHARACTERS} characters of its text. {NOTICE}",
)


def _describe(name: str, tool: Tool) -> DescribedTool:
    return DescribedTool(
        name=name,
        title=tool.title,
        description=tool.description,
        input_schema=_INPUTS[name],
        output_schema=_OUTPUTS[name],
        annotations=tool.annotations,
    )


def _fail(message: str) -> CallToolResult:
    return CallToolResult(content=[TextContent(text=message)], is_error=True)


def _to_json(found: dict[str, Any]) -> str:
    return json.dumps(found, ensure_ascii=False)


def _parse_uri(uri: str) -> ReadInput:
    """Parses the URI of a document.

    Raises:
        ToolFailed: The URI names no document.
        Validation: The name of the collection is invalid, or the id is empty.

    """
    collection, _, id = uri.removeprefix(URI).partition("/")
    if not uri.startswith(URI) or len(uri) > MAX_URI_CHARACTERS:
        raise ToolFailed(f"Only URIs such as {_TEMPLATE.uri_template} can be read; search returns them.")
    try:
        name = unquote(id, errors="strict")
    except UnicodeDecodeError as error:
        raise ToolFailed("The id in the URI is not UTF-8, percent-encoded.") from error
    values = {"collection": collection, "id": name, "max_characters": MAX_TEXT_CHARACTERS}
    return validated(ReadInput, values, "uri")


async def answer_http(
    app: ASGIApp, headers: dict[str, str], max_bytes: int, scope: Scope, receive: Receive, send: Send
) -> None:
    """Answers one HTTP request of an agent.

    Requests have no session, so any replica can answer them, also after a restart. All tasks end before this
    function returns.

    Args:
        app: The service, which receives the requests of the tools.
        headers: Headers of these requests.
        max_bytes: Size limit of the request's body.
        scope: The request.
        receive: Returns the body of the request.
        send: Sends the answer.

    """
    transport = httpx2.ASGITransport(app, client=scope["client"] or ("", 0))
    async with httpx2.AsyncClient(
        transport=transport, base_url="http://localhost", headers=headers, trust_env=False
    ) as client:
        manager = StreamableHTTPSessionManager(
            build_server(client), json_response=True, stateless=True, max_request_body_size=max_bytes
        )
        async with manager.run():
            await manager.handle_request(scope, receive, send)


async def answer_stdio(url: str, key: str, timeout_seconds: float) -> None:
    """Answers an agent over stdin and stdout until stdin ends.

    Args:
        url: Address of a running service.
        key: API key, or an empty string.
        timeout_seconds: Time without any byte of an answer.

    Raises:
        CommandError: The address or the key is not valid.

    """
    headers = {"authorization": f"Bearer {key}"} if key else {}
    try:
        client = httpx2.AsyncClient(base_url=url, headers=headers, timeout=timeout_seconds, trust_env=False)
    except (httpx2.InvalidURL, UnicodeEncodeError) as error:
        raise CommandError("The address or the API key is not valid. Check --url and the key.") from error
    server = build_server(client)
    async with client, stdio_server() as (received, sent):
        await server.run(received, sent, server.create_initialization_options())
