"""Reports of one model and comparisons of several."""

from __future__ import annotations

import json
import re
from contextlib import closing
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest

from tests.training.evaluation.pairs import small_data
from tests.training.evaluation.written import save, scores, searched, shape, similar, tables, transferred
from training.__main__ import main
from training.errors import TrainingError
from training.evaluation.report.comparison import read_models
from training.evaluation.report.model_report import write_report
from training.evaluation.report.plots import LIGHT
from training.evaluation.report.runs import read_runs
from training.runs import dev, record
from training.runs.options import unheard


def _pictures(report: Path) -> list[str]:
    return re.findall(r"^!\[.+\]\((.+)\)$", report.read_text(), re.MULTILINE)


def _event(kind: str, clock: str, **fields: Any) -> dict[str, Any]:
    return {"event": kind, "time": f"2026-11-21T{clock}+00:00"} | fields


def _recorded(folder: Path, *events: dict[str, Any], end: str = "") -> str:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "record.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events) + end)
    return str(folder)


DEV = '{"event": "dev", "time": "2026-11-21T09:00:00+00:00", "step": 1, "stsb_dev": %s}\n'
START = _event("start", "09:00:00", method="simcse-unsup", base_name="tiny", seed=7, steps=400, texts=64)


def test_every_figure_that_was_measured_is_in_a_table(tmp_path: Path) -> None:
    content = scores(
        {"sts12": similar(0.5), "stsb": similar(0.75), "korsts": similar(0.375)},
        geometry=shape(),
        retrieval={"my_own": searched(0.625)},
        transfer={"sst2": transferred(0.8125), "mrpc": transferred(0.7, f1=0.875, examples=1725)},
        transfer_mean={"accuracy": 0.75625, "sets": ["sst2", "mrpc"]},
    )
    report = write_report(tmp_path, content, [])
    found = tables(report)
    similarity = found["Similarity"]
    assert report.read_text().count("| STS12 |") == 1
    assert similarity["STS12"][:5] == ["50.00", "50.00", "25.00", "12.50", "1379"]
    assert list(similarity)[1:] == ["STS12", "STS-B", "mean of 2", "KorSTS"]
    assert similarity["mean of 2"] == ["62.50", "", "", "", "", "over STS12, STS-B"]
    geometry = found["Geometry of STS-B (train, dev, test)"]
    figures = [cells[0] for name, cells in geometry.items() if name]
    assert figures == ["0.2500", "-2.0000", "0.1250", "0.5000", "2.5"]
    assert "7 pairs" in geometry["alignment"][1]
    assert "40 distinct" in geometry["uniformity"][1]
    assert geometry["effective rank"][1] == "of 4 directions"
    header = ["nDCG@10", "recall@1", "recall@10", "recall@100", "MRR@10", "MAP@100", "queries", "documents"]
    assert found["Search"][""][:8] == header
    own = ["62.50", "10.00", "20.00", "30.00", "40.00", "50.00", "3", "20"]
    assert found["Search"]["my\\_own"][:8] == own
    assert found["Transfer"]["MRPC"][:3] == ["70.00", "87.50", "1725"]
    assert found["Transfer"]["SST2"][:3] == ["81.25", "", "100"]
    assert found["Transfer"]["mean of 2"][0] == "75.62"


def test_it_says_which_model_was_measured_when_and_on_what(tmp_path: Path) -> None:
    about: dict[str, Any] = {"version": "20261121T000000-a-1a2b3c4d", "fingerprint": "ab" * 32}
    [rows] = tables(write_report(tmp_path, scores(**about, data="/my_sets"), [])).values()
    expected = {"model": "default", "date": "2026-11-21T09:42:27+00:00", "data": "/my\\_sets"} | about
    assert {name: rows[name] for name in expected} == {name: [cell] for name, cell in expected.items()}
    [rows] = tables(write_report(tmp_path, scores(), [])).values()
    assert rows["version"] == ["not published in the models folder"]
    assert "absent" not in rows


