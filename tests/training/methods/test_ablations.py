"""Options of a recipe reproduce the ablations of the SimCSE paper."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.tiny import ROUNDING
from tests.training.recipe_cases import raw_source
from tests.training.run_cases import command, events
from tests.training.world_process import recipe_of, trainer_for
from training.__main__ import main
from training.arguments import changes
from training.errors import TrainingError
from training.methods.objectives import Reps
from training.runs.step import Trainer
from training.text.corpus import Corpus


def contrasted(trainer: Trainer, step: int = 0) -> Reps:
    """Runs a step, and returns the input of its first objective."""
    seen: list[Reps] = []
    hook = trainer._objectives[0].register_forward_pre_hook(lambda _, given: seen.append(given[0]))
    trainer.step(step)
    hook.remove()
    return seen[0]


def reps_of(folder: Path, *given: str) -> Reps:
    recipe = recipe_of("simcse-unsup", changes(["dropout=0.1", *given]))
    return contrasted(trainer_for(raw_source(folder), recipe))


def apart(z: Tensor) -> float:
    """Returns the largest absolute difference between vectors of the first and of the second view."""
    return (z[:, 0] - z[:, 1]).abs().max().item()


def test_one_mask_for_both_views_makes_them_equal_though_dropout_is_on(tmp_path: Path) -> None:
    two = reps_of(tmp_path / "a")
    one = reps_of(tmp_path / "b", "fixed_mask=true")
    none = reps_of(tmp_path / "c", "dropout=0.0")
    assert apart(two.z) > 1e-3
    assert apart(one.z) < 5 * ROUNDING  # components reach 5
    assert apart(none.z) < 5 * ROUNDING
    assert (one.z[:, 0] - none.z[:, 0]).abs().max() > 1e-3, "there is a mask"
    assert (one.z[0] - one.z[1]).abs().max() > 1e-3


def test_one_mask_is_another_one_in_the_next_step(tmp_path: Path) -> None:
    recipe = recipe_of(
        "simcse-unsup", {"dropout": 0.1, "fixed_mask": True, "optim.lr": 1e-9, "optim.batch": 11}
    )
    trainer = trainer_for(raw_source(tmp_path / "raw"), recipe)
    first, second = contrasted(trainer, 0), contrasted(trainer, 1)
    order = [second.texts[:, 0].tolist().index(text) for text in first.texts[:, 0].tolist()]
    assert (first.z[:, 0] - second.z[order, 0]).abs().max() > 1e-3


def test_each_view_draws_a_rate_for_each_place_with_dropout_and_computes_with_it(tmp_path: Path) -> None:
    """S-SimCSE: the share of zeros after a dropout module shows its rate. Attention does not call its own."""
    changed = {"dropouts": [0.05, 0.3, 0.6], "optim.lr": 1e-9, "optim.batch": 11}
    trainer = trainer_for(raw_source(tmp_path / "raw"), recipe_of("s-simcse", changed))
    places = [module for module in trainer.encoder.modules() if isinstance(module, nn.Dropout)]
    zeros: list[tuple[float, float]] = []
    rates: list[list[float]] = []
    for place in places:
        place.register_forward_hook(
            lambda module, _, out: zeros.append((module.p, (out == 0).float().mean().item()))
        )
    trainer.encoder.register_forward_hook(lambda *_: rates.append([place.p for place in places]))
    for number in (0, 1, 0):
        trainer.step(number)
    first, second, *_ = rates
    assert len(rates) == 6, "two views of three steps, each by a forward of its own"
    assert all(len(set(view)) > 1 for view in rates), "one for each place, and not one for all"
    assert first != second
    assert rates[2:4] != rates[:2], "the next step draws others"
    assert rates[4:] == rates[:2], "the step's number decides"
    assert len(zeros) >= 6 * (len(places) - 2), "all but those of the two layers' attention are called"
    assert all(found == pytest.approx(p, abs=0.07) for p, found in zeros)


def test_a_second_view_may_be_cropped_or_lose_a_word(tmp_path: Path) -> None:
    whole = reps_of(tmp_path / "a")
    lengths = whole.views[0].lengths
    assert torch.equal(whole.views[1].lengths, lengths)
    kept = reps_of(tmp_path / "b", 'views=["same", { name = "crop", keep = 0.67 }]')
    assert torch.equal(kept.views[0].lengths, lengths)
    assert torch.equal(kept.views[1].lengths, lengths - 1)  # two of three words
    one_less = reps_of(tmp_path / "c", 'views=["same", { name = "delete", rate = 0.0 }]')
    assert torch.equal(one_less.views[1].lengths, lengths - 1)
    torch.testing.assert_close(whole.texts, one_less.texts)


def test_a_run_of_the_command_records_its_changes(tmp_path: Path, tiny_source: Path, corpus: Corpus) -> None:
    views = 'views=["same",{name="crop",keep=0.9}]'
    given = ["--set", "fixed_mask=true", "--set", views, "--set", "optim.lr=1e-4"]
    assert main(command(tmp_path, tiny_source, corpus, "--steps", "1", *given)) == 0
    (start,) = events(tmp_path / "out", "start")
    assert start["described"]["fixed_mask"] is True
    assert start["described"]["views"] == [{"name": "same", "aside": False}, {"name": "crop", "keep": 0.9}]
    assert start["described"]["optim"]["lr"] == 1e-4
    assert start["method"] == "simcse-unsup"


@pytest.mark.parametrize("given", ["dropout", "=0.1", "dropout=", "pool=cls", "views=[", " = 1"])
def test_a_change_that_is_no_toml_is_refused_as_it_was_written(given: str) -> None:
    with pytest.raises(TrainingError, match="is not KEY=VALUE with a TOML value") as refused:
        changes([given])
    assert repr(given) in str(refused.value)


def test_changes_are_read_in_their_order(tmp_path: Path) -> None:
    found: dict[str, Any] = changes(["a=1", 'b="x=y"', "a=2", "c.d=[1, 2]"])
    assert found == {"a": 2, "b": "x=y", "c.d": [1, 2]}
