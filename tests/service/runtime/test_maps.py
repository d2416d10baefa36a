"""Maps that a service makes by itself, and the log lines of failures."""

import asyncio
import importlib.util
import json
import shutil
import sys
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from service.runtime import housekeeping
from service.runtime.housekeeping import MapMaker
from service.runtime.runtime import Runtime

# Replaces `python -m service map`: copies map.json. Files `hang` and `broken` make it hang or fail.
COMMAND = """#!/bin/sh
echo "$@" >> {folder}/asked
test -f {folder}/hang && exec sleep 1000
test -f {folder}/broken && echo "The disk is full." >&2 && exit 1
mkdir -p $SIMILE_DATA_DIR/maps/{version}
cp {folder}/map.json $SIMILE_DATA_DIR/maps/{version}/$5.json
"""


@pytest.fixture
def folder(tmp_path: Path, client: TestClient, runtime: Runtime, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of COMMAND, which runs in place of Python. The service has no documents and no map."""
    for name in ("default", "tickets", "small"):
        client.delete(f"/collections/{name}")
    shutil.rmtree(runtime.settings.maps_dir, ignore_errors=True)
    command = tmp_path / "python"
    version = runtime.active.generation.version
    command.write_text(COMMAND.format(folder=tmp_path, version=version), encoding="utf-8")
    command.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(command))
    return tmp_path


def requested(folder: Path) -> list[str]:
    file = folder / "asked"
    return file.read_text(encoding="utf-8").splitlines() if file.exists() else []


def fill(client: TestClient, folder: Path, number: int, path: str = "") -> None:
    documents = [{"id": f"n{at}", "text": f"red river {at}"} for at in range(number)]
    assert client.post(f"{path}/documents", json={"documents": documents}).status_code == 200
    (folder / "map.json").write_text(json.dumps({"ids": [one["id"] for one in documents]}), encoding="utf-8")


def look(client: TestClient, maker: MapMaker, times: int = 1) -> None:
    for _ in range(times):
        client.portal.call(maker.look)  # type: ignore[union-attr]


def test_a_collection_that_rests_is_mapped_once_and_again_when_it_has_doubled(
    client: TestClient, runtime: Runtime, folder: Path
) -> None:
    maker = MapMaker(runtime.corpus, runtime.settings)
    fill(client, folder, 60)
    look(client, maker)
    assert requested(folder) == [], "it may be growing"
    look(client, maker, 3)
    assert requested(folder) == ["-m service map --collection default"]
    assert len(client.get("/map").json()["ids"]) == 60
    fill(client, folder, 110)
    look(client, maker, 3)
    assert len(requested(folder)) == 1
    fill(client, folder, 120)
    look(client, maker, 3)
    assert len(requested(folder)) == 2
    fill(client, folder, 60, "/collections/tickets")
    look(client, MapMaker(runtime.corpus, runtime.settings), 2)
    assert requested(folder)[2:] == ["-m service map --collection tickets"], "what a start finds is known"


def test_small_and_large_collections_have_none(client: TestClient, runtime: Runtime, folder: Path) -> None:
    few = runtime.settings.model_copy(update={"map_documents": 59})
    fill(client, folder, 49, "/collections/small")
    fill(client, folder, 60)
    look(client, MapMaker(runtime.corpus, few), 3)
    assert requested(folder) == []


@pytest.mark.parametrize(("umap", "made"), [(None, 0), (ModuleSpec("umap", None), 1)])
def test_without_umap_only_small_collections_are_mapped(
    client: TestClient,
    runtime: Runtime,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    umap: ModuleSpec | None,
    made: int,
) -> None:
    monkeypatch.setattr(housekeeping, "MAX_PLAIN", 59)
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: umap)
    maker = MapMaker(runtime.corpus, runtime.settings)
    monkeypatch.undo()
    monkeypatch.setattr(sys, "executable", str(folder / "python"))
    fill(client, folder, 60)
    look(client, maker, 3)
    assert len(requested(folder)) == made
    fill(client, folder, 59, "/collections/tickets")
    look(client, maker, 3)
    assert len(requested(folder)) == made + 1


def test_a_failure_is_said_with_its_last_words_and_not_tried_again(
    client: TestClient, runtime: Runtime, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (folder / "broken").touch()
    fill(client, folder, 60)
    look(client, MapMaker(runtime.corpus, runtime.settings), 4)
    assert len(requested(folder)) == 1
    assert "No map of the collection default could be made: The disk is full." in caplog.text


def test_one_that_takes_too_long_and_one_of_a_service_that_stops_are_ended(
    client: TestClient,
    runtime: Runtime,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    (folder / "hang").touch()
    children: list[Any] = []
    begin = asyncio.create_subprocess_exec

    async def noted(*command: str, **options: Any) -> Any:
        children.append(await begin(*command, **options))
        return children[-1]

    monkeypatch.setattr(asyncio, "create_subprocess_exec", noted)
    fill(client, folder, 60)
    monkeypatch.setattr(housekeeping, "LONGEST_SECONDS", 0.2)
    look(client, MapMaker(runtime.corpus, runtime.settings), 2)
    assert "it took longer than" in caplog.text
    monkeypatch.setattr(housekeeping, "LONGEST_SECONDS", 1000.0)
    monkeypatch.setattr(housekeeping, "LOOK_SECONDS", 0.0)

    async def stopped() -> None:
        task = asyncio.create_task(MapMaker(runtime.corpus, runtime.settings).run())
        while len(children) < 2:  # noqa: ASYNC110  tests are no tasks
            await asyncio.sleep(0.01)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    client.portal.call(stopped)  # type: ignore[union-attr]
    assert [child.returncode for child in children] == [-9, -9]
