"""backup, restore, check --data: the whole store comes back, and a damaged backup is never restored."""

import json
import os
import random
import re
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Self

import pytest

from models import progress
from service.cli.check import check_data
from service.errors import CommandError
from service.settings import Settings
from service.store.sqlite import offline
from tests.parts.commands import run
from tests.service.process import Service, plain_environment
from tests.service.swapping import TEXTS
from tests.waiting import LIMIT

DOCUMENTS = {f"d{at}": TEXTS[at] for at in range(120)}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory, tiny_models_dir: Path) -> Iterator[Service]:
    """A service with documents, a judgment, two events, a clicked answer, and a backup in `folder`/backup."""
    with Service(tmp_path_factory.mktemp("backup"), tiny_models_dir) as service:
        service.put(DOCUMENTS).raise_for_status()
        judged = {"query": "a river", "id": "d7", "relevant": True}
        service.client.post("/feedback", json=judged).raise_for_status()
        clicked = [{"search_id": "s", "query": "a river", "id": id, "type": "click"} for id in ("d7", "d57")]
        stored = service.client.post("/events", json={"events": clicked}).json()
        assert stored == {"stored": 2, "refused": []}
        answer = {"query": TEXTS[5], "id": "d57", "gain": 1}
        service.client.put("/collections/default/clicked", json={"clicked": [answer]}).raise_for_status()
        synonyms = {"groups": [["river", "brook"]]}
        service.client.put("/collections/default/synonyms", json=synonyms).raise_for_status()
        service.put({"gone": "a gorgon that was deleted"}).raise_for_status()
        service.client.delete("/documents/gone").raise_for_status()
        done = command(service, "backup", service.folder / "backup")
        assert done.returncode == 0, done.stderr
        assert "120 documents, 1 judgment and 2 events are in" in done.stdout
        yield service


def command(service: Service, *arguments: object) -> subprocess.CompletedProcess[str]:
    """Runs a command on the data and models of the service, which keeps running."""
    data, models = str(service.folder / "data"), str(service.folder / "models")
    return run(*arguments, SIMILE_DATA_DIR=data, SIMILE_MODELS_DIR=models)


def restore(backup: Path, folder: Path, *more: str) -> subprocess.CompletedProcess[str]:
    """Restores `backup` to `folder`/data, with `folder`/models as SIMILE_MODELS_DIR."""
    data, models = str(folder / "data"), str(folder / "models")
    return run("restore", backup, *more, SIMILE_DATA_DIR=data, SIMILE_MODELS_DIR=models)


def refused(act: Callable[[Settings], object], folder: Path, models: Path | None = None) -> str:
    """Runs `act`, which must fail, on the data directory in `folder`. Returns the error message."""
    with pytest.raises(CommandError) as caught:
        act(Settings(data_dir=folder / "data", models_dir=models or folder / "models"))
    return str(caught.value)


def vectors(database: Path) -> list[tuple[object, ...]]:
    connection = sqlite3.connect(database)
    found = connection.execute("SELECT * FROM vectors ORDER BY 1, 2, 3").fetchall()
    connection.close()
    return found


