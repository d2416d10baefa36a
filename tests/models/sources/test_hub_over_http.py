"""`models import org/name` by the hub's own client, against a hub on loopback."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from models.store import ModelStore
from tests.models.sources.fake_hub import Hub, running
from tests.tiny import tiny_source
from tests.waiting import LIMIT

NAME = "somebody/model"


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[Hub]:
    folder = tiny_source(tmp_path / "hub")
    for name in ("pytorch_model.bin", "modeling.py", "onnx/model.onnx"):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(b"x")
    with running(Hub(folder)) as found:
        yield found


def _import(hub: Hub, tmp_path: Path, name: str = NAME, **changed: str) -> tuple[int, str]:
    """Runs the import. Returns the exit status, and stdout followed by stderr."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("HF_", "SIMILE_"))}
    environment |= {"HF_ENDPOINT": hub.url, "HF_HOME": str(tmp_path / "cache"), "HF_HUB_DISABLE_XET": "1"}
    ended = subprocess.run(
        [sys.executable, "-m", "models", "--models-dir", str(tmp_path / "models"), "import", name],
        env=environment | changed,
        capture_output=True,
        text=True,
        timeout=LIMIT,
        check=False,
    )
    return ended.returncode, ended.stdout + ended.stderr


def _refusal(said: str) -> str:
    """Returns the command's one error line, without the log of the hub's client. Fails on a traceback."""
    assert "Traceback" not in said
    [line] = [line for line in said.splitlines() if line.startswith("python -m models: ")]
    return line


@pytest.mark.long
def test_a_model_is_fetched_once_and_then_found_without_a_network(hub: Hub, tmp_path: Path) -> None:
    status, said = _import(hub, tmp_path)
    assert (status, "published" in said) == (0, True), said
    fetched = {path for path, _ in hub.sent}
    assert {"config.json", "model.safetensors", "tokenizer.json", "1_Pooling/config.json"} <= fetched
    assert not {"pytorch_model.bin", "modeling.py", "onnx/model.onnx"} & fetched
    [manifest] = ModelStore(tmp_path / "models").versions()
    assert manifest.lineage["source"] == NAME
    count = len(hub.sent)
    status, said = _import(hub, tmp_path, HF_HUB_OFFLINE="1")
    assert (status, "was published before" in said) == (0, True), said
    assert len(hub.sent) == count


@pytest.mark.long
def test_a_broken_download_goes_on_where_it_stopped(hub: Hub, tmp_path: Path) -> None:
    weights = load_file(hub.folder / "model.safetensors")
    unused = np.zeros(6 << 20, np.float32)  # The hub's client stores complete pieces of 10 MiB.
    save_file(weights | {"pooler.more": unused}, hub.folder / "model.safetensors")
    hub.breaks = 1
    status, said = _import(hub, tmp_path)
    assert status == 0, said
    assert [requested for path, requested in hub.sent if path == "model.safetensors"] == [
        "",
        f"bytes={10 << 20}-",
    ]
    assert len(ModelStore(tmp_path / "models").versions()) == 1


@pytest.mark.long
@pytest.mark.parametrize("trouble", ["wrong name", "gated", "missing file", "broken", "offline"])
def test_a_model_that_cannot_be_fetched_is_one_clear_line(hub: Hub, tmp_path: Path, trouble: str) -> None:
    name, changed = NAME, {}
    expected = {
        "wrong name": "no public model of that name. Check the spelling",
        "gated": "requires consent",
        "missing file": "a file that it lists is missing there",
        "broken": "the connection broke. Run the command again",
        "offline": "cannot be reached, or HF_HUB_OFFLINE is set",
    }[trouble]
    if trouble == "wrong name":
        name = "somebody/modle"
    elif trouble == "gated":
        hub.gated = True
    elif trouble == "missing file":
        hub.missing = "model.safetensors"
    elif trouble == "broken":
        hub.breaks = -1
    else:
        changed = {"HF_HUB_OFFLINE": "1"}
    status, said = _import(hub, tmp_path, name, **changed)
    line = _refusal(said)
    assert (status, expected in line, name in line) == (1, True, True), said
    assert not ModelStore(tmp_path / "models").versions()
