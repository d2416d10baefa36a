"""kill -9 at any moment loses no acknowledged operation."""

from pathlib import Path

import pytest

from service.index import maintenance
from tests.service.kills import Store
from tests.service.store_worker import BASE_ROWS

KILLS = 40


@pytest.mark.long
def test_kills_lose_no_answered_operation_and_leave_the_index_equal_to_the_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(maintenance, "BASE_ROWS", BASE_ROWS)
    store = Store(tmp_path, seed=5)
    for _ in range(KILLS):
        in_hand = store.run_and_kill()
        store.check(in_hand)
    assert store.acknowledged > 15 * KILLS, "too few operations for the kills to mean anything"
    assert set(store.kinds) == {"put", "delete", "filter", "swap"}
    assert store.written > KILLS, "too few snapshots"
    assert store.torn, "no snapshot was being written when the process was killed"
    snapshots = store.snapshots
    assert min(snapshots.used, snapshots.refused, snapshots.hurt) > 0