def test_what_is_missing_undefined_or_not_comparable_is_said(tmp_path: Path) -> None:
    stsb = similar(None, pairs=1000, unscored=3, undefined=2)
    content = scores(
        {"stsb": stsb},
        geometry=shape(uniformity=None, alignment=None, spectrum=[]),
        retrieval={"mine": searched(0.5, empty=2)},
        transfer={"sst2": transferred(0.5, remarks=["trained on 6920 sentences"], undefined=4)},
        transfer_mean={"accuracy": 0.5, "sets": ["sst2"]},
        absent=["sts13", "mr", "retrieval"],
    )
    report = write_report(tmp_path, content, [])
    found = tables(report)
    assert found["default"]["absent"] == ["STS13, MR, retrieval (no such folder in the evaluation data)"]
    assert found["Similarity"]["STS-B"][0] == "undefined"
    assert found["Similarity"]["mean of 1"][0] == "undefined"
    assert found["Similarity"]["STS-B"][-1] == (
        "the published set has 1379; 3 without a gold score left out; 2 cosines undefined, counted as 0"
    )
    assert found["Search"]["mine"][-1] == "2 without text left out"
    assert found["Transfer"]["SST2"][-1] == "trained on 6920 sentences; 4 vectors undefined, counted as 0"
    assert _pictures(report) == ["cosines.svg"]  # nothing else has a number to draw


def test_the_pictures_lie_beside_the_report(tmp_path: Path) -> None:
    run = _recorded(tmp_path / "run", START, _event("dev", "09:01:00", step=100, stsb_dev=0.5))
    report = write_report(tmp_path / "run", scores(geometry=shape()), read_runs([run]))
    assert _pictures(report) == ["plane.svg", "spectrum.svg", "cosines.svg", "dev.svg"]
    for name in _pictures(report):
        assert ET.parse(report.parent / name).getroot().tag == "{http://www.w3.org/2000/svg}svg"
    assert "default: uniformity -2.000, alignment 0.250." in (report.parent / "plane.svg").read_text()
    assert "the last of 3 is 0.05" in (report.parent / "spectrum.svg").read_text()  # and not the zero
    # Four pairs a bin, in steps of 0.05 from -1, each one further: the middle of the first four is -0.9.
    assert "0-1 at -0.90, 1-2 at -0.85" in (report.parent / "cosines.svg").read_text()
    assert _pictures(write_report(tmp_path / "run", scores({"stsb": 0.5}), [])) == []


def test_a_name_cannot_break_its_table(tmp_path: Path) -> None:
    content = scores(model="a|b\n# c <script> `d`", retrieval={"e | f": searched(0.5)})
    text = write_report(tmp_path, content, []).read_text()
    assert "| model | a\\|b\ufffd\\# c \\<script\\> \\`d\\` |" in text
    assert "| e \\| f | 50.00 |" in text


def test_a_course_knows_its_best_step_and_its_last_one(tmp_path: Path) -> None:
    run = _recorded(
        tmp_path / "a_run",
        START | {"machine": {"device": "a processor"}},
        _event("step", "09:01:00", step=100, sentences_per_second=40.0),
        _event("dev", "09:02:00", step=100, stsb_dev=0.5),
        _event("step", "09:03:00", step=200, sentences_per_second=60.0),
        _event("dev", "09:04:00", step=200, stsb_dev=0.75),
        _event("step", "09:05:00", step=300, sentences_per_second=70.0),
        _event("dev", "09:06:00", step=300, stsb_dev=0.75),
        _event("dev", "09:08:00", step=400, stsb_dev=None),
        _event("end", "09:09:00", step=400, dev={}),
    )
    [course] = read_runs([run])
    assert course.dev == {100: 0.5, 200: 0.75, 300: 0.75, 400: None}
    assert course.best == 200  # the first of the two that are equal, as `best/` has it
    report = write_report(tmp_path, scores(), [course])
    cells = tables(report)["Training"]["a\\_run"]
    assert cells == [*"simcse-unsup tiny 7 400 200 75.00 undefined 9.0 60".split(), "a processor"]
    assert "a_run: 75.00 at step 300, the best 75.00 at step 200." in (tmp_path / "dev.svg").read_text()


