"""A loss that is next to nothing from the start ends a run: there is nothing to learn."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.training.conftest import Run
from tests.training.run_cases import command, events
from training.__main__ import main
from training.errors import NothingToLearn
from training.methods.catalogue import load_recipe
from training.retraining.one import Job
from training.runs.alarms import LOOK, SATURATED, Saturation
from training.text.corpus import Corpus

# Without dropout both views are one vector, and so small a tau makes much of any difference of texts.
SIMCSE = load_recipe("simcse-unsup")
EASY = {"dropout": 0.0, "objectives": [{"name": "info_nce", "tau": 0.001}]}


@pytest.mark.parametrize("steps", [LOOK, 1000])
def test_only_a_run_whose_first_steps_are_all_easy_is_ended(steps: int) -> None:
    easy = Saturation(SIMCSE, steps)
    for number in range(1, LOOK):
        easy.seen(number, SATURATED / 2)
    with pytest.raises(NothingToLearn, match=r"The loss was 0\.005 at most in the first 10 steps: "):
        easy.seen(LOOK, SATURATED / 3)


@pytest.mark.parametrize("hard", [1, 5, LOOK])
def test_one_step_that_has_something_to_learn_lets_a_run_go_on(hard: int) -> None:
    watched = Saturation(SIMCSE, 1000)
    for number in range(1, 500):
        watched.seen(number, SATURATED if number == hard else 0.0)


def test_a_loss_that_falls_later_has_taught_something() -> None:
    watched = Saturation(SIMCSE, 1000)
    for number in range(1, 1000):
        watched.seen(number, 2.0 if number < 5 else 1e-6)


def test_a_shorter_run_is_looked_at_whole() -> None:
    watched = Saturation(SIMCSE, 2)
    watched.seen(1, 0.0)
    with pytest.raises(NothingToLearn, match="first 2 steps"):
        watched.seen(2, 0.0)


@pytest.mark.parametrize("name", ["distil-hybrid", "tsdae", "mlm", "diffcse", "simcse-unsup-mlm"])
def test_a_small_loss_of_another_kind_or_beside_one_says_nothing(name: str) -> None:
    watched = Saturation(load_recipe(name), 1000)
    for number in range(1, 500):
        watched.seen(number, 0.0)


def test_a_saturated_run_ends_and_its_record_says_so(run: Run, tmp_path: Path) -> None:
    with pytest.raises(NothingToLearn, match="the model tells these texts apart already"):
        run("out", steps=40, recipe=load_recipe("simcse-unsup", EASY))
    [said] = events(tmp_path / "out", "saturated")
    assert (said["step"], said["loss"] < SATURATED) == (10, True)
    assert not (tmp_path / "out" / "last").exists()
    assert run("other", steps=12).finished, "the recipe as it is has something to learn"


def test_the_commands_say_it_in_a_sentence(
    job: Job, tiny_source: Path, corpus: Corpus, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    changed = ["--set", "dropout=0.0", "--set", 'objectives=[{ name = "info_nce", tau = 0.001 }]']
    assert main(command(tmp_path, tiny_source, corpus, "--steps", "40", *changed)) == 1
    said = capsys.readouterr().err
    assert "python -m training: The loss was" in said
    assert "as crops, ict or pairs" in said
    before = [manifest.version for manifest in job.store.versions()]
    given = ["retrain", "--recipe", "simcse-unsup", "--corpus", str(tmp_path / "corpus.txt")]
    given += ["--models-dir", str(job.store.root)]
    given += ["--data", str(job.data), "--least", "2", "--steps", "40", "--precision", "fp32", *changed]
    assert main(given) == 4
    assert capsys.readouterr().out.startswith("Nothing to learn: The loss was")
    assert [manifest.version for manifest in job.store.versions()] == before
