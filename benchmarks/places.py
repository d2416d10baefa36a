"""Where benchmarks work and leave their figures, and how they say what they are at."""

import sys

from benchmarks.workloads import PROJECT

SCRATCH = PROJECT / ".benchmarks"  # on the checkout's own disk
RESULTS = PROJECT / "benchmarks" / "results" / "latest.json"


def say(progress: str) -> None:
    print(f"bench: {progress} …", file=sys.stderr, flush=True)
