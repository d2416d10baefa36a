"""A full or damaged disk, or missing file descriptors, cause clear errors and one log line per minute."""

import asyncio
import errno
import logging
import os
import re
import resource
import sqlite3
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx2
import pytest

from models.encoder import Encoder
from models.store import ModelStore
from service.errors import ServiceError, machine_error
from service.lifecycle import model_loader
from service.lifecycle.model_loader import ModelLoader
from service.observability import logs, outages
from service.settings import Settings
from service.store.sqlite.schema import connect, migrate
from tests.service.conftest import HOST, serving
from tests.service.process import Service
from tests.service.store.test_storage_faults import in_its_namespace, needs_mounts, start_on
from tests.service.swapping import published
from tests.waiting import until

TIME = len("2026-01-31 12:00:00,000 ")  # prefix of a log line
SINCE = re.compile(r" \(\d+ more times since the last line\)$")


@pytest.mark.parametrize(
    ("number", "status", "words"),
    [
        (errno.ENOSPC, 507, "The disk is full"),
        (errno.EDQUOT, 507, "The disk is full"),
        (errno.EROFS, 507, "The disk is read-only"),
        (errno.EIO, 507, "The disk fails"),
        (errno.EMFILE, 503, "no file descriptor left"),
        (errno.ENFILE, 503, "no file descriptor left"),
    ],
)
def test_what_the_system_denies_has_its_status_and_its_words(number: int, status: int, words: str) -> None:
    found = machine_error(OSError(number, os.strerror(number)))
    assert found is not None
    assert (found.status, words in found.message) == (status, True)
    assert ("retry-after" in found.headers) == (status == 503)


@pytest.mark.parametrize("error", [FileNotFoundError(2, "x"), ValueError("x"), sqlite3.OperationalError("x")])
def test_anything_else_is_a_bug_of_ours(error: Exception) -> None:
    assert machine_error(error) is None


def told(act: Callable[[], object]) -> ServiceError:
    with pytest.raises(sqlite3.Error) as caught:
        act()
    found = machine_error(caught.value)
    assert found is not None
    return found


def test_sqlite_on_a_damaged_file(tmp_path: Path) -> None:
    path = tmp_path / "simile.db"
    path.write_bytes(b"no database at all " * 2000)
    found = told(lambda: connect(path))
    assert (found.status, "is damaged (file is not a database)" in found.message) == (507, True)
    assert "check --data" in found.message


def test_sqlite_on_a_full_database(tmp_path: Path) -> None:
    migrate(tmp_path / "simile.db")
    connection = connect(tmp_path / "simile.db")
    connection.execute("PRAGMA max_page_count = 1")
    try:
        found = told(lambda: connection.executescript("CREATE TABLE more AS SELECT zeroblob(10000000)"))
    finally:
        connection.close()
    assert found.message.startswith("The disk is full")


def test_sqlite_without_a_file_descriptor(tmp_path: Path) -> None:
    """SQLite itself reports only `unable to open database file`."""
    migrate(tmp_path / "simile.db")
    usual = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, usual[1]))
    try:
        found = told(lambda: connect(tmp_path / "simile.db"))
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, usual)
    assert (found.status, "no file descriptor left" in found.message) == (503, True)


