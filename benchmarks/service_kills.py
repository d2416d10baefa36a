"""Kill a running service with SIGKILL again and again, and check that it loses no acknowledged write.

    python -m benchmarks.service_kills --kills 300 --swaps 20

Several clients write to the service: single documents and batches, as JSON and NDJSON, updates, deletes by id
and by filter, and judgments, in two collections. The service is killed at a random moment and started again.

After each start, acknowledged documents must exist with their texts, and deleted documents must not. Dense
and keyword search must find exactly the stored documents, with the scores of the version that the response
names. An operation that was in flight at the kill may or may not have happened, as the API documents.

`--swaps` is the number of kills while the service builds a new version. At such a kill, `GET /models` reports
`building`, and some documents are embedded for the new version. After the kill, the old version must still be
active. The service must then activate the new version without further requests, with all documents. Only the
process is killed, so the benchmark does not test a power failure.
"""

import random
import sqlite3
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx2
import orjson

from benchmarks.command import build_parser, progress, scratch_folder
from tests.service.process import Service
from tests.service.swapping import QUERIES, TEXTS, Client, Oracle, published

CLIENTS = 4  # the last one writes to a collection of its own
IDS = 60  # of each client
BUILD_RATE = 100  # documents a second, so that a build takes longer than a look at it
PROGRESS_SECONDS = 20.0
PATIENCE_SECONDS = 120.0
NDJSON = {"content-type": "application/x-ndjson"}

Texts = dict[str, str]  # id to text


class Writer(threading.Thread):
    """A client that writes until the service is killed.

    Attributes:
        texts: Texts of this client's documents by id, as the service has acknowledged them.
        in_flight: Kind and changed texts of the operation that the service has not answered yet.
        acknowledged: Number of answered requests.
        error: An error that the kill did not cause.

    """

    def __init__(self, port: int, number: int, texts: Texts, seed: int) -> None:
        super().__init__(daemon=True)
        self.texts = dict(texts)
        self.in_flight: tuple[str, Texts] | None = None
        self.acknowledged = 0
        self.error: str | None = None
        self._prefix = collection_path(number)
        self.number = number
        self._random = random.Random(seed)
        self._client = httpx2.Client(base_url=f"http://127.0.0.1:{port}", timeout=60, trust_env=False)

    def run(self) -> None:
        """Send requests until the connection breaks."""
        try:
            while True:
                self._send()
        except httpx2.TransportError:
            return  # the service was killed
        except Exception as error:  # noqa: BLE001  reported by the thread that joins this one
            self.error = f"{type(error).__name__}: {error}"
        finally:
            self._client.close()

    def _send(self) -> None:
        kind = self._random.choices(["put", "import", "delete", "filter", "judge"], [8, 3, 3, 1, 1])[0]
        count = self._random.choice([1, 1, 2, 8, 40])
        ids = self._random.sample([f"c{self.number}-{at}" for at in range(IDS)], count)
        changes = {id: self._random.choice(TEXTS) for id in ids}
        if kind == "judge" and not self.texts:
            return
        documents, color = self._documents(changes), self._random.choice(["red", "green"])
        lines = {"content": b"\n".join(map(orjson.dumps, documents)), "headers": NDJSON}
        deleted = {id: "" for id, text in self.texts.items() if text.endswith(color)}
        condition = orjson.dumps({"client": self.number, "color": color}).decode()
        judgment = {"query": "red", "id": next(iter(self.texts), ""), "relevant": True}
        requests: dict[str, tuple[Texts, str, str, dict[str, Any]]] = {
            "put": (changes, "POST", "documents", {"json": {"documents": documents}}),
            "import": (changes, "POST", "documents", lines),
            "delete": ({ids[0]: ""}, "DELETE", f"documents/{ids[0]}", {}),
            "filter": (deleted, "DELETE", "documents", {"params": {"filter": condition}}),
            "judge": ({}, "POST", "feedback", {"json": judgment}),
        }
        changed, method, path, content = requests[kind]
        self.in_flight = (kind, changed)
        response = self._client.request(method, f"{self._prefix}/{path}", **content)
        assert response.status_code == 200, f"{kind}: {response.status_code} {response.text}"
        assert "failed" not in response.json() or not response.json()["failed"], response.text
        self.texts = apply(self.texts, *self.in_flight)
        self.in_flight = None
        self.acknowledged += 1

    def _documents(self, changes: Texts) -> list[dict[str, Any]]:
        return [
            {"id": id, "text": text, "metadata": {"client": self.number, "color": text.split()[-1]}}
            for id, text in changes.items()
        ]

    def settle(self, found: Texts) -> None:
        """Compare the stored documents `found` with the acknowledged documents of this client.

        Raises:
            AssertionError: The documents differ by more than the operation in flight.

        """
        if self.in_flight is None:
            assert found == self.texts, difference(found, self.texts)
            return
        kind, changes = self.in_flight
        after = apply(self.texts, kind, changes)
        if kind in {"import", "filter"}:  # not atomic: each document has either state
            assert all(found.get(id) in {self.texts.get(id), after.get(id)} for id in changes)
            rest = {id: text for id, text in found.items() if id not in changes}
            expected = {id: text for id, text in self.texts.items() if id not in changes}
            assert rest == expected, difference(rest, expected)
        else:
            assert found in (self.texts, after), f"{kind}: {difference(found, self.texts)}"
        self.texts, self.in_flight = found, None


