"""Checksums reveal damaged documents. Such documents are neither returned nor backed up."""

import argparse
import contextlib
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson
import pytest
from starlette.testclient import TestClient

from service.__main__ import parser, run
from service.cli.check import check_data
from service.cli.commands import backup
from service.errors import CommandError, Unusable
from service.settings import Settings
from service.store.sql import records
from service.store.sqlite.offline import examine
from service.store.sqlite.schema import SCHEMA_VERSION
from tests import postgres
from tests.service.conftest import new_settings, serving
from tests.waiting import until

METADATA = {"n": 1, "w": 1.0, "large": 1e17, "zero": -0.0, "long": 2**60, "é": ["ü", {"b": None, "a": True}]}
TEXT = "a red river é 🌊"
# By document id: the column to damage, and the SQL of the damaged value.
DAMAGE = {
    "title": ("title", "'A titlf'"),
    "text": ("text", "replace(text, 'red', 'rad')"),
    "emptied": ("text", "''"),
    "longer": ("text", "text || ' '"),
    "metadata": ("metadata", "'{\"n\": 2}'"),
    "number": ("metadata", "'{\"n\": 1.5}'"),
    "checksum": ("checksums", "NULLIF(checksums, checksums)"),  # `damage` replaces this value.
    "renamed": ("id", "'renamee'"),
    "moved": ("collection", "'other'"),
}
ALSO_SQLITE = {
    "not json": ("metadata", "'{'"),
    "bytes": ("text", "CAST(x'61ff62' AS TEXT)"),
    "id bytes": ("id", "CAST(x'69ff64' AS TEXT)"),
}


@pytest.fixture(scope="module")
def service(settings: Settings) -> Iterator[TestClient]:
    with serving(settings) as client:
        put(client, "kept", at="/collections/other")
        yield client


def put(client: TestClient, *ids: str, at: str = "") -> None:
    documents = [{"id": id, "title": "A title", "text": TEXT, "metadata": METADATA} for id in ids]
    answer = client.post(f"{at}/documents", json={"documents": documents})
    assert answer.status_code == 200, answer.text


def run_sql(settings: Settings, sql: str) -> int:
    """Changes the database while the service runs. Returns the number of changed rows."""
    if settings.database is not None:
        import psycopg

        with psycopg.connect(settings.database.get_secret_value()) as shared:
            return shared.execute(sql.encode()).rowcount
    with contextlib.closing(sqlite3.connect(settings.data_dir / "simile.db")) as connection, connection:
        return connection.execute(sql).rowcount


def sql_rows(settings: Settings, sql: str) -> list[tuple[Any, ...]]:
    import psycopg

    assert settings.database is not None
    with psycopg.connect(settings.database.get_secret_value()) as shared:
        return shared.execute(sql.encode()).fetchall()


def damage(settings: Settings, id: str, column: str, value: str) -> None:
    if column == "checksums":
        flipped = "decode(repeat('00', 16), 'hex')" if postgres.chosen else "zeroblob(16)"
        value = flipped
    if postgres.chosen and column == "metadata":
        column = "sent"  # test_damage_of_what_filters_read damages the other column.
    changed = run_sql(
        settings, f"UPDATE documents SET {column} = {value} WHERE collection = 'default' AND id = '{id}'"
    )
    assert changed == 1


def found_ids(client: TestClient, mode: str, **options: Any) -> set[str]:
    requested = {"queries": ["red river"], "k": 100, "mode": mode, **options}
    answer = client.post("/search", json=requested)
    assert answer.status_code == 200, answer.text
    return {hit["id"] for hit in answer.json()["results"][0]}


