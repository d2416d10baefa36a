"""A read that its caller abandons releases its thread."""

import asyncio
import sqlite3
import time
from pathlib import Path

import pytest

from service.store.scheduling import READERS, pause
from service.store.sqlite.documents import count
from service.store.sqlite.reader import Readers
from service.store.sqlite.schema import migrate
from tests.waiting import LIMIT

FOR_EVER = "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n) SELECT count(*) FROM n"


def in_sql(connection: sqlite3.Connection) -> None:
    connection.execute(FOR_EVER).fetchone()


def beside_sql(_: sqlite3.Connection) -> None:
    while True:
        time.sleep(0.01)
        pause()


@pytest.mark.parametrize("endless", [in_sql, beside_sql])
def test_more_abandoned_reads_than_threads_hold_up_nobody(tmp_path: Path, endless: object) -> None:
    path = tmp_path / "simile.db"
    migrate(path)
    documents = Readers(path)

    async def read() -> int:
        for _ in range(2 * READERS):
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.05):
                    await documents.read(endless)  # type: ignore[arg-type]
        await asyncio.gather(*(documents.read(lambda _: pause()) for _ in range(20)))  # None is refused.
        async with asyncio.timeout(LIMIT):
            return await documents.read(count)

    assert asyncio.run(read()) == 0
    documents.close()
