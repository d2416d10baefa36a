"""The command `retrain` and its configuration file."""

from __future__ import annotations

import json
import random
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest

from models.files.folders import lock
from models.manifest import REPORT, REPORT_PAGE
from tests.service.process import plain_environment
from tests.service.store.test_storage_faults import needs_mounts
from tests.training.conftest import WORDS
from tests.training.jobs import noised, tiny_config
from training.__main__ import main
from training.errors import TrainingError
from training.retraining.config import Config, check, read_config
from training.retraining.gate.rules import Thresholds
from training.retraining.one import Job
from training.retraining.plan import build_limits
from training.retraining.schedule import clock


def config(folder: Path, text: str) -> Config:
    (folder / "retrain.toml").write_text(text, encoding="utf-8")
    return read_config(folder / "retrain.toml")


def test_a_service_is_enough(tmp_path: Path) -> None:
    found = config(tmp_path, '[corpus]\nservice = "http://127.0.0.1:8000"\n')
    assert (found.train.recipe, found.train.base, found.gate.require) == ("auto", "anchor", "better")
    assert found.gate.model_dump(include={*Thresholds.model_fields}) == Thresholds().model_dump()
    assert found.corpus.held_out == 0.1


def test_paths_are_of_the_files_own_folder(tmp_path: Path) -> None:
    text = '[corpus]\nfile = "tickets.jsonl"\n[folders]\nmodels = "data/models"\n[gate]\ndata = "/sets"\n'
    found = config(tmp_path, text)
    assert found.corpus.file == tmp_path / "tickets.jsonl"
    assert found.gate.data == Path("/sets")
    assert (found.folders.models, found.folders.kept) == (tmp_path / "data/models", tmp_path / "data/retrain")


def test_a_recipe_and_a_base_are_names_or_paths_beside_the_file(tmp_path: Path) -> None:
    for name in ("anchor", "active", "mine", "pairs"):
        (tmp_path / name).mkdir()
    text = '[corpus]\nfile = "b"\n[train]\nrecipe = "{}"\nbase = "{}"\n'
    train = config(tmp_path, text.format("mine.toml", "mine")).train
    assert (train.recipe, train.base) == (str(tmp_path / "mine.toml"), str(tmp_path / "mine"))
    for base in ("active", "anchor"):
        train = config(tmp_path, text.format("pairs", base)).train
        assert (train.recipe, train.base) == ("pairs", base)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "the file lacks corpus."),
        ("[corpus]\n", "give `service` or `file`"),
        ('[corpus]\nservice = "a"\nfile = "b"\n', "give `service` or `file`"),
        ('[corpus]\nfile = "b"\nleast = 1\n', "corpus.least must be from 2 on, not 1"),
        ('[corpus]\nfile = "b"\nheld_out = 1.0\n', "corpus.held_out must be above 0 and below 1, not 1.0"),
        ('[corpus]\nfile = "b"\n[train]\npair = true\n', "pair needs a recipe that makes a student"),
        ('[corpus]\nfile = "b"\n[gate]\nmean_fal = 0.1\n', "gate has no key 'mean_fal'; 'mean_fall' is."),
        ('[corpus]\nfile = "b"\n[gates]\n', "the file has no key 'gates'; 'gate' is."),
        ('[corpus]\nfile = "b"\n[folders]\nxyz = 1\n', "folders has no key 'xyz'. There are: models, work."),
        ('[corpus]\nfile = "b"\n[gate]\nslower = 2.0\n', "gate.slower must be from 0 to 1, not 2.0."),
        (
            '[corpus]\nfile = "b"\n[gate]\nrequire = "best"\n',
            "require 'best' is not known; 'better' is. There",
        ),
        ('[corpus]\nfile = "b"\ncollections = ["a"]\n', "`collections` goes with `service`"),
        ('[corpus]\nservice = "b"\ncollections = ["a", "*"]\n', "'*' is no name of one"),
        ('[corpus]\nservice = "b"\ncollections = []\n', "corpus.collections: "),
        ('[corpus]\nfile = "b"\n[train]\nminutes = inf\n', "train.minutes: input should be a finite number"),
        (
            '[corpus]\nfile = "b"\n[events]\nposition_bias = "x"\n',
            "write `estimate` or a number from 0 to 3, not",
        ),
        ('[corpus]\nfile = "b"\n[events]\nposition_bias = 9\n', "a number from 0 to 3, not 9."),
        ('[corpus]\nfile = "b"\n[events]\nvisitors = 0\n', "events.visitors must be from 1 on, not 0."),
        ('[corpus]\nfile = "b"\n[events]\nkeys = 0\n', "events.visitors must be from 1 on, not 0."),
        ('[corpus]\nfile = "b"\n[events]\nvisitors = 2\nkeys = 2\n', "events has no key 'keys'"),
        ("[corpus\n", "is not TOML"),
    ],
)
def test_what_cannot_be_meant_is_refused_by_its_name(tmp_path: Path, text: str, says: str) -> None:
    with pytest.raises(TrainingError) as caught:
        config(tmp_path, text)
    assert says in str(caught.value)