@pytest.mark.long
def test_a_backup_of_a_running_service_comes_back_in_another_directory(
    place: Service, tmp_path: Path, tiny_models_dir: Path
) -> None:
    backup = place.folder / "backup"
    manifest = json.loads((backup / "manifest.json").read_bytes())
    assert manifest["documents"] == 120
    assert manifest["active"] == place.client.get("/info").json()["model_version"]
    assert b"gorgon" not in (backup / "simile.db").read_bytes()  # neither the text nor its terms
    place.put({"later": "green garden"}).raise_for_status()  # The backup must not change.
    done = restore(backup, tmp_path)
    assert done.returncode == 0, done.stderr
    assert "120 documents, 1 judgment and 2 events are in" in done.stdout
    assert f"needs {manifest['active']}" in done.stdout, "the models were not in it"
    assert vectors(tmp_path / "data" / "simile.db") == vectors(backup / "simile.db")
    with Service(tmp_path, tiny_models_dir) as service:
        assert service.stored() == DOCUMENTS
        assert len(service.client.get("/feedback").json()["feedback"]) == 1
        there, here = (one.client.get("/collections/default/synonyms").json() for one in (place, service))
        assert there == here == {"version": 1, "groups": [["river", "brook"]], "one_way": []}
        place.client.delete("/documents/later").raise_for_status()  # Keyword scores depend on all texts.
        for mode in ("dense", "lexical", "hybrid"):
            question = {"q": TEXTS[5], "k": "3", "mode": mode}
            there, here = (one.client.get("/search", params=question).json() for one in (place, service))
            assert here["hits"] == there["hits"] != []
        assert here["hits"][0]["id"] == "d57", "the click is not remembered"
        # A revision is never used twice, even after a restore.
        sequences = [service.put({"new": "stone"}).json()["sequence"] for _ in range(1)]
        assert sequences[0] > manifest["sequence"]


def test_a_backup_that_did_not_count_events_is_restored(place: Service, tmp_path: Path) -> None:
    earlier = tmp_path / "earlier"
    shutil.copytree(place.folder / "backup", earlier)
    manifest = json.loads((earlier / "manifest.json").read_bytes())
    del manifest["events"]
    (earlier / "manifest.json").write_text(json.dumps(manifest), encoding="utf-8")
    done = restore(earlier, tmp_path)
    assert done.returncode == 0, done.stderr
    assert "120 documents and 1 judgment are in" in done.stdout


@pytest.mark.long
def test_a_backup_with_its_models_needs_nothing_else(place: Service, tmp_path: Path) -> None:
    backup = tmp_path / "deeper" / "backup"
    assert command(place, "backup", backup, "--models").returncode == 0
    done = restore(backup, tmp_path)
    assert done.returncode == 0, done.stderr
    assert "needs" not in done.stdout
    with Service(tmp_path) as service:
        assert service.stored() == DOCUMENTS


