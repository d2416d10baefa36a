"""`make test-release`: a built wheel runs the README's commands for pip where nothing else is installed.

The places are an empty environment of this machine, and an empty container without a network.
"""

from __future__ import annotations

import faulthandler
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from models.publishing.default import REQUIREMENT
from models.version import VERSION
from tests.service.process import free_port, plain_environment

ROOT = Path(__file__).resolve().parents[1]
WHEEL = f"dist/simile_search-{VERSION}-py3-none-any.whl"
RETRAIN = "simile retrain --from-service http://127.0.0.1:8000 --minutes 1"
INSTALL_SECONDS, RUN_SECONDS = 1800, 1800
BASH = ("bash", "-euxo", "pipefail", "-c")
# Packages that this Python's pip downloads suit a container with the same Python.
BASE = f"python:{sys.version_info.major}.{sys.version_info.minor}-slim-bookworm"
IMAGE = "simile-test-release"

pytestmark = pytest.mark.skipif(
    os.environ.get("TEST_RELEASE") != "1", reason="downloads 1 GB; `make test-release` runs it"
)


@pytest.fixture(autouse=True)
def _own_limits() -> None:
    """Installations and runs have limits of their own, which are longer than that of a test."""
    faulthandler.cancel_dump_traceback_later()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An empty folder with an empty environment, the built distribution and the tickets of the tutorial."""
    folder = tmp_path_factory.mktemp("release")
    subprocess.run([sys.executable, "-m", "venv", folder / "venv"], check=True)
    reached = subprocess.run(
        [folder / "venv/bin/pip", "download", "-q", "--no-deps", "-d", folder / "reached", "shtab"],
        capture_output=True,
        text=True,
        timeout=INSTALL_SECONDS,
        check=False,
    )
    if reached.returncode:
        pytest.skip(f"needs a package index: {reached.stderr.strip().splitlines()[-1]}")
    subprocess.run([sys.executable, "-m", "hatchling", "build", "-d", folder / "dist"], cwd=ROOT, check=True)
    subprocess.run([sys.executable, ROOT / "docs/tutorial/tickets.py", folder / "tickets"], check=True)
    return folder


def test_the_descriptions_render_on_an_index(folder: Path) -> None:
    tools = folder / "tools"
    subprocess.run([sys.executable, "-m", "venv", tools], check=True)
    subprocess.run([tools / "bin/pip", "install", "-q", "twine"], check=True, timeout=INSTALL_SECONDS)
    files = sorted((folder / "dist").iterdir())
    assert len(files) == 2
    subprocess.run([tools / "bin/twine", "check", "--strict", *files], check=True)


def read_commands() -> str:
    """Returns the README's script. Its training is one step without a gate: others take many minutes."""
    [script] = re.findall(r"```bash\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), re.DOTALL)
    assert script.startswith(f"pip install '{WHEEL}[")
    assert script.count(f"{RETRAIN}\n") == 1
    script = script.replace(RETRAIN, f"{RETRAIN} --steps 1 --gate off --threads 2")
    started, stopped = "simile serve & serving=$!\n", "trap 'kill $serving; wait $serving' EXIT\n"
    script = script.replace("simile serve &\n", started + stopped)
    return f"PS4='+ \\t '\n{script}"


def run_commands(*command: str | Path, **options: Any) -> None:
    """Runs a command whose output must be that of all commands of the README."""
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=RUN_SECONDS, check=False, **options
    )
    said = done.stdout + done.stderr
    assert done.returncode == 0, said
    for words in (
        "300 documents are stored.",
        "  1  ",
        '"stored":240',
        "nDCG@10 ",
        "is published and requested",
        "The service goes back to ",
    ):
        assert words in done.stdout, said
    assert "Traceback" not in said
    print(said)  # `pytest -rP` shows it


def test_every_command_of_the_pip_section_runs_as_it_is_written(folder: Path) -> None:
    port = str(free_port())
    environment = plain_environment(SIMILE_PORT=port, PATH=f"{folder / 'venv/bin'}:{os.environ['PATH']}")
    environment = {
        name: value for name, value in environment.items() if name not in {"PYTHONPATH", "VIRTUAL_ENV"}
    }
    script = read_commands().replace("127.0.0.1:8000", f"127.0.0.1:{port}")
    run_commands(*BASH, script, cwd=folder, env=environment)


@pytest.fixture(scope="module")
def image() -> Iterator[str]:
    """An image with Python, pip and curl, and without packages."""
    try:
        subprocess.run(["docker", "info"], capture_output=True, check=True)
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"needs a Docker engine; DOCKER_ENGINE=SCRIPT sources a script that starts one: {error}")
    steps = f"FROM {BASE}\nRUN apt-get update && apt-get install -y --no-install-recommends curl libgomp1\n"
    subprocess.run(["docker", "build", "--tag", IMAGE, "-"], input=steps, text=True, check=True)
    yield IMAGE
    subprocess.run(["docker", "image", "rm", "--force", IMAGE], check=True)


def test_every_command_runs_in_an_empty_container(folder: Path, image: str) -> None:
    """This machine's pip downloads the packages, so the container needs no index and no network."""
    download = [str(folder / "venv/bin/pip"), "download", "-q", "-d", str(folder / "wheels")]
    for wanted in ([f"{folder / WHEEL}[cpu,train]"], ["--no-deps", REQUIREMENT]):
        subprocess.run([*download, *wanted], check=True, timeout=INSTALL_SECONDS)
    run_commands(
        *("docker", "run", "--rm", "--network", "none", "--workdir", "/work"),
        *("--volume", f"{folder / 'wheels'}:/wheels:ro"),
        *("--volume", f"{folder / 'dist'}:/work/dist:ro"),
        *("--volume", f"{folder / 'tickets'}:/work/tickets:ro"),
        *("--env", "PIP_NO_INDEX=1", "--env", "PIP_FIND_LINKS=/wheels"),
        *(image, *BASH, read_commands()),
    )
