"""Verdicts on a version in other people's tools: what is compared, what goes wrong, what is installed."""

from __future__ import annotations

import math
import os
import re
import shutil
import sys
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from models.files.lock import lock
from models.publishing.portability.check import TEXTS, Expected, Row, check, compare
from models.publishing.portability.command import verdict
from models.publishing.portability.environments import Failed, python_of
from models.publishing.portability.tools import TOOLS, Tool
from models.store import Store
from tests.models.conftest import foreign_tool
from tests.waiting import until

HERE = Path(sys.executable)
NAMES = [tool.name for tool in TOOLS]


def _check(way: str, expected: Expected, at: Path, **how: Any) -> Row:
    return check(foreign_tool(way, **how), HERE, expected, at)


@pytest.mark.long
def test_another_tool_that_computes_the_same_is_the_same_with_prompts_and_beyond_the_maximum(
    expected: Expected, tmp_path: Path
) -> None:
    pytest.importorskip("transformers")
    row = _check("transformers", expected, tmp_path)
    assert (row.verdict, row.reason, row.remarks) == ("same", "", ("a remark",))
    assert row.compared == len(expected.texts) == len(TEXTS) + 16
    assert row.lowest is not None
    assert row.lowest > 0.999999
    assert row.versions == {"numpy": np.__version__}
    assert sum(expected.truncated) >= 4
    assert {"", " ", "how do i a", "the letter: a"} <= set(expected.texts)
    assert [path.name for path in tmp_path.iterdir()] == ["probe.log"], "nothing else is left behind"


def test_a_tool_that_computes_something_else_differs(expected: Expected, tmp_path: Path) -> None:
    row = _check("noise", expected, tmp_path)
    assert row.verdict == "differs"
    assert f"{len(expected.texts)} of {len(expected.texts)} texts; the worst: " in row.reason
    assert row.lowest is not None
    found = np.random.default_rng(0).normal(size=expected.vectors.shape)
    cosines = (found * expected.vectors).sum(1) / np.linalg.norm(found, axis=1)
    assert row.lowest == pytest.approx(cosines.min(), abs=1e-5)


def _unit(*degrees: float) -> np.ndarray[Any, np.dtype[np.float32]]:
    turns = [math.radians(degree) for degree in degrees]
    return np.array([[math.cos(turn), math.sin(turn)] for turn in turns], np.float32)


@pytest.fixture
def three(expected: Expected) -> Expected:
    """Three texts whose vectors point to 0, 90 and 45 degrees; the last is longer than the maximum."""
    return replace(
        expected, texts=["a", "b", "long"], vectors=_unit(0, 90, 45), truncated=[False, False, True]
    )


@pytest.mark.parametrize(
    ("found", "reason", "lowest"),
    [
        (_unit(0, 90, 45), "", 1.0),
        (_unit(0.8, 90, 45), "", 0.9999025),  # cos 0.8° = 0.9999025, cos 0.82° = 0.9998976
        (_unit(0.82, 90, 45), r"1 of 3 texts; the worst: 'a'", 0.9998976),
        (_unit(60, 90, 45), r"1 of 3 texts; the worst: 'a'", 0.5),
        (_unit(30, 30, 45), r"2 of 3 texts; the worst: 'b'", 0.5),
        (_unit(0, 90, 105), r"1 of 3 texts, all beyond the 64 tokens .*; the worst: 'long'", 0.5),
        (-_unit(0, 90, 45), r"3 of 3 texts", -1.0),
        (_unit(0, 90, 45) * [[1], [3], [1]], "its vectors are 1 to 3 long instead of 1", 1.0),
        (_unit(0, 90, 45) * [[1], [np.nan], [1]], "it gives no direction for 'b'", None),
        (_unit(0, 90, 45) * [[1], [1], [0]], "it gives no direction for 'long'", None),
        (_unit(0, 90), r"it gives float32 \(2, 2\) instead of float32 \(3, 2\)", None),
        (_unit(0, 90, 45).astype(int), r"it gives int64 \(3, 2\)", None),
    ],
)
def test_vectors_are_told_apart_by_direction_and_length(
    three: Expected, found: np.ndarray[Any, Any], reason: str, lowest: float | None
) -> None:
    said, worst = compare(found, three, [True] * 3)
    assert re.match(reason or "$", said), said
    assert worst == (None if lowest is None else pytest.approx(lowest, abs=2e-7))


def test_texts_that_a_tool_cuts_elsewhere_are_left_out(three: Expected) -> None:
    assert compare(_unit(0, 90, 0), three, [True, True, False])[0] == ""
    said, lowest = compare(_unit(60, 90, 0), three, [True, True, False])
    assert said == "1 of 2 texts; the worst: 'a'"
    assert lowest == pytest.approx(0.5, abs=2e-7)


def test_a_tool_that_cuts_elsewhere_has_only_the_others_compared(expected: Expected, tmp_path: Path) -> None:
    row = _check("noise", expected, tmp_path, cut_alike=False)
    assert row.compared == len(expected.texts) - sum(expected.truncated)


def test_a_tool_that_fails_cannot_with_its_last_line(expected: Expected, tmp_path: Path) -> None:
    row = _check("crash", expected, tmp_path)
    assert (row.verdict, row.foreseen, row.lowest) == ("cannot", False, None)
    assert row.reason == f"has no such key (exit status 1; {tmp_path / 'probe.log'})"
    assert "ValueError: the config" in (tmp_path / "probe.log").read_text()
    assert row.versions == {"numpy": np.__version__}