@pytest.mark.parametrize("id", [*DAMAGE, *ALSO_SQLITE])
def test_a_damaged_document_is_not_answered_and_sending_it_again_heals(
    service: TestClient, settings: Settings, id: str
) -> None:
    if id in ALSO_SQLITE and postgres.chosen:
        pytest.skip("is about SQLite: PostgreSQL takes no invalid UTF-8")
    column, value = (DAMAGE | ALSO_SQLITE)[id]
    put(service, id, "whole")
    assert {id, "whole"} <= found_ids(service, "dense")
    assert "All is sound" in check_data(settings)
    others = {hit["id"] for hit in service.get("/documents").json()["documents"]} - {id}
    damage(settings, id, column, value)
    at, now = "", id
    if column == "id":
        now = "renamee" if id == "renamed" else "i\ufffdd"
    if column == "collection":
        at = "/collections/other"

    for mode in ("dense", "lexical", "hybrid"):
        found = found_ids(service, mode)
        assert not {id, now} & found, mode
        assert "whole" in found, mode
    if id == "not json":
        refused = service.get("/documents/count", params={"filter": '{"n": 1}'})
        assert (refused.status_code, refused.json()["error_type"]) == (507, "Storage")
        assert "check --data" in refused.json()["error"]
    else:
        assert "whole" in found_ids(service, "dense", filter={"n": 1})
    if id != "id bytes":
        refused = service.get(f"{at}/documents/{now}")
        assert (refused.status_code, refused.json()["error_type"]) == (507, "Storage")
        assert now in refused.json()["error"]
        assert "Send the document again" in refused.json()["error"]
    refused = service.get(f"{at}/documents")
    assert (refused.status_code, now in refused.json()["error"]) == (507, True)
    with pytest.raises(CommandError, match="are damaged: the checksum") as said:
        check_data(settings)
    assert repr(now if not at else f"other/{id}") in str(said.value)

    if column in {"id", "collection"}:  # A new write would not replace the renamed row.
        quoted = ", ".join(f"'{other}'" for other in others)
        renamed = f"collection = 'default' AND id NOT IN ({quoted})"
        where = renamed if column == "id" else f"id = '{id}'"
        assert (
            run_sql(settings, f"UPDATE documents SET id = '{id}', collection = 'default' WHERE {where}") >= 1
        )
    put(service, id)
    answer = service.get(f"/documents/{id}").json()
    assert (answer["text"], answer["title"], answer["metadata"]) == (TEXT, "A title", METADATA)
    assert id in found_ids(service, "dense")
    assert "All is sound" in check_data(settings)
    assert service.delete(f"/documents/{id}").json()["deleted"] == 1


def test_a_filter_that_nothing_passes_is_answered_beside_damaged_metadata(
    service: TestClient, settings: Settings
) -> None:
    texts = ["'[1]'", "'7'", "'null'"]
    if postgres.chosen:
        texts += ["'{'", "''", "'{\"n\": 12345678901234567890'"]
    else:  # SQLite accepts these as JSON. A filter cannot name the empty name of the last one.
        hexes = [b'{"n":"\xff"}', b'{"\xff":1}', b'{"n":["\xc3"]}', b'{"":"\xff"}']
        texts += [f"CAST(x'{json.hex()}' AS TEXT)" for json in hexes]
    filter = {"zzz": 1}
    params = {"filter": orjson.dumps(filter).decode()}
    said = ["No document has the field 'zzz'."]
    for text in texts:
        put(service, "damaged")
        damage(settings, "damaged", "metadata", text)
        for answer in (
            service.get("/documents/count", params=params),
            service.get("/documents", params=params),
            service.post("/search", json={"queries": ["a"], "filter": filter}),
            service.delete("/documents", params=params),
        ):
            assert (answer.status_code, answer.json().get("warnings")) == (200, said), (text, answer.text)
        with pytest.raises(CommandError, match="'damaged'"):
            check_data(settings)
    assert service.delete("/documents/damaged").json()["deleted"] == 1
    assert "All is sound" in check_data(settings)


