"""The notebook runs unchanged from top to bottom, on a service that has just swapped versions."""

from __future__ import annotations

import contextlib
import io
import json
from pathlib import Path

import pytest

from models.publishing.publish import publish
from models.store import ModelStore
from tests.service.conftest import wait_until_active
from tests.service.process import Service
from tests.tiny import tiny_source

FILE = Path(__file__).resolve().parents[1] / "docs/notebooks/first-steps.ipynb"


def cells() -> list[str]:
    notebook = json.loads(FILE.read_text(encoding="utf-8"))
    assert (notebook["nbformat"], notebook["nbformat_minor"]) == (
        4,
        4,
    )  # Jupyter also reads notebooks without cell ids.
    return ["".join(cell["source"]) for cell in notebook["cells"] if cell["cell_type"] == "code"]


def test_no_output_is_kept() -> None:
    notebook = json.loads(FILE.read_text(encoding="utf-8"))
    for cell in notebook["cells"]:
        assert cell.get("outputs", []) == []
        assert cell.get("execution_count") is None


@pytest.mark.long
def test_every_cell_runs_and_says_what_it_promises(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = ModelStore(tmp_path / "models")
    first = publish(store, tiny_source(tmp_path / "first", seed=1), origin="first").version
    third = publish(store, tiny_source(tmp_path / "third", seed=3), origin="third").version
    second = publish(store, tiny_source(tmp_path / "second", seed=2), origin="second").version
    store.request(first)
    with Service(tmp_path) as service:
        service.wait_until_ready()
        assert service.client.post(f"/models/{second}/activate").status_code == 202
        wait_until_active(service.client, second)
        monkeypatch.setenv("SIMILE_URL", f"http://127.0.0.1:{service.port}")
        said, names = io.StringIO(), {"__name__": "__main__"}
        with contextlib.redirect_stdout(said):
            for cell in cells():
                exec(compile(cell, str(FILE), "exec"), names)
        assert service.client.get("/collections/notebook/documents/count").json()["count"] == 0
    lines = said.getvalue().splitlines()
    assert lines[0].startswith(f"{second} with ")
    for line in lines[1:3]:
        computed, requested = line.split()[:2]
        assert float(computed) == pytest.approx(float(requested), abs=2e-4)
    assert "3 documents are stored" in lines
    compared = {line.split()[0]: line for line in lines if " (" in line and line.startswith("20")}
    assert set(compared) == {first, second, third}
    assert "(active): cosine " in compared[second]
    assert "(retired): cosine " in compared[first]
    assert compared[first].partition("cosine")[2] != compared[second].partition("cosine")[2]
    assert ": 409, " in compared[third]
    assert lines[-1] == "3 documents are deleted"
