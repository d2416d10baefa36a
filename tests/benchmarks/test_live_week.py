"""An unattended week: nights publish rankings, users click, and only the better rankings become active."""

from pathlib import Path

import pytest

from benchmarks.live_test import click
from benchmarks.live_week import simulate_week
from models.publishing.publish import publish
from models.store import ModelStore
from tests.tiny import tiny_source


@pytest.mark.long
def test_after_a_week_the_right_versions_are_active(tmp_path: Path) -> None:
    store = ModelStore(tmp_path / "models")
    base = publish(store, tiny_source(tmp_path / "source")).version
    ended, active = simulate_week(tmp_path, store, base, click)
    assert {one.night: one.result["state"] for one in ended} == {
        "worse": "rejected",
        "better": "accepted",
        "worse again": "rejected",
        "much worse": "rejected",
        "as good": "rejected",
        "better, and waits": "accepted",
    }
    assert active == ended[-1].version
    says = [one.result["says"] for one in ended]
    assert says[1].endswith("decided searches, so it was activated.")
    assert says[-2].endswith("and was rejected. 28 days of searches did not show that it is better.")
