"""Kills the process of a store repeatedly, and checks the store after each kill."""

import random
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import orjson

from service.store.sql.generations import get_active_number, kept_numbers
from service.store.sqlite.reader import Snapshot
from service.store.sqlite.schema import connect, migrate
from tests.service.killed_snapshots import KilledSnapshots
from tests.service.store_worker import BUILDER, MERGERS, THREADS, parity_of

Texts = dict[str, str]  # the documents of one thread: text by id


def applied(texts: Texts, operation: dict[str, Any]) -> Texts:
    """Returns the documents of a thread after one of its operations."""
    if "put" in operation:
        put: Texts = operation["put"]
        return texts | put
    if "delete" in operation:
        return {id: text for id, text in texts.items() if id != operation["delete"]}
    return {id: text for id, text in texts.items() if parity_of(text) != operation["filter"]}


class Store:
    """The store in `folder`. `check` raises AssertionError if an answered write is missing."""

    def __init__(self, folder: Path, seed: int) -> None:
        self._folder = folder
        self._rng = random.Random(seed)
        self._expected: list[Texts] = [{} for _ in range(THREADS)]
        self._swapped = 0  # the newest acknowledged swap
        self.acknowledged = 0
        self.kinds: dict[str, int] = {}
        self.kills = 0
        self.snapshots = KilledSnapshots(folder, self._rng)
        self.written = 0  # completed snapshots
        self.torn = 0  # kills during a snapshot

    def run_and_kill(self) -> list[dict[str, Any] | None]:
        """Runs a worker for a while and kills it. Returns the unanswered operation of each thread."""
        lines, seconds = self._rng.randrange(1, 150), self._rng.uniform(0.0, 0.01)
        command = [sys.executable, "-m", "tests.service.store_worker", str(self._folder), str(self.kills)]
        log = self._folder / "worker.log"
        with (
            log.open("wb") as complaints,
            subprocess.Popen(command, stdout=subprocess.PIPE, stderr=complaints) as worker,
        ):
            assert worker.stdout is not None
            said = b"".join(worker.stdout.readline() for _ in range(lines))
            time.sleep(seconds)
            worker.kill()
            said += worker.stdout.read()
        self.kills += 1
        assert "Traceback" not in log.read_text(), log.read_text()
        in_hand: list[dict[str, Any] | None] = [None] * THREADS
        writing = 0
        for line in said.split(b"\n")[:-1]:  # The last line may be incomplete.
            word, thread, told = line.split(b" ", 2)
            operation = orjson.loads(told)
            if int(thread) == MERGERS:
                writing += 1 if word == b"try" else -1
                self.written += word == b"ack"
                continue
            if word == b"try":
                in_hand[int(thread)] = operation
                continue
            self.acknowledged += 1
            [kind] = operation
            self.kinds[kind] = self.kinds.get(kind, 0) + 1
            if int(thread) == BUILDER:
                self._swapped = operation["swap"]
            else:
                self._expected[int(thread)] = applied(self._expected[int(thread)], operation)
                in_hand[int(thread)] = None
        self.torn += writing > 0
        return in_hand

    def check(self, in_hand: list[dict[str, Any] | None]) -> None:
        """Checks that answered writes are stored, and unanswered ones completely or not at all."""
        path = self._folder / "simile.db"
        migrate(path)
        connection: Any = connect(path, Snapshot, read_only=True)
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        documents, _ = connection.page("", 10_000, None)
        for thread in range(THREADS):
            found = {
                row.id: orjson.loads(row.text_json) for row in documents if row.metadata["thread"] == thread
            }
            before, operation = self._expected[thread], in_hand[thread]
            allowed = [before] if operation is None else [before, applied(before, operation)]
            assert found in allowed, f"kill {self.kills}, thread {thread}: {operation}"
            assert all(
                row.metadata["odd"] == parity_of(orjson.loads(row.text_json))
                for row in documents
                if row.metadata["thread"] == thread
            )
            self._expected[thread] = found
        serving = get_active_number(connection)
        assert serving >= self._swapped, f"kill {self.kills}: a swap that was answered is undone"
        [active] = connection.execute("SELECT count(*) FROM generations WHERE state = 'active'").fetchone()
        assert active == 1
        for number in kept_numbers(connection):
            self.snapshots.check(connection, number, active=number == serving)
        [orphans] = connection.execute(
            "SELECT count(*) FROM vectors WHERE revision NOT IN (SELECT revision FROM documents) "
            "AND generation IN (SELECT number FROM generations WHERE state <> 'dropped')"
        ).fetchone()
        assert orphans == 0
        connection.close()
