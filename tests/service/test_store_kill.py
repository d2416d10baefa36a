"""kill -9 at any moment loses nothing that was answered."""

import random
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

from service.documents import DEFAULT_COLLECTION, page, vectors
from service.index import Index
from service.rows import row_of
from service.schema import connect, migrate
from tests.service.store_worker import DIMENSION, GENERATION, THREADS, vector_of

KILLS = 40


def run_and_kill(folder: Path, seed: int, lines: int, seconds: float) -> list[list[str]]:
    """What the worker said, word by word; it is killed some `seconds` after so many `lines`."""
    with subprocess.Popen(
        [sys.executable, "-m", "tests.service.store_worker", str(folder), str(seed)], stdout=subprocess.PIPE
    ) as worker:
        assert worker.stdout is not None
        said = b"".join(worker.stdout.readline() for _ in range(lines))
        time.sleep(seconds)
        worker.kill()
        said += worker.stdout.read()
    words = [line.split(" ") for line in said.decode().split("\n")]
    return [line for line in words if len(line) == 4]  # the last line may be torn


def follow(said: list[list[str]], expected: dict[str, str], in_hand: dict[str, str]) -> None:
    """Bring `expected` to what was answered; `in_hand` are the writes that were not answered."""
    trying: dict[str, tuple[str, str]] = {}
    for word, thread, id, text in said:
        if word == "try":
            trying[thread] = (id, text)
        else:
            expected[id] = text
            trying.pop(thread, None)
    in_hand.update(trying.values())
    assert len(trying) <= THREADS


def test_forty_kills_lose_no_answered_write_and_leave_the_index_equal_to_the_store(tmp_path: Path) -> None:
    rng = random.Random(5)
    expected: dict[str, str] = {}
    acknowledged = 0
    for seed in range(KILLS):
        said = run_and_kill(tmp_path, seed, rng.randrange(1, 150), rng.uniform(0.0, 0.01))
        acknowledged += sum(line[0] == "ack" for line in said)
        in_hand: dict[str, str] = {}
        follow(said, expected, in_hand)

        migrate(tmp_path / "simile.db")
        connection = connect(tmp_path / "simile.db", read_only=True)
        documents, _ = page(connection, "", 10_000, None)
        stored = {document.id: document.text for document in documents}
        for id in expected.keys() | stored.keys() | in_hand.keys():
            found = stored.get(id, "-")
            allowed = {expected.get(id, "-")} | ({in_hand[id]} if id in in_hand else set())
            assert found in allowed, f"kill {seed}: {id}"
        expected = dict(stored)  # what was in hand is settled now

        damaged: list[int] = []
        index = Index.load(DIMENSION, vectors(connection, GENERATION, DIMENSION, damaged, DEFAULT_COLLECTION))
        assert damaged == []
        texts = dict(connection.execute("SELECT revision, text FROM documents").fetchall())
        np.testing.assert_array_equal(index.revisions(), sorted(texts))
        for revision, text in texts.items():
            np.testing.assert_array_equal(index.vectors([row_of(revision)])[0], vector_of(text))
        orphans = connection.execute(
            "SELECT count(*) FROM vectors WHERE revision NOT IN (SELECT revision FROM documents)"
        ).fetchone()[0]
        assert orphans == 0
        index.close()
        connection.close()
    assert acknowledged > 15 * KILLS, "too few writes for the kills to mean anything"