def test_a_search_that_reads_the_title_alone_finds_damage_of_the_title_alone(
    service: TestClient, settings: Settings
) -> None:
    put(service, "t", "x", "whole")
    damage(settings, "t", "title", "'other'")
    damage(settings, "x", "text", "'other'")
    found = found_ids(service, "dense", fields=["title"])
    assert (found & {"t", "x", "whole"}) == {"x", "whole"}
    put(service, "t", "x")


def test_damage_of_what_filters_read_is_found(service: TestClient, settings: Settings) -> None:
    if not postgres.chosen:
        pytest.skip("is about PostgreSQL, which keeps metadata as jsonb, too")
    put(service, "filtered")
    run_sql(settings, "UPDATE documents SET metadata = '{\"n\": 2}'::jsonb WHERE id = 'filtered'")
    assert service.get("/documents/filtered").json()["metadata"] == METADATA, "it is answered from the text"
    with pytest.raises(CommandError, match="'filtered'"):
        check_data(settings)
    put(service, "filtered")
    assert "All is sound" in check_data(settings)
    assert service.delete("/documents/filtered").json()["deleted"] == 1


def test_an_update_by_a_replica_of_an_older_version_keeps_nothing_of_before(
    service: TestClient, settings: Settings
) -> None:
    """The older version does not know the columns `sent` and `checksums`."""
    if not postgres.chosen:
        pytest.skip("is about PostgreSQL, which several processes share")
    for column, value in (
        ("metadata", "'{\"n\": 2}'::jsonb"),
        ("text", "'other'"),
        ("title", "'other'"),
        ("text", "text"),
    ):
        put(service, "shared")
        run_sql(settings, f"UPDATE documents SET revision = DEFAULT, {column} = {value} WHERE id = 'shared'")
        found = service.get("/documents/shared")
        assert found.status_code == 200, found.text
        before = {"title": "A title", "text": TEXT, "metadata": METADATA}
        new = {"n": 2} if column == "metadata" else TEXT if value == "text" else "other"
        assert {name: found.json()[name] for name in before} == before | {column: new}
        put(service, "shared")
        put(service, "shared")
        [whole] = sql_rows(settings, "SELECT sent, checksums FROM documents WHERE id = 'shared'")
        assert None not in whole, "this version sets both itself"
    assert "All is sound" in check_data(settings)
    assert service.delete("/documents/shared").json()["deleted"] == 1


def test_damaged_documents_are_counted(service: TestClient, settings: Settings) -> None:
    put(service, "counted")
    before = len(records.known_damage)
    damage(settings, "counted", "text", "'other'")
    assert service.get("/documents/counted").status_code == 507
    assert service.get("/documents/counted").status_code == 507
    assert len(records.known_damage) == before + 1
    assert f"simile_damaged_documents {before + 1:.1f}" in service.get("/metrics").text
    put(service, "counted")


def test_documents_of_before_get_their_checksums_in_steps_and_new_ones_at_once(
    service: TestClient, settings: Settings
) -> None:
    ids = [f"old{n}" for n in range(records.FILL_DOCUMENTS + 3)]
    put(service, *ids)
    run_sql(settings, "UPDATE documents SET checksums = NULL WHERE id LIKE 'old%'")
    store = service.app.state.runtime.corpus.store  # type: ignore[attr-defined]
    call = service.portal.call  # type: ignore[union-attr]
    assert call(store.without_checksums) == len(ids)
    assert "have no checksum yet" in check_data(settings)
    put(service, "new")
    assert call(store.without_checksums) == len(ids), "it has one at once"
    assert service.get("/documents/old1").json()["text"] == TEXT, "it is answered meanwhile"
    assert call(store.fill_checksums) == records.FILL_DOCUMENTS
    assert call(store.without_checksums) == 3, "each step is on disk by itself"
    assert call(store.fill_checksums) == 3
    assert call(store.fill_checksums) == 0
    assert "have no checksum" not in check_data(settings)
    assert service.get("/documents/old1").json()["metadata"] == METADATA, "as it was computed from the column"
    damage(settings, "old2", "text", "'other'")
    assert service.get("/documents/old2").status_code == 507
    for id in ids:
        service.delete(f"/documents/{id}")


