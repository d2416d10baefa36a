"""Every reason that makes `/ready` red. docs/OPERATIONS.md says what each means and what to do about it."""

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from service.lifecycle.controller import Following
from service.runtime.index_keeper import IndexKeeper
from service.runtime.watchdog import Watchdog
from service.store.protocol import Store


class Reason(Enum):
    """The reasons in the order of their checks, each with its messages. `…` stands for text that differs."""

    STOPPING = ("The service is stopping.",)
    UNWELL = ("Not well: …",)
    CHANGED_STORE = (
        "The database lacks …",
        "simile.db is not as Simile needs it: …",
        "A newer Simile has changed …",
    )
    LOST_DATABASE = ("This replica has lost touch with the database…",)
    BEHIND = ("… went live, and this replica is still opening it. Send again.",)
    INCOMPLETE = ("Not ready yet: …",)


class NotReady(NamedTuple):
    reason: Reason
    message: str


@dataclass(frozen=True, slots=True)
class Readiness:
    """Tells whether the service accepts new work.

    Args:
        stops: Returns whether a stop signal came.
        watchdog: Knows whether workers hang or the writer thread has died.
        documents: Knows whether its tables are as they should be, and whether the database can be reached.
        following: Knows whether another process has activated a version that is not open here.
        index: Knows whether the active index holds every document.

    """

    stops: Callable[[], bool]
    watchdog: Watchdog
    documents: Store
    following: Following
    index: IndexKeeper

    def check(self) -> NotReady | None:
        """Returns why the service accepts no new work, or None if it does."""
        illness, index = self.watchdog.illness, self.index
        messages = {
            Reason.STOPPING: "The service is stopping." if self.stops() else None,
            Reason.UNWELL: None if illness is None else f"Not well: {illness}.",
            Reason.CHANGED_STORE: self.documents.damage,
            Reason.LOST_DATABASE: self.documents.lost,
            Reason.BEHIND: self.following.behind,
            Reason.INCOMPLETE: None if index.is_complete else f"Not ready yet: {index.progress}.",
        }
        found = (NotReady(reason, message) for reason, message in messages.items() if message is not None)
        return next(found, None)