def test_the_visitors_of_a_file_of_before_are_named_keys(tmp_path: Path) -> None:
    for text, visitors in (("", 2), ("visitors = 1", 1), ("keys = 3", 3)):
        assert config(tmp_path, f'[corpus]\nfile = "b"\n[events]\n{text}\n').events.visitors == visitors


def test_a_file_that_is_not_there_is_said(tmp_path: Path) -> None:
    with pytest.raises(TrainingError, match="There is no file"):
        read_config(tmp_path / "none.toml")


@pytest.mark.parametrize(
    ("key", "value"),
    [("cron", "0 0 30 2 *"), ("cron", "every night"), ("cron", "99 * * * *"), ("timezone", "Mars")],
)
def test_a_clock_that_there_is_not_is_refused(tmp_path: Path, key: str, value: str) -> None:
    table = config(tmp_path, f'[corpus]\nfile = "b"\n[schedule]\n{key} = "{value}"\n').schedule
    with pytest.raises(TrainingError, match=r"schedule\.cron"):
        clock(table)


def test_where_speed_is_asked_for_the_limits_that_nobody_gave_are_those_of_a_trade(tmp_path: Path) -> None:
    gate = config(tmp_path, '[corpus]\nfile = "b"\n[gate]\nrequire = "faster"\nown_fall = 0.002\n').gate
    assert (gate.mean_fall, gate.own_fall, gate.set_fall, gate.faster) == (0.01, 0.002, 0.02, 0.8)
    assert config(tmp_path, '[corpus]\nfile = "b"\n').gate.mean_fall == 0.005


def test_a_pair_is_of_a_student_and_may_be_twice_as_large(tmp_path: Path) -> None:
    text = f'[corpus]\nfile = "b"\n[train]\nrecipe = "{{}}"\npair = true\n[folders]\nmodels = "{tmp_path}"\n'
    (tmp_path / "b").touch()
    with pytest.raises(TrainingError, match=r"train\.pair needs a recipe that makes a student"):
        check(config(tmp_path, text.format("pairs")))
    students = config(tmp_path, text.format("distil"))
    check(students)
    assert build_limits(students).larger == 1
    assert build_limits(config(tmp_path, text.format("distil") + "[gate]\nlarger = 0.4\n")).larger == 0.4
    assert build_limits(config(tmp_path, '[corpus]\nfile = "b"\n')).larger == 0.25


Retrain = Callable[..., int]


def documents(count: int = 180) -> str:
    rng = random.Random(1)
    texts = (" ".join(rng.choices(WORDS, k=12)) for _ in range(count))
    rows = ({"id": f"d{at}", "title": text[:20], "text": text} for at, text in enumerate(texts))
    return "".join(json.dumps(row) + "\n" for row in rows)


def config_file(job: Job, corpus: str = 'file = "documents.jsonl"', base: str = "active") -> Path:
    folders: dict[str, Any] = {"models": job.store.root, "work": job.work, "sets": Path(str(job.data))}
    text = tiny_config(corpus, base, **folders, steps=3, batch=8)
    file = job.store.root.parent / "retrain.toml"
    file.write_text(text, encoding="utf-8")
    return file


@pytest.fixture
def retrain(job: Job) -> Retrain:
    """A function that writes the corpus `content`, runs `retrain`, and returns its exit status."""

    def run(content: str | bytes | None = None, name: str = "documents.jsonl", **changed: str) -> int:
        raw = documents() if content is None else content
        (job.store.root.parent / name).write_bytes(raw.encode() if isinstance(raw, str) else raw)
        changed.setdefault("corpus", f'file = "{name}"')
        return main(["retrain", "--config", str(config_file(job, **changed))])

    return run


