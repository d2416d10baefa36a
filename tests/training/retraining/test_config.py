"""retrain.toml: what is not given has a default, what is not known is refused by its name."""

from __future__ import annotations

from pathlib import Path

import pytest

from training.errors import TrainingError
from training.retraining.config import Config, check, folders, read_config
from training.retraining.gate.rules import Thresholds
from training.retraining.plan import limits_of
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
    assert folders(found) == (tmp_path / "data/models", tmp_path / "data/retrain")


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
            "gate.require 'best' is not known; 'better' is. There are:",
        ),
        ('[corpus]\nfile = "b"\ncollections = ["a"]\n', "`collections` goes with `service`"),
        ('[corpus]\nservice = "b"\ncollections = ["a", "*"]\n', "'*' is no name of one"),
        ('[corpus]\nservice = "b"\ncollections = []\n', "corpus.collections: "),
        ('[corpus]\nfile = "b"\n[train]\nminutes = inf\n', "train.minutes: input should be a finite number"),
        (
            '[corpus]\nfile = "b"\n[events]\nposition_bias = "x"\n',
            "events.position_bias: write `estimate` or a number from 0 to 3, not 'x'.",
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
    [
        ("cron", "0 0 30 2 *"),
        ("cron", "every night"),
        ("cron", "99 * * * *"),
        ("timezone", "Mars"),
    ],
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
    assert limits_of(students).larger == 1
    assert limits_of(config(tmp_path, text.format("distil") + "[gate]\nlarger = 0.4\n")).larger == 0.4
    assert limits_of(config(tmp_path, '[corpus]\nfile = "b"\n')).larger == 0.25
