"""A missing, empty, truncated or older store is noticed at the start."""

import json
import shutil
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path

import pytest

from models.files import fsync
from service.cli.commands import backup as backing
from service.cli.commands import restore as restoring
from service.errors import StartupError
from service.settings import Settings
from service.store.sqlite import last_known
from service.store.sqlite.last_known import FILE, note, refuse_loss
from service.store.sqlite.schema import DATABASE, connect, migrate
from tests.service.process import Service, run_and_fail


@pytest.fixture(scope="module")
def used(tmp_path_factory: pytest.TempPathFactory, tiny_models_dir: Path) -> Path:
    """The folder of a stopped service with five documents. early.db is its earlier database with two."""
    folder = tmp_path_factory.mktemp("used")
    with Service(folder, tiny_models_dir) as service:
        service.put({"a": "red river", "b": "green garden"}).raise_for_status()
        assert service.stop() == 0
        shutil.copy(folder / "data" / DATABASE, folder / "early.db")
        service.start()
        service.put({"c": "stone", "d": "water", "e": "sky"}).raise_for_status()
        assert service.stop() == 0
    return folder


@pytest.fixture
def folder(used: Path, tmp_path: Path) -> Path:
    """A copy of `used` that a test may change."""
    for name in ("data", "models"):
        shutil.copytree(used / name, tmp_path / name)
    shutil.copy(used / "early.db", tmp_path / "early.db")
    return tmp_path


def cut(path: Path, share: float) -> None:
    content = path.read_bytes()
    path.write_bytes(content[: int(len(content) * share)])


def anew(path: Path) -> None:
    path.unlink()
    migrate(path)


LOSSES: dict[str, tuple[Callable[[Path], object], str]] = {
    "missing": (Path.unlink, "is missing"),
    "empty": (lambda path: path.write_bytes(b""), "holds nothing"),
    "a new store": (anew, "holds nothing"),
    "cut to a page": (lambda path: path.write_bytes(path.read_bytes()[:16384]), "is damaged"),
    "cut to a half": (lambda path: cut(path, 0.5), "is damaged"),
    "cut to ten bytes": (lambda path: path.write_bytes(path.read_bytes()[:10]), "is damaged"),
    "another file": (lambda path: path.write_bytes(b"no database at all " * 2000), "is damaged"),
    "an older one": (lambda path: shutil.copy(path.parent.parent / "early.db", path), "is at operation 2"),
}


def kept(data: Path) -> dict[str, bytes]:
    """Returns the content of files by name, without empty files and SQLite's shared memory."""
    files = {path.name: path.read_bytes() for path in data.iterdir() if path.is_file()}
    return {name: content for name, content in files.items() if content and not name.endswith("-shm")}


@pytest.mark.parametrize("loss", LOSSES)
def test_a_loss_is_refused_at_start_and_says_what_was_known(folder: Path, loss: str) -> None:
    data = folder / "data"
    lose, words = LOSSES[loss]
    lose(data / DATABASE)
    before = kept(data)
    with pytest.raises(StartupError) as refused:
        refuse_loss(data)
    said = str(refused.value)
    assert words in said
    assert "it held 5 documents and was at operation 5" in said
    assert "simile restore" in said
    assert kept(data) == before


@pytest.mark.long
def test_the_process_refuses_and_goes_on_once_the_loss_is_accepted(folder: Path) -> None:
    data = folder / "data"
    (data / DATABASE).write_bytes(b"")
    said = run_and_fail(folder, SIMILE_MODELS_DIR=str(folder / "models"))
    assert "operation 5" in said
    assert f"remove {data / FILE}" in said
    (data / FILE).unlink()
    with Service(folder) as service:
        assert service.stored() == {}


def test_a_look_leaves_the_write_ahead_log_as_it_is(tmp_path: Path) -> None:
    migrate(tmp_path / DATABASE)
    connection = connect(tmp_path / DATABASE)
    connection.execute("INSERT INTO operations (kind, revision) VALUES ('put', 1)")
    for name in (DATABASE, f"{DATABASE}-wal"):  # copies of the files as a kill leaves them
        (tmp_path / "killed").mkdir(exist_ok=True)
        shutil.copy(tmp_path / name, tmp_path / "killed" / name)
    connection.close()
    log = (tmp_path / "killed" / f"{DATABASE}-wal").read_bytes()
    assert log
    (tmp_path / "killed" / FILE).write_text('{"sequence": 2, "documents": 1, "at": "then"}')
    with pytest.raises(StartupError, match="is at operation 1"):
        refuse_loss(tmp_path / "killed")
    assert (tmp_path / "killed" / f"{DATABASE}-wal").read_bytes() == log


def test_a_restore_over_a_loss_starts(used: Path, folder: Path) -> None:
    settings = Settings(data_dir=used / "data", models_dir=used / "models")
    backing.run(Namespace(folder=folder / "backup", models=False, data_dir=None), settings)

    (folder / "data" / DATABASE).write_bytes(b"")
    (folder / "data" / FILE).write_text('{"sequence": 900, "documents": 700, "at": "then"}')
    here = Settings(data_dir=folder / "data", models_dir=folder / "models")
    requested = Namespace(folder=folder / "backup", data_dir=None, models_dir=None, force=True)
    restoring.run(requested, here)
    refuse_loss(folder / "data")
    with Service(folder) as service:
        assert len(service.stored()) == 5


@pytest.mark.long
def test_a_kill_loses_nothing_and_is_no_loss(tmp_path: Path, tiny_models_dir: Path) -> None:
    with Service(tmp_path, tiny_models_dir) as service:
        service.put({"a": "red river"}).raise_for_status()
        service.kill()
        service.start()
        service.put({"b": "stone"}).raise_for_status()
        service.kill()
        assert json.loads((tmp_path / "data" / FILE).read_bytes())["sequence"] == 1
        service.start()
        assert len(service.stored()) == 2


@pytest.mark.parametrize("content", [b"", b"[" * 100_000, b"{}", b"[1]", b'{"sequence": "x"}', b"\xff" * 90])
def test_a_damaged_note_is_made_again(tmp_path: Path, content: bytes) -> None:
    migrate(tmp_path / DATABASE)
    (tmp_path / FILE).write_bytes(content)
    refuse_loss(tmp_path)
    note(tmp_path)
    assert json.loads((tmp_path / FILE).read_bytes())["sequence"] == 0


def test_what_has_not_moved_is_not_written_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    migrate(tmp_path / DATABASE)
    written: list[str] = []

    def count(file: Path, text: str) -> None:
        written.append(text)
        fsync.replace_text(file, text)

    monkeypatch.setattr(last_known, "replace_text", count)
    for _ in range(3):
        note(tmp_path)
    assert len(written) == 1


def test_a_note_that_cannot_be_written_stops_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    migrate(tmp_path / DATABASE)

    def full(file: Path, text: str) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(last_known, "replace_text", full)
    note(tmp_path)
    assert "The disk is full" in caplog.text
