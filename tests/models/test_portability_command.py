"""What each tool cannot say, the command, and that files and documents agree with what is tried."""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from models.__main__ import main
from models.errors import NotPortable
from models.publishing.portability.check import TEXTS, Expected, Row
from models.publishing.portability.command import run, table, verdict
from models.publishing.portability.tools import TOOLS
from models.sources.folder import Source, read_source
from models.sources.template import with_template
from models.store import Store
from tests.models.conftest import PROMPTS, foreign_tool
from tests.service.swapping import published_pair
from tests.tiny import MAX_LENGTH, WIDTH, tiny_source

ROOT = Path(__file__).resolve().parents[2]
NAMES = [tool.name for tool in TOOLS]


def _first_last(folder: Path) -> None:
    (folder / "1_Pooling" / "config.json").write_text(json.dumps({"pooling_mode": "first_last.mean"}))


def _template(folder: Path) -> None:
    content = json.loads((folder / "tokenizer.json").read_bytes())
    (folder / "tokenizer.json").write_text(json.dumps(with_template(content, "{} is [MASK].")[0]))
    (folder / "1_Pooling" / "config.json").write_text(json.dumps({"pooling_mode": "mask:2"}))


def _dense(folder: Path) -> None:
    (folder / "2_Dense").mkdir()
    save_file({"linear.weight": np.eye(WIDTH, dtype=np.float32)[:8]}, folder / "2_Dense/model.safetensors")
    settings = {"in_features": WIDTH, "out_features": 8, "bias": False}
    (folder / "2_Dense" / "config.json").write_text(json.dumps(settings))
    modules = json.loads((folder / "modules.json").read_bytes())
    modules.insert(
        2, {"idx": 2, "name": "2", "path": "2_Dense", "type": "sentence_transformers.models.Dense"}
    )
    (folder / "modules.json").write_text(json.dumps(modules))


def _reordered(folder: Path) -> None:
    (folder / "1_Pooling" / "config.json").write_text(json.dumps({"pooling_mode": ["mean", "cls"]}))


def _without_weights(folder: Path) -> None:
    (folder / "model.safetensors").unlink()


OWN = "it has no word for the pooling"
ONLY = "it pools by mean or cls only"
NO_WEIGHTS = "it computes from model.safetensors"


@pytest.mark.parametrize(
    ("change", "cannot"),
    [
        (lambda _: None, {}),
        (
            _first_last,
            {
                "sentence-transformers": f"{OWN} first_last.mean",
                "sentence-transformers-onnx": OWN,
                "infinity": OWN,
                "infinity-optimum": f"{ONLY}, and this version by first_last.mean",
            },
        ),
        (
            _template,
            {
                "sentence-transformers": f"{OWN} mask:2",
                "sentence-transformers-onnx": OWN,
                "infinity": OWN,
                "infinity-optimum": ONLY,
            },
        ),
        (_dense, {"infinity-optimum": "it leaves out the layers"}),
        (_reordered, {"infinity": "the pooling mean+cls needs a newer", "infinity-optimum": ONLY}),
        (_without_weights, {"sentence-transformers": NO_WEIGHTS, "infinity": NO_WEIGHTS}),
    ],
    ids=["mean", "first-last", "template", "dense", "reordered", "no weights"],
)
def test_what_cannot_be_said_in_a_tool_is_known_without_trying_it(
    change: Callable[[Path], None], cannot: dict[str, str], tmp_path: Path, expected: Expected
) -> None:
    folder = tiny_source(tmp_path / "source")
    change(folder)
    other = replace(expected, source=read_source(folder))
    for tool in TOOLS:
        limits = tool.limits(other.source)
        if tool.name not in cannot:
            assert limits.cannot == ""
            continue
        assert limits.cannot.startswith(cannot[tool.name])
        row = verdict(tool, {}, other, tmp_path / "cache", offline=True, say=pytest.fail)
        assert (row.verdict, row.reason, row.foreseen) == ("cannot", limits.cannot, True)
    assert not (tmp_path / "cache").exists()