@pytest.mark.long
def test_held_out_text_judges_and_the_report_tells_of_it(
    job: Job, retrain: Retrain, capsys: pytest.CaptureFixture[str]
) -> None:
    active = job.store.requested()
    assert retrain() == 0
    said = capsys.readouterr()
    assert "is published and requested" in said.out
    assert "Search for a text by its title" in said.out
    version = job.store.requested()
    assert version not in {active, None}
    report = json.loads((job.store.folder(str(version)) / REPORT).read_bytes())
    counts = report["meta"]["documents"]
    assert counts["all"] == 180
    parts = "trained_on", "held_out", "held_out_for_dev", "left_out_as_near_copies"
    assert sum(counts[name] for name in parts) == 180
    assert 36 <= counts["held_out"] <= 72
    assert report["meta"]["corpus_report"]["texts"] == counts["trained_on"]
    assert report["candidate"]["own"]["titles"]["queries"] <= counts["held_out"]
    assert not {"hits", "each"} & report["candidate"]["own"]["titles"].keys()
    assert {row["name"] for row in report["rows"]} >= {"stsb", "own titles", "texts per second", "megabytes"}
    assert [gain["name"] for gain in report["gains"]] == ["own titles", "own known"]
    assert report["meta"]["looks"] == 1
    assert job.store.verify(str(version)).scores["own"].keys() == {"titles", "known"}
    page = (job.store.folder(str(version)) / REPORT_PAGE / "report.md").read_text(encoding="utf-8")
    assert page.startswith(f"# {version}\n\nA right document is first for ".replace("_", r"\_"))
    assert report["summary"][1].startswith("Search for a text by its title: ")
    assert f"**Accepted: not worse than the active version.** Compared with {active}" in page
    assert {*report["changed"]} == {"gained", "lost"}
    [titles] = [row for row in report["rows"] if row["name"] == "own titles"]
    both = f"{titles['active']:.4f} | {titles['candidate']:.4f}"
    assert f"| Search for a text by its title | nDCG@10 | {both} |" in page
    html = (job.store.folder(str(version)) / REPORT_PAGE / "report.html").read_text(encoding="utf-8")
    assert html.count("<svg") == 1
    assert not re.search(r"<(img|link|script)|(src|href)=.?https?:", html), "it needs no other file"
    assert "<td>Search for a text by its title</td>" in html.replace(' style="text-align:left"', "")
    assert re.findall(r"\]\((.*?)\)", page) == ["gains.svg"]
    ET.parse(job.store.folder(str(version)) / REPORT_PAGE / "gains.svg")
    assert f"| uniformity | {report['active']['geometry']['uniformity']:.4f} | " in page
    assert retrain() == 4
    assert "by this recipe" in capsys.readouterr().out
    (job.work / "mine").mkdir()
    [kept] = job.work.glob("*/run")
    assert retrain(documents(190)) == 0
    [other] = job.work.glob("*/run")
    assert other != kept, "runs pile up in the work folder"
    assert (job.work / "mine").is_dir()


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "content", "status", "says"),
    [
        ("long.txt", b"a text\n" + b"x" * 100_000_000 + b"\n", 1, "line 2 is longer than 1 MiB"),
        ("bytes.txt", b"a text\n\xff\xfe\n", 1, "line 2 is not UTF-8"),
        ("broken.jsonl", b'{"text": "x"}\n{"text": \n', 1, "line 2 is not JSON"),
        ("copies.txt", b"the very same line\n" * 1_000_000, 4, "Too few documents: 1; at least 100"),
        ("one.txt", b"one document\n", 4, "Too few documents: 1;"),
        ("blank.txt", b" \n\t\n" * 1000, 4, "holds no text"),
        ("empty.txt", b"", 4, "holds no text"),
    ],
)
def test_text_that_cannot_be_learned_from_ends_well(
    job: Job,
    retrain: Retrain,
    capsys: pytest.CaptureFixture[str],
    name: str,
    content: bytes,
    status: int,
    says: str,
) -> None:
    before = sorted(path.name for path in job.store.root.iterdir())
    assert retrain(content, name) == status
    said = capsys.readouterr()
    assert says in said.out + said.err
    assert "Traceback" not in said.err
    assert sorted(path.name for path in job.store.root.iterdir()) == before


