"""A models folder with published versions, and a service on it that tests start and restart."""

import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest
from fastapi import FastAPI
from starlette.testclient import TestClient

from models.encoder import Encoder
from models.store import ModelStore
from service.app import create_app
from service.corpus.corpus import Corpus
from service.settings import Settings
from tests import postgres
from tests.parts.faults import before_passes
from tests.service.conftest import HOST, wait_until_ready
from tests.service.held_builds import hold_builds
from tests.service.swapping import QUERIES, TEXTS, Oracle, published
from tests.waiting import until

DOCUMENTS = {f"d{at}": TEXTS[at] for at in range(60)}


class Place:
    """A models folder and a service. Without `versions`, the folder has three: `a`, `b` and `c`."""

    def __init__(self, folder: Path, versions: Sequence[str] | None = None) -> None:
        self.folder = folder
        self.store = ModelStore(folder / "models")
        names = versions or [manifest.version for manifest in self.store.versions()]
        if versions is None:
            self.a, self.b, self.c = names
        self.oracle = Oracle(folder / "models", [*names])
        self.where = postgres.place()
        self.app: FastAPI
        self.client: TestClient

    @contextmanager
    def serving(self, *, wait: bool = True, **others: Any) -> Iterator[TestClient]:
        settings = Settings(
            **self.where,
            data_dir=self.folder / "data",
            models_dir=self.folder / "models",
            allowed_hosts=HOST,
            **{"cache_mb": 0, "rank_seconds": 30, **others},
        )
        self.app = create_app(settings)
        with TestClient(self.app) as self.client:
            if wait:
                wait_until_ready(self.client)
            yield self.client

    def put(self, documents: dict[str, str], path: str = "", headers: Any = None) -> httpx2.Response:
        body = {"documents": [{"id": id, "text": text} for id, text in documents.items()]}
        return self.client.post(f"{path}/documents", json=body, headers=headers)

    def fill(self) -> None:
        assert self.put(DOCUMENTS).status_code == 200

    def active(self) -> str:
        return str(self.client.get("/info").json()["model_version"])

    def state(self, version: str) -> dict[str, Any]:
        models = self.client.get("/models").json()["models"]
        [found] = [model for model in models if model["version"] == version]
        return dict(found)

    def has(self, line: str) -> bool:
        """Returns whether `GET /metrics` contains `line`."""
        return line in self.client.get("/metrics").text

    def swaps(self, outcome: str, count: int) -> bool:
        return self.has(f'simile_swaps_total{{outcome="{outcome}"}} {count}.0')

    def hold(self, monkeypatch: pytest.MonkeyPatch, version: str, documents: int) -> threading.Event:
        """Stops builds of `version` after a number of documents, until the returned event is set."""
        return hold_builds(monkeypatch, version, documents)

    def until(self, true: Callable[[], bool]) -> None:
        until(true, lambda: self.client.get("/models").text)

    def until_active(self, version: str) -> None:
        self.until(lambda: self.active() == version)

    def until_state(self, version: str, state: str) -> dict[str, Any]:
        self.until(lambda: self.state(version)["state"] == state)
        return self.state(version)

    def until_followed(self) -> None:
        """Waits until the indexes of all followers have all documents. Writes do not wait for followers."""
        active = self.app.state.runtime.active
        documents = active.generation.indexes.documents
        self.until(lambda: all(other.indexes.documents == documents for other in active.followers))

    def activate(self, version: str) -> None:
        assert self.client.post(f"/models/{version}/activate").status_code == 202
        self.until_active(version)

    def rollback(self, version: str) -> None:
        """Rolls back, which must activate `version`, and waits for the swap."""
        assert self.client.post("/models/rollback").json() == {"wanted": version}
        self.until_active(version)

    def everything(self) -> dict[str, str]:
        """Returns {id: text} of all hits of a search. Checks their scores with the version of the answer."""
        answer = self.client.get("/search", params={"q": QUERIES[0], "mode": "dense", "k": 1000}).json()
        self.oracle.check_search(answer)
        return {hit["id"]: hit["text"] for hit in answer["hits"]}


def break_model(
    monkeypatch: pytest.MonkeyPatch, version: str, poisons: Collection[tuple[int, ...]] | None = None
) -> None:
    """Makes forward passes of a version fail: all, or those that contain a row in `poisons`."""

    def fails(encoder: Encoder, ids: Any) -> None:
        if encoder.manifest.version == version and (
            poisons is None or any(tuple(row) in poisons for row in ids)
        ):
            raise RuntimeError("injected")

    before_passes(monkeypatch, fails)


def count_embedded(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Returns a list that receives the text of each document that is embedded from now on."""
    texts: list[str] = []
    embed = Corpus.embed

    async def counted(self: Corpus, generation: Any, contents: Any, *args: Any) -> Any:
        texts.extend(content.text for content in contents)
        return await embed(self, generation, contents, *args)

    monkeypatch.setattr(Corpus, "embed", counted)
    return texts


@pytest.fixture
def place(tmp_path: Path) -> Place:
    published(tmp_path / "models", 3)
    return Place(tmp_path)
