"""The wait policy of training's threads, as OpenMP itself tells it."""

import os
import subprocess
import sys

import pytest


@pytest.mark.long
@pytest.mark.parametrize(("given", "policy"), [({}, "PASSIVE"), ({"OMP_WAIT_POLICY": "active"}, "ACTIVE")])
def test_threads_sleep_at_a_barrier_unless_a_user_decides_otherwise(
    given: dict[str, str], policy: str
) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "OMP_WAIT_POLICY"}
    told = subprocess.run(
        [sys.executable, "-c", "import training, torch"],
        env=environment | {"OMP_DISPLAY_ENV": "true"} | given,
        capture_output=True,
        text=True,
        check=True,
    ).stderr
    assert f"OMP_WAIT_POLICY = '{policy}'" in told
