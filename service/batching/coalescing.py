"""Equal texts that are in flight at the same time: one row, the leader, is computed, and the others join it.

Equal are rows of the same name (cache.py), so of one encoder: whoever joins has borrowed it too, and it stays
open whoever else leaves. A leader that is given up hands over to one that joined it. A leader that waits in
the background lane gives its place to an interactive row, and joins that one.

The caller holds the lock of the lanes.
"""

from collections.abc import Iterable, Mapping

from service.batching.lane import FairQueue
from service.batching.request import Item, Lane


class InFlight:
    """By name, the row that waits for a batch or is in one."""

    def __init__(self, lines: Mapping[Lane, FairQueue]) -> None:
        self._lines = lines
        self._rows: dict[bytes, Item] = {}

    def follows(self, row: Item) -> bool:
        """Whether the tokenised `row` has joined another; else it waits itself, and others may join it."""
        if row.name is None:
            return False
        leader = self._rows.setdefault(row.name, row)
        if leader is row:
            return False
        urgent = row.call.lane is Lane.INTERACTIVE and leader.call.lane is not Lane.INTERACTIVE
        if urgent and not leader.taken:
            self._lines[leader.call.lane].withdraw(leader)
            self._lead(row, [leader, *leader.joined])
            return False
        leader.joined.append(row)
        return True

    def give_up(self, row: Item) -> None:
        """Nobody waits for this row any more, which waited for a batch: one that joined it does so now."""
        if row.name is None:
            return
        del self._rows[row.name]
        joined = [other for other in row.joined if not other.call.gone]
        if joined:
            # An interactive one, if there is any; of these the first.
            joined.sort(key=lambda other: other.call.lane is not Lane.INTERACTIVE)
            self._lead(joined[0], joined[1:])
            self._lines[joined[0].call.lane].wait(joined[0])

    def release(self, rows: Iterable[Item]) -> list[list[Item]]:
        """`rows` are done with: each of them with those that joined it. From now on nobody joins them."""
        groups: list[list[Item]] = []
        for row in rows:
            if row.name is not None and self._rows.get(row.name) is row:
                del self._rows[row.name]
            groups.append([row, *row.joined])
            row.joined = []
        return groups

    def _lead(self, row: Item, joined: list[Item]) -> None:
        assert row.name is not None  # noqa: S101  who asks has looked
        self._rows[row.name] = row
        for other in joined:
            other.joined = []
        row.joined = joined
