"""What another process removes from the file of a running service turns /ready red until it is back."""

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from service.store.sqlite import store
from tests.service.conftest import new_settings, serving
from tests.service.store.test_postgres_schema import DOCUMENT, EVENT, JUDGEMENT, ready
from tests.waiting import until

# What removes it, what brings it back, what /ready says, and a request that needs it.
DAMAGES: list[tuple[str, str, str, tuple[str, str, Any] | None]] = [
    (
        "ALTER TABLE documents RENAME TO elsewhere",
        "ALTER TABLE elsewhere RENAME TO documents",
        "'elsewhere', which Simile does not make",
        ("GET", "/documents", None),
    ),
    (
        "ALTER TABLE feedback RENAME relevant TO good",
        "ALTER TABLE feedback RENAME good TO relevant",
        "'feedback' is not as Simile makes it",
        ("POST", "/feedback", JUDGEMENT),
    ),
    ("DROP TABLE verdicts", "{made}", "lacks the table 'verdicts'", ("GET", "/models", None)),
    ("DROP TABLE events", "{made}", "lacks the index 'events_of_document'", ("POST", "/events", EVENT)),
    ("DROP INDEX feedback_of_key", "{made}", "lacks the index 'feedback_of_key'", None),
    ("DROP TABLE lexical_2", "{made}", "lacks the table 'lexical_2' of the collection 'other'", None),
    (
        "PRAGMA user_version = 1000",
        "PRAGMA user_version = {version}",
        "A newer Simile has changed simile.db",
        None,
    ),
]


@pytest.mark.sqlite("it looks into the file")
def test_ready_says_what_the_file_lacks_until_it_is_there_again(
    tmp_path: Path, tiny_models_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "LOOK_SECONDS", 0.05)
    settings = new_settings(tmp_path, tiny_models_dir)
    with (
        serving(settings) as client,
        closing(sqlite3.connect(settings.data_dir / "simile.db", timeout=30, isolation_level=None)) as file,
    ):
        for at in ("", "/collections/other"):
            answer = client.post(f"{at}/documents", json={"documents": [{"id": "a", "text": "a"}]})
            assert answer.status_code == 200
        [version] = file.execute("PRAGMA user_version").fetchone()
        for remove, repair, named, request in DAMAGES:
            until(lambda: not ready(client), lambda: ready(client))
            name = remove.split()[-1]
            rows = file.execute(
                "SELECT sql FROM sqlite_master WHERE sql IS NOT NULL AND ? IN (name, tbl_name) "
                "ORDER BY type = 'index'",
                (name,),
            )
            made = "; ".join(sql for (sql,) in rows)
            file.executescript(remove)
            said = until(lambda: ready(client))
            assert named in said, remove
            if request is not None:
                method, path, body = request
                answer = client.request(method, path, json=body)
                assert (answer.status_code, answer.json()["error_type"]) == (503, "Unhealthy"), answer.text
                assert "GET /ready says what it lacks" in answer.json()["error"]
            file.executescript(repair.format(made=made, version=version))
            until(lambda: not ready(client), lambda: ready(client))
            if request is not None:
                answer = client.request(method, path, json=body)
                assert answer.status_code == 200, (remove, answer.text)
        assert client.post("/documents", json=DOCUMENT).status_code == 200
