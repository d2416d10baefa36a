"""`make test-release`: a built wheel, in an empty environment, runs the README's commands for pip."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from models.version import VERSION
from tests.service.process import free_port, plain_environment

ROOT = Path(__file__).resolve().parents[1]
WHEEL = f"dist/simile_search-{VERSION}-py3-none-any.whl"
RETRAIN = "simile retrain --from-service http://127.0.0.1:8000 --minutes 1"
INSTALL_SECONDS, RUN_SECONDS = 1800, 1800

pytestmark = pytest.mark.skipif(
    os.environ.get("TEST_RELEASE") != "1", reason="downloads 1 GB; `make test-release` runs it"
)


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


def test_every_command_of_the_pip_section_runs_as_it_is_written(folder: Path) -> None:
    [script] = re.findall(r"```bash\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), re.DOTALL)
    assert script.startswith(f"pip install '{WHEEL}[")
    assert script.count(f"{RETRAIN}\n") == 1
    # One step, and no gate: a training and its judgment take many minutes.
    script = script.replace(RETRAIN, f"{RETRAIN} --steps 1 --gate off --threads 2")
    script = script.replace(
        "simile serve &\n", "simile serve & serving=$!\ntrap 'kill $serving; wait $serving' EXIT\n"
    )
    port = str(free_port())
    environment = plain_environment(SIMILE_PORT=port, PATH=f"{folder / 'venv/bin'}:{os.environ['PATH']}")
    environment = {
        name: value for name, value in environment.items() if name not in {"PYTHONPATH", "VIRTUAL_ENV"}
    }
    done = subprocess.run(
        ["bash", "-euxo", "pipefail", "-c", script.replace("127.0.0.1:8000", f"127.0.0.1:{port}")],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=RUN_SECONDS,
        check=False,
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
