"""Peers that are installed are started, and one that does not come up is named with its reason."""

from contextlib import ExitStack
from pathlib import Path

import pytest

from benchmarks import environments


def test_a_peer_in_a_folder_named_from_here_is_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    python = tmp_path / "peers" / "infinity" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text("#!/bin/sh\necho it was started\nexit 1\n")
    python.chmod(0o755)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(environments, "_export", lambda version, folder: folder.mkdir())
    with ExitStack() as stack:
        found = environments.opened(stack, Path("peers"), tmp_path, tmp_path / "work")
    for name in environments.ENGINES:
        assert "it was started" in found.missing[name]
    assert "not installed" in found.missing["fastembed"]
