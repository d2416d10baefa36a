"""install_wheels.sh installs packages that arrive in parts on a machine without network."""

import hashlib
import os
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "install_wheels.sh"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a wheel and the first of two parts of an archive. `tmp_path` has the second part."""
    folder = tmp_path / "carried"
    folder.mkdir()
    with zipfile.ZipFile(folder / "one-1-py3-none-any.whl", "w") as wheel:
        wheel.writestr("one/__init__.py", "x = 1\n")
    (tmp_path / "two.so").write_bytes(bytes(range(256)) * 40)
    packed = folder / "two-1.tar.xz"
    with tarfile.open(packed, "w:xz") as archive:
        archive.add(tmp_path / "two.so", "two/two.so")
    sums = [f"{hashlib.sha256(file.read_bytes()).hexdigest()}  {file.name}\n" for file in folder.iterdir()]
    (folder / "SHA256SUMS").write_text("".join(sums))
    content = packed.read_bytes()
    packed.unlink()
    (folder / "two-1.tar.xz.part-1-of-2").write_bytes(content[:100])
    (tmp_path / "two-1.tar.xz.part-2-of-2").write_bytes(content[100:])
    return folder


def install(folder: Path, target: Path) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"PYTHON": sys.executable}
    command = ["sh", str(SCRIPT), str(folder), str(target)]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


def test_parts_are_joined_once_all_are_there(tmp_path: Path, folder: Path) -> None:
    target = tmp_path / "target"
    first = install(folder, target)
    assert (first.returncode, first.stderr) == (0, "")
    assert "waits: two-1.tar.xz, for its part 2 of 2" in first.stdout
    assert "installed: one-1-py3-none-any.whl" in first.stdout
    assert (target / "one" / "__init__.py").read_text() == "x = 1\n"
    (tmp_path / "two-1.tar.xz.part-2-of-2").rename(folder / "two-1.tar.xz.part-2-of-2")
    second = install(folder, target)
    assert (second.returncode, second.stderr) == (0, "")
    assert "is there: one-1-py3-none-any.whl" in second.stdout
    assert "installed: two-1.tar.xz" in second.stdout
    assert (target / "two" / "two.so").read_bytes() == (tmp_path / "two.so").read_bytes()


def test_a_damaged_part_is_refused(tmp_path: Path, folder: Path) -> None:
    (folder / "two-1.tar.xz.part-2-of-2").write_bytes(b"something else")
    found = install(folder, tmp_path / "target")
    assert found.returncode == 1
    assert "two-1.tar.xz is damaged" in found.stderr
    assert not (tmp_path / "target" / "two").exists()
