"""The command `python -m training evaluate`."""

import csv
import errno
import json
import os
import shutil
from pathlib import Path
from unittest.mock import Mock

import pytest

from models.engines import opening
from models.store import ModelStore
from tests.models.forms import needs_int8
from tests.tiny import tiny_source as make_tiny_source
from tests.training.evaluation.pairs import small_data
from training.__main__ import main

pytestmark = pytest.mark.usefixtures("version")


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return small_data(tmp_path / "data")


def test_a_version_is_scored_as_a_table_and_as_json(
    data: Path, tmp_path: Path, tiny_models_dir: Path, version: str, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "scores.json"
    assert main(["evaluate", version, "--data", str(data), "--json", str(file)]) == 0
    scores = json.loads(file.read_text())
    assert (scores["model"], scores["version"]) == (version, version)
    fingerprint = ModelStore(tiny_models_dir).verify(version).fingerprint
    assert (scores["fingerprint"], scores["form"]) == (fingerprint, "fp32/onnxruntime")
    assert list(scores["sts"]) == ["sts12", "stsb", "sickr"]
    assert scores["absent"] == ["sts13", "sts14", "sts15", "sts16"]
    assert scores["date"].endswith("+00:00")
    assert scores["seconds"] >= 0
    captured = capsys.readouterr()
    assert f"version: {version}" in captured.out
    stsb = next(line for line in captured.out.splitlines() if line.startswith("STS-B"))
    assert stsb.split()[1] == f"{100 * scores['sts']['stsb']['spearman_all']:.2f}"
    assert "absent: STS13, STS14, STS15, STS16" in captured.out
    assert "encoding the sentences …" in captured.err


def test_every_figure_is_a_row_of_the_csv(data: Path, tmp_path: Path, version: str) -> None:
    files = tmp_path / "scores.json", tmp_path / "scores.csv"
    given = ["evaluate", version, "--data", str(data), "--json", str(files[0]), "--csv", str(files[1])]
    assert main(given) == 0
    scores = json.loads(files[0].read_text())
    with files[1].open(newline="") as stream:
        rows = list(csv.DictReader(stream))
    assert {row["model"] for row in rows} == {version}
    found = {(row["suite"], row["set"], row["figure"]): row["value"] for row in rows}
    assert len(found) == len(rows)
    for key, figures in scores["sts"].items():
        for figure, value in figures.items():
            assert found["sts", key, figure] == ("" if value is None else str(value))
    assert found["geometry", "", "uniformity"] == str(scores["geometry"]["uniformity"])
    assert found["mean", "", "spearman_all"] == str(scores["mean"]["spearman_all"])


def test_a_folder_is_scored_published_or_not(
    data: Path, tiny_source: Path, tiny_models_dir: Path, version: str, capsys: pytest.CaptureFixture[str]
) -> None:
    found = {}
    for name in (str(tiny_models_dir / version), str(tiny_source)):
        assert main(["evaluate", name, "--data", str(data), "--json", "-"]) == 0
        found[name] = json.loads(capsys.readouterr().out)
    published, source = found.values()
    assert source["version"] == published["version"] == version  # the same space, so the same version
    assert source["sts"] == published["sts"]
    assert source["geometry"] == published["geometry"]


def test_a_model_that_is_not_published_has_no_version(
    data: Path, tmp_path: Path, tiny_models_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = sorted(tiny_models_dir.iterdir())
    folder = make_tiny_source(tmp_path / "other", seed=5)
    assert main(["evaluate", str(folder), "--data", str(data), "--json", "-"]) == 0
    captured = capsys.readouterr()
    scores = json.loads(captured.out)
    assert scores["version"] is None
    assert len(scores["fingerprint"]) == 64
    assert "not published in the models folder" in captured.err  # the table, since stdout is JSON
    assert sorted(tiny_models_dir.iterdir()) == before


@needs_int8
def test_a_version_is_scored_in_the_form_that_would_be_served(
    data: Path, version: str, capsys: pytest.CaptureFixture[str]
) -> None:
    found = {}
    for precision in ("fp32", "int8"):
        given = ["evaluate", version, "--data", str(data), "--precision", precision, "--json", "-"]
        assert main(given) == 0
        found[precision] = json.loads(capsys.readouterr().out)
    assert found["int8"]["form"] == "int8/onnxruntime"
    exact, near = (scores["geometry"]["uniformity"] for scores in found.values())
    assert exact != near
    assert exact == pytest.approx(near, rel=0.05)


def test_a_form_that_cannot_be_had_is_not_scored_as_another(
    data: Path, version: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(opening, "has_int8", lambda: False)
    server = "http://127.0.0.1:1"
    for model, reason in ((version, "This processor has no VNNI"), (server, f"{server} has a precision")):
        assert main(["evaluate", model, "--data", str(data), "--precision", "int8"]) == 1
        assert capsys.readouterr().err.startswith(f"python -m training: {reason}")


def test_a_damaged_version_is_not_scored(
    data: Path, tmp_path: Path, tiny_models_dir: Path, version: str, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = shutil.copytree(tiny_models_dir / version, tmp_path / version)
    (folder / "tokenizer.json").write_text("{}")
    assert main(["evaluate", str(folder), "--data", str(data)]) == 1
    assert "tokenizer.json was changed after it was published" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["nowhere"], "nowhere is not a model. Name `default`, a version, a folder or a server's URL."),
        (["20200101T000000-none-00000000"], "There is no published version '20200101T000000-none-00000000'."),
        (["default", "--suite", "sts,search"], "There is no suite 'search'."),
        (["default", "--json", "/nowhere/at/all.json"], "/nowhere/at/all.json cannot be written"),
        (["default", "--data", "/nowhere"], "/nowhere is not a folder. Name its folder with --data"),
        (["~nosuchuser/x"], "There is no home folder for '~nosuchuser'"),
        (["HTTP://127.0.0.1:1"], "HTTP://127.0.0.1:1 cannot be reached"),
    ],
)
def test_what_cannot_be_scored_is_one_line_and_exit_1(
    data: Path, arguments: list[str], reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    given = arguments if "--data" in arguments else [*arguments, "--data", str(data)]
    assert main(["evaluate", *given]) == 1
    assert capsys.readouterr().err.startswith(f"python -m training: {reason}")


def test_a_failed_evaluation_leaves_the_last_one_as_it_was(
    data: Path, tmp_path: Path, tiny_source: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "scores.json"
    file.write_text("the last one")
    (data / "sick" / "test.tsv.gz").unlink()
    assert main(["evaluate", str(tiny_source), "--data", str(data), "--json", str(file)]) == 1
    assert capsys.readouterr().err.splitlines()[-1].endswith("sick/test.tsv.gz.")
    assert file.read_text() == "the last one"


def test_a_pipe_or_a_device_is_not_replaced_by_a_file(
    data: Path, tmp_path: Path, tiny_source: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pipe = tmp_path / "pipe"  # never a real device: without the check root would lose it
    os.mkfifo(pipe)
    assert main(["evaluate", str(tiny_source), "--data", str(data), "--json", str(pipe)]) == 1
    assert f"{pipe} cannot be written" in capsys.readouterr().err
    assert pipe.is_fifo()


def test_the_figures_are_written_where_a_link_leads_and_the_link_stays(
    data: Path, tmp_path: Path, version: str
) -> None:
    (tmp_path / "results").mkdir()
    link = tmp_path / "scores.json"
    link.symlink_to(tmp_path / "results" / "today.json")
    for _ in range(2):  # the first makes the file, the second replaces it
        assert main(["evaluate", version, "--data", str(data), "--json", str(link)]) == 0
    assert link.is_symlink()
    assert json.loads((tmp_path / "results" / "today.json").read_text())["version"] == version


def test_the_table_is_seen_even_if_the_file_cannot_be_written(
    data: Path,
    tmp_path: Path,
    version: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    full = Mock(side_effect=OSError(errno.ENOSPC, "No space left on device"))
    monkeypatch.setattr("training.evaluation.command.replace_text", full)
    assert main(["evaluate", version, "--data", str(data), "--json", str(tmp_path / "scores.json")]) == 1
    captured = capsys.readouterr()
    assert "STS-B" in captured.out
    assert "No space left on device" in captured.err
