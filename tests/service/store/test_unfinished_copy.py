"""Everything that opens a store refuses an unfinished copy, until the copy is finished."""

import asyncio
import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from service.__main__ import parser, run
from service.cli import check
from service.errors import CommandError, StartupError, Unusable
from service.runtime.runtime import Runtime
from service.settings import Settings
from service.store.sqlite import offline
from service.store.sqlite.schema import SCHEMA_VERSION
from service.store.sqlite.store import SqliteStore
from service.store.values import DEFAULT_COLLECTION, Document, Embedding, Judgment
from tests import postgres
from tests.service.conftest import new_settings, serving

pytest.importorskip("psycopg", reason="needs the extra postgres")

from service.store.postgres import copying
from service.store.postgres.store import PostgresStore

pytestmark = pytest.mark.sqlite("it begins in a data directory")

COUNT, KILLED = 6, 9
VECTOR = np.full(4, 0.5, np.float32)
# Where a copy is cut off: the function, and how many of its calls return before that.
POINTS = [
    pytest.param("_begin", 0, id="before the mark", marks=pytest.mark.long),
    pytest.param("_make", 0, id="before the documents", marks=pytest.mark.long),
    pytest.param("_put", 2, id="among the documents"),
    pytest.param("copy_rows", 0, id="before the judgments", marks=pytest.mark.long),
    pytest.param("_sums", 0, id="before the comparison", marks=pytest.mark.long),
    pytest.param("_sums", 1, id="before the end", marks=pytest.mark.long),
]


def filled(data_dir: Path, characters: int = 0) -> None:
    """Makes a store with a judgment and `COUNT` documents, whose texts are longer by `characters`."""
    data_dir.mkdir(exist_ok=True)
    store = SqliteStore(data_dir)
    store.start(lambda _: None, lambda _: None)
    manifest: Any = SimpleNamespace(version="a", fingerprint="a", dimension=4)
    active = store.activate(manifest, "fp32")
    embedding = Embedding(VECTOR, truncated=False)
    documents = [Document(f"{at}", f"text {at}{'x' * characters}") for at in range(COUNT)]
    asyncio.run(store.put(documents, {active: dict.fromkeys(range(COUNT), embedding)}))
    asyncio.run(store.judge([Judgment("text", "1", relevant=True)], DEFAULT_COLLECTION))
    store.close()


def command(*words: object) -> str:
    return run(parser().parse_args([*map(str, words)]))


def killed(work: Callable[[], object]) -> None:
    """Runs `work` in a fork, which must exit with the status KILLED and without any cleanup."""
    child = os.fork()
    if child == 0:
        try:
            work()
        finally:
            os._exit(1)  # `work` should have ended the process.
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == KILLED


def cut_off(monkeypatch: pytest.MonkeyPatch, name: str, calls: int) -> None:
    """Makes `copying.<name>` end the process at call number `calls` + 1, but `_make` at its first call."""
    inner, left = getattr(copying, name), [calls]

    async def cut(*args: Any, **kwargs: Any) -> Any:
        if not left[0]:
            os._exit(KILLED)
        left[0] -= 1
        return await inner(*args, **kwargs)

    def cut_make(*args: Any, **kwargs: Any) -> Any:
        os._exit(KILLED)

    monkeypatch.setattr(copying, name, cut_make if name == "_make" else cut)


def refused(settings: Settings) -> str:
    """Starts a service on the unfinished copy, which must fail. Returns the error message."""
    with pytest.raises(StartupError) as raised:
        Runtime(settings).open()
    assert "unfinished copy" in check.report(settings)
    return str(raised.value)


@pytest.mark.parametrize(("name", "calls"), POINTS)
def test_a_copy_that_was_cut_off_is_refused_until_it_is_finished(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, calls: int
) -> None:
    monkeypatch.setattr(copying, "PAGE", 2)
    source, back, url = tmp_path / "source", tmp_path / "back", postgres.new_database()
    filled(source)
    ways = (
        (Settings(database=url, data_dir=tmp_path / "none"), ("--to", url, "--data-dir", source)),
        (Settings(data_dir=back), ("--from", url, "--data-dir", back)),
    )
    for settings, words in ways:
        with monkeypatch.context() as patching:
            cut_off(patching, name, calls)
            killed(lambda words=words: command("copy", *words))  # type: ignore[misc]
        marked = name != "_begin"  # A copy that ends in `_begin` leaves no mark.
        if marked:
            assert "--start-over" in refused(settings)
            away = ("--to", postgres.new_database(), "--data-dir", str(back))
            if settings.database is not None:
                away = ("--from", url, "--data-dir", str(tmp_path / "third"))
            with pytest.raises(CommandError, match="unfinished copy"):  # as the source of another copy
                command("copy", *away)
        if marked and settings.database is None:
            with pytest.raises(CommandError, match="unfinished copy"):
                command("backup", tmp_path / "backup", "--data-dir", str(back))
            assert not (tmp_path / "backup").exists()
            with monkeypatch.context() as patching:
                patching.setenv("SIMILE_DATA_DIR", str(back))
                with pytest.raises(CommandError, match="unfinished copy of a"):
                    command("check", "--data")
        assert f"{COUNT} documents" in command("copy", *words)
        assert f"{COUNT} documents" in check.report(settings)
    assert "1 judgment" in command("backup", tmp_path / "backup", "--data-dir", str(back))