def test_what_was_lost_before_going_on_is_superseded_and_the_pause_is_no_work(tmp_path: Path) -> None:
    run = _recorded(
        tmp_path / "seventh",
        START,
        _event("dev", "09:01:00", step=100, stsb_dev=0.5),
        _event("dev", "09:02:00", step=200, stsb_dev=0.9),  # after the last checkpoint, at 100
        _event("resume", "19:00:00", step=100),
        _event("dev", "19:00:30", step=150, stsb_dev=0.625),
        end='{"event": "dev", "ti',  # the power went
    )
    [course] = read_runs([run])
    assert course.dev == {100: 0.5, 150: 0.625}
    assert (course.done, course.best, course.finished) == (150, 150, False)
    assert course.seconds == 150
    [*_, cells] = tables(write_report(tmp_path, scores(), [course]))["Training"].values()
    assert cells[3] == "150 of 400, unfinished"


def test_a_fitted_post_processor_makes_the_last_step_the_best(tmp_path: Path) -> None:
    events = [
        _event("dev", "09:01:00", step=100, stsb_dev=0.75),
        _event("dev", "09:02:00", step=200, stsb_dev=0.5),
        _event("dev", "09:03:00", step=200, stsb_dev=0.625),  # of the same step, fitted
    ]
    fitted = START | {"described": {"post": [{"name": "whiten"}]}}
    [course] = read_runs([_recorded(tmp_path / "run", fitted, *events)])
    assert (course.best, course.dev) == (200, {100: 0.75, 200: 0.625})
    [course] = read_runs([_recorded(tmp_path / "run", START, *events)])
    assert course.best == 100


def test_the_record_that_a_run_writes_is_the_one_that_is_read(tmp_path: Path) -> None:
    with closing(record.Record(tmp_path / record.FILE_NAME, unheard)) as written:
        about = {"method": "pairs", "seed": 3, "steps": 2, "texts": 9, "base_name": "tiny"}
        written.write("start", **about, described={"post": []})
        written.write("step", step=2, loss=1.0, sentences_per_second=12.5)
        written.write("dev", step=2, **{dev.STSB_DEV: 0.5})
        written.write("end", step=2, loss=1.0, dev={"2": 0.5})
    [course] = read_runs([str(tmp_path)])
    assert (course.method, course.seed, course.rate, course.dev) == ("pairs", 3, 12.5, {2: 0.5})
    assert (course.done, course.planned, course.finished, course.fitted) == (2, 2, True, False)


def test_runs_of_one_name_are_told_apart_by_their_folders(tmp_path: Path) -> None:
    runs = [_recorded(tmp_path / seed / "run", START) for seed in "ab"]
    assert [course.name for course in read_runs(runs)] == runs
    assert [course.name for course in read_runs(runs[:1])] == ["run"]


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (None, r"run holds no record of `python -m training train`\."),
        ("", r"record\.jsonl does not tell how the run began\."),
        ("{}\n", r"record\.jsonl, line 1: it is no event of a training run\."),
        ("not JSON\n", r"line 1: it is no event"),
        (json.dumps(START) + "\n[]\n", r"line 2: it is no event"),
        (json.dumps(START | {"time": "noon"}) + "\n", r"line 1: it is no event"),
        (json.dumps(START | {"step": "9"}) + "\n", r"line 1: it is no event"),
        (DEV % 0.5, r"does not tell how the run began"),
        (json.dumps(START) + "\n" + DEV % '"x"', "line 2"),
    ],
)
def test_a_folder_without_a_readable_record_is_refused(
    tmp_path: Path, content: str | None, reason: str
) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    if content is not None:
        (folder / "record.jsonl").write_text(content)
    with pytest.raises(TrainingError, match=reason):
        read_runs([str(folder)])


