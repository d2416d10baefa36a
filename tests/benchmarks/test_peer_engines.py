"""Peers (other embedding servers) start with pinned packages. A failed start reports its reason."""

import re
from contextlib import ExitStack
from pathlib import Path

import pytest

from benchmarks import peer_engines
from benchmarks.peer_engines import LIBRARIES, PEERS, peer_environment


def test_a_peer_in_a_relative_folder_is_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    python = tmp_path / "peers" / "infinity" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text("#!/bin/sh\necho it was started\nexit 1\n")
    python.chmod(0o755)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(peer_engines, "export", lambda version, folder: folder.mkdir())
    with ExitStack() as stack:
        found = peer_engines.open_peers(stack, Path("peers"), tmp_path, tmp_path / "work")
    assert "it was started" in found.missing[peer_engines.INFINITY_NAME]
    assert "not installed" in found.missing["fastembed"]


def test_every_package_of_a_peer_is_pinned() -> None:
    files = sorted(PEERS.glob("*.txt"))
    assert {file.stem for file in files} == {"infinity"} | {where for where, _ in LIBRARIES.values()}
    for file in files:
        lines = [line for line in file.read_text().splitlines() if not line.startswith("#")]
        assert all(re.fullmatch(r"[A-Za-z0-9._-]+==[0-9][A-Za-z0-9.]*", line) for line in lines), file


def test_a_peer_does_not_inherit_our_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SIMILE_PORT", "1")
    monkeypatch.setenv("PATH", "/bin")
    found = peer_environment()
    assert "OMP_NUM_THREADS" not in found
    assert "SIMILE_PORT" not in found
    assert found["PATH"] == "/bin"
