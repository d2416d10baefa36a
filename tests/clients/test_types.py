"""`simile_client` has the types of its frameworks, which are Any to `make check`."""

import subprocess
import sys

from tests.parts.served import ROOT


def test_the_integrations_are_typed() -> None:
    command = [sys.executable, "-m", "mypy", "--strict", "--explicit-package-bases", "simile_client"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
