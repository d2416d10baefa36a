"""A command on a full or read-only disk names its target, and leaves nothing half-written there."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.service.conftest import new_settings, serving
from tests.service.store.test_storage_faults import needs_mounts
from tests.tiny import tiny_source
from tests.waiting import LIMIT

pytestmark = [needs_mounts, pytest.mark.sqlite("it reads a data directory")]
Found = dict[str, tuple[str, list[str]]]
FULL = "No space left on device"
ROOM = "Free some room, or name another place."


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, tiny_models_dir: Path) -> Path:
    folder = tmp_path_factory.mktemp("disks")
    settings = new_settings(folder / "place", tiny_models_dir)
    with serving(settings) as client:
        metadata = {"x": "y" * 4000}
        rows = [{"id": f"{at}", "text": f"red river {at} " * 10, "metadata": metadata} for at in range(150)]
        assert client.post("/documents", json={"documents": rows}).status_code == 200
    shutil.move(settings.models_dir, settings.data_dir / "models")
    tiny_source(folder / "source", seed=7)
    return folder


@pytest.fixture(scope="module")
def found(folder: Path) -> Found:
    done = subprocess.run(
        ["unshare", "-m", sys.executable, "-m", "tests.service.cli.on_small_disks", str(folder)],
        capture_output=True,
        text=True,
        timeout=LIMIT,
        check=False,
        env={name: value for name, value in os.environ.items() if not name.startswith("SIMILE_")},
    )
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    return {case: (said, left) for case, (said, left) in json.loads(done.stdout).items()}


def steps(found: Found, name: str) -> list[tuple[str, list[str]]]:
    return [told for case, told in found.items() if case.startswith(f"{name} ")]


def test_a_backup_names_the_full_disk_and_leaves_nothing(found: Found, folder: Path) -> None:
    told = steps(found, "backup")
    refused = [(said, left) for said, left in told if said.startswith("refused")]
    assert refused[0] == told[0]
    assert len(refused) >= 2, "the disk is full at several steps"
    for said, left in refused:
        assert said == (
            f"refused: {folder}/small/b cannot be written ({FULL}). No part of the backup remains. {ROOM}"
        )
        assert left == []
    assert "150 documents, 0 judgments and 0 events are in" in told[-1][0]
    assert "b/manifest.json" in told[-1][1]


def test_an_export_names_the_full_disk_and_leaves_nothing(found: Found, folder: Path) -> None:
    first, *_, last = steps(found, "export")
    said = f"refused: {folder}/small/all.jsonl cannot be written ({FULL}). No file was left behind. {ROOM}"
    assert first == (said, [])
    assert last[1] == ["all.jsonl"]


@pytest.mark.parametrize(
    ("name", "kept"),
    [
        ("restore", "Nothing in it was changed."),
        ("models of a restore", "The data directory was not changed."),
    ],
)
def test_a_restore_names_the_full_disk_and_leaves_what_was_there(
    found: Found, folder: Path, name: str, kept: str
) -> None:
    told = steps(found, name)
    refused = [(said, left) for said, left in told if said.startswith("refused")]
    assert refused[0] == told[0]
    for said, left in refused:
        assert said == f"refused: {folder}/small cannot be written ({FULL}). {kept} {ROOM}"
        assert [one for one in left if "lock" not in one] == []
    assert "150 documents" in told[-1][0]


def test_an_import_of_a_model_names_the_full_disk_and_publishes_nothing(found: Found, folder: Path) -> None:
    for said, left in steps(found, "import"):
        assert said.startswith(f"refused: python -m models: {folder}/small")
        assert said.endswith(f": {FULL}. Free some room, then run the same command again.")
        assert left == [".lock"]


@pytest.mark.parametrize(
    ("case", "words"),
    [
        ("backup, read only", "small/b cannot be written (Read-only file system). No part of the"),
        ("export, read only", "small/all.jsonl.gz cannot be written (Read-only file system). No file was"),
        ("import, read only", "Read-only file system."),
        ("backup, there", "file already exists. Name a new folder."),
        ("backup, below a file", "file/b cannot be written (File exists). No part of the backup remains."),
        ("backup, a long name", "cannot be written (File name too long). No part of the backup remains."),
        ("export, no folder", "none/all.jsonl cannot be written (No such file or directory). No file was"),
        ("export, a folder", "small cannot be written (Is a directory). No file was left behind."),
    ],
)
def test_a_target_that_cannot_be_written_is_named(found: Found, case: str, words: str) -> None:
    said, left = found[case]
    assert said.startswith("refused: ")
    assert words in said
    assert left == []
