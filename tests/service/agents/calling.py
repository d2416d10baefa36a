"""The official MCP client, over both transports."""

import asyncio
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, TypeVar

import httpx2
from mcp.client.client import Client
from mcp.client.stdio import StdioServerParameters, stdio_client
from mcp.client.streamable_http import streamable_http_client
from mcp_types import CallToolResult, TextContent

from tests.service.keyed import bearer
from tests.service.process import Service, plain_environment
from tests.waiting import LIMIT

T = TypeVar("T")
Use = Callable[[Client], Awaitable[T]]
ROOT = Path(__file__).parents[3]


def over_http(service: Service, use: Use[T], key: str | None = None, mode: str = "auto") -> T:
    async def run() -> T:
        async with httpx2.AsyncClient(headers=bearer(key), timeout=LIMIT, trust_env=False) as http:
            transport = streamable_http_client(f"http://127.0.0.1:{service.port}/mcp", http_client=http)
            async with Client(transport, mode=mode, read_timeout_seconds=LIMIT) as client:
                return await use(client)

    return asyncio.run(run())


def over_stdio(service: Service, use: Use[T], key: str | None = None, mode: str = "auto") -> T:
    named = {} if key is None else {"SIMILE_API_KEY": key}
    command = StdioServerParameters(
        command=sys.executable,
        args=["-m", "service", "mcp", "--url", f"http://127.0.0.1:{service.port}"],
        env=plain_environment(**named),
        cwd=ROOT,
    )

    async def run() -> T:
        async with Client(stdio_client(command), mode=mode, read_timeout_seconds=LIMIT) as client:
            return await use(client)

    return asyncio.run(run())


def text_of(result: CallToolResult) -> str:
    [content] = result.content
    assert isinstance(content, TextContent)
    return content.text


async def call(client: Client, tool: str, **arguments: Any) -> dict[str, Any]:
    """Calls a tool, which must succeed, and returns its structured answer."""
    result = await client.call_tool(tool, arguments)
    assert not result.is_error, text_of(result)
    structured: dict[str, Any] = result.structured_content
    return structured


async def fail(client: Client, tool: str, **arguments: Any) -> str:
    """Calls a tool, which must fail, and returns the message."""
    result = await client.call_tool(tool, arguments)
    assert result.is_error, text_of(result)
    return text_of(result)