@pytest.mark.sqlite("PostgreSQL takes no invalid UTF-8")
@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("text", "x'61ff62'"),
        ("text", "x'c3'"),  # cut within a character
        ("text", "x'eda080'"),  # half of a surrogate pair
        ("title", "x'ff'"),
        ("metadata", "x'7b2261223a22ff227d'"),
        ("id", "x'69ff64'"),
    ],
)
def test_what_is_no_text_stays_damaged_with_a_checksum_and_is_not_copied(
    tmp_path: Path, tiny_models_dir: Path, column: str, value: str
) -> None:
    """An older version stored the document without a checksum, and it was damaged before the upgrade."""
    settings = new_settings(tmp_path, tiny_models_dir)
    with serving(settings) as client:
        put(client, "a", "b")
        damaged = f"{column} = CAST({value} AS TEXT), checksums = NULL"
        run_sql(settings, f"UPDATE documents SET {damaged} WHERE id = 'b'")
        store = client.app.state.runtime.corpus.store  # type: ignore[attr-defined]
        assert client.portal.call(store.fill_checksums) == 1  # type: ignore[union-attr]
        for path in ("/documents", *([] if column == "id" else ["/documents/b"])):
            refused = client.get(path)
            assert (refused.status_code, refused.json()["error_type"]) == (507, "Storage"), refused.text
        assert found_ids(client, "dense") == {"a"}
        with pytest.raises(CommandError, match="are damaged: the checksum"):
            check_data(settings)
        arguments = argparse.Namespace(folder=tmp_path / "backup", models=False, data_dir=None)
        with pytest.raises(CommandError, match="are damaged: their checksums are wrong"):
            backup.run(arguments, settings)
    pytest.importorskip("psycopg", reason="needs the extra postgres")
    run_sql(settings, "UPDATE documents SET checksums = NULL")
    words = ["copy", "--to", postgres.new_database(), "--data-dir", str(settings.data_dir)]
    with pytest.raises(CommandError, match=f"The {column} of the document .* is damaged"):
        run(parser().parse_args(words))


def test_a_start_computes_what_is_missing(tmp_path: Path, tiny_models_dir: Path) -> None:
    settings = new_settings(tmp_path, tiny_models_dir)
    with serving(settings) as client:
        put(client, *(f"{n}" for n in range(300)))
    run_sql(settings, "UPDATE documents SET checksums = NULL")
    with serving(settings) as client:
        store = client.app.state.runtime.corpus.store  # type: ignore[attr-defined]
        until(lambda: client.portal.call(store.without_checksums) == 0)  # type: ignore[union-attr]
    assert "All is sound" in check_data(settings)


@pytest.mark.sqlite("a backup is of a data directory")
@pytest.mark.parametrize("column", ["title", "text", "metadata"])
def test_a_backup_seals_no_damage(tmp_path: Path, tiny_models_dir: Path, column: str) -> None:
    settings = new_settings(tmp_path, tiny_models_dir)
    arguments = argparse.Namespace(folder=tmp_path / "backup", models=False, data_dir=None)
    with serving(settings) as client:
        put(client, "a", "b")
        damage(settings, "b", *DAMAGE[column])
        with pytest.raises(CommandError, match=r"'b' in .* are damaged: their checksums are wrong. Nothing"):
            backup.run(arguments, settings)
        assert [path.name for path in tmp_path.iterdir() if "backup" in path.name] == []
        put(client, "b")
        assert "2 documents" in backup.run(arguments, settings)
    with contextlib.closing(sqlite3.connect(tmp_path / "backup" / "simile.db")) as sealed, sealed:
        sealed.execute(f"UPDATE documents SET {column} = {DAMAGE[column][1]} WHERE id = 'b'")
    with pytest.raises(Unusable, match="its documents 'b' are damaged"):
        examine(tmp_path / "backup", SCHEMA_VERSION)
