"""A backup that is not trusted: links out of its folder are not followed, and no SQL of its database runs."""

import contextlib
import hashlib
import json
import os
import shutil
import sqlite3
import subprocess
import sys
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from models.store import ModelStore
from service.cli.check import check_data
from service.cli.commands import backup as backing
from service.cli.commands import restore as restoring
from service.errors import CommandError, StartupError
from service.settings import Settings
from service.store.sqlite.schema import DATABASE, migrate
from tests.parts.commands import run
from tests.service.process import Service, run_and_fail


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory, tiny_models_dir: Path) -> Path:
    """A folder with `data`, `models`, and a backup of both in `backup`."""
    folder = tmp_path_factory.mktemp("made")
    with Service(folder, tiny_models_dir) as service:
        service.put({"a": "red river", "b": "green garden"}).raise_for_status()
    settings = Settings(data_dir=folder / "data", models_dir=folder / "models")
    backing.run(Namespace(folder=folder / "backup", models=True, data_dir=None), settings)
    return folder


@pytest.fixture
def backup(made: Path, tmp_path: Path) -> Path:
    """A copy of the backup that a test may change."""
    shutil.copytree(made / "backup", tmp_path / "backup")
    return tmp_path / "backup"


def said_of(backup: Path) -> str:
    """Restores `backup`, which must fail and leave no files but a lock. Returns the error."""
    folder = backup.parent
    settings = Settings(data_dir=folder / "data", models_dir=folder / "models")
    with pytest.raises(CommandError) as caught:
        restoring.run(Namespace(folder=backup, data_dir=None, models_dir=None, force=False), settings)
    left = {path.name for path in (folder / "data").rglob("*")} if (folder / "data").exists() else set()
    assert left <= {"lock"}
    assert not (folder / "models").exists()
    return str(caught.value)


def rewrite(backup: Path, **changes: Any) -> None:
    file = backup / "manifest.json"
    file.write_text(json.dumps(json.loads(file.read_bytes()) | changes), encoding="utf-8")