def test_a_failure_that_is_the_tools_own_is_told_in_plain_words(expected: Expected, tmp_path: Path) -> None:
    row = _check("known", expected, tmp_path)
    assert (row.verdict, row.foreseen) == ("cannot", True)
    assert row.reason.startswith("its ONNX engine opens no folder on the disk")


def test_a_tool_that_hangs_is_stopped_with_all_it_started(expected: Expected, tmp_path: Path) -> None:
    """In the end. First it gets as long as a machine that does much else needs to import numpy."""
    for seconds in (2, 8, 32):
        row = _check("hang", expected, tmp_path, seconds=seconds)
        assert (row.verdict, row.foreseen) == ("cannot", False)
        assert row.reason.startswith(f"it was stopped after {seconds} seconds; its last line: ")
        if said := re.search(r"; its last line: waiting for (\d+) ", row.reason):
            break
    assert said, row.reason
    child = int(said[1])
    until(lambda: not _runs(child), "its child goes on")


def _runs(pid: int) -> bool:
    """Whether it computes still; a zombie that nobody has collected does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


@pytest.mark.parametrize("way", ["pickle", "silent"])
def test_vectors_that_cannot_be_read_are_not_unpickled(way: str, expected: Expected, tmp_path: Path) -> None:
    row = _check(way, expected, tmp_path)
    assert (row.verdict, row.foreseen) == ("cannot", False)
    assert row.reason.startswith("it left no vectors that can be read: ")
    assert not (tmp_path / "unpickled").exists()


def test_a_tool_that_writes_into_the_folder_spoils_only_its_copy(
    portable_store: Store, expected: Expected, tmp_path: Path
) -> None:
    assert _check("scribble", expected, tmp_path).verdict == "differs"
    portable_store.verify(expected.folder.name)


def test_the_real_probe_says_what_is_missing_in_one_line(expected: Expected, tmp_path: Path) -> None:
    with pytest.raises(ImportError):
        import fastembed  # type: ignore[import-not-found,unused-ignore]  # noqa: F401
    row = check(TOOLS[NAMES.index("fastembed")], HERE, expected, tmp_path)
    assert (row.verdict, row.foreseen) == ("cannot", False)
    assert row.reason.startswith("ModuleNotFoundError: No module named 'fastembed' (exit status 1")
    assert row.versions["onnxruntime"]


@pytest.mark.long
def test_an_environment_is_made_once_and_what_cannot_be_installed_is_not_tried(
    expected: Expected, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # pip's own variables are the user's way to say where packages are.
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "wheels"))
    said: list[str] = []
    first = replace(foreign_tool("noise"), requirements=("portable-thing==1.0",))
    second = replace(first, requirements=("portable-thing==2.0",))

    def tried(tool: Tool, offline: bool = False) -> Row:
        return verdict(tool, {}, expected, tmp_path / "cache", offline=offline, say=said.append)

    def installed() -> list[str]:
        found = tmp_path.glob("cache/noise/venv/lib/python*/site-packages/portable_thing.py")
        return [file.read_text() for file in found]

    # Of the tools' own: no numpy is there, so the probe fails; but in the environment that was made.
    _wheel(tmp_path / "wheels", "1.0")
    assert "No module named 'numpy'" in tried(first).reason
    assert [step.split()[1] for step in said] == ["making", "installing", "opening"]
    said.clear()
    shutil.rmtree(tmp_path / "wheels")  # and so nothing could be installed any more
    for offline in (False, True):
        assert "No module named 'numpy'" in tried(first, offline).reason
    assert [step.split()[1] for step in said] == ["opening"] * 2

    assert "--offline installs nothing" in tried(second, offline=True).reason, "its pins are others"
    assert installed() == ["1.0"]
    row = tried(second)
    assert (row.verdict, row.foreseen, row.lowest) == ("not tried", True, None)
    assert "No matching distribution found for portable-thing==2.0 (exit status 1; " in row.reason
    for tool in (first, second):
        assert "--offline installs nothing" in tried(tool, offline=True).reason, "half made is not whole"


def test_an_environment_that_another_process_makes_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "noise").mkdir()
    held = lock(tmp_path / "noise")
    assert held is not None
    try:
        with pytest.raises(Failed, match="another process is installing it"):
            python_of(foreign_tool("noise"), tmp_path, offline=False, say=pytest.fail)
    finally:
        os.close(held)
    assert list((tmp_path / "noise").iterdir()) == []


def _wheel(folder: Path, version: str) -> None:
    """A package of one module, as pip installs it."""
    folder.mkdir()
    name, info = f"portable_thing-{version}", f"portable_thing-{version}.dist-info"
    with zipfile.ZipFile(folder / f"{name}-py3-none-any.whl", "w") as archive:
        archive.writestr("portable_thing.py", version)
        archive.writestr(
            f"{info}/METADATA", f"Metadata-Version: 2.1\nName: portable-thing\nVersion: {version}\n"
        )
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")


def test_the_environment_of_a_probe_is_offline_and_not_the_callers(
    expected: Expected, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "json.py").write_text("raise SystemExit('taken from PYTHONPATH')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    seen = tmp_path / "request_log.py"
    seen.write_text(
        "import json, os, sys\n"
        "names = 'HF_HUB_OFFLINE', 'TRANSFORMERS_OFFLINE', 'DO_NOT_TRACK', 'CUDA_VISIBLE_DEVICES'\n"
        "sys.exit(json.dumps([os.environ[name] for name in names]))"
    )
    row = check(replace(foreign_tool("any"), probe=seen), HERE, expected, tmp_path)
    assert row.reason.startswith('["1", "1", "1", ""] (exit status 1')
    assert os.environ.get("HF_HUB_OFFLINE") is None
