"""Run the suites one after the other and print a table: `make test-all`.

    python -m tests.suites [SUITE …]      default: all of them

The table names the reason for a suite that this machine cannot run. Exit status 0: no suite failed.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
OUTCOME = re.compile(r"(\d+) (passed|failed|skipped|errors?)\b")
REQUESTS = re.compile(
    r"([\d,]+) requests in all; every promise was kept"
)  # the closing line of test-contract


class Row(NamedTuple):
    suite: str
    passed: str
    failed: str
    skipped: str
    minutes: str


def no_chromium() -> str | None:
    return None if shutil.which("chromium") else "needs Chromium (Debian: apt-get install chromium)"


def no_docker() -> str | None:
    """Returns why no Docker engine can be used. None if an engine answers or DOCKER_ENGINE starts one."""
    if os.environ.get("DOCKER_ENGINE"):
        return None
    if shutil.which("docker") is None:
        return "needs Docker"
    done = subprocess.run(["docker", "info"], capture_output=True, check=False)
    return "needs a Docker engine (DOCKER_ENGINE=SCRIPT starts one)" if done.returncode else None


def no_data() -> str | None:
    return None if os.environ.get("SIMILE_EVAL_DATA") else "needs evaluation sets (SIMILE_EVAL_DATA)"


# By suite: a function that returns why this machine cannot run the suite, or None.
SUITES: dict[str, Callable[[], str | None]] = {
    "test": lambda: None,
    "test-postgres": lambda: None,
    "test-long": lambda: None,
    "test-evaluation": no_data,
    "test-ui": no_chromium,
    "test-clients": lambda: None,
    "test-bulk": lambda: None,
    "test-contract": lambda: None,
    "test-deploy": lambda: None,
    "test-docker": no_docker,
    "test-release": lambda: None,
}


def run(suite: str) -> Row:
    """Runs one suite through make and shows its output as it comes.

    Returns:
        The suite's row of the table. If it runs pytest several times, the counts are added.

    """
    began = time.monotonic()
    counts = {"passed": 0, "failed": 0, "skipped": 0, "error": 0}
    process = subprocess.Popen(
        ["make", "--no-print-directory", suite],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    )
    assert process.stdout is not None
    for line in process.stdout:
        print(line, end="", flush=True)
        if requests := REQUESTS.search(line):
            counts["passed"] += int(requests[1].replace(",", ""))
        elif line.startswith("=") or re.match(r"\d+ (passed|failed)", line):  # pytest's closing line
            for number, outcome in OUTCOME.findall(line):
                counts[outcome.removesuffix("s") if outcome == "errors" else outcome] += int(number)
    status = process.wait()
    failed = counts["failed"] + counts["error"]
    if status and not failed:
        failed = 1  # The suite ended before pytest counted failures.
    minutes = f"{(time.monotonic() - began) / 60:.1f}"
    return Row(suite, str(counts["passed"]), str(failed), str(counts["skipped"]), minutes)


def main(names: list[str]) -> int:
    unknown = set(names) - set(SUITES)
    if unknown:
        sys.exit(f"There is no suite {min(unknown)!r}. Choose from: {', '.join(SUITES)}.")
    rows: list[Row] = []
    reasons: dict[str, str] = {}
    for suite in names or SUITES:
        reason = SUITES[suite]()
        if reason is not None:
            reasons[suite] = reason
            rows.append(Row(suite, "-", "-", "-", "-"))
            continue
        print(f"\n=== make {suite}", flush=True)
        rows.append(run(suite))
    header = Row("suite", "passed", "failed", "skipped", "minutes")
    print()
    for row in (header, *rows):
        counts = "".join(f"{each:>9}" for each in row[1:])
        print(f"{row.suite:16}{counts}  {reasons.get(row.suite, '')}".rstrip())
    return int(any(row.failed not in {"0", "-"} for row in rows))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
