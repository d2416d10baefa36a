"""A full disk gives 507 without partial writes, until it has room. A read-only one is refused at start."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import orjson
import pytest

from tests.service.process import Service
from tests.waiting import LIMIT


def mounts_work() -> bool:
    """Returns whether this process may mount a small file system."""
    if os.geteuid() != 0 or shutil.which("unshare") is None:
        return False
    script = "mount -t tmpfs -o size=1m tmpfs /mnt"
    return (
        subprocess.run(["unshare", "-m", "sh", "-c", script], capture_output=True, check=False).returncode
        == 0
    )


needs_mounts = pytest.mark.skipif(
    not mounts_work(), reason="needs root and `unshare -m` for a small file system"
)


def start_on(service: Service, options: str) -> None:
    """Starts the service in a mount namespace, with a new tmpfs (`options`) as its data directory."""
    data = service.folder / "data"
    data.mkdir(exist_ok=True)
    script = f'mount -t tmpfs -o {options} tmpfs "{data}" && exec "$@"'
    service.start(("unshare", "-m", "sh", "-c", script, "sh"))


def in_its_namespace(service: Service, command: str) -> None:
    pid = service.process.pid
    subprocess.run(["nsenter", "-t", str(pid), "-m", "sh", "-c", command], check=True)


@pytest.mark.long
@needs_mounts
def test_a_full_disk_is_507_and_room_heals_it(tmp_path: Path, tiny_models_dir: Path) -> None:
    service = Service(tmp_path, tiny_models_dir)
    start_on(service, "size=8m")
    try:
        stored: dict[str, str] = {}
        for step in range(200):
            documents = {f"{step}-{at}": f"red river {step} {at} " + "x" * 5000 for at in range(20)}
            response = service.put(documents)
            if response.status_code != 200:
                break
            stored |= documents
        assert response.status_code == 507
        assert response.json()["error_type"] == "Storage"
        assert stored, "the disk was full before the first write"
        assert service.stored() == stored, "a refused write left something behind"
        assert service.client.get("/search", params={"q": "red river", "k": 5}).json()["hits"]
        in_its_namespace(service, f'mount -o remount,size=64m "{service.folder}/data"')
        assert service.put({"after": "green garden"}).status_code == 200
        assert service.stored() == stored | {"after": "green garden"}
    finally:
        service.kill()
        service.client.close()


def line(id: str, text: str) -> bytes:
    return orjson.dumps({"id": id, "text": text}) + b"\n"


@pytest.mark.long
@needs_mounts
def test_a_disk_that_fills_up_in_an_import_is_507_and_what_it_says_was_stored_is_stored(
    tmp_path: Path, tiny_models_dir: Path
) -> None:
    service = Service(tmp_path, tiny_models_dir)
    start_on(service, "size=8m")
    headers = {"Content-Type": "application/x-ndjson"}
    documents = {f"{at}": f"red river {at} " + "x" * 5000 for at in range(3000)}
    body = b"".join(line(id, text) for id, text in documents.items())
    try:
        response = service.client.post("/documents", content=body, headers=headers)
        assert (response.status_code, response.json()["error_type"]) == (507, "Storage")
        said = re.search(r"(\d+) rows were stored, and all lines up to (\d+)", response.json()["error"])
        assert said is not None, response.text
        stored = service.stored()
        assert len(stored) == int(said[1]) > 0
        assert stored.items() <= documents.items()
        assert {f"{at}" for at in range(int(said[2]))} <= stored.keys()
        in_its_namespace(service, f'mount -o remount,size=128m "{service.folder}/data"')
        again = service.client.post("/documents", content=body, headers=headers)
        assert (again.status_code, again.json()["upserted"]) == (200, 3000)
        assert service.stored() == documents
    finally:
        service.kill()
        service.client.close()


@needs_mounts
def test_a_read_only_data_directory_is_refused_at_start(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    script = f'mount -t tmpfs -o ro tmpfs "{tmp_path}/data" && SIMILE_DATA_DIR="{tmp_path}/data" exec "$@"'
    done = subprocess.run(
        ["unshare", "-m", "sh", "-c", script, "sh", sys.executable, "-m", "service"],
        capture_output=True,
        text=True,
        timeout=LIMIT,
        check=False,
        env={**os.environ, "SIMILE_PORT": "0"},
    )
    assert done.returncode == os.EX_CONFIG
    assert "Read-only file system" in done.stderr
    assert "SIMILE_DATA_DIR" in done.stderr
    assert "Traceback" not in done.stderr