def test_prompts_and_cuts_are_told_as_each_tool_has_them(tmp_path: Path) -> None:
    folder = tiny_source(tmp_path / "source", prompts=PROMPTS)
    told = _remarks(read_source(folder))
    assert told["sentence-transformers"] == told["sentence-transformers-onnx"]
    (by_name,) = told["sentence-transformers"]
    assert by_name.endswith("compared too: prompt_name='query', prompt_name='document'")
    (by_hand,) = told["fastembed"]
    assert by_hand.endswith("before the text: 'how do i ' (query), 'the letter: ' (document)")
    assert told["infinity"] == (by_hand,)
    pooling, cut, again = told["infinity-optimum"]
    assert pooling.endswith("--pooling-method mean")
    assert f"cuts a text at 128 tokens instead of {MAX_LENGTH}" in cut
    assert again == by_hand
    settings = {"prompts": PROMPTS, "default_prompt_name": "query"}
    (folder / "config_sentence_transformers.json").write_text(json.dumps(settings))
    assert "'query' before every text" in _remarks(read_source(folder))["sentence-transformers"][1]
    whole = tiny_source(tmp_path / "whole", max_length=128)
    limits = TOOLS[-1].limits(read_source(whole))
    assert (limits.cut_alike, len(limits.remarks)) == (True, 1)


def _remarks(source: Source) -> dict[str, tuple[str, ...]]:
    return {tool.name: tool.limits(source).remarks for tool in TOOLS}


def test_a_published_folder_says_its_maximum_and_its_padding_where_other_tools_look(
    expected: Expected,
) -> None:
    config = json.loads((expected.folder / "tokenizer_config.json").read_bytes())
    assert config == {"tokenizer_class": "BertTokenizer", "model_max_length": 64, "pad_token": "[PAD]"}


def _run(portable_store: Store, tmp_path: Path, *arguments: str) -> int:
    version = portable_store.versions()[0].version
    given = [
        "--models-dir",
        str(portable_store.root),
        "verify-portability",
        version,
        "--cache",
        str(tmp_path / "cache"),
    ]
    return main([*given, *arguments], environ={})


