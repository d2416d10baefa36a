"""Many documents are deleted in atomic steps, with other writes in between."""

import sqlite3
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from service.observability.logs import request_id
from service.settings import Settings
from service.store.sql import methods
from service.store.sqlite import secondary_indexes
from service.store.sqlite.reader import Readers
from service.store.sqlite.schema import connect
from service.store.sqlite.store import SqliteStore
from service.store.sqlite.writer import Transaction
from service.store.sqlite.writes import DELETE_CHARACTERS, delete_some, upsert
from service.store.values import DELETE_DOCUMENTS, Document, Step
from tests.service.conftest import new_settings, serving
from tests.service.swapping import TEXTS
from tests.waiting import LIMIT

MANY = 3 * DELETE_DOCUMENTS + 5
STEP = delete_some
ODD = {"filter": '{"odd": true}'}


@pytest.fixture
def settings(tmp_path: Path, tiny_models_dir: Path) -> Settings:
    return new_settings(tmp_path, tiny_models_dir, indexed_fields="odd")


def put(client: TestClient, ids: dict[str, bool], text: str | None = None, at: str = "") -> None:
    documents = [
        {"id": id, "text": text or TEXTS[number % len(TEXTS)], "metadata": {"odd": odd}}
        for number, (id, odd) in enumerate(ids.items())
    ]
    assert client.post(f"{at}/documents", json={"documents": documents}).status_code == 200


def fill(client: TestClient, at: str = "") -> None:
    put(
        client, {f"d{number:04}": True for number in range(MANY)} | {f"e{n}": False for n in range(20)}, at=at
    )


def left(client: TestClient, at: str = "") -> set[str]:
    """Returns the stored ids, and checks that dense and lexical search find the same ids."""
    page = client.get(f"{at}/documents", params={"limit": 1000}).json()
    stored = {document["id"] for document in page["documents"]}
    for query, mode in (("red river", "dense"), ("red green", "lexical")):
        answer = client.get(f"{at}/search", params={"q": query, "k": 1000, "mode": mode}).json()
        assert {hit["id"] for hit in answer["hits"]} == stored, mode
    return stored


def consistent(settings: Settings) -> None:
    connection = connect(settings.data_dir / "simile.db", read_only=True)
    assert secondary_indexes.unequal(connection) == []
    [orphans] = connection.execute(
        "SELECT count(*) FROM vectors WHERE revision NOT IN (SELECT revision FROM documents)"
    ).fetchone()
    assert orphans == 0
    connection.close()