def test_what_lasts_is_logged_once_a_minute_with_how_often_it_came(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = logging.getLogger("test")
    monkeypatch.setattr(outages, "_logged", {})
    for at in range(200):
        monkeypatch.setattr(outages, "clock", lambda at=at: float(at))
        outages.warn(log, "The disk is full")
        outages.warn(log, f"another {at % 3}")
    lines = [record.getMessage() for record in caplog.records if "full" in record.getMessage()]
    assert lines == ["The disk is full"] + ["The disk is full (59 more times since the last line)"] * 3
    for at in range(5000):
        outages.warn(log, str(at))
    assert len(outages._logged) <= 100


def reason_of(client: httpx2.Client, version: str) -> str | None:
    found = {entry["version"]: entry for entry in client.get("/models").json()["models"]}
    reason: str | None = found.get(version, {}).get("reason")
    return reason


def once_a_minute(service: Service, words: str, since: float) -> set[str]:
    """Returns distinct log messages with `words`, and checks that none repeats within a minute."""
    lines = [line for line in service.log.read_text().splitlines() if words in line]
    said = Counter(SINCE.sub("", line[TIME:]) for line in lines)
    assert max(said.values(), default=0) <= 1 + (time.monotonic() - since) // 60, lines
    return set(said)


def wait_for(what: Callable[[], bool], service: Service) -> None:
    until(what, service.log.read_text, pause=0.05)


@pytest.mark.long
@needs_mounts
def test_a_full_disk_is_one_line_and_the_reason_of_a_build(tmp_path: Path) -> None:
    """Fifty writes fail. A requested version waits, shows the reason, and becomes active later."""
    _, second = published(tmp_path / "models", 2)
    since = time.monotonic()
    service = Service(tmp_path)
    start_on(service, "size=8m")
    try:
        assert service.put({"a": "red river"}).status_code == 200
        in_its_namespace(service, f'head -c 9m /dev/zero > "{service.folder}/data/fill" || true')
        for step in range(50):
            response = service.put({f"{step}": "green garden " * 50})
            assert response.status_code == 507
            assert response.json()["error"].startswith("The disk is full")
        ModelStore(tmp_path / "models").request(second)
        wait_for(lambda: "disk is full" in (reason_of(service.client, second) or ""), service)
        said = once_a_minute(service, "disk is full", since)
        assert len(said) <= 5, said
        assert "Traceback" not in service.log.read_text()
        in_its_namespace(service, f'rm "{service.folder}/data/fill"')
        wait_for(lambda: service.client.get("/info").json()["model_version"] == second, service)
        assert service.stored() == {"a": "red river"}
    finally:
        service.kill()
        service.client.close()


def requested(service: Service, path: str) -> httpx2.Response:
    """Sends a GET request, and repeats it after failed connections. Returns the answer."""

    def answer() -> httpx2.Response | None:
        with suppress(httpx2.TransportError):
            return service.client.get(path)
        return None

    return until(answer, service.log.read_text, pause=0.05)


def test_descriptors_that_run_out_are_503_a_few_lines_and_pass(tmp_path: Path, tiny_models_dir: Path) -> None:
    """The connection of this test uses the last descriptor."""
    since = time.monotonic()
    with Service(tmp_path, tiny_models_dir) as service:
        assert service.put({"a": "red river"}).status_code == 200
        pid = service.process.pid
        usual = resource.prlimit(pid, resource.RLIMIT_NOFILE)
        left = len([*Path(f"/proc/{pid}/fd").iterdir()]) + 1
        listing = requested(service, "/models")
        [model] = listing.json()["models"]
        while listing.status_code == 200 and listing.json()["models"][0]["fingerprint"] is not None:
            left -= 1  # The service could still read the manifest.
            resource.prlimit(pid, resource.RLIMIT_NOFILE, (left, usual[1]))
            listing = requested(service, "/models")
        if listing.status_code == 200:
            assert listing.json()["models"][0]["state"] == "active"
        else:  # The thread that answered opened the database first.
            assert (listing.status_code, listing.json()["error_type"]) == (503, "Unhealthy")
        for _ in range(20):
            report = requested(service, f"/models/{model['version']}/report")
            while report.status_code == 404:  # A descriptor was freed in between.
                left -= 1
                resource.prlimit(pid, resource.RLIMIT_NOFILE, (left, usual[1]))
                report = requested(service, f"/models/{model['version']}/report")
            assert (report.status_code, report.json()["error_type"]) == (503, "Unhealthy")
            assert "no file descriptor left" in report.json()["error"]
        resource.prlimit(pid, resource.RLIMIT_NOFILE, usual)
        said = once_a_minute(service, "descriptor", since)
        assert 1 <= len(said) <= 8, said  # one per affected part
        assert "Traceback" not in service.log.read_text()
        assert "Too many open files" not in service.log.read_text()
        assert requested(service, "/models").json()["models"][0]["fingerprint"] is not None
        assert service.put({"b": "green garden"}).status_code == 200


def test_accepting_without_a_descriptor_is_one_line_on_any_event_loop(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """asyncio's loop reports this error some two thousand times a second."""
    error = OSError(errno.EMFILE, os.strerror(errno.EMFILE))
    context = {"message": f"accept {id(caplog)}: out of system resource", "exception": error}
    loop = asyncio.new_event_loop()
    try:
        for _ in range(2000):
            logs.on_loop(loop, context)
    finally:
        loop.close()
    [line] = [record for record in caplog.records if f"accept {id(caplog)}" in record.getMessage()]
    assert "no file descriptor left" in line.getMessage()


def test_a_build_without_file_descriptors_waits_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, second = published(tmp_path / "models", 2)
    out, opening = threading.Event(), ModelLoader.open_verified
    tries: list[str] = []
    out.set()

    def denied(self: ModelLoader, version: str) -> Encoder:
        if out.is_set():
            tries.append(version)
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return opening(self, version)

    monkeypatch.setattr(ModelLoader, "open_verified", denied)
    monkeypatch.setattr(model_loader, "RETRY_SECONDS", 0.01)
    monkeypatch.setattr(model_loader, "MAX_SECONDS", 0.01)
    settings = Settings(
        data_dir=tmp_path / "data", models_dir=tmp_path / "models", cache_mb=0, allowed_hosts=HOST
    )
    with serving(settings) as client:
        ModelStore(tmp_path / "models").request(second)

        def listed() -> dict[str, Any]:
            models = client.get("/models").json()["models"]
            return next(model for model in models if model["version"] == second)

        until(lambda: "no file descriptor" in (listed()["reason"] or ""))
        until(lambda: len(tries) >= 20)
        assert listed()["state"] == "building"
        out.clear()
        until(lambda: listed()["state"] == "active")