def test_the_command_prints_a_verdict_for_each_tool_and_fails_when_nothing_is_known(
    portable_store: Store, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = _digest(portable_store.root)
    assert _run(portable_store, tmp_path, "--offline", "--json", str(tmp_path / "said.json")) == 1
    out, err = capsys.readouterr()
    rows = [line.split()[:3] for line in out.splitlines()[3 : 3 + len(TOOLS)]]
    assert rows == [[name, "not", "tried"] for name in NAMES]
    assert err.splitlines()[-1].startswith("python -m models: No tool could be tried")
    said = json.loads((tmp_path / "said.json").read_bytes())
    assert [row["tool"] for row in said["tools"]] == NAMES
    assert said["tools"][0]["lowest"] is None
    assert _digest(portable_store.root) == before


def _digest(folder: Path) -> dict[str, str]:
    return {
        str(path): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in folder.rglob("*")
        if path.is_file()
    }


def test_the_command_fails_when_a_tool_fails_in_a_way_that_is_not_known(
    portable_store: Store, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    one = ("--tool", "fastembed", "--python", f"fastembed={sys.executable}")
    assert _run(portable_store, tmp_path, *one) == 1
    out, err = capsys.readouterr()
    assert out.splitlines()[3].split()[:3] == ["fastembed", "cannot", "-"]
    assert len(out.splitlines()) == 6, "one tool, and its reason"
    assert "is not portable to every tool: fastembed cannot: ModuleNotFoundError" in err.splitlines()[-1]


@pytest.mark.parametrize(
    ("ways", "complaint"),
    [
        (["known"], None),
        (["known", "noise"], "noise differs: 54 of 54 texts"),
        (["crash", "known"], "crash cannot: has no such key"),
    ],
)
def test_the_command_complains_of_what_differs_or_fails_unforeseen_and_of_nothing_else(
    portable_store: Store,
    tmp_path: Path,
    ways: list[str],
    complaint: str | None,
    capsys: pytest.CaptureFixture[str],
) -> None:
    options = argparse.Namespace(
        version=portable_store.versions()[0].version,
        tool=ways[::-1],
        python=[f"{way}={sys.executable}" for way in ways],
        json=tmp_path / "said.json",
        cache=tmp_path / "cache",
        offline=True,
    )
    tools = [foreign_tool(way) for way in ("hang", *ways)]
    if complaint is None:
        run(portable_store, options, tools)
    else:
        with pytest.raises(NotPortable, match=complaint):
            run(portable_store, options, tools)
    said = json.loads((tmp_path / "said.json").read_bytes())
    assert [row["tool"] for row in said["tools"]] == ways, "in the tools' order, and hang was not asked for"
    assert capsys.readouterr().out.count("\nknown: its ONNX engine opens no folder on the disk") == 1


def test_a_pair_is_checked_with_its_query_encoder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A tool that gives other vectors for it alone is one too many."""
    *_, pair = published_pair(tmp_path / "models")
    options = argparse.Namespace(
        version=pair,
        tool=["known"],
        python=[f"known={sys.executable}"],
        json=tmp_path / "said.json",
        cache=tmp_path / "cache",
        offline=True,
    )
    run(Store(tmp_path / "models"), options, [foreign_tool("known")])
    said = json.loads((tmp_path / "said.json").read_bytes())
    assert (said["version"], said["queries"]["version"]) == (pair, f"{pair}/queries")
    assert [row["tool"] for row in (*said["tools"], *said["queries"]["tools"])] == ["known", "known"]
    assert f"\n{pair}/queries: cosine with Simile's own vectors" in capsys.readouterr().out
    options.tool, options.python = ["noise"], [f"noise={sys.executable}"]
    with pytest.raises(NotPortable, match=r"noise differs: .*; noise differs: "):
        run(Store(tmp_path / "models"), options, [foreign_tool("noise")])


def test_the_table_has_the_cosine_the_versions_and_the_remarks(expected: Expected) -> None:
    rows = [
        Row("one", "same", lowest=0.99999994, compared=3, remarks=("note",), versions={"numpy": "2"}),
        Row("two", "cannot", "it is too old"),
    ]
    lines = table("V", expected, rows).splitlines()
    assert f"own vectors, {len(TEXTS)} texts and 16 with a prompt; same from 0.9999 on" in lines[0]
    assert lines[3].split() == ["one", "same", "0.9999999", "numpy", "2"]
    assert lines[4].split() == ["two", "cannot", "-"]
    assert lines[6:] == ["one: note", "two: it is too old"]


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["--tool", "fastembd"], f"There is no tool 'fastembd' here; there are {', '.join(NAMES)}."),
        (["--python", "fastembed"], "--python fastembed: there is no program '' that could be run."),
        (
            ["--python", "fastembed=/nowhere/python"],
            "there is no program '/nowhere/python' that could be run.",
        ),
        (["--python", "fast=/bin/sh"], "There is no tool 'fast' here"),
        (["--json", "/nowhere/said.json"], "/nowhere/said.json cannot be written: name a file in a folder"),
    ],
)
def test_what_is_asked_wrongly_is_refused_before_anything_is_opened(
    portable_store: Store,
    tmp_path: Path,
    arguments: list[str],
    reason: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert _run(portable_store, tmp_path, *arguments) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert reason in line
    assert not (tmp_path / "cache").exists()


def test_torch_is_pinned_as_the_project_pins_it_and_the_page_names_what_is_tried() -> None:
    constraints = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    page = (ROOT / "docs" / "PORTABILITY.md").read_text(encoding="utf-8")
    for tool in TOOLS:
        assert set(constraints) >= {pin for pin in tool.requirements if pin.startswith("torch==")}
        assert all("==" in pin for pin in tool.requirements), tool.name
        assert f"| `{tool.name}` |" in page
        package, _, version = tool.requirements[0].partition("==")
        assert f"{package.partition('[')[0]} {version}" in page
