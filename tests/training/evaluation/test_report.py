"""Reports that compare models."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.training.evaluation.pairs import small_data
from tests.training.evaluation.written import save, scores, searched, shape, similar, tables, transferred
from training.__main__ import main
from training.errors import TrainingError
from training.evaluation.report.comparison import read_models

SPEARMAN = "Similarity: Spearman"


def _compared(folder: Path, contents: dict[str, dict[str, Any]], *more: str) -> Path:
    files = [save(folder / f"{name}.json", content) for name, content in contents.items()]
    assert main(["compare", *files, "--report", str(folder / "report"), *more]) == 0
    return folder / "report" / "report.md"


def _remarks(report: Path) -> list[str]:
    return [line.removeprefix("- ") for line in report.read_text().splitlines() if line.startswith("- ")]


def test_seeds_are_one_row_with_their_mean_and_the_standard_deviation_of_a_sample(tmp_path: Path) -> None:
    seeds = {f"simcse-{at}": scores({"stsb": 0.68 + 0.02 * at, "sickr": 0.5}) for at in (1, 2, 3)}
    report = _compared(tmp_path, {**seeds, "default": scores({"stsb": 0.8, "sickr": 0.7})})
    rows = tables(report)[SPEARMAN]
    assert rows[""] == ["seeds", "STS-B", "SICK-R", "mean of 2"]
    # 70, 72, 74: deviations -2, 0, 2, so a variance of 8 / 2.
    assert rows["simcse"] == ["3", "72.00 ± 2.00", "50.00 ± 0.00", "61.00 ± 1.00"]
    assert rows["default"] == ["1", "80.00", "70.00", "75.00"]
    assert list(rows)[1:] == ["simcse", "default"]


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (["a-1.json", "a-2.json"], {"a": ["a-1.json", "a-2.json"]}),
        (["a.json", "b-1.json", "a-12.json"], {"a": ["a.json", "a-12.json"], "b-1": ["b-1.json"]}),
        (["l6-v2.json", "l6-v3.json"], {"l6-v2": ["l6-v2.json"], "l6-v3": ["l6-v3.json"]}),
        (["x=y.json"], {"x=y": ["x=y.json"]}),
    ],
)
def test_the_files_of_a_model_are_found_by_their_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: list[str], expected: dict[str, list[str]]
) -> None:
    monkeypatch.chdir(tmp_path)
    files = {each for of in expected.values() for each in of}
    for name in files:
        save(Path(name), scores({"stsb": 0.5}))
    found = read_models(given)
    assert {name: [each.file for each in of] for name, of in found.items()} == expected


def test_a_mean_is_over_the_sets_that_every_file_has_and_the_others_are_named(tmp_path: Path) -> None:
    more = scores({"sts12": 0.9, "stsb": 0.5, "sickr": 0.75, "korsts": 0.1})
    report = _compared(tmp_path, {"a": more, "b": scores({"stsb": 0.25, "sickr": 0.5})})
    rows = tables(report)[SPEARMAN]
    assert rows[""] == ["seeds", "STS12", "STS-B", "SICK-R", "mean of 2", "KorSTS"]
    assert rows["a"] == ["1", "90.00", "50.00", "75.00", "62.50", "10.00"]
    assert rows["b"] == ["1", "", "25.00", "50.00", "37.50", ""]
    assert "Not in the mean, because not every file has it: STS12." in _remarks(report)


def test_a_figure_that_some_seeds_lack_says_of_how_many_it_is(tmp_path: Path) -> None:
    seeds = {
        "a-1": scores({"stsb": 0.5, "sickr": None}),
        "a-2": scores({"stsb": 0.75, "sickr": 0.25}),
        "a-3": scores(geometry=shape()),
        "b": scores({"stsb": None}),
    }
    found = tables(_compared(tmp_path, seeds))
    assert found[SPEARMAN]["a"][1:3] == ["62.50 ± 17.68 (2 of 3)", "25.00 (1 of 3)"]
    assert found[SPEARMAN]["b"][1:3] == ["undefined", ""]
    assert found["Geometry of STS-B"]["a"][1] == "0.2500 (1 of 3)"


def test_every_kind_of_figure_has_its_table(tmp_path: Path) -> None:
    body = {
        "geometry": shape(),
        "retrieval": {"mine": searched(0.5)},
        "transfer": {"sst2": transferred(0.75), "mrpc": transferred(0.5, f1=0.625)},
        "transfer_mean": {"accuracy": 0.625, "sets": ["sst2", "mrpc"]},
    }
    found = tables(_compared(tmp_path, {"a": scores({"sts12": 0.75}, **body), "b": scores()}))
    of_a = {heading: rows["a"] for heading, rows in found.items() if heading.startswith(("S", "G", "T"))}
    assert of_a == {
        "Similarity: Spearman": ["1", "75.00", "75.00"],
        "Similarity: Spearman, mean of subsets": ["1", "50.00", "50.00"],
        "Similarity: Spearman, weighted mean of subsets": ["1", "25.00", "25.00"],
        "Similarity: Pearson": ["1", "12.50", "12.50"],
        "Geometry of STS-B": ["1", "0.2500", "-2.0000", "0.1250", "0.5000", "2.5000"],
        "Search: mine": ["1", "50.00", "10.00", "20.00", "30.00", "40.00", "50.00"],
        "Transfer: accuracy": ["1", "75.00", "50.00", "62.50", "62.50"],
    }
    assert found["Transfer: accuracy"][""] == ["seeds", "SST2", "MRPC", "mean of 2", "MRPC F1"]
    assert found["Search: mine"]["b"] == ["1", *[""] * 6]


def test_what_keeps_figures_from_being_compared_is_said_once(tmp_path: Path) -> None:
    sst2: dict[str, Any] = {
        "transfer": {"sst2": transferred(0.5, remarks=["trained on 6920 sentences"])},
        "transfer_mean": {"accuracy": 0.5, "sets": ["sst2"]},
    }
    same: dict[str, Any] = {"fingerprint": "ab" * 32, **sst2}
    mine, other = {"mine": searched(0.5)}, {"mine": searched(0.5, documents=21)}
    contents = {
        "a-1": scores({"stsb": 0.5}, retrieval=mine, form="int8/onnxruntime", **same),
        "a-2": scores({"stsb": 0.5}, retrieval=other, form="fp32/onnxruntime", **same),
        "b": scores({"stsb": similar(0.5, pairs=1378, undefined=1)}, **sst2),
    }
    assert _remarks(_compared(tmp_path, contents)) == [
        "STS-B is not the same data in all files: 1378, 1379 pairs.",
        "mine is not the same data in all files: 20, 21 documents.",
        "a: two of its files are of the same model, so they are not two seeds.",
        "a: its files were computed in different forms: fp32/onnxruntime, int8/onnxruntime.",
        "SST2: trained on 6920 sentences",
        "STS-B: the published set has 1379 (b.json)",
        "STS-B: 1 cosines undefined, counted as 0 (b.json)",
    ]


def test_nothing_is_said_where_nothing_keeps_them_from_it(tmp_path: Path) -> None:
    contents = {name: scores({"stsb": 0.5}, fingerprint=name * 64) for name in ("a", "b")}
    assert "keeps figures from being compared" not in _compared(tmp_path, contents).read_text()


def test_every_file_is_listed_with_its_model_and_date(tmp_path: Path) -> None:
    version, form = "20261121T000000-a-1a2b3c4d", "int8/onnxruntime"
    one = scores(version=version, fingerprint="0123456789", form=form, absent=["sts13"])
    rows = tables(_compared(tmp_path, {"a-1": one, "a-2": scores()}))["Comparison"]
    date = "2026-11-21T09:42:27+00:00"
    assert rows["a"] == ["a-1.json", "default", version, "01234567", form, date, "sets", "STS13"]


def test_a_name_cannot_break_its_table(tmp_path: Path) -> None:
    content = scores(model="a|b\n# c <script> `d`", retrieval={"e | f": searched(0.5)})
    text = _compared(tmp_path, {"a": content}).read_text()
    assert "a\\|b\ufffd\\# c \\<script\\> \\`d\\`" in text
    assert "## Search: e \\| f\n" in text


@pytest.mark.parametrize(
    ("name", "reason"),
    [("file", "file cannot hold a report: File exists."), ("taken", "taken/report.md is no file")],
)
def test_a_report_that_cannot_be_is_refused(
    tmp_path: Path, name: str, reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("kept")
    (tmp_path / "taken" / "report.md").mkdir(parents=True)
    good = save(tmp_path / "good.json", scores({"stsb": 0.5}))
    assert main(["compare", good, "--report", str(tmp_path / name)]) == 1
    assert capsys.readouterr().err.startswith(f"python -m training: {tmp_path}/{reason}")
    assert (tmp_path / "file").read_text() == "kept"


@pytest.mark.parametrize(
    "content",
    [
        "[]",
        "{}",
        scores() | {"sts": []},
        scores({"stsb": {"spearman_all": 0.5}}),
        scores() | {"sts": {"sts99": similar(0.5)}},
        scores({"stsb": 0.5}) | {"mean": {"spearman_all": 0.5, "sets": ["sts12"]}},
        scores(geometry=shape(uniformity="-2")),
        scores(retrieval={"mine": {}}),
    ],
)
def test_a_file_that_evaluate_has_not_written_is_refused(
    tmp_path: Path, content: str | dict[str, Any]
) -> None:
    file = tmp_path / "a.json"
    file.write_text(content if isinstance(content, str) else json.dumps(content))
    with pytest.raises(TrainingError, match="is not what `evaluate --json` of this release writes"):
        read_models([str(file)])


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("none.json", "none.json cannot be read: No such file or directory."),
        ("broken.json", "broken.json is not JSON: Expecting value"),
        ("latin.json", "latin.json is not JSON: 'utf-8' codec can't decode"),
        ("folder", "folder cannot be read: Is a directory."),
    ],
)
def test_a_file_that_cannot_be_read_leaves_no_report(
    tmp_path: Path, name: str, reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "broken.json").write_text("model")
    (tmp_path / "latin.json").write_bytes(b'{"model": "\xe9"}')
    (tmp_path / "folder").mkdir()
    good = save(tmp_path / "good.json", scores({"stsb": 0.5}))
    assert main(["compare", good, str(tmp_path / name), "--report", str(tmp_path / "report")]) == 1
    assert capsys.readouterr().err.startswith(f"python -m training: {tmp_path}/{reason}")
    assert not (tmp_path / "report").exists()


def test_what_evaluate_writes_is_what_compare_reads(
    tmp_path: Path, version: str, capsys: pytest.CaptureFixture[str]
) -> None:
    data = small_data(tmp_path / "data")
    file, folder = str(tmp_path / "tiny.json"), tmp_path / "report"
    assert main(["evaluate", version, "--data", str(data), "--json", file]) == 0
    capsys.readouterr()
    assert main(["compare", file, "--report", str(folder)]) == 0
    assert capsys.readouterr().out == f"{folder / 'report.md'}\n"
    written = json.loads(Path(file).read_text())
    rows = tables(folder / "report.md")[SPEARMAN]
    assert rows["tiny"][-1] == f"{100 * written['mean']['spearman_all']:.2f}"