def test_a_copy_begins_again_on_an_unfinished_one_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The source changes after the copy is killed, so the copy cannot continue and needs --start-over."""
    monkeypatch.setattr(copying, "PAGE", 2)
    source, back, url = tmp_path / "source", tmp_path / "back", postgres.new_database()
    filled(source)
    for words, target in (
        (("--to", url, "--data-dir", source), Settings(database=url)),
        (("--from", url, "--data-dir", back), Settings(data_dir=back)),
    ):
        with monkeypatch.context() as patching:
            cut_off(patching, "_put", 2)
            killed(lambda words=words: command("copy", *words))  # type: ignore[misc]
        refused(target)
        from_database = target.database is None
        store: Any = (
            PostgresStore(url, [], connections=4, answer_seconds=0) if from_database else SqliteStore(source)
        )
        store.start(lambda _: None, lambda _: None)
        changed = {store.active().number: {0: Embedding(-VECTOR, truncated=False)}}
        asyncio.run(store.put([Document("0", f"changed {from_database}")], changed))
        store.close()
        with pytest.raises(CommandError, match=r"collection default.* copy again with --start-over"):
            command("copy", *words)
        refused(target)
        assert f"{COUNT} documents" in command("copy", *words, "--start-over")
        with pytest.raises(CommandError, match="holds no unfinished copy, so --start-over does not empty it"):
            command("copy", *words, "--start-over")


def test_a_copy_that_another_process_ends_meanwhile_is_not_dropped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process finishes its copy after this one reads the mark, but before this one takes the lock."""
    filled(tmp_path)
    words = ("copy", "--to", postgres.new_database(), "--data-dir", tmp_path)
    assert f"{COUNT} documents" in command(*words)
    for ends in ("", "DROP TABLE facts"):
        with monkeypatch.context() as patching:

            def unfinished(store: PostgresStore, ends: str = ends) -> str:
                with store.pool.connection() as raw:
                    raw.execute(ends.encode())
                return "an unfinished copy"

            patching.setattr(PostgresStore, "unfinished_copy", unfinished)
            with pytest.raises(CommandError, match="holds no unfinished copy, so --start-over does not"):
                command(*words, "--start-over")
        if not ends:
            with pytest.raises(CommandError, match="used the target already"):
                command(*words)


def test_two_copies_into_one_database_do_not_mix(tmp_path: Path) -> None:
    filled(tmp_path)
    url = postgres.new_database()
    store = PostgresStore(url, [], connections=4, answer_seconds=0)
    for more in ([], ["--start-over"]):
        with store.copying(), pytest.raises(CommandError, match="Another `copy` into this database"):
            command("copy", "--to", url, "--data-dir", tmp_path, *more)
        with store.pool.connection() as raw:  # as if the other copy had begun
            raw.execute("INSERT INTO facts VALUES ('copy under way', 'a fp32') ON CONFLICT DO NOTHING")
    store.close()
    assert f"{COUNT} documents" in command("copy", "--to", url, "--data-dir", tmp_path)
    with pytest.raises(CommandError, match="used the target already"):
        command("copy", "--from", url, "--data-dir", tmp_path)


def test_a_database_that_a_service_uses_takes_no_copy(tmp_path: Path, tiny_models_dir: Path) -> None:
    filled(tmp_path / "source")
    url = postgres.new_database()
    with serving(new_settings(tmp_path, tiny_models_dir, database=url)) as client:
        for words in ([], ["--start-over"]):
            with pytest.raises(CommandError, match=r"used the target already|holds no unfinished"):
                command("copy", "--to", url, "--data-dir", tmp_path / "source", *words)
        assert client.get("/ready").status_code == 200


def test_a_copy_that_fills_the_disk_goes_on_when_there_is_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, back, url = tmp_path / "source", tmp_path / "back", postgres.new_database()
    filled(source, characters=100_000)
    command("copy", "--to", url, "--data-dir", source)
    words = ("copy", "--from", url, "--data-dir", str(back))

    class Small(SqliteStore):
        """A store with room for some of the documents."""

        def __init__(self, data_dir: Path) -> None:
            super().__init__(data_dir)
            [pages] = self.connection.execute("PRAGMA page_count").fetchone()
            self.connection.execute(f"PRAGMA max_page_count = {pages + 24}")

    with monkeypatch.context() as patching:
        patching.setattr(copying, "SqliteStore", Small)
        patching.setattr(copying, "PAGE", 1)
        with pytest.raises(CommandError, match=r"The copy stopped: The disk is full\..* goes on with it"):
            command(*words)
    assert "unfinished copy" in refused(Settings(data_dir=back))
    assert f"{COUNT} documents" in command(*words)


def test_a_backup_of_half_a_copy_is_not_restored(tmp_path: Path) -> None:
    """Earlier versions could back up an unfinished copy."""
    filled(tmp_path)
    store = SqliteStore(tmp_path)
    store.connection.execute("INSERT INTO facts VALUES ('copy under way', 'a fp32')")
    store.close()
    with pytest.raises(Unusable, match="unfinished `copy`"):
        offline.examine(tmp_path, SCHEMA_VERSION)
