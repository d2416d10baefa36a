"""The mark of a `copy` that has not ended. No service uses a marked store, and no backup is made of it."""

from service.store.sql.connection import Connection
from service.store.sql.facts import fact

COPYING = "copy under way"  # the fact: the version and the form of the vectors that are copied
START_OVER = "--start-over"
NONE_THERE = f"The target holds no unfinished copy, so {START_OVER} does not empty it."


def problem(connection: Connection, store: str) -> str | None:
    """Why the store cannot be used, as a sentence; None without the mark.

    Args:
        connection: Of the store.
        store: What the sentence calls it.

    """
    copied = fact(connection, COPYING)
    if copied is None:
        return None
    return (
        f"{store} holds an unfinished copy of {copied.partition(' ')[0]}, so documents may be missing. Run "
        f"the same `python -m service copy` again to finish it, or with {START_OVER} to begin again."
    )
