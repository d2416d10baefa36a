"""python -m models, as a person uses it."""

from __future__ import annotations

import json
import shutil
import time
from pathlib import Path

import pytest

from models.__main__ import main
from models.messages import amount
from models.store import ModelStore, activate_command, models_dir
from tests.models.forms import needs_int8
from tests.tiny import tiny_source as make_tiny_source


@pytest.fixture
def root(tiny_models_dir: Path, tmp_path: Path) -> Path:
    return shutil.copytree(tiny_models_dir, tmp_path / "models")


def _run(root: Path, *arguments: str) -> int:
    return main(["--models-dir", str(root), *arguments], environ={})


def test_a_folder_is_imported_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = make_tiny_source(tmp_path / "source", seed=3)
    assert _run(tmp_path / "models", "import", str(source), "--name", "Mine") == 0
    first = capsys.readouterr()
    version = first.out.split()[0]
    assert "-mine-" in version
    serves = f"`simile models activate {version} --models-dir {tmp_path / 'models'}` serves it.\n"
    assert first.out == f"{version} published. {serves}"
    assert "verifying" in first.err
    assert _run(tmp_path / "models", "import", str(source)) == 0
    assert capsys.readouterr().out == f"{version} was published before. {serves}"


@pytest.mark.parametrize(
    ("number", "words", "text"),
    [
        (1, ("document",), "1 document"),
        (0, ("document",), "0 documents"),
        (2500, ("document",), "2,500 documents"),
        (1, ("query has", "queries have"), "1 query has"),
        (12, ("query has", "queries have"), "12 queries have"),
        (1, ("search", "searches"), "1 search"),
    ],
)
def test_a_number_stands_with_the_right_form_of_its_noun(
    number: int, words: tuple[str, ...], text: str
) -> None:
    assert amount(number, *words) == text


@pytest.mark.parametrize("there", [True, False])
def test_a_folder_without_versions_is_named(
    tmp_path: Path, there: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    root = tmp_path / "nothing here"
    if there:
        root.mkdir()
    assert _run(root, "list") == 0
    first, *others = capsys.readouterr().out.splitlines()
    assert first == f"No version is published in {root}{'' if there else ', which does not exist'}."
    assert "--models-dir" in others[0]
    assert _run(root, "list", "--json") == 0
    assert json.loads(capsys.readouterr().out) == {"versions": [], "schedule": None}
    assert root.exists() == there


@pytest.mark.parametrize(
    ("root", "place"),
    [
        ("data/models", ""),
        ("other", " --models-dir other"),
        ("/a b", " --models-dir '/a b'"),
        ("it's", " --models-dir 'it'\"'\"'s'"),
        ("$HOME", " --models-dir '$HOME'"),
    ],
)
def test_the_command_that_activates_names_an_unusual_folder(
    monkeypatch: pytest.MonkeyPatch, root: str, place: str
) -> None:
    monkeypatch.delenv("SIMILE_MODELS_DIR", raising=False)
    monkeypatch.delenv("SIMILE_DATA_DIR", raising=False)
    assert activate_command(Path(root), "v") == f"simile models activate v{place}"
    monkeypatch.setenv("SIMILE_MODELS_DIR", root)
    assert activate_command(Path(root), "v") == "simile models activate v"


@needs_int8
@pytest.mark.parametrize(
    ("options", "environ", "int8"),
    [
        ([], {}, False),
        ([], {"SIMILE_PRECISION": "fp32"}, False),
        ([], {"SIMILE_PRECISION": "bf16"}, False),
        ([], {"SIMILE_PRECISION": "int8"}, True),
        ([], {"SIMILE_PRECISION": "auto"}, True),
        (["--int8"], {}, True),
    ],
)
def test_an_import_adds_int8_only_if_it_is_asked_for(
    tmp_path: Path, options: list[str], environ: dict[str, str], int8: bool
) -> None:
    source, root = make_tiny_source(tmp_path / "source"), tmp_path / "models"
    assert main(["--models-dir", str(root), "import", str(source), *options], environ=environ) == 0
    [manifest] = ModelStore(root).versions()
    assert (manifest.quantised is not None) is int8


@needs_int8
def test_a_version_is_quantized_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source, root = make_tiny_source(tmp_path / "source"), tmp_path / "models"
    assert _run(root, "import", str(source)) == 0
    version = capsys.readouterr().out.split()[0]
    time.sleep(1.1)  # a version is named after the second it was made in
    assert _run(root, "quantize", version) == 0
    said = capsys.readouterr().out
    again = said.split()[0]
    assert said == f"{again} published. `simile models activate {again}` serves it.\n"
    assert _run(root, "quantize", again) == 0
    assert capsys.readouterr().out == f"{again} has an int8 graph already.\n"


def test_the_list_marks_what_is_wanted_and_live_and_names_what_is_not_served(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = ModelStore(root)
    version = store.versions()[0].version
    store.write_state({"live": version})
    (root / "20200101T000000-broken-00000000").mkdir()
    assert _run(root, "list") == 0
    heads, first, second = capsys.readouterr().out.splitlines()
    assert heads.split() == ["VERSION", "PUBLISHED", "STATE", "SCORE", "VERDICT"]
    assert first.split()[0] == version
    assert first.split()[-3:] == ["live", "no", "gate"]
    assert second.startswith("20200101T000000-broken-00000000")
    assert "damaged" in second
    assert "manifest.json cannot be read" in second


def test_show_prints_the_manifest(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    version = ModelStore(root).versions()[0].version
    assert _run(root, "show", version) == 0
    assert json.loads(capsys.readouterr().out)["version"] == version


def test_verify_checks_files_and_vectors(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    version = ModelStore(root).versions()[0].version
    assert _run(root, "verify", version) == 0
    files = len(ModelStore(root).versions()[0].files)
    assert f"{version} is whole: {files} files" in capsys.readouterr().out
    (root / version / "tokenizer.json").write_text("{}")
    assert _run(root, "verify", version) == 1
    error = capsys.readouterr().err.splitlines()[-1]
    assert error.startswith(f"python -m models: Version {version} is not served: ")
    assert error.endswith("tokenizer.json was changed after it was published.")


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["show", "nothing"], "There is no published version 'nothing'. `simile models list` shows them."),
        (
            ["verify", "../models"],
            "There is no published version '../models'. `simile models list` shows them.",
        ),
        (["import", "./nowhere"], "nowhere is not a folder."),
    ],
)
def test_an_error_is_one_line_and_exit_1(
    root: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], reason: str
) -> None:
    assert _run(root, *arguments) == 1
    assert capsys.readouterr().err.splitlines()[-1] == f"python -m models: {reason}"


def test_a_hub_id_without_network_says_so(
    root: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    pytest.importorskip("huggingface_hub")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    assert _run(root, "import", "nobody/nothing") == 1
    refused = "nobody/nothing is not a folder on this machine, and could not be fetched"
    assert refused in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [[], ["promote", "x"], ["show"], ["import"]])
def test_wrong_usage_is_exit_2(root: Path, arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        _run(root, *arguments)
    assert caught.value.code == 2
    said = capsys.readouterr().err
    assert said.startswith("python -m models")
    assert said.count("\n") == 1


def test_the_models_folder_follows_the_settings() -> None:
    assert models_dir({}) == Path("data/models")
    assert models_dir({"SIMILE_DATA_DIR": "/var/simile"}) == Path("/var/simile/models")
    assert models_dir({"SIMILE_DATA_DIR": "/var/simile", "SIMILE_MODELS_DIR": "/models"}) == Path("/models")
