"""Operations of the integrations (LangChain, LlamaIndex, Haystack) on one collection, sync and async.

Each operation is written once, as a generator of calls: `Steps`. `Operations.run` makes the calls with the
blocking client, and `Operations.run_async` with the client for asyncio.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Generator, Iterable, Iterator
from functools import partial
from typing import Any, TypeAlias, TypeVar
from urllib.parse import quote

from simile_client.calls import Filter
from simile_client.clients import AsyncClient, Client
from simile_client.values import Document, SearchAnswer, SimileError

T = TypeVar("T")
# A call of a method. `AsyncClient` has the methods of `Client`, so it also serves there.
ClientCall: TypeAlias = Callable[[Client], Any]
Steps: TypeAlias = Generator[ClientCall, Any, T]

MAX_COUNT = 64  # Documents or ids of one request. Metadata may have 64 KiB each, and a body 16 MiB.
MAX_TEXTS = 512  # Texts of one request.
MAX_CHARACTERS = 2 << 20  # Characters of the texts of one request, of at most 6 bytes each.
MAX_URL_CHARACTERS = 16_384  # Proxies accept less than the service, whose limit is 64 KiB.


class Operations:
    """Operations on the documents of one collection.

    Args:
        client: Makes the calls of `run`.
        async_client: Makes the calls of `run_async`. None: a thread makes them with `client`.
        collection: The collection. While it does not exist, it is empty; the first document creates it.
    """

    def __init__(self, client: Client, async_client: AsyncClient | None, collection: str = "default") -> None:
        self._client = client
        self._async_client = async_client
        self.collection = collection

    def run(self, steps: Steps[T]) -> T:
        try:
            call = next(steps)
            while True:
                try:
                    answer = call(self._client)
                except SimileError as error:
                    call = steps.throw(error)
                else:
                    call = steps.send(answer)
        except StopIteration as end:
            result: T = end.value
            return result

    async def run_async(self, steps: Steps[T]) -> T:
        if self._async_client is None:
            return await asyncio.to_thread(self.run, steps)
        try:
            call = next(steps)
            while True:
                try:
                    answer = await call(self._async_client)  # type: ignore[arg-type]  # see ClientCall
                except SimileError as error:
                    call = steps.throw(error)
                else:
                    call = steps.send(answer)
        except StopIteration as end:
            result: T = end.value
            return result

    def put(self, documents: Iterable[Document]) -> Steps[list[str]]:
        """Stores documents, and replaces documents with the same id. Returns the ids."""
        ids: list[str] = []
        for batch in _split(documents, lambda document: len(document.text), MAX_CHARACTERS):
            stored = yield partial(Client.put, documents=batch, collection=self.collection)
            ids += stored.ids
        return ids

    def get(self, ids: Iterable[str]) -> Steps[list[Document]]:
        """Returns the documents with these ids, in this order. Missing documents are left out."""
        ordered = list(dict.fromkeys(ids))
        found: dict[str | None, Document] = {}
        for batch in _split(ordered, _url_characters, MAX_URL_CHARACTERS):
            documents = yield from self.list_documents({"$ids": batch})
            found |= {document.id: document for document in documents}
        return [found[id] for id in ordered if id in found]

    def list_documents(self, filter: Filter | None = None) -> Steps[list[Document]]:
        """Returns the documents that match a filter, or all documents, in the order of their ids."""
        documents: list[Document] = []
        after: str | None = ""
        while after is not None:
            try:
                page = yield partial(
                    Client.list_documents, filter=filter, after=after, limit=1000, collection=self.collection
                )
            except SimileError as error:
                _check_missing_collection(error)
                return documents
            documents += page.documents
            after = page.next
        return documents

    def count(self, filter: Filter | None = None) -> Steps[int]:
        try:
            count: int = yield partial(Client.count, filter=filter, collection=self.collection)
        except SimileError as error:
            _check_missing_collection(error)
            return 0
        return count

    def delete(self, ids: Iterable[str]) -> Steps[int]:
        """Deletes documents by their ids. Returns the number of deleted documents."""
        deleted = 0
        for batch in _split(ids, _url_characters, MAX_URL_CHARACTERS):
            deleted += yield from self.delete_matching({"$ids": batch})
        return deleted

    def delete_matching(self, filter: Filter) -> Steps[int]:
        """Deletes the documents that match a filter. Returns the number of deleted documents."""
        try:
            deleted: int = yield partial(Client.delete_matching, filter=filter, collection=self.collection)
        except SimileError as error:
            _check_missing_collection(error)
            return 0
        return deleted

    def delete_all(self) -> Steps[int]:
        """Deletes all documents of the collection. Returns the number of deleted documents."""
        every = {"$or": [{"any": {"$exists": True}}, {"any": {"$exists": False}}]}
        return (yield from self.delete_matching(every))

    def search(self, query: str, **options: Any) -> Steps[SearchAnswer | None]:
        """Searches. `options` are those of `Client.search`. Returns None if the collection does not exist."""
        try:
            answer: SearchAnswer = yield partial(
                Client.search, query=query, collection=self.collection, **options
            )
        except SimileError as error:
            _check_missing_collection(error)
            return None
        return answer

    def embed(self, texts: Iterable[str], prompt_name: str | None = None) -> Steps[list[list[float]]]:
        """Embeds texts, with a prompt of the model if one is named."""
        vectors: list[list[float]] = []
        for batch in _split(texts, len, MAX_CHARACTERS, MAX_TEXTS):
            vectors += yield partial(Client.embed, texts=batch, prompt_name=prompt_name)
        return vectors


def _split(
    items: Iterable[T], measure: Callable[[T], int], limit: int, max_count: int = MAX_COUNT
) -> Iterator[list[T]]:
    """Yields lists of at most `max_count` items and, unless an item alone has more, `limit` characters."""
    batch: list[T] = []
    size = 0
    for item in items:
        characters = measure(item)
        if batch and (len(batch) == max_count or size + characters > limit):
            yield batch
            batch, size = [], 0
        batch.append(item)
        size += characters
    if batch:
        yield batch


def _url_characters(id: str) -> int:
    return len(quote(json.dumps(id))) + len(quote(", "))


def _check_missing_collection(error: SimileError) -> None:
    """Raises the error again, unless the service says that the collection does not exist."""
    # A wrong path of the URL is `NotFound`, too.
    if error.error_type != "NotFound" or "no collection" not in error.message:
        raise error