def seal(backup: Path) -> None:
    """Puts size and checksum of the changed database into the manifest, as a forger would."""
    content = (backup / DATABASE).read_bytes()
    files = json.loads((backup / "manifest.json").read_bytes())["files"]
    files[DATABASE] = {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    rewrite(backup, files=files)


def change(backup: Path, statements: str) -> None:
    connection = sqlite3.connect(backup / DATABASE)
    connection.executescript(statements)
    connection.close()
    seal(backup)


def listed(backup: Path, name: str) -> None:
    files = json.loads((backup / "manifest.json").read_bytes())["files"]
    rewrite(backup, files=files | {name: files[DATABASE]})


def nested(backup: Path) -> None:
    (backup / "manifest.json").write_text('{"files":' * 100_000, encoding="utf-8")


def a_linked(name: str) -> Callable[[Path], object]:
    def link(backup: Path) -> None:
        (backup / name).rename(backup.parent / "elsewhere")
        (backup / name).symlink_to(backup.parent / "elsewhere")

    return link


def find_version(backup: Path) -> str:
    return str(json.loads((backup / "manifest.json").read_bytes())["active"])


def flip(backup: Path) -> None:
    content = bytearray((backup / DATABASE).read_bytes())
    content[len(content) // 2] ^= 1
    (backup / DATABASE).write_bytes(content)


MANIFESTS: dict[str, tuple[Callable[[Path], object], str]] = {
    "a version that is a path": (lambda at: listed(at, "models/../x/evil"), "should match pattern"),
    "an absolute file": (lambda at: listed(at, "/etc/passwd"), "should match pattern"),
    "a file of no backup": (lambda at: listed(at, "indexes/x"), "should match pattern"),
    "a folder that is no version": (lambda at: listed(at, "models/wanted/x"), "models/wanted/x is missing"),
    "no database": (lambda at: rewrite(at, files={}), "does not list simile.db"),
    "a checksum that is none": (
        lambda at: rewrite(at, files={DATABASE: {"bytes": 1, "sha256": "x"}}),
        "simile.db was changed",
    ),
    "a number that is text": (lambda at: rewrite(at, documents="many"), "documents: Input should be"),
    "a newer schema": (lambda at: rewrite(at, schema=999), "Install that version"),
    "none": (lambda at: (at / "manifest.json").unlink(), "is not a backup"),
    "another checksum": (flip, "simile.db was changed"),
    "a file that is missing": (lambda at: (at / DATABASE).unlink(), "simile.db is missing"),
    "nested deeply": (nested, "nested too deeply"),
    "a link": (a_linked("manifest.json"), "manifest.json is a link"),
}


@pytest.mark.parametrize("damage", MANIFESTS)
def test_a_manifest_that_backup_would_not_write_is_refused(backup: Path, damage: str) -> None:
    act, words = MANIFESTS[damage]
    act(backup)
    assert words in said_of(backup)


@pytest.mark.parametrize("name", [DATABASE, "models"])
def test_no_link_is_followed(backup: Path, name: str) -> None:
    a_linked(name)(backup)
    assert f"{name if name == DATABASE else 'config.json'} is a link" in said_of(backup)


def test_a_pipe_is_not_waited_for(backup: Path) -> None:
    (backup / DATABASE).unlink()
    os.mkfifo(backup / DATABASE)
    assert "simile.db is missing" in said_of(backup)


@pytest.mark.parametrize("name", [f"{DATABASE}-wal", "notes/mine.txt", "models/VERSION/more.json"])
def test_a_file_that_the_manifest_does_not_list_is_refused(backup: Path, name: str) -> None:
    file = backup / name.replace("VERSION", find_version(backup))
    file.parent.mkdir(exist_ok=True)
    file.write_bytes(b"x")
    assert f"{file.relative_to(backup)} is not listed in the manifest" in said_of(backup)


def test_up_to_ten_damaged_files_are_named(backup: Path) -> None:
    for at in range(restoring.MAX_NAMED):
        (backup / f"{at}").symlink_to("nowhere")
    (backup / DATABASE).write_bytes(b"x")
    said = said_of(backup)
    assert "simile.db was changed; 0 is not listed in the manifest; 1 is" in said
    assert "8 is not listed in the manifest; and 1 more. Nothing was restored" in said


def test_a_model_of_a_backup_is_checked_as_any_published_one(backup: Path) -> None:
    """The backup's manifest is forged, but not the model's own manifest."""
    file = backup / "models" / find_version(backup) / "config.json"
    file.write_bytes(b"{}\n")
    files = json.loads((backup / "manifest.json").read_bytes())["files"]
    name = file.relative_to(backup).as_posix()
    files[name] = {"bytes": 3, "sha256": hashlib.sha256(b"{}\n").hexdigest()}
    rewrite(backup, files=files)
    assert "config.json was changed after it was published" in said_of(backup)


TRIGGER = "CREATE TRIGGER evil AFTER INSERT ON documents BEGIN DELETE FROM documents; END;"
DATABASES = {
    "a trigger": (TRIGGER, "it holds a trigger 'evil'"),
    "an index": ("CREATE INDEX evil ON documents (abs(revision));", "it holds a index 'evil'"),
    "a table that is missing": ("DROP TABLE feedback;", "it lacks the"),
    "a table as a view": (
        "DROP TABLE feedback; CREATE VIEW feedback AS SELECT 1 AS sequence;",
        "its view 'feedback' is not as Simile makes it",
    ),
    "a computed column": (
        "ALTER TABLE facts ADD COLUMN evil TEXT AS (upper(value));",
        "its table 'facts' is not as Simile makes it",
    ),
    "another schema number": ("PRAGMA user_version = 3;", "its schema is 3; the manifest says"),
    "fewer documents": ("DELETE FROM documents WHERE id = 'a';", "documents: it holds 1, and the"),
    "another version": (
        "UPDATE generations SET version = '../evil';",
        "active versions: it holds ['../evil']",
    ),
}


@pytest.mark.parametrize("damage", DATABASES)
def test_a_database_that_holds_anything_else_is_refused_before_it_runs(backup: Path, damage: str) -> None:
    statements, words = DATABASES[damage]
    change(backup, statements)
    assert words in said_of(backup)


def test_a_database_with_a_damaged_page_is_refused_whatever_the_checksum_says(backup: Path) -> None:
    content = bytearray((backup / DATABASE).read_bytes())
    content[16384 * 2 : 16384 * 2 + 8] = b"\xff" * 8  # the header of a page
    (backup / DATABASE).write_bytes(content)
    seal(backup)
    assert "damaged" in said_of(backup)


def hostile(made: Path, tmp_path: Path, statements: str) -> Path:
    """Copies the backup's database to a data directory, runs `statements` on it, and returns its path."""
    path = tmp_path / "data" / DATABASE
    path.parent.mkdir()
    shutil.copy(made / "backup" / DATABASE, path)
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.executescript(statements)
    return path


def test_a_start_refuses_a_store_with_a_trigger_before_anything_is_written(
    made: Path, tmp_path: Path
) -> None:
    path = hostile(made, tmp_path, TRIGGER)
    with pytest.raises(StartupError, match="it holds a trigger 'evil'"):
        migrate(path)
    said = run_and_fail(tmp_path, SIMILE_MODELS_DIR=str(made / "models"))
    assert "Simile cannot start" in said
    assert "trigger 'evil'" in said


def test_commands_that_read_a_store_refuse_one_with_a_view(made: Path, tmp_path: Path) -> None:
    hostile(made, tmp_path, "CREATE VIEW evil AS SELECT * FROM documents;")
    settings = Settings(data_dir=tmp_path / "data", models_dir=made / "models")
    with pytest.raises(CommandError, match="it holds a view 'evil'"):
        check_data(settings)
    with pytest.raises(CommandError, match="it holds a view 'evil'"):
        backing.run(Namespace(folder=tmp_path / "new", models=False, data_dir=None), settings)
    assert [path.name for path in tmp_path.iterdir()] == ["data"]


@pytest.mark.long
def test_models_go_into_the_data_directory_that_is_named_and_it_starts(made: Path, tmp_path: Path) -> None:
    """SIMILE_MODELS_DIR is not set, neither for the restore nor for the start."""
    there = tmp_path / "restored"
    elsewhere = str(tmp_path / "elsewhere")
    done = run("restore", made / "backup", "--data-dir", there, SIMILE_DATA_DIR=elsewhere)
    assert done.returncode == 0, done.stderr
    assert "cannot start" not in done.stdout
    assert ModelStore(there / "models").names() == {find_version(made / "backup")}
    assert not (tmp_path / "elsewhere").exists()
    shutil.move(there, tmp_path / "data")
    service = Service(tmp_path)
    del service._environment["SIMILE_MODELS_DIR"]
    with service:
        assert service.stored() == {"a": "red river", "b": "green garden"}


@pytest.mark.parametrize("how", ["option", "setting"])
def test_models_go_where_they_are_asked_to_go(made: Path, tmp_path: Path, how: str) -> None:
    models = tmp_path / "chosen"
    option = ("--models-dir", models) if how == "option" else ()
    setting = str(models) if how == "setting" else ""
    arguments = "restore", made / "backup", "--data-dir", tmp_path / "data", *option
    done = run(*arguments, SIMILE_MODELS_DIR=setting)
    assert done.returncode == 0, done.stderr
    assert ModelStore(models).names() == {find_version(made / "backup")}
    assert not (tmp_path / "data" / "models").exists()


def test_a_backup_of_a_named_data_directory_has_its_own_models(made: Path, tmp_path: Path) -> None:
    there = tmp_path / "there"
    shutil.copytree(made / "data", there)
    shutil.copytree(made / "models", there / "models", dirs_exist_ok=True)
    done = run("backup", tmp_path / "new", "--models", "--data-dir", there, SIMILE_DATA_DIR=str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert ModelStore(tmp_path / "new" / "models").names() == {find_version(made / "backup")}


KILLED = """
import argparse, sys, time
from pathlib import Path
from service.cli.commands import backup
from service.settings import Settings
def wait(folder):
    print("copied", flush=True)
    time.sleep(600)
backup.list_files = wait
data, models, folder = map(Path, sys.argv[1:])
asked = argparse.Namespace(folder=folder, models=True, data_dir=None)
backup.run(asked, Settings(data_dir=data, models_dir=models))
"""


def test_what_a_killed_backup_left_goes_with_the_next_and_one_at_work_stays(
    made: Path, tmp_path: Path
) -> None:
    others = [tmp_path / ".simile-backup-notes", tmp_path / ".simile-backup-0123abcd"]
    for other in others:  # Neither is a backup's: the first has another name, the second another file.
        other.mkdir()
        for name in (DATABASE, "mine.txt"):
            (other / name).write_text("keep")
    command = [sys.executable, "-c", KILLED, *map(str, (made / "data", made / "models", tmp_path / "monday"))]
    running = [subprocess.Popen(command, stdout=subprocess.PIPE) for _ in range(2)]
    try:
        for process in running:
            assert process.stdout is not None
            assert process.stdout.readline() == b"copied\n"
        running[0].kill()
        running[0].wait()
        assert len([*tmp_path.glob(".simile-backup-*/simile.db")]) == 4
        settings = Settings(data_dir=made / "data", models_dir=made / "models")
        requested = Namespace(folder=tmp_path / "tuesday", models=False, data_dir=None)
        said = backing.run(requested, settings)
        assert "1 unfinished backups were removed" in said
        assert len([*tmp_path.glob(".simile-backup-*/simile.db")]) == 3, "the one at work stays"
    finally:
        for process in running:
            process.kill()
            process.wait()
            assert process.stdout is not None
            process.stdout.close()
    requested = Namespace(folder=tmp_path / "wednesday", models=False, data_dir=None)
    assert "1 unfinished" in backing.run(requested, settings)
    kept = {*(each.name for each in others), "tuesday", "wednesday"}
    assert {path.name for path in tmp_path.iterdir()} == kept


def test_what_a_killed_restore_left_goes_with_the_next_start(tmp_path: Path, tiny_models_dir: Path) -> None:
    left = tmp_path / "data" / ".restoring"
    left.mkdir(parents=True)
    (left / DATABASE).write_bytes(b"half of a copy")
    with Service(tmp_path, tiny_models_dir):
        assert not left.exists()
