"""Several replicas, as processes of their own, on one database and one models folder."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, cast

import psycopg

from tests import postgres
from tests.service.process import Service, is_ready
from tests.service.replicas.forked import Forge
from tests.service.swapping import QUERIES, Oracle, published
from tests.waiting import until

REPLICAS, VERSIONS = 3, 3
ENVIRONMENT = {
    "SIMILE_WORKERS": "1",
    "SIMILE_GRACE_SECONDS": "600",
    "SIMILE_MAP_DOCUMENTS": "0",
    "OMP_NUM_THREADS": "1",
}


STATES = (
    "replicas",
    "generations",
    "(SELECT generation, count(*), count(taken_by), max(taken_until) FROM lacking GROUP BY 1)",
    "claims",
    "facts",
    "verdicts",
)


class Replica(Service):
    """A replica in its own process. Its data directory is a file, so writing there fails."""

    def __init__(self, folder: Path, models: Path, url: str, **variables: str) -> None:
        folder.mkdir()
        (folder / "models").symlink_to(models)
        (folder / "data").touch()
        super().__init__(folder, None, SIMILE_DATABASE=url, **(ENVIRONMENT | variables))

    def launch(self, forge: Forge | None = None) -> None:
        """Starts the replica. Does not wait until it is ready. A forge makes the start quick."""
        if forge is not None:
            self.process = cast("subprocess.Popen[bytes]", forge.start(self._environment, self.log))
            return
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "service"], env=self._environment, stdout=log, stderr=log
            )

    def end(self) -> None:
        if hasattr(self, "process"):
            self.kill()
        self.client.close()

    @property
    def active(self) -> str:
        version: str = self.client.get("/models").json()["active"]
        return version

    def goes(self) -> bool:
        return self.process.poll() is None and is_ready(self.client)


class Cluster:
    """`REPLICAS` replicas with the same versions, in one models folder or, with `apart`, in one each."""

    def __init__(self, folder: Path, url: str, forge: Forge | None, *, apart: bool, **variables: str) -> None:
        self.url = url
        self.forge = forge
        self.versions = published(folder / "models", VERSIONS)
        self.oracle = Oracle(folder / "models", self.versions)
        assert self.oracle.differ()
        self.replicas = []
        for at in range(REPLICAS):
            models = folder / "models"
            if apart:
                models = folder / f"models-{at}"
                shutil.copytree(folder / "models", models)
            self.replicas.append(Replica(folder / f"replica-{at}", models, url, **variables))

    def start(self) -> None:
        for replica in self.replicas:
            replica.launch(self.forge)
        for replica in self.replicas:
            replica.wait_until_ready()

    def everywhere(self, version: str) -> bool:
        return all(replica.active == version for replica in self.replicas)

    def check_stored(self, expected: Mapping[str, str]) -> None:
        """Checks that every replica lists and finds exactly these documents."""
        for replica in self.replicas:
            assert replica.stored() == expected
            found = replica.client.get("/search", params={"q": QUERIES[0], "mode": "dense", "k": 1000}).json()
            assert {hit["id"]: hit["text"] for hit in found["hits"]} == expected
            self.oracle.check_search(found)

    def ask(self, query: str) -> list[tuple[Any, ...]]:
        """Returns the rows of an SQL query."""
        with psycopg.connect(self.url, autocommit=True) as connection:
            return connection.execute(query.encode()).fetchall()

    def until(self, true: Callable[[], Any]) -> None:
        """Waits until `true()`. A timeout reports the shared tables and all logs."""
        until(
            true, lambda: f"{[self.ask(f'SELECT t::text FROM {table} t') for table in STATES]}\n{self.logs()}"
        )

    def logs(self) -> str:
        return "\n".join(replica.log.read_text() for replica in self.replicas)


@contextmanager
def cluster(
    folder: Path, forge: Forge | None, url: str | None = None, *, apart: bool = False, **variables: str
) -> Iterator[Cluster]:
    """Starts replicas and waits until they are ready.

    `forge` starts them quickly; without it, each is a command. With `apart`, each has its own models folder.
    """
    made = Cluster(folder, url or postgres.new_database(), forge, apart=apart, **variables)
    with ExitStack() as ends:
        for replica in made.replicas:
            ends.callback(replica.end)
        made.start()
        yield made
