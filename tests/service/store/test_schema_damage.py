"""/ready fails while tables are missing that another process removed from the database file."""

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from service.store.sqlite import store
from tests.parts.schema_damage import DOCUMENT, EVENT, JUDGMENT, Damage, check_damages
from tests.service.conftest import new_settings, serving

DAMAGES: list[Damage] = [
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
        ("POST", "/feedback", JUDGMENT),
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

        def names(remove: str) -> dict[str, object]:
            rows = file.execute(
                "SELECT sql FROM sqlite_master WHERE sql IS NOT NULL AND ? IN (name, tbl_name) "
                "ORDER BY type = 'index'",
                (remove.rsplit(maxsplit=1)[-1],),
            )
            return {"made": "; ".join(sql for (sql,) in rows), "version": version}

        check_damages(client, DAMAGES, file.executescript, names)
        assert client.post("/documents", json=DOCUMENT).status_code == 200