@pytest.mark.sqlite("its jobs run one after another")
def test_no_job_deletes_more_than_a_step_and_writes_come_between_two_of_them(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps: list[Step] = []
    order: list[str] = []

    def noted(transaction: Transaction, documents: Any, *arguments: Any, **named: Any) -> Any:
        order.append("write")
        return upsert(transaction, documents, *arguments, **named)

    with serving(settings) as client, ThreadPoolExecutor(1) as pool:
        fill(client)
        writer = client.app.state.runtime.corpus.store.writer  # type: ignore[attr-defined]
        began = threading.Event()

        def waits() -> bool:
            return bool(writer._queue.qsize()) or len(writer._in_hand) > 1

        def step(transaction: Transaction, revisions: Any, collection: str) -> Step:
            began.set()
            # The second step waits until a write is pending, in the same group or after it.
            while len(steps) == 1 and "write" not in order and not waits():
                time.sleep(0.001)
            found = STEP(transaction, revisions, collection)
            steps.append(found)
            order.append("step")
            return found

        monkeypatch.setattr(SqliteStore, "delete_some", methods.writing(step))
        monkeypatch.setattr(SqliteStore, "put", methods.writing(noted))
        deleting = pool.submit(client.delete, "/documents", params=ODD)
        assert began.wait(LIMIT)
        put(client, {"late": True})  # It matches the filter but is newer than the request.
        put(client, {"d0388": True}, "changed since red")  # The same holds for this text.
        answer = deleting.result().json()
        assert answer["deleted"] == sum(step.deleted for step in steps)
        assert MANY - 1 <= answer["deleted"] <= MANY
        assert max(step.done for step in steps) == DELETE_DOCUMENTS
        assert len(steps) == 4
        assert order.index("write") < len(order) - 1 - order[::-1].index("step"), "it waited for all of them"
        assert left(client) == {"late", "d0388", *(f"e{n}" for n in range(20))}
        assert answer["sequence"] <= client.delete("/documents/nothing").json()["sequence"]
    consistent(settings)


@pytest.mark.sqlite("its jobs run one after another")
def test_a_step_of_long_texts_is_of_few_documents(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps: list[Step] = []

    def step(transaction: Transaction, revisions: Any, collection: str) -> Step:
        steps.append(STEP(transaction, revisions, collection))
        return steps[-1]

    text = "red river " * (1 + DELETE_CHARACTERS // 20)
    settings = settings.model_copy(update={"passages": False})
    with serving(settings) as client:
        for number in range(4):
            put(client, {f"long{number}": True}, text)
        monkeypatch.setattr(SqliteStore, "delete_some", methods.writing(step))
        assert client.delete("/documents", params=ODD).json()["deleted"] == 4
    assert [step.deleted for step in steps] == [2, 2]


@pytest.mark.sqlite("a full disk is injected into its writer")
def test_a_step_that_fails_says_how_many_were_deleted_and_the_rest_can_be_deleted(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = 0

    def full(transaction: Transaction, revisions: Any, collection: str) -> Step:
        nonlocal steps
        steps += 1
        if steps == 3:
            error = sqlite3.OperationalError("database or disk is full")
            error.sqlite_errorcode = sqlite3.SQLITE_FULL
            raise error
        return STEP(transaction, revisions, collection)

    with serving(settings) as client:
        fill(client)
        with monkeypatch.context() as patch:
            patch.setattr(SqliteStore, "delete_some", methods.writing(full))
            refused = client.delete("/documents", params=ODD)
        assert refused.status_code == 507
        assert (
            f"{2 * DELETE_DOCUMENTS} of {MANY} documents were deleted before that" in refused.json()["error"]
        )
        assert len(left(client)) == MANY + 20 - 2 * DELETE_DOCUMENTS
        assert "d0000" not in left(client), "the oldest go first"
        assert client.delete("/documents", params=ODD).json()["deleted"] == MANY - 2 * DELETE_DOCUMENTS
        assert left(client) == {f"e{n}" for n in range(20)}
    consistent(settings)


@pytest.mark.sqlite("its jobs run one after another")
def test_a_collection_is_deleted_in_steps_and_stays_where_it_was_written_to_meanwhile(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    at = "/collections/notes"
    with serving(settings) as client:
        fill(client, at)
        judged = {"query": "red", "id": "d0001", "relevant": True}
        assert client.post(f"{at}/feedback", json=judged).status_code == 200
        revived: list[int] = []

        def step(transaction: Transaction, revisions: Any, collection: str) -> Step:
            if not revived:
                revived.append(1)
                library_ = client.app.state.runtime.corpus  # type: ignore[attr-defined]
                document = Document("new", "a red river")
                loop = client.portal.call  # type: ignore[union-attr]
                threading.Thread(target=loop, args=(library_.put, [document], "notes")).start()
                while not library_.store.writer._queue.qsize():  # The write comes right after this step.
                    time.sleep(0.001)
            return STEP(transaction, revisions, collection)

        with monkeypatch.context() as patch:
            patch.setattr(SqliteStore, "delete_some", methods.writing(step))
            assert client.delete(at).json()["deleted"] == MANY + 20
        assert left(client, at) == {"new"}
        assert client.delete(at).json()["deleted"] == 1
        assert client.get(f"{at}/documents/count").status_code == 404
    consistent(settings)


@pytest.mark.sqlite("it counts its reading threads")
def test_a_filter_that_looks_through_all_documents_leaves_threads_for_others(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    kinds: list[bool] = []
    read = Readers.read

    async def noted(self: Readers, query: Callable[[sqlite3.Connection], Any], *, heavy: bool = False) -> Any:
        if request_id.get():  # Others read in the background.
            kinds.append(heavy)
        return await read(self, query, heavy=heavy)

    monkeypatch.setattr(Readers, "read", noted)
    with serving(settings) as client:
        for filter in ('{"odd": true}', '{"undeclared": 1}'):
            assert client.delete("/documents", params={"filter": filter}).status_code == 200
    # Each filter matches nothing, so a short read looks for the reason.
    assert kinds == [False, False, True, False]