def test_a_model_is_evaluated_into_a_folder_that_is_made(tmp_path: Path, version: str) -> None:
    data, folder = small_data(tmp_path / "data"), tmp_path / "not" / "there"
    run = _recorded(tmp_path / "seventh", START, _event("dev", "09:01:00", step=100, stsb_dev=0.5))
    file = tmp_path / "scores.json"
    command = ["evaluate", version, "--data", str(data), "--json", str(file), "--report", str(folder)]
    for _ in range(2):  # the second replaces the first
        assert main([*command, "--run", run]) == 0
    found = tables(folder / "report.md")
    written = json.loads(file.read_text())
    assert written["data"] == str(data)
    assert found["Similarity"]["STS-B"][0] == f"{100 * written['sts']['stsb']['spearman_all']:.2f}"
    assert found["Training"]["seventh"][5] == "50.00"
    names = {"cosines.svg", "dev.svg", "plane.svg", "report.md", "spectrum.svg"}
    assert {each.name for each in folder.iterdir()} == names


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["--report", "{tmp}/file"], "{tmp}/file cannot hold a report: File exists."),
        (["--report", "{tmp}/taken"], "{tmp}/taken/report.md is no file, so no report can take its place."),
        (["--run", "{tmp}"], "--run is for the report: name its folder with --report."),
        (["--report", "{tmp}/new", "--run", "{tmp}"], "{tmp} holds no record of `python -m training train`."),
    ],
)
def test_a_report_that_cannot_be_is_refused_before_anything_is_measured(
    tmp_path: Path, version: str, arguments: list[str], reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("kept")
    (tmp_path / "taken" / "report.md").mkdir(parents=True)
    data = small_data(tmp_path / "data")
    given = [argument.format(tmp=tmp_path) for argument in arguments]
    assert main(["evaluate", version, "--data", str(data), *given]) == 1
    captured = capsys.readouterr()
    assert captured.err == f"python -m training: {reason.format(tmp=tmp_path)}\n"
    assert captured.out == ""
    assert (tmp_path / "file").read_text() == "kept"
    assert not (tmp_path / "new").exists()


SPEARMAN = "Similarity: Spearman"
HISTOGRAM = shape()["histogram"]


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
        (["a-1.json", "A=a-2.json"], {"a-1": ["a-1.json"], "A": ["a-2.json"]}),
        (["e5=b-1.json", "e5=a.json"], {"e5": ["b-1.json", "a.json"]}),
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
        "Geometry of STS-B": ["1", "0.2500", "-2.0000", "0.1250", "0.5000", "2.5"],
        "Search: mine": ["1", "50.00", "10.00", "20.00", "30.00", "40.00", "50.00"],
        "Transfer: accuracy": ["1", "75.00", "50.00", "62.50", "62.50"],
    }
    assert found["Transfer: accuracy"][""] == ["seeds", "SST2", "MRPC", "mean of 2", "MRPC F1"]
    assert found["Search: mine"]["b"] == ["1", *[""] * 6]


