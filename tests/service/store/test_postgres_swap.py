"""A database failure during a swap delays the activation, but does not fail the version."""

from pathlib import Path

import pytest

from tests import postgres
from tests.parts.places import DOCUMENTS, Place
from tests.service.lifecycle.test_swap_faults import failing_on
from tests.service.swapping import published

pytest.importorskip("psycopg", reason="needs the extra postgres")

import psycopg

from service.store.postgres import vectors
from service.store.postgres.connection import Connection


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    monkeypatch.setattr("service.lifecycle.swap.RETRY_SECONDS", 0.05)
    published(tmp_path / "models", 3)
    made = Place(tmp_path)
    made.where = {"database": postgres.new_database()}
    return made


def slow_twice(place: Place, table: str) -> None:
    """Makes the first two writes to `table` fail as if their statements took too long."""
    with psycopg.connect(place.where["database"], autocommit=True) as connection:
        connection.execute(
            "CREATE SEQUENCE tries; CREATE FUNCTION fail() RETURNS trigger LANGUAGE plpgsql AS "
            "$$ BEGIN IF nextval('tries') < 3 THEN RAISE EXCEPTION 'no' USING ERRCODE = '57014'; END IF; "
            "RETURN NEW; END $$; "
            f"CREATE TRIGGER fail BEFORE INSERT OR UPDATE ON {table} FOR EACH STATEMENT "
            "EXECUTE FUNCTION fail()"
        )


def makes_active(place: Place, version: str) -> bool:
    """Activates `version`. Returns whether it became active with all documents."""
    assert place.client.post(f"/models/{version}/activate").status_code == 202
    place.until(lambda: place.active() == version or place.state(version)["state"] == "failed")
    return place.active() == version and place.everything() == DOCUMENTS


def test_a_server_that_stops_before_the_index_is_built_fails_no_version(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_indexed, stops = vectors.is_indexed, 0

    def stopped(connection: Connection, generation: int) -> bool:
        nonlocal stops
        stops += 1
        if stops < 3:
            connection.execute("SELECT pg_terminate_backend(pg_backend_pid())")
        return is_indexed(connection, generation)

    with place.serving():
        place.fill()
        monkeypatch.setattr(vectors, "is_indexed", stopped)
        assert makes_active(place, place.b), place.state(place.b)
        assert stops > 2


def test_a_slow_statement_fails_no_version(place: Place) -> None:
    with place.serving():
        place.fill()
        slow_twice(place, "lacking")
        assert makes_active(place, place.b), place.state(place.b)


def test_a_verdict_is_kept_though_a_statement_is_slow(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    with place.serving():
        place.fill()
        slow_twice(place, "verdicts")
        failing_on(monkeypatch, place.b, [*DOCUMENTS.values()], place.store.root)
        assert not makes_active(place, place.b)
        with psycopg.connect(place.where["database"]) as connection:
            sql = "SELECT state FROM verdicts WHERE version = %s"
            place.until(lambda: connection.execute(sql, (place.b,)).fetchone() == ("failed",))
