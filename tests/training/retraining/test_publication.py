"""A candidate is wanted unless a person chose another version meanwhile."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from models.store import REQUESTED, Kind, Store
from tests.service.swapping import published
from training.retraining.publication import want


@pytest.fixture
def three(tmp_path: Path) -> tuple[Store, list[str]]:
    """The first of three versions is live."""
    versions = published(tmp_path / "models", 3)
    store = Store(tmp_path / "models")
    store.write_state({"live": versions[0]})
    return store, versions


@pytest.mark.parametrize("state", [None, {"state": "building", "reason": None}, {"state": "retired"}])
def test_what_a_person_activated_is_not_overridden_while_it_is_built(
    three: tuple[Store, list[str]], state: dict[str, str] | None
) -> None:
    store, (live, chosen, candidate) = three
    store.want(chosen, "activate")
    store.write_state({"live": live, "versions": {chosen: state} if state else {}})
    outcome = want(store, live, candidate, None)
    assert not outcome.published
    assert outcome.reason == (
        f"{chosen} was activated by hand and is about to go live; it was compared with {live}."
    )
    assert store.wanted() == chosen


@pytest.mark.parametrize(
    ("kind", "state"),
    [
        ("activate", {"state": "failed", "reason": "onnx/model.onnx is missing"}),
        ("activate", {"state": "retired", "reason": "rolled back from"}),
        ("want", {"state": "ready", "reason": None}),
    ],
)
def test_one_that_failed_and_one_that_a_retraining_published_are_no_obstacle(
    three: tuple[Store, list[str]], kind: Kind, state: dict[str, str | None]
) -> None:
    store, (live, chosen, candidate) = three
    store.want(chosen, kind)
    asked = store.desired()
    assert asked is not None
    store.write_state({"live": live, "versions": {chosen: state}, REQUESTED: asked.id})
    os.utime(store.root / "wanted", (2**33, 2**33))  # by a machine whose clock is ahead
    assert want(store, live, candidate, None).published
    assert store.wanted() == candidate


def test_what_the_state_says_is_older_than_the_decision_of_a_person(
    three: tuple[Store, list[str]],
) -> None:
    """The service is stopped, or has not looked yet: it will honour the decision."""
    store, (live, chosen, candidate) = three
    left = {chosen: {"state": "retired", "reason": "rolled back from"}}
    store.write_state({"live": live, "versions": left})
    store.want(chosen, "activate")
    os.utime(store.root / "wanted", (1, 1))  # by a machine whose clock is behind
    assert not want(store, live, candidate, None).published
    assert store.wanted() == chosen


def test_a_search_of_what_a_person_activated_goes_with_it(three: tuple[Store, list[str]]) -> None:
    store, (_, chosen, candidate) = three
    store.want(chosen, "activate")
    assert want(store, chosen, candidate, None).published
