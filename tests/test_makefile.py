"""The Makefile installs the extras of each command, and shows what pip does in a few lines."""

import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
# In the place of a virtual environment's Python: pip with much to say.
PYTHON = """#!/bin/sh
echo "$@" >> {folder}/asked
for at in $(seq 200); do
    echo "Collecting package$at>=1"
    echo "  Downloading package$at-1.0-py3-none-any.whl.metadata (1.5 kB)"
    echo "Requirement already satisfied: other$at>=2 in /somewhere"
done
echo "Downloading small-1.0-py3-none-any.whl (9.1 MB)"
echo "Downloading onnxruntime-1.22-cp311-manylinux.whl (17.4 MB)"
echo "   Downloading torch-2.8.0-cp311-manylinux.whl (1.2 GB)"
test -f {folder}/broken && echo "ERROR: No matching distribution found for torch" >&2 && exit 1
echo "Installing collected packages: onnxruntime, torch"
echo "Successfully installed onnxruntime-1.22 torch-2.8.0"
"""


@pytest.fixture
def venv(tmp_path: Path) -> Path:
    python = tmp_path / "venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text(PYTHON.format(folder=tmp_path))
    python.chmod(0o755)
    (tmp_path / "venv" / "share" / "simile").mkdir(parents=True)  # of the model's wheel
    return python.parents[1]


def make(venv: Path, target: str) -> subprocess.CompletedProcess[str]:
    command = ["make", "--no-print-directory", "-C", str(ROOT), target, f"VENV={venv}"]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    ("target", "stamp", "extras"),
    [
        ("serve", "cpu", "cpu,mcp"),
        ("train", "train", "cpu,train"),
        ("map", "map", "cpu,map"),
        ("setup", "all", "cpu,dev,train,reference"),
        ("test-serving", "dev", "cpu,dev"),
    ],
)
def test_each_command_installs_the_extras_that_it_needs(
    venv: Path, target: str, stamp: str, extras: str
) -> None:
    done = make(venv, target)
    assert done.returncode == 0, done.stderr
    requested = (venv.parent / "asked").read_text()
    assert f"install --progress-bar off -c constraints.txt -e .[{extras}]\n" in requested
    assert (venv / f".installed-{stamp}").exists()


def test_pip_is_shown_in_a_few_lines(venv: Path) -> None:
    said = make(venv, "train").stdout.splitlines()
    assert said[:4] == [
        f"Installing Simile [cpu,train] into {venv} …",
        "  Downloading onnxruntime-1.22-cp311-manylinux.whl (17.4 MB)",
        "  Downloading torch-2.8.0-cp311-manylinux.whl (1.2 GB)",
        "  Unpacking … torch takes about a minute",
    ]


def test_a_failure_of_pip_ends_make_and_is_shown(venv: Path) -> None:
    (venv.parent / "broken").touch()
    done = make(venv, "train")
    assert done.returncode != 0
    assert "ERROR: No matching distribution found for torch" in done.stderr
    assert not (venv / ".installed-train").exists()