def test_two_at_once_are_one_and_the_other_says_so(
    job: Job, retrain: Retrain, capsys: pytest.CaptureFixture[str]
) -> None:
    held = lock(job.store.root)
    assert held is not None
    assert retrain() == 5
    assert "Another retraining is at work" in capsys.readouterr().err


def test_what_the_file_says_is_not_said_beside_it(job: Job, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["retrain", "--config", str(config_file(job)), "--steps", "3"]) == 1
    assert "--steps goes with no --config" in capsys.readouterr().err
    assert main(["retrain", "--config", str(config_file(job)), "--minutes", "3"]) == 1
    assert "--minutes goes with no --config" in capsys.readouterr().err
    assert main(["retrain", "--corpus", "rows.tsv", "--minutes", "3"]) == 1
    assert "--minutes goes with --from-service" in capsys.readouterr().err


@pytest.mark.long
@needs_mounts
@pytest.mark.parametrize(("options", "says"), [("size=700k", "No space left"), ("ro", "Read-only")])
def test_a_models_folder_that_takes_nothing_more_is_left_as_it_was(job: Job, options: str, says: str) -> None:
    """The models folder is on its own file system, which is read-only or too small for another version."""
    (job.store.root.parent / "documents.jsonl").write_text(documents(), encoding="utf-8")
    room = options if options != "ro" else "size=64m"
    script = f"""
        mkdir /mnt/models && mount -t tmpfs -o {room} tmpfs /mnt/models || exit 99
        cp -a "{job.store.root}/." /mnt/models/ && mount --bind /mnt/models "{job.store.root}" || exit 98
        {f'mount -o remount,ro,bind "{job.store.root}"' if options == "ro" else ":"} || exit 97
        "$@"; status=$?
        ls -A "{job.store.root}"; exit $status
    """
    command = [sys.executable, "-m", "training", "retrain", "--config", str(config_file(job))]
    done = subprocess.run(
        ["unshare", "-m", "sh", "-c", f"mount -t tmpfs tmpfs /mnt; {script}", "sh", *command],
        env=plain_environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1, done
    assert says in done.stderr
    assert "Traceback" not in done.stderr
    left = set(done.stdout.split("\n")) - {"", "judged.json"}  # The file counts comparisons.
    assert left == {path.name for path in job.store.root.iterdir()}


@pytest.mark.parametrize("wrong", [["--steps", "0"], ["--steps", "-1"], ["--seed", "-1"], ["--threads", "0"]])
def test_a_number_that_makes_no_sense_is_wrong_usage(job: Job, tmp_path: Path, wrong: list[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        run(job, tmp_path / "corpus.txt", *wrong)
    assert caught.value.code == 2


def run(job: Job, corpus: Path, *more: str) -> int:
    fixed = "--recipe simcse-unsup --steps 3 --least 2 --precision fp32".split()
    folders = ["--models-dir", str(job.store.root), "--data", str(job.data)]
    return main(["retrain", "--corpus", str(corpus), *fixed, *folders, *more])


def test_the_command_answers_0_3_and_4(
    job: Job, tmp_path: Path, tiny_source: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    corpus = tmp_path / "corpus.txt"
    corpus.write_text("\n".join(job.corpus.texts), encoding="utf-8")
    bad = noised(tmp_path / "bad", tiny_source, 0.5)
    assert run(job, corpus, "--base", str(bad)) == 3
    said = capsys.readouterr().out
    assert "Refused." in said
    assert "is kept, not requested" in said
    assert run(job, corpus) == 0
    assert "is published and requested" in capsys.readouterr().out
    assert run(job, corpus) == 4
    assert "Nothing to learn" in capsys.readouterr().out
    empty = tmp_path / "empty.txt"
    empty.write_text("\n \n")
    assert run(job, empty) == 4


def test_without_an_active_version_or_data_the_command_says_what_is_missing(
    job: Job, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    corpus = tmp_path / "corpus.txt"
    corpus.write_text("\n".join(job.corpus.texts), encoding="utf-8")
    assert run(job, corpus, "--data", str(tmp_path / "nowhere")) == 1
    assert "--data" in capsys.readouterr().err
    (job.store.root / "wanted").unlink()
    assert run(job, corpus) == 1
    assert "no active version" in capsys.readouterr().err
