"""No runtime keeps or sends anything about the machine: a process leaves no file and opens no socket."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.models.forms import needs_bf16

# Opens a version in the given form, computes, and prints what the process has open.
_OPENED = """
import os, sys
{first}
from pathlib import Path
from models.engines.form import read_form
from models.store import ModelStore

connected = []
sys.addaudithook(lambda event, what: connected.append(what) if event.startswith("socket.connect") else None)
[manifest] = ModelStore(Path(sys.argv[1])).versions()
encoder = ModelStore(Path(sys.argv[1])).open(manifest.version, form=read_form(sys.argv[2]))
assert encoder.encode(["A text."]).vectors.shape == (1, manifest.dimension)
held = []
for number in os.listdir("/proc/self/fd"):
    try:
        held.append(os.readlink(f"/proc/self/fd/{{number}}"))
    except OSError:
        pass  # the listing's own
print([name for name in held if name.startswith("socket:") or os.environ["HOME"] in name], connected)
"""


def opened(models_dir: Path, home: Path, form: str, first: str = "") -> str:
    """Run a new process that computes in `form`, without telemetry settings. Return its report."""
    environment = {key: value for key, value in os.environ.items() if "TELEMETRY" not in key.upper()}
    done = subprocess.run(
        [sys.executable, "-c", _OPENED.format(first=first), str(models_dir), form],
        env=environment | {"HOME": str(home), "XDG_CACHE_HOME": str(home / "cache"), "CI": ""},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "telemetry" not in done.stderr.lower()
    return done.stdout.strip()


@pytest.mark.parametrize(
    "first",
    [
        "import models",
        "import service.cli.check",
        "import benchmarks.raw",
        "import models.engines.openvino",
    ],
)
def test_onnx_runtime_keeps_no_identifier_and_sends_nothing(
    first: str, tiny_models_dir: Path, tmp_path: Path
) -> None:
    assert opened(tiny_models_dir, tmp_path, "fp32/onnxruntime", first) == "[] []"
    assert list(tmp_path.rglob("*")) == []


@needs_bf16
def test_openvino_keeps_no_identifier_and_sends_nothing(tiny_models_dir: Path, tmp_path: Path) -> None:
    assert opened(tiny_models_dir, tmp_path, "bf16/openvino") == "[] []"
    assert list(tmp_path.rglob("*")) == []


def test_whoever_asks_for_telemetry_gets_it() -> None:
    environment = os.environ | {"ORT_DISABLE_TELEMETRY": "0"}
    told = "import os, service; print(os.environ['ORT_DISABLE_TELEMETRY'])"
    done = subprocess.run(
        [sys.executable, "-c", told], env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout == "0\n"
