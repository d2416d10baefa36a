"""A client of a Simile service, for programs: `Client`, and `AsyncClient` for asyncio. Needs httpx2 alone."""

from simile_client.clients import AsyncClient, Client
from simile_client.values import Document, Hit, Imported, SearchAnswer, SimileError, Version

__all__ = ["AsyncClient", "Client", "Document", "Hit", "Imported", "SearchAnswer", "SimileError", "Version"]
