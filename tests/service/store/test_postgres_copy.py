"""A store is copied to PostgreSQL and back, and a killed copy continues."""

import asyncio
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from starlette.testclient import TestClient

from service.__main__ import parser, run
from service.cli.check import check_data
from service.errors import CommandError
from service.settings import Settings
from service.store.sqlite.store import SqliteStore
from service.store.values import DEFAULT_COLLECTION, Document, Embedding, Judgment
from tests import postgres
from tests.service.conftest import HOST, new_settings, serving

pytest.importorskip("psycopg", reason="needs the extra postgres")

import psycopg

from service.store.postgres import copying, offline
from tests.waiting import until

SEARCHED = "text 7 東京"
LONG = "A sentence of a long text that is split into passages. " * 60


def documents(count: int) -> list[dict[str, Any]]:
    return [
        {
            "id": f"{at:05}",
            "text": f"text {at} 東京",
            "title": f"t{at}",
            "metadata": {"n": at, "x": [1.5, {"y": None}]},
        }
        for at in range(count)
    ]


def fill(client: TestClient) -> None:
    for path, given in (("/documents", documents(300)), ("/collections/other/documents", documents(3))):
        assert client.post(path, json={"documents": given}).status_code == 200
    numbers = [12345678901234567, 2**63, 1e17, -0.0, 1.0, 1, 1e308, 18446744073709551615]
    long = {"id": "long é/ü", "text": LONG, "metadata": {"numbers": numbers, "z": 1, "a": 2}}
    assert client.post("/documents", json={"documents": [long]}).status_code == 200
    emptied = {"documents": [{"id": "a", "text": "text"}]}
    assert client.post("/collections/empty/documents", json=emptied).status_code == 200
    assert client.delete("/collections/empty/documents/a").status_code == 200
    judged = [{"query": "text", "id": f"{at:05}", "relevant": at == 1} for at in range(5)]
    judged[0]["user"] = "ann"
    assert client.post("/feedback", json={"feedback": judged}).status_code == 200
    clicked = [{"search_id": "s", "query": "text", "id": f"{at:05}", "type": "click"} for at in range(3)]
    clicked[0]["user"] = "ann"
    assert client.post("/events", json={"events": clicked}).json()["stored"] == 3
    answers = {"clicked": [{"query": SEARCHED, "id": "00002", "gain": 1}]}
    assert client.put("/collections/default/clicked", json=answers).json()["stored"] == 1
    synonyms = {"groups": [["text", "prose"]], "one_way": []}
    assert client.put("/collections/other/synonyms", json=synonyms).json() == {"version": 1}


def seen(client: TestClient) -> Any:
    """Returns what a client sees: hits by mode, documents, collections, judgments, events (also of ann)."""
    found: list[Any] = []
    for mode in ("dense", "lexical", "hybrid"):
        hits = client.get("/search", params={"q": SEARCHED, "k": 20, "mode": mode}).json()["hits"]
        found += [(hit["id"], hit["text"], repr(hit["metadata"])) for hit in hits]
        found += [pytest.approx(hit["score"], abs=1e-5) for hit in hits]
    assert hits[0]["id"] == "00002", "the click is not remembered"
    page = client.get("/documents", params={"limit": 1000}).json()["documents"]
    other = client.get("/collections/other/documents", params={"limit": 1000}).json()["documents"]
    collections = client.get("/collections").json()["collections"]
    page = [document | {"metadata": repr(document["metadata"])} for document in page]
    paths = ("/collections/other/synonyms", "/feedback", "/events", "/events?user=ann")
    said = [client.get(path).json() for path in paths]
    assert len(said[-1]["events"]) == 1, "the visitor's hash is another one"
    return found, page, other, collections, said


def command(*words: str) -> str:
    return run(parser().parse_args(["copy", *words]))


