"""The tutorial runs unchanged: its shell blocks form one script, with a service on an empty folder."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from models.publishing.layout import CARD
from models.store import ModelStore
from tests.service.process import Service
from tests.test_documentation import blocks
from training.retraining.config import read_config

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs/TUTORIAL.md"
# Commands that the test leaves out, with the reason.
LEFT_OUT = {
    "SIMILE_EXAMPLES=0 make serve": "the fixture serves, on a free port",
    "make train": "it is done where this test runs",
    ".venv/bin/simile schedule --config retrain.toml": "it never ends",
}
RETRAIN = ".venv/bin/simile retrain --from-service http://127.0.0.1:8000 --minutes 1"


@pytest.mark.long
@pytest.mark.skipif(shutil.which("curl") is None, reason="needs curl")
def test_the_tutorial_runs_word_by_word(tmp_path: Path, default_models_dir: Path) -> None:
    page = PAGE.read_text(encoding="utf-8")
    script = "".join(blocks(page))
    for command in LEFT_OUT:
        assert script.count(f"{command}\n") == 1
        script = script.replace(f"{command}\n", "")
    assert script.count(RETRAIN) == 1
    # One step, and no gate: a training and its judgment take many minutes.
    script = script.replace(RETRAIN, f"{RETRAIN} --steps 1 --gate off --threads 2")
    with Service(tmp_path, default_models_dir) as service:
        (tmp_path / "docs").symlink_to(ROOT / "docs")
        (tmp_path / ".venv").symlink_to(sys.prefix)
        (tmp_path / "data/models").symlink_to(tmp_path / "models")
        plain = {name: value for name, value in os.environ.items() if not name.startswith("SIMILE_")}
        done = subprocess.run(
            ["bash", "-euc", script.replace("127.0.0.1:8000", f"127.0.0.1:{service.port}")],
            cwd=tmp_path,
            env=plain | {"PYTHONPATH": str(ROOT), "SIMILE_PORT": str(service.port)},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        assert service.client.get("/events/count").json()["count"] == 1
        assert service.client.get("/feedback/count").json()["count"] == 241 - 1, "one is said twice"
    store = ModelStore(tmp_path / "models")
    requested = store.read_request()
    assert requested is not None
    assert (requested.kind, "-triples-" in requested.version) == ("want", True)
    [version] = [name for name in store.names() if "-ranking-" in name]
    assert (store.folder(version) / CARD).read_text(encoding="utf-8") in done.stdout
    # Some earlier answers end without a line break.
    *before_and_judged, ranked = re.findall(r'(\d+):"id":"T-1008"\n', done.stdout)
    assert before_and_judged == ["13", "24", "13", "1", "1", "13"]
    assert int(ranked) < 13, ranked
    for rank in before_and_judged:
        assert f'    {rank}:"id":"T-1008"\n' in page
    told = re.compile(r"A judged document is first for (\d+) of 120 queries \((\d+) before\)\.")
    found, written = told.search(done.stdout), told.search(page)
    assert found
    assert written
    assert [*map(int, found.groups())] == pytest.approx([*map(int, written.groups())], abs=2)
    assert read_config(tmp_path / "retrain.toml").train.minutes == 10
    for first in ("T-1004", "T-1002"):
        assert f'"hits":[{{"id":"{first}"' in done.stdout
        assert f"| {first}, " in page
    assert '"stored":240,"sequence":241,"refused":[{"index":240,' in done.stdout
    for said in ("300 documents are stored.", "There are 189 documents, 36 judged queries, and 295 titles"):
        assert said in done.stdout + done.stderr
        assert said in page
