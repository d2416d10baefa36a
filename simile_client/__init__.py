"""A Python client for a Simile service: `Client`, and `AsyncClient` for asyncio. It requires only httpx2."""

from simile_client.clients import AsyncClient, Client
from simile_client.values import (
    Document,
    DocumentPage,
    Highlights,
    Hit,
    Imported,
    Rank,
    SearchAnswer,
    SimileError,
    Snippet,
    Suggestion,
    Version,
)

__all__ = [
    "AsyncClient",
    "Client",
    "Document",
    "DocumentPage",
    "Highlights",
    "Hit",
    "Imported",
    "Rank",
    "SearchAnswer",
    "SimileError",
    "Snippet",
    "Suggestion",
    "Version",
]
