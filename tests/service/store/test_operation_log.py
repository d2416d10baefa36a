"""The operation log is trimmed to its latest rows, and its sequence numbers still rise."""

from pathlib import Path

import pytest
from fastapi import FastAPI
from starlette.testclient import TestClient

from service.app import create_app
from service.store.sqlite import writes
from service.store.sqlite.documents import sequence
from service.store.sqlite.schema import connect, migrate
from service.store.sqlite.writer import Transaction
from tests.service.conftest import new_settings, wait_until_ready
from tests.waiting import until


def test_the_log_is_trimmed_in_small_steps_to_the_latest_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writes, "KEPT_OPERATIONS", 100)
    monkeypatch.setattr(writes, "TRIM_ROWS", 30)
    migrate(tmp_path / "t.db")
    connection = connect(tmp_path / "t.db")
    transaction = Transaction(connection)
    assert not writes.is_long(connection)
    for count, long in ((129, False), (200, True)):
        connection.executemany(
            "INSERT INTO operations (kind, revision) VALUES ('put', ?)",
            [(at,) for at in range(count - sequence(connection))],
        )
        assert writes.is_long(connection) is long
    steps = [writes.trim(transaction) for _ in range(5)]
    assert steps == [True, True, True, False, False]
    rows = [row[0] for row in connection.execute("SELECT sequence FROM operations ORDER BY sequence")]
    assert rows == list(range(101, 201))
    assert sequence(connection) == 200
    connection.close()


def test_a_running_service_trims_by_itself_and_its_sequence_goes_on(
    tmp_path: Path, tiny_models_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writes, "KEPT_OPERATIONS", 10)
    monkeypatch.setattr(writes, "TRIM_ROWS", 5)
    app: FastAPI = create_app(new_settings(tmp_path, tiny_models_dir))
    with TestClient(app) as client:
        wait_until_ready(client)
        body = {"documents": [{"id": f"{at}", "text": f"red {at}"} for at in range(40)]}
        assert client.post("/documents", json=body).json()["sequence"] == 40
        connection = connect(tmp_path / "data" / "simile.db", read_only=True)
        until(lambda: not writes.is_long(connection))
        [rows] = connection.execute("SELECT count(*) FROM operations").fetchone()
        assert 10 <= rows <= 15
        connection.close()
        assert client.delete("/documents/7").json()["sequence"] == 41
        hits = client.get("/search", params={"q": "red 8", "mode": "dense", "k": 40}).json()["hits"]
        assert len(hits) == 39
