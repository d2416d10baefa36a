"""Parts and rights that a database lacks are named at the start, by /ready and in failed responses."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from service.errors import StartupError
from tests import postgres
from tests.parts.schema_damage import DOCUMENT, JUDGMENT, Damage, check_damages, ready
from tests.service.conftest import new_settings, serving
from tests.waiting import until

pytest.importorskip("psycopg", reason="needs the extra postgres")

import psycopg

from service.store.postgres import offline, store
from service.store.postgres.schema import FUNCTIONS, MIGRATIONS, SEQUENCES, TABLES
from service.store.postgres.store import PostgresStore


class Owned(NamedTuple):
    """A database whose owner is no superuser. `url` connects as the owner, `admin` as a superuser."""

    url: str
    admin: Any

    def run(self, sql: str) -> None:
        self.admin.execute(sql.encode())


@pytest.fixture(scope="module")
def owned() -> Iterator[Owned]:
    url = postgres.new_database()
    with psycopg.connect(url, autocommit=True) as admin:
        name = admin.info.dbname
        admin.execute("CREATE EXTENSION vector")
        admin.execute(f"CREATE ROLE owner_{name} LOGIN".encode())
        admin.execute(f"ALTER DATABASE {name} OWNER TO owner_{name}".encode())
        yield Owned(url.replace("postgres:", f"owner_{name}:"), admin)


def test_the_tables_of_the_check_are_those_of_a_new_database() -> None:
    url = postgres.new_database()
    PostgresStore(url, [], connections=4, answer_seconds=20).close()
    tables, sequences = {}, []
    with psycopg.connect(url) as connection:
        relations = connection.execute(
            "SELECT relname, relkind, ARRAY(SELECT attname::text FROM pg_attribute WHERE attrelid = c.oid "
            "AND attnum > 0), ARRAY(SELECT indexrelid::regclass::text FROM pg_index WHERE indrelid = c.oid) "
            "FROM pg_class c WHERE relnamespace = 'public'::regnamespace AND relkind IN ('r', 'S') "
            "AND relname <> 'simile_schema' AND NOT EXISTS "
            "(SELECT 1 FROM pg_depend WHERE objid = c.oid AND deptype = 'i')"
        )
        for name, kind, *found in relations:
            if kind == "S":
                sequences.append(name)
            else:
                tables[name] = tuple(map(set, found))
        functions = connection.execute(
            "SELECT proname FROM pg_proc p WHERE pronamespace = 'public'::regnamespace "
            "AND NOT EXISTS (SELECT 1 FROM pg_depend WHERE objid = p.oid AND deptype = 'e') ORDER BY 1"
        ).fetchall()
    assert tables == {name: (set(c.split()), set(i.split())) for name, (c, i) in TABLES.items()}
    assert (sequences, [name for (name,) in functions]) == (SEQUENCES, FUNCTIONS)


REMOVED = [
    ("verdicts RENAME TO verdict", "verdict RENAME TO verdicts", "the table verdicts"),
    ("documents RENAME title TO heading", "documents RENAME heading TO title", "the column documents.title"),
]


def test_a_start_names_what_a_database_of_the_right_version_lacks() -> None:
    url = postgres.new_database()
    assert offline.look(url) == "none yet"
    PostgresStore(url, [], connections=4, answer_seconds=20).close()
    assert offline.look(url) == "0 documents"
    with psycopg.connect(url, autocommit=True) as connection:
        for remove, repair, named in REMOVED:
            connection.execute(f"ALTER TABLE {remove}".encode())
            with pytest.raises(StartupError, match=named):
                PostgresStore(url, [], connections=4, answer_seconds=20)
            assert named in offline.look(url)
            connection.execute(f"ALTER TABLE {repair}".encode())
        connection.execute("DROP INDEX one_judgement; ALTER SEQUENCE operations RENAME TO gone")
        with pytest.raises(StartupError, match="the index one_judgement, the sequence operations"):
            PostgresStore(url, [], connections=4, answer_seconds=20)
        connection.execute("ALTER FUNCTION simile_instant RENAME TO moved")
        with pytest.raises(StartupError, match="the function simile_instant"):
            PostgresStore(url, [], connections=4, answer_seconds=20)
        connection.execute("ALTER FUNCTION moved RENAME TO simile_instant")
        connection.execute("ALTER SEQUENCE gone RENAME TO operations; DROP EXTENSION vector CASCADE")
        with pytest.raises(StartupError, match="the extension vector"):
            PostgresStore(url, [], connections=4, answer_seconds=20)


DAMAGES: list[Damage] = [
    (
        "ALTER TABLE documents RENAME TO elsewhere",
        "ALTER TABLE elsewhere RENAME TO documents",
        "the table documents",
        ("GET", "/search?q=a", None),
    ),
    (
        "ALTER TABLE feedback RENAME relevant TO good",
        "ALTER TABLE feedback RENAME good TO relevant",
        "the column feedback.relevant",
        ("POST", "/feedback", JUDGMENT),
    ),
    (
        "ALTER TABLE events DROP CONSTRAINT events_key_collection_event_id_key",
        "ALTER TABLE events ADD UNIQUE (key, collection, event_id)",
        "the index events_key_collection_event_id_key",
        None,
    ),
    (
        "DROP INDEX feedback_of_key",
        "CREATE INDEX feedback_of_key ON feedback (key)",
        "the index feedback_of_key",
        None,
    ),
    (
        "REVOKE INSERT, DELETE ON documents FROM {owner}",
        "GRANT INSERT, DELETE ON documents TO {owner}",
        "the right INSERT, DELETE on documents",
        ("POST", "/documents", DOCUMENT),
    ),
    (
        "REVOKE SELECT ON vectors_1 FROM {owner}",
        "GRANT SELECT ON vectors_1 TO {owner}",
        "the right SELECT on vectors_1",
        ("GET", "/search?q=a", None),
    ),
    (
        "REVOKE USAGE, UPDATE ON operations FROM {owner}",
        "GRANT USAGE, UPDATE ON operations TO {owner}",
        "the right SELECT, USAGE on operations",
        ("POST", "/documents", {"documents": [{"id": "c", "text": "c"}]}),
    ),
    (
        "UPDATE simile_schema SET version = version + 1",
        "UPDATE simile_schema SET version = version - 1",
        "A newer Simile has changed the database",
        None,
    ),
    (
        "DELETE FROM simile_schema",
        f"INSERT INTO simile_schema VALUES ({len(MIGRATIONS)})",
        "The database has schema 0",
        None,
    ),
]


def test_ready_says_what_the_database_lacks_until_it_is_there_again(
    tmp_path: Path, tiny_models_dir: Path, owned: Owned, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "LOOK_SECONDS", 0.05)
    with serving(new_settings(tmp_path, tiny_models_dir, database=owned.url)) as client:
        assert client.post("/documents", json={"documents": [{"id": "a", "text": "a"}]}).status_code == 200
        owner = f"owner_{owned.admin.info.dbname}"
        check_damages(client, DAMAGES, owned.run, lambda _: {"owner": owner})


@pytest.mark.long  # waits until a lease expires
def test_a_database_that_is_dropped_turns_ready_red(tmp_path: Path, tiny_models_dir: Path) -> None:
    url = postgres.new_database()
    name = url.partition("?")[0].rpartition("/")[2]
    with serving(new_settings(tmp_path, tiny_models_dir, database=url)) as client:
        with psycopg.connect(postgres.server().get_uri(), autocommit=True) as admin:
            admin.execute(f"DROP DATABASE {name} WITH (FORCE)".encode())
        said = until(lambda: ready(client))
        assert f'database "{name}" does not exist' in said
        assert client.get("/search?q=a").status_code == 503
        assert client.get("/health").status_code == 200
