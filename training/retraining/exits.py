"""Print the outcome of a command, and return the exit status."""

from __future__ import annotations

import argparse
from collections.abc import Callable

from models.progress import to_stderr
from training.errors import Busy, Interrupted, NothingToLearn
from training.retraining.gate.verdict import as_text
from training.retraining.publication import Outcome

REFUSED, NOTHING, BUSY, STOPPED = 3, 4, 5, 130


def finish(work: Callable[[argparse.Namespace], int], options: argparse.Namespace) -> int:
    """Runs a command. Returns its exit status.

    If it raises NothingToLearn, Busy or Interrupted, prints the reason, and returns the status for that
    error.
    """
    try:
        return work(options)
    except NothingToLearn as error:
        print(f"Nothing to learn: {error}")  # noqa: T201  the answer of the command
        return NOTHING
    except Busy as error:
        to_stderr(str(error))
        return BUSY
    except Interrupted as stopped:
        again = "The same command goes on." if options.config else "With --config a run is kept."
        to_stderr(f"{stopped} {again}")
        return STOPPED


def tell(outcome: Outcome) -> int:
    """Prints the outcome of a retraining and returns the exit status."""
    if outcome.verdict is not None:
        print(as_text(outcome.verdict))  # noqa: T201  the answer of the command
    if outcome.published:
        print(f"{outcome.version} is published and requested. Undo: simile models rollback")  # noqa: T201
        return 0
    kept = f"{outcome.version} is kept, not requested" if outcome.version else "nothing was published"
    print(f"Refused, and {kept}: {outcome.reason}")  # noqa: T201
    return REFUSED