@pytest.mark.long
def test_a_long_backup_says_what_it_does_and_how_far_it_is(
    place: Service, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(progress, "LOG_SECONDS", 0.0)
    monkeypatch.setattr(offline, "_STEPS", 10)
    offline.copy(place.folder / "data", tmp_path)
    said = capsys.readouterr().err
    assert re.search(r"^copying the store: [\d,]+ bytes, \d+ %", said, re.MULTILINE)
    assert "\ntaking deleted words out of the copy: " in said
    assert "\nchecking the copy: " in said


@pytest.mark.long
def test_a_backup_under_constant_writing_is_of_one_moment(place: Service, tmp_path: Path) -> None:
    """A client writes two equal documents in each request. A backup has both from the same request."""
    running = subprocess.Popen(
        [sys.executable, "-c", WRITE_PAIRS, str(place.client.base_url)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert running.stdout is not None
    try:
        running.stdout.readline()
        for at in range(3):
            assert command(place, "backup", tmp_path / f"{at}").returncode == 0
            connection = sqlite3.connect(tmp_path / f"{at}" / "simile.db")
            rows = connection.execute("SELECT text FROM documents WHERE id IN ('left', 'right')").fetchall()
            assert len(rows) == 2
            assert rows[0] == rows[1]
            assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
            connection.close()
    finally:
        running.communicate()  # After this, the client writes nothing more.
    assert running.returncode == 0
    for id in ("left", "right"):
        place.client.delete(f"/documents/{id}").raise_for_status()


WRITE_PAIRS = """
import httpx2, sys, threading
end = threading.Event()
threading.Thread(target=lambda: (sys.stdin.read(), end.set()), daemon=True).start()
with httpx2.Client(base_url=sys.argv[1], trust_env=False) as client:
    step = 0
    while not end.is_set():
        step += 1
        pair = [{"id": id, "text": f"red {step}"} for id in ("left", "right")]
        client.post("/documents", json={"documents": pair}).raise_for_status()
        print(step, flush=True) if step == 5 else None
"""


@pytest.mark.long
def test_a_store_that_is_there_or_in_use_is_not_replaced_unless_asked(
    place: Service, tmp_path: Path, tiny_models_dir: Path
) -> None:
    backup = place.folder / "backup"
    done = command(place, "restore", backup, "--force")
    assert (done.returncode, "in use by process" in done.stderr) == (1, True)
    with Service(tmp_path, tiny_models_dir) as service:
        service.put({"old": "red river"}).raise_for_status()
        service.kill()  # The last write is still in the write-ahead log.
        (tmp_path / "data" / "indexes").mkdir(exist_ok=True)
        done = restore(backup, tmp_path)
        assert (done.returncode, "--force" in done.stderr) == (1, True)
        service.start()
        assert service.stored() == {"old": "red river"}
        service.kill()
        assert restore(backup, tmp_path, "--force").returncode == 0
        service.start()
        assert service.stored() == DOCUMENTS
        service.kill()
    [replaced] = (tmp_path / "data").glob("replaced-*")
    assert (replaced / "indexes").exists()
    connection = sqlite3.connect(replaced / "simile.db")
    assert connection.execute("SELECT id, text FROM documents").fetchall() == [("old", "red river")]
    connection.close()


RESTORE = """
import argparse, os, sys, time
from pathlib import Path
from service.cli.commands import restore
from service.settings import read
def wait(self, target):
    print("last step", flush=True)
    time.sleep(60)
settings = read()
for line in sys.stdin:
    folder, *how = line.split()
    child = os.fork()
    if child:
        sys.stdin.readline()  # until then it keeps its number
        os.waitpid(child, 0)
        print("ended", flush=True)
        continue
    print(os.getpid(), flush=True)
    if how:
        Path.replace = wait
    try:
        asked = argparse.Namespace(folder=Path(folder), data_dir=None, models_dir=None, force=True)
        restore.run(asked, settings)
        print("done", flush=True)
    except BaseException as error:
        print(repr(error), flush=True)
    os._exit(0)
"""


class Restores:
    """Runs restores one after the other, each in a fork of a process that has imported everything."""

    def __init__(self, folder: Path, models: Path) -> None:
        self._parent = subprocess.Popen(
            [sys.executable, "-c", RESTORE],
            env=plain_environment(SIMILE_DATA_DIR=str(folder / "data"), SIMILE_MODELS_DIR=str(models)),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._process = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._parent.communicate(timeout=LIMIT)

    def begin(self, backup: Path, how: str = "") -> None:
        self._tell(f"{backup} {how}")
        self._process = int(self.said())

    def said(self) -> str:
        assert self._parent.stdout is not None
        return self._parent.stdout.readline().strip()

    def kill(self) -> None:
        """Kills the restore, which may have ended already, and waits for its end."""
        os.kill(self._process, signal.SIGKILL)
        self._tell("")
        while self.said() != "ended":
            pass

    def _tell(self, line: str) -> None:
        assert self._parent.stdin is not None
        print(line, file=self._parent.stdin, flush=True)


@pytest.mark.long
def test_a_restore_that_is_killed_leaves_the_old_store_or_the_new_one(place: Service, tmp_path: Path) -> None:
    """Kills twelve restores at random moments. Two backups alternate, of one document and of 120."""
    old = tmp_path / "old"
    with Service(tmp_path / "first", place.folder / "models") as service:
        service.put({"old": "red river"}).raise_for_status()
        assert command(service, "backup", old).returncode == 0
    data, rng = tmp_path / "data", random.Random(5)
    assert restore(old, tmp_path).returncode == 0
    counts, seconds = {1: old, 120: place.folder / "backup"}, 0.02
    seen = []
    with Restores(tmp_path, place.folder / "models") as restores:
        for _ in range(12):
            now = documents(data / "simile.db")
            restores.begin(counts[121 - now])
            time.sleep(rng.uniform(0, 2 * seconds))
            restores.kill()
            found = documents(data / "simile.db")
            assert found in counts
            seen.append(found == now)
            seconds *= 1.5 if found == now else 0.6  # so that kills come on both sides of the last step
        restores.begin(counts[121 - found])
        assert restores.said() == "done"
        restores.kill()
    assert documents(data / "simile.db") == 121 - found
    assert 1 <= sum(seen) <= 11, "every kill came before, or behind, the last step"


@pytest.mark.long
def test_a_restore_that_is_killed_before_its_last_step_has_changed_nothing(
    place: Service, tmp_path: Path, tiny_models_dir: Path
) -> None:
    with Service(tmp_path, tiny_models_dir) as service:
        service.put({"old": "red river"}).raise_for_status()
        service.kill()  # The last write is still in the write-ahead log.
        assert (tmp_path / "data" / "simile.db-wal").stat().st_size
        with Restores(tmp_path, tmp_path / "models") as restores:
            restores.begin(place.folder / "backup", "wait")
            assert restores.said() == "last step"
            restores.kill()
        service.start()
        assert service.stored() == {"old": "red river"}
        service.kill()
        assert restore(place.folder / "backup", tmp_path, "--force").returncode == 0
        service.start()
        assert service.stored() == DOCUMENTS
        service.kill()


def documents(database: Path) -> int:
    connection = sqlite3.connect(database)
    assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    [count] = connection.execute("SELECT count(*) FROM documents").fetchone()
    connection.close()
    return int(count)


def test_a_sound_store_is_said_to_be_sound_while_its_service_runs(place: Service) -> None:
    done = command(place, "check", "--data")
    assert done.returncode == 0, done.stderr
    assert "120 documents, 120 vectors, 1 judgment, 2 events, operation" in done.stdout
    assert done.stdout.endswith("All is sound.\n")


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        ("UPDATE vectors SET vector = zeroblob(128) WHERE revision = 5", "the vectors of 'd4' are damaged"),
        ("UPDATE vectors SET revision = 999 WHERE revision = 5", "1 vector is of no document"),
        ("UPDATE documents SET metadata = '[]' WHERE id = 'd9'", "'d9' is not a JSON object"),
        ("UPDATE generations SET state = 'standby'", "not one generation is active, but 0"),
        ("UPDATE generations SET version = '20260101T000000-x-00000000'", "cannot be opened"),
        ("UPDATE generations SET fingerprint = 'another'", "its fingerprint differs"),
        ("DELETE FROM lexical_1_docsize WHERE id = 5", "1 document cannot be found by words"),
        ("INSERT INTO lexical_1 (rowid, text) VALUES (999, 'a')", "1 deleted document is found by"),
    ],
)
def test_what_is_wrong_in_a_store_is_listed(place: Service, tmp_path: Path, damage: str, words: str) -> None:
    (tmp_path / "data").mkdir()
    shutil.copy(place.folder / "backup" / "simile.db", tmp_path / "data" / "simile.db")
    connection = sqlite3.connect(tmp_path / "data" / "simile.db")
    connection.execute(damage)
    connection.commit()
    connection.close()
    said = refused(check_data, tmp_path, place.folder / "models")
    assert words in said
    assert said.endswith(("problem.", "problems."))


def test_a_flipped_byte_in_the_file_is_found(place: Service, tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    content = bytearray((place.folder / "backup" / "simile.db").read_bytes())
    content[16384 * 2 + 3] ^= 0xFF  # the header of a page of a table
    (tmp_path / "data" / "simile.db").write_bytes(content)
    done = run("check", "--data", SIMILE_DATA_DIR=str(tmp_path / "data"))
    assert done.returncode == 1
    assert "damaged" in done.stderr or "malformed" in done.stderr


def test_a_backup_does_not_replace_a_folder_and_needs_a_store(place: Service, tmp_path: Path) -> None:
    done = command(place, "backup", tmp_path)
    assert (done.returncode, "already exists" in done.stderr) == (1, True)
    done = run("backup", tmp_path / "new", SIMILE_DATA_DIR=str(tmp_path / "nothing"))
    assert (done.returncode, "There is no store" in done.stderr) == (1, True)
    assert list(tmp_path.iterdir()) == []
