"""evaluate --report: every figure that was measured, what is missing, the pictures, and a run's course."""

import json
import re
from contextlib import closing
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest

from models.store import Store
from tests.training.evaluation.pairs import small_data
from tests.training.evaluation.written import scores, searched, shape, similar, tables, transferred
from training.__main__ import main
from training.errors import TrainingError
from training.evaluation.report.model_report import write_report
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
    assert [cells[0] for name, cells in geometry.items() if name] == [
        "0.2500",
        "-2.0000",
        "0.1250",
        "0.5000",
        "2.5",
    ]
    assert "7 pairs" in geometry["alignment"][1]
    assert "40 distinct" in geometry["uniformity"][1]
    assert geometry["effective rank"][1] == "of 4 directions"
    header = ["nDCG@10", "recall@1", "recall@10", "recall@100", "MRR@10", "MAP@100", "queries", "documents"]
    assert found["Search"][""][:8] == header
    assert found["Search"]["my\\_own"][:8] == [
        "62.50",
        "10.00",
        "20.00",
        "30.00",
        "40.00",
        "50.00",
        "3",
        "20",
    ]
    assert found["Transfer"]["MRPC"][:3] == ["70.00", "87.50", "1725"]
    assert found["Transfer"]["SST2"][:3] == ["81.25", "", "100"]
    assert found["Transfer"]["mean of 2"][0] == "75.62"


def test_it_says_which_model_was_measured_when_and_on_what(tmp_path: Path) -> None:
    about: dict[str, Any] = {
        "version": "20261121T000000-a-1a2b3c4d",
        "fingerprint": "ab" * 32,
        "data": "/my_sets",
    }
    [rows] = tables(write_report(tmp_path, scores(**about), [])).values()
    assert rows["model"] == ["default"]
    assert rows["version"] == [about["version"]]
    assert rows["fingerprint"] == [about["fingerprint"]]
    assert rows["date"] == ["2026-11-21T09:42:27+00:00"]
    assert rows["data"] == ["/my\\_sets"]
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
    assert cells == [
        "simcse-unsup",
        "tiny",
        "7",
        "400",
        "200",
        "75.00",
        "undefined",
        "9.0",
        "60",
        "a processor",
    ]
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
    assert (
        tables(write_report(tmp_path, scores(), [course]))["Training"]["seventh"][3]
        == "150 of 400, unfinished"
    )


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
        written.write(
            "start", method="pairs", seed=3, steps=2, texts=9, base_name="tiny", described={"post": []}
        )
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
        (
            json.dumps(_event("dev", "09:00:00", step=1, stsb_dev=0.5)) + "\n",
            r"does not tell how the run began",
        ),
        (
            json.dumps(START) + "\n" + json.dumps(_event("dev", "09:00:00", step=1, stsb_dev="x")) + "\n",
            "line 2",
        ),
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


@pytest.fixture
def version(tiny_models_dir: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("SIMILE_MODELS_DIR", str(tiny_models_dir))
    return Store(tiny_models_dir).versions()[0].version


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
    assert sorted(each.name for each in folder.iterdir()) == [
        "cosines.svg",
        "dev.svg",
        "plane.svg",
        "report.md",
        "spectrum.svg",
    ]


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
