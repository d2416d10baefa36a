"""Turns of reads: which of them runs, and how one ends whose caller has left.

READERS reads of clients run at a time. After SLICE_SECONDS the next one in the line goes on. SQL takes turns
by itself (reader.py); any other work calls `pause` between its steps. Both end a read whose deadline passed,
or whose client is gone. Nothing here knows a database.
"""

import contextlib
import threading
import time
from collections import deque
from collections.abc import Iterator

from service.store.answers import Share

READERS = 4
SLICE_SECONDS = 0.025


class Abandoned(Exception):
    """Nobody waits for this read any more."""


class Turns:
    """READERS reads run, the others stand in a line."""

    def __init__(self, count: int = READERS) -> None:
        self._lock = threading.Lock()
        self._free = count
        self._line: deque[Turn] = deque()

    @property
    def waiting(self) -> int:
        """Reads in the line."""
        return len(self._line)

    def join(self, turn: "Turn") -> bool:
        """Give `turn` a free place at once, or put it at the end of the line. True: at once."""
        with self._lock:
            if turn.abandoned:
                return False
            if self._free:
                self._free -= 1
                turn.held = True
            else:
                turn.comes.clear()
                self._line.append(turn)
            return turn.held

    def leave(self, turn: "Turn") -> None:
        """Hand the place of `turn` to the first in the line."""
        with self._lock:
            if not turn.held:
                return
            turn.held = False
            if not self._line:
                self._free += 1
                return
            following = self._line.popleft()
            following.held = True
            following.comes.set()

    def abandon(self, turn: "Turn") -> None:
        """Take `turn` out of the line, if it stands there, and wake its thread."""
        with self._lock:
            turn.abandoned = True
            with contextlib.suppress(ValueError):  # it does not stand there yet, or no more
                self._line.remove(turn)
            turn.comes.set()


class Turn:
    """A read. `turns` is None for the service's own, which never waits."""

    def __init__(self, turns: Turns | None, share: Share | None = None) -> None:
        """share: what counts the bytes that are read for an answer; None: nothing does."""
        self._turns = turns
        self.share = share
        self.abandoned = False
        self.held = False
        self.comes = threading.Event()
        self._since = 0.0

    def begin(self) -> None:
        """Wait for a turn. Raises Abandoned."""
        if self._turns is not None and not self.abandoned and not self._turns.join(self):
            self.comes.wait()
        if self.abandoned:
            raise Abandoned
        self._since = time.monotonic()

    def end(self) -> None:
        """Let the next one go on."""
        if self._turns is not None:
            self._turns.leave(self)

    def abandon(self) -> None:
        """Nobody waits for this read any more; called from any thread."""
        if self._turns is None:
            self.abandoned = True
        else:
            self._turns.abandon(self)

    def pause(self) -> None:
        """Let others run, when this read has had its slice. Raises Abandoned."""
        if self.abandoned:
            raise Abandoned
        turns = self._turns
        if turns is None or not self.held or not turns.waiting:
            return
        if time.monotonic() - self._since < SLICE_SECONDS:
            return
        self.end()
        self.begin()

    def progress(self) -> bool:
        """SQLite's progress handler. True ends the statement."""
        try:
            self.pause()
        except Abandoned:
            return True
        return False


current = threading.local()  # `turn`: the read of this thread


def pause() -> None:
    """Let other reads run, or end this one; for a read between its steps outside of SQL.

    Raises:
        Abandoned: its caller has left.

    """
    turn: Turn | None = getattr(current, "turn", None)
    if turn is not None:
        turn.pause()


def reads(count: int) -> None:
    """So many bytes are about to be read, and held until their answer is sent.

    Raises:
        Overloaded: with those of other answers they are too many.

    """
    turn: Turn | None = getattr(current, "turn", None)
    if turn is not None and turn.share is not None:
        turn.share.add(count)


@contextlib.contextmanager
def resting() -> Iterator[None]:
    """A read that waits for another one in this block: it keeps no turn, or the other might never get one.

    Raises:
        Abandoned: its caller has left.

    """
    turn: Turn | None = getattr(current, "turn", None)
    if turn is None:
        yield
        return
    turn.end()
    try:
        yield
    finally:
        turn.begin()
