"""The client is a wheel of its own, which needs nothing of the service."""

import json
import subprocess
import sys
import tomllib
from importlib.metadata import packages_distributions, requires
from pathlib import Path
from zipfile import ZipFile

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from models.version import VERSION

ROOT = Path(__file__).resolve().parents[2]
SHOW = """
import json, sys
before = {name.partition(".")[0] for name in sys.modules}
sys.path.insert(0, sys.argv[1])
import simile_client
from importlib.metadata import requires
simile_client.Client("http://127.0.0.1:1").close()
imported = {name.partition(".")[0] for name in sys.modules} - before
print(json.dumps([simile_client.__file__, requires("simile-client"), sorted(imported)]))
"""


def closure(requirements: list[str]) -> set[str]:
    """Returns the names of the installed distributions that pip would install for requirements."""
    found: set[str] = set()
    left = [Requirement(each) for each in requirements]
    while left:
        one = left.pop()
        name = canonicalize_name(one.name)
        if name not in found and (one.marker is None or one.marker.evaluate({"extra": ""})):
            found.add(name)
            left += map(Requirement, requires(name) or [])
    return found


def test_the_wheel_imports_only_what_it_requires(tmp_path: Path) -> None:
    build = ["pip", "wheel", "--quiet", "--no-deps", "--no-index", "--no-build-isolation"]
    subprocess.run([sys.executable, "-m", *build, "-w", tmp_path, ROOT / "simile_client"], check=True)
    [wheel] = tmp_path.glob("*.whl")
    assert wheel.name == f"simile_client-{VERSION}-py3-none-any.whl"
    command = [sys.executable, "-P", "-c", SHOW, str(wheel)]
    shown = subprocess.run(command, check=True, capture_output=True, text=True, cwd=tmp_path)
    place, required, imported = json.loads(shown.stdout)
    assert place.startswith(str(wheel))
    required = [each for each in required if "extra ==" not in each]
    assert required == ["httpx2"]
    with ZipFile(wheel) as files:
        [license] = [name for name in files.namelist() if name.endswith("licenses/LICENSE")]
        assert files.read(license) == (ROOT / "LICENSE").read_bytes()
        metadata = files.read(f"simile_client-{VERSION}.dist-info/METADATA").decode()
    assert "# simile-client" in metadata, "the index shows the README"
    needed = closure(required)
    assert needed.isdisjoint({"onnx", "onnxruntime", "fastapi", "numpy", "tokenizers", "torch", "simile"})
    owners = packages_distributions()
    for name in {*imported} - sys.stdlib_module_names - {"simile_client"}:
        assert not needed.isdisjoint(map(canonicalize_name, owners[name])), name


def test_the_wheel_of_the_service_leaves_the_client_out() -> None:
    tool = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]
    assert "simile_client" not in tool["hatch"]["build"]["targets"]["wheel"]["packages"]