def test_what_keeps_figures_from_being_compared_is_said_once(tmp_path: Path) -> None:
    sst2 = {"sst2": transferred(0.5, remarks=["trained on 6920 sentences"])}
    same: dict[str, Any] = {"fingerprint": "ab" * 32, "transfer": sst2}
    mine, other = {"mine": searched(0.5)}, {"mine": searched(0.5, documents=21)}
    contents = {
        "a-1": scores({"stsb": 0.5}, retrieval=mine, form="int8/onnxruntime", **same),
        "a-2": scores({"stsb": 0.5}, retrieval=other, form="fp32/onnxruntime", **same),
        "b": scores({"stsb": similar(0.5, pairs=1378, undefined=1)}, transfer=sst2),
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


def test_models_share_the_pictures_and_seeds_a_color(tmp_path: Path) -> None:
    contents = {
        "a-1": scores(geometry=shape(uniformity=-3.0)),
        "a-2": scores(geometry=shape(uniformity=-1.0, histogram=HISTOGRAM | {"0-1": [0] * 39 + [4]})),
        "b": scores(geometry=shape(alignment=None)),
        "c": scores({"stsb": 0.5}),
    }
    folder = _compared(tmp_path, contents).parent
    assert "a: uniformity -2.000, alignment 0.250.<" in (folder / "plane.svg").read_text()
    spectrum = (folder / "spectrum.svg").read_text()
    assert [_lines(spectrum, color) for color in LIGHT[:3]] == [2, 1, 0]
    # a's pairs: four at -0.9 and four at 0.975.
    assert "a: mean cosine by gold score 0-1 at 0.04" in (folder / "cosines.svg").read_text()
    assert not (folder / "dev.svg").exists()


def test_runs_are_lines_of_one_picture(tmp_path: Path) -> None:
    events = _event("start", "09:42:27"), _event("dev", "09:42:27", step=10, stsb_dev=0.5)
    x, y = (_recorded(tmp_path / seed, *events) for seed in ("x", "y"))
    report = _compared(tmp_path, {"a": scores({"stsb": 0.5})}, "--run", x, "--run", y)
    assert [cells[5] for cells in tables(report)["Training"].values()] == ["best dev", "50.00", "50.00"]
    svg = (report.parent / "dev.svg").read_text()
    assert ["x: 50.00 at step 10" in svg, "y: 50.00 at step 10" in svg] == [True, True]
    assert [_lines(svg, color) for color in LIGHT[:3]] == [1, 1, 0]


def _lines(svg: str, color: str) -> int:
    """Number of marks of a panel in this colour; the legend's own are not clipped."""
    return len(re.findall(rf'clip-path="[^"]*" style="fill: none; [^"]*stroke: {color}', svg))


@pytest.mark.parametrize(
    ("content", "fault"),
    [
        ("[]", "it is no JSON object"),
        ("{}", "model is missing or of another kind"),
        (scores() | {"absent": "sts13"}, "absent is missing or of another kind"),
        (scores({"stsb": {"spearman_all": 0.5}}), "sts.stsb.spearman_mean is missing"),
        (scores({"stsb": similar(0.5, pairs=None)}), "sts.stsb.pairs is missing or of another kind"),
        (scores() | {"sts": []}, "sts is no JSON object"),
        (scores() | {"sts": {"sts99": similar(0.5)}}, "sts.sts99 is no set that is known"),
        (scores({"stsb": 0.5}) | {"mean": {"sets": ["sts12"]}}, "mean.sets is missing or of another kind"),
        (scores(geometry=shape(spectrum=[1.0, None])), "geometry.spectrum is missing or of another kind"),
        (scores(geometry=shape(histogram=HISTOGRAM | {"1-2": [1, 2]})), "geometry.histogram.1-2 is missing"),
        (scores(geometry=shape(uniformity="-2")), "geometry.uniformity is missing or of another kind"),
        (scores(retrieval={"mine": {}}), "retrieval.mine.ndcg10 is missing"),
        (scores(transfer={"sst2": transferred(0.5, remarks="x")}), "transfer.sst2.remarks is missing"),
    ],
)
def test_a_file_that_evaluate_has_not_written_is_refused_by_what_it_lacks(
    tmp_path: Path, content: str | dict[str, Any], fault: str
) -> None:
    file = tmp_path / "a.json"
    file.write_text(content if isinstance(content, str) else json.dumps(content))
    with pytest.raises(TrainingError) as refused:
        read_models([str(file)])
    expected = f"{file} is not what `evaluate --json` of this release writes: {fault}"
    assert str(refused.value).startswith(expected)


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