@pytest.mark.sqlite("it begins in a data directory")
def test_a_store_goes_into_postgresql_and_back(
    tmp_path: Path, tiny_models_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(copying, "ROWS", 2)
    settings = new_settings(tmp_path, tiny_models_dir)
    with serving(settings) as client:
        fill(client)
        before = seen(client)
    url, new = postgres.new_database(), tmp_path / "new"
    assert "304 documents" in command("--to", url, "--data-dir", str(settings.data_dir))
    with pytest.raises(CommandError, match="used the target already"):
        command("--to", url, "--data-dir", str(settings.data_dir))
    others: dict[str, Any] = {"models_dir": settings.models_dir, "allowed_hosts": HOST, "cache_mb": 0}
    with serving(Settings(data_dir=tmp_path / "none", database=url, **others)) as client:
        assert seen(client) == before
        index = client.get("/info").json()["index"]
        assert index["documents"] == 304
    assert "304 documents" in command("--from", url, "--data-dir", str(new))
    with serving(Settings(data_dir=new, **others)) as client:
        assert seen(client) == before


def checked(data_dir: Path) -> str:
    with pytest.raises(CommandError) as raised:
        check_data(Settings(data_dir=data_dir))
    return str(raised.value)


@pytest.mark.sqlite("it begins in a data directory")
def test_what_postgresql_cannot_store_is_named(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path)
    store.start(lambda _: None, lambda _: None)
    manifest: Any = SimpleNamespace(version="a", fingerprint="a", dimension=4)
    active = store.activate(manifest, "fp32")
    embedding = Embedding(np.full(4, 0.5, np.float32), truncated=False)
    ids = ["0", "1", "2", "3", "b\0"]
    given = [Document(id, "nul\0inside" if id == "2" else "text") for id in ids]
    asyncio.run(store.put(given, {active: dict.fromkeys(range(5), embedding)}))
    store.close()
    words = ("--data-dir", str(tmp_path))
    named = r"2 documents have it in an id, title or text: '2', 'b\\x00'\. Delete them"
    with pytest.raises(CommandError, match=named):
        command("--to", postgres.new_database(), *words)
    assert "note: 2 documents have the character U+0000" in (said := checked(tmp_path))
    assert ": '2', 'b\\x00'." in said
    store = SqliteStore(tmp_path)
    store.start(lambda _: None, lambda _: None)
    for id in ("2", "b\0"):
        asyncio.run(store.delete_one(id, DEFAULT_COLLECTION))
    asyncio.run(store.judge([Judgment("nul\0inside", "1", relevant=True)], DEFAULT_COLLECTION))
    store.close()
    url = postgres.new_database()
    with pytest.raises(CommandError, match=r"feedback .* document '1' of collection 'default', query 'nul"):
        command("--to", url, *words)
    with psycopg.connect(url) as connection:
        assert connection.execute("SELECT count(*) FROM documents").fetchone() == (0,), "it is said early"


@pytest.mark.long
@pytest.mark.sqlite("it begins in a data directory")
def test_a_copy_that_is_killed_goes_on(tmp_path: Path, tiny_models_dir: Path) -> None:
    settings = new_settings(tmp_path, tiny_models_dir)
    with serving(settings) as client:
        assert client.post("/documents", json={"documents": documents(2000)}).status_code == 200
    url = postgres.new_database()
    words = ("--to", url, "--data-dir", str(settings.data_dir))
    copying = subprocess.Popen([sys.executable, "-m", "service", "copy", *words])

    def there() -> int:
        with psycopg.connect(url) as connection:
            if connection.execute("SELECT to_regclass('documents')").fetchone() == (None,):
                return 0
            return int((connection.execute("SELECT count(*) FROM documents").fetchone() or (0,))[0])

    until(there, pause=0)
    copying.send_signal(signal.SIGKILL)
    copying.wait()
    assert 0 < there() < 2000, "it was killed on the way"
    assert "2,000 documents" in command(*words)
    assert there() == 2000


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--to", "mysql://a/b"], "--to does not begin with postgresql://"),
        (["--from", "postgresql:///b"], "--from names no host"),
    ],
)
def test_a_wrong_url_is_said(words: list[str], says: str) -> None:
    with pytest.raises(CommandError, match=says):
        command(*words)


@pytest.mark.parametrize(
    "rest",
    [
        "%zz@localhost/x",
        "@localhost:port/x",
        "@localhost/x?nothing=1",
        "@localhost/x?sslmode",
        "@[::1/x",
        "@localhost:99999/x",
    ],
)
def test_a_look_at_a_database_quotes_no_password(rest: str) -> None:
    with pytest.raises(CommandError) as raised:
        offline.examine(f"postgresql://user:geheim{rest}", 5)
    assert "geheim" not in str(raised.value)
    assert "SIMILE_DATABASE" in str(raised.value)
    assert raised.value.__suppress_context__, "a traceback would quote it"


@pytest.mark.parametrize(("words", "says"), [(["backup", "x"], "pg_dump"), (["restore", "x"], "pg_restore")])
def test_commands_of_a_data_directory_say_what_to_use_instead(
    words: list[str], says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SIMILE_DATABASE", "postgresql://user:secret-word@localhost/x")
    with pytest.raises(CommandError, match=says) as raised:
        run(parser().parse_args(words))
    assert "secret-word" not in str(raised.value)
