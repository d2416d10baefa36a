"""Runs commands of the service as processes."""

import subprocess
import sys

from tests.service.process import plain_environment
from tests.waiting import LIMIT


def run(*arguments: object, given: bytes | None = None, **variables: str) -> subprocess.CompletedProcess[str]:
    """Runs `python -m service` with stdin `given` and settings `variables`. A traceback fails the test."""
    done = subprocess.run(
        [sys.executable, "-m", "service", *map(str, arguments)],
        input=given,
        env=plain_environment(**variables),
        capture_output=True,
        timeout=LIMIT,
        check=False,
    )
    said = done.stdout.decode(), done.stderr.decode()
    assert "Traceback" not in said[1], said[1]
    return subprocess.CompletedProcess(done.args, done.returncode, *said)