def apply(texts: Texts, kind: str, changes: Texts) -> Texts:
    """Return the texts by id as they are after an operation."""
    if kind in {"delete", "filter"}:
        return {id: text for id, text in texts.items() if id not in changes}
    return texts | changes


def difference(found: Texts, expected: Texts) -> str:
    """Describe the first documents that differ, with id, expected text and found text."""
    wrong = {id for id in found.keys() | expected.keys() if found.get(id) != expected.get(id)}
    return f"lost or undone: {[(id, expected.get(id), found.get(id)) for id in sorted(wrong)[:5]]}"


def collection_path(number: int) -> str:
    """Return the path of the collection that a client writes to."""
    return "/collections/other" if number == CLIENTS - 1 else ""


def wait_for(condition: Callable[[], bool]) -> None:
    """Wait until a condition is true. Raises AssertionError after a time limit."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        assert time.monotonic() < deadline, f"the service did not get there in {PATIENCE_SECONDS:.0f} seconds"
        time.sleep(0.01)


class KilledService:
    """A service that the benchmark kills and checks repeatedly. A failed check raises AssertionError."""

    def __init__(self, folder: Path, seed: int) -> None:
        self._random = random.Random(seed)
        self._versions = published(folder / "models", 3)
        self._oracle = Oracle(folder / "models", self._versions)
        self._texts: list[Texts] = [{} for _ in range(CLIENTS)]
        self.service = Service(folder, SIMILE_BUILD_RATE=str(BUILD_RATE), SIMILE_INDEXED_FIELDS="color")
        self._database = folder / "data/simile.db"
        self._active, self._previous = self._versions[:2]
        self.acknowledged = self.kills = self.swaps = self.in_flight = 0

    def round(self, *, swap: bool) -> None:
        """Write to the service, kill it, start it again, and check the documents.

        If `swap` is set, the kill happens during a swap. A swap that ended before the kill does not count.
        """
        writers = [
            Writer(self.service.port, number, texts, self._random.getrandbits(32))
            for number, texts in enumerate(self._texts)
        ]
        for writer in writers:
            writer.start()
        # The previous version still has its vectors, so only the third version must be built.
        [target] = set(self._versions) - {self._active, self._previous}
        if swap:
            wait_for(lambda: self.service.client.get("/documents/count").json()["count"] >= 2 * IDS)
            response = self.service.client.post(f"/models/{target}/activate")
            assert response.status_code == 202, response.text
            self._wait_until_building(target)
        else:
            time.sleep(self._random.uniform(0.0, 0.6))
        self.service.kill()
        for writer in writers:
            writer.join(PATIENCE_SECONDS)
            assert writer.error is None, writer.error
            self.acknowledged += writer.acknowledged
            self.in_flight += writer.in_flight is not None
        self.kills += 1
        building = swap and self._version_being_built() == target
        self.service.start()
        self._check(writers, {self._active, target} if swap else {self._active})
        self._texts = [writer.texts for writer in writers]
        if swap:
            wait_for(lambda: self.service.client.get("/info").json()["model_version"] == target)
            self._active, self._previous = target, self._active
            self._check(writers, {target})
        self.swaps += building

    def _wait_until_building(self, target: str) -> None:
        """Wait until some documents are embedded for the version `target`, or `target` is already active."""
        least = self._random.randint(1, IDS)

        def building() -> bool:
            answer = self.service.client.get("/models").json()
            [model] = [model for model in answer["models"] if model["version"] == target]
            assert model["state"] != "failed", model
            some = model["state"] == "building" and least <= (model["done"] or 0) < model["total"]
            return bool(some or answer["active"] == target)

        wait_for(building)

    def _version_being_built(self) -> str | None:
        """Return the version for which the store has some vectors, but which is not active yet."""
        connection = sqlite3.connect(self._database)
        row = connection.execute(
            "SELECT version FROM generations WHERE state = 'building' "
            "AND EXISTS (SELECT 1 FROM vectors WHERE generation = number)"
        ).fetchone()
        [active] = connection.execute("SELECT version FROM generations WHERE state = 'active'").fetchone()
        connection.close()
        return row[0] if row and active == self._active else None

    def _check(self, writers: list[Writer], versions: set[str]) -> None:
        """Check that dense and keyword search find all acknowledged documents in the store."""
        for prefix in {collection_path(writer.number) for writer in writers}:
            stored = self._stored(prefix)
            for writer in writers:
                if collection_path(writer.number) == prefix:
                    own = f"c{writer.number}-"
                    writer.settle({id: text for id, text in stored.items() if id.startswith(own)})
            if not stored:
                continue
            client = Client(self.service.port)
            answer, version = client.send("GET", f"{prefix}/search?k=1000&q={quote(QUERIES[0])}")
            lexical, _ = client.send("GET", f"{prefix}/search?k=1000&mode=lexical&q=red+green")
            client.close()
            assert version == answer["model"]
            assert version in versions, f"{version} is active, and should be one of {versions}"
            self._oracle.check_search(answer)
            for hits in (answer["hits"], lexical["hits"]):
                found = {hit["id"]: hit["text"] for hit in hits}
                assert found == stored, difference(found, stored)

    def _stored(self, prefix: str) -> Texts:
        response = self.service.client.get(f"{prefix}/documents", params={"limit": 1000})
        if response.status_code == 404 and prefix:  # the collection has no document yet
            return {}
        assert response.status_code == 200, response.text
        return {document["id"]: document["text"] for document in response.json()["documents"]}


def main() -> None:
    parser = build_parser("service_kills", __doc__)
    parser.add_argument("--kills", type=int, default=300, help="in total (%(default)s)")
    parser.add_argument("--swaps", type=int, default=20, help="of them during a build (%(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="of the moments (%(default)s)")
    options = parser.parse_args()
    began = reported = time.monotonic()
    every = max(1, options.kills // max(1, options.swaps))
    with scratch_folder() as folder:
        killed = KilledService(folder, options.seed)
        due = 0
        try:
            with killed.service:
                while killed.kills < options.kills or killed.swaps < options.swaps:
                    due += killed.kills % every == every - 1
                    swap = killed.swaps < min(options.swaps, due) or killed.kills >= options.kills
                    killed.round(swap=swap)
                    if time.monotonic() - reported > PROGRESS_SECONDS:
                        reported = time.monotonic()
                        counts = f"{killed.kills} kills, {killed.swaps} during a build"
                        progress(f"{counts}, {killed.acknowledged} requests answered")
                status = killed.service.stop()
                assert status == 0, f"the service stopped with status {status}"
        except AssertionError as error:
            log = killed.service.log.read_text()[-4000:]
            sys.exit(f"After kill {killed.kills} (seed {options.seed}): {error}\n{log}")
    print(
        f"{killed.kills} kills in {time.monotonic() - began:.0f} s, {killed.swaps} of them while a version "
        f"was being built. {killed.acknowledged} requests were answered, {killed.in_flight} were in flight.\n"
        "No answered operation was lost, both searches found exactly the stored documents, no score was by "
        "another version, and each swap was completed after the start."
    )


if __name__ == "__main__":
    main()
