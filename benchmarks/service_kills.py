"""kill -9 the real service, over HTTP: `python -m benchmarks.service_kills --kills 300 --swaps 20`.

A process of the service is written to by several clients: documents one by one and many at once, as JSON and
as NDJSON, updates, deletes by id and by a filter, judgements, in two collections. It is killed at a random
moment and started again, and then held to everything that it answered: each document that was acknowledged is
there with its text, nothing that was deleted is, and both kinds of search find exactly what is stored, each
score made by the version that the answer names. What was in hand and not answered may be there or not, as far
as the contract lets it.

In `--swaps` of the kills a version is being built in the moment of the kill: `GET /models` says `building`,
documents are embedded for it and others are not, and the store says after the kill that the old version was
live and the new one begun. The service must then come to the new version by itself, with every document. What
is killed is the process, not the power.
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

from benchmarks.places import arguments, scratch
from tests.service.process import Service
from tests.service.swapping import QUERIES, TEXTS, Client, Oracle, published

CLIENTS = 4  # the last one writes to a collection of its own
IDS = 60  # of each client
BUILD_RATE = 100  # documents a second, so that a build lasts longer than the look at it
SECONDS = 20.0  # between two words of how far it is
PATIENCE_SECONDS = 120.0
NDJSON = {"content-type": "application/x-ndjson"}

Texts = dict[str, str]  # id to text


class Writer(threading.Thread):
    """A client, until the service is gone. `texts` were acknowledged, `in_hand` was not."""

    def __init__(self, port: int, number: int, texts: Texts, seed: int) -> None:
        super().__init__(daemon=True)
        self.texts = dict(texts)
        self.in_hand: tuple[str, Texts] | None = None
        self.acknowledged = 0
        self.broken: str | None = None
        self._at = path_of(number)
        self.number = number
        self._random = random.Random(seed)
        self._client = httpx2.Client(base_url=f"http://127.0.0.1:{port}", timeout=60, trust_env=False)

    def run(self) -> None:
        try:
            while True:
                self._once()
        except httpx2.TransportError:
            return  # killed
        except Exception as error:  # noqa: BLE001  told by whoever waits for this thread
            self.broken = f"{type(error).__name__}: {error}"
        finally:
            self._client.close()

    def _once(self) -> None:
        kind = self._random.choices(["put", "import", "delete", "filter", "judge"], [8, 3, 3, 1, 1])[0]
        count = self._random.choice([1, 1, 2, 8, 40])
        ids = self._random.sample([f"c{self.number}-{at}" for at in range(IDS)], count)
        changes = {id: self._random.choice(TEXTS) for id in ids}
        if kind == "judge" and not self.texts:
            return
        documents, color = self._documents(changes), self._random.choice(["red", "green"])
        lines = {"content": b"\n".join(map(orjson.dumps, documents)), "headers": NDJSON}
        gone = {id: "" for id, text in self.texts.items() if text.endswith(color)}
        wanted = orjson.dumps({"client": self.number, "color": color}).decode()
        judged = {"query": "red", "id": next(iter(self.texts), ""), "relevant": True}
        asked: dict[str, tuple[Texts, str, str, dict[str, Any]]] = {
            "put": (changes, "POST", "documents", {"json": {"documents": documents}}),
            "import": (changes, "POST", "documents", lines),
            "delete": ({ids[0]: ""}, "DELETE", f"documents/{ids[0]}", {}),
            "filter": (gone, "DELETE", "documents", {"params": {"filter": wanted}}),
            "judge": ({}, "POST", "feedback", {"json": judged}),
        }
        changed, method, path, content = asked[kind]
        self.in_hand = (kind, changed)
        answer = self._client.request(method, f"{self._at}/{path}", **content)
        assert answer.status_code == 200, f"{kind}: {answer.status_code} {answer.text}"
        assert "failed" not in answer.json() or not answer.json()["failed"], answer.text
        self.texts = applied(self.texts, *self.in_hand)
        self.in_hand = None
        self.acknowledged += 1

    def _documents(self, changes: Texts) -> list[dict[str, Any]]:
        return [
            {"id": id, "text": text, "metadata": {"client": self.number, "color": text.split()[-1]}}
            for id, text in changes.items()
        ]

    def settle(self, found: Texts) -> None:
        """Hold `found`, of this client alone, to what was answered.

        Raises:
            AssertionError: it is something else than that, with or without what was in hand.

        """
        if self.in_hand is None:
            assert found == self.texts, difference(found, self.texts)
            return
        kind, changes = self.in_hand
        after = applied(self.texts, kind, changes)
        if kind in {"import", "filter"}:  # in groups or steps: of each document one or the other
            assert all(found.get(id) in {self.texts.get(id), after.get(id)} for id in changes)
            rest = {id: text for id, text in found.items() if id not in changes}
            expected = {id: text for id, text in self.texts.items() if id not in changes}
            assert rest == expected, difference(rest, expected)
        else:
            assert found in (self.texts, after), f"{kind}: {difference(found, self.texts)}"
        self.texts, self.in_hand = found, None


def applied(texts: Texts, kind: str, changes: Texts) -> Texts:
    if kind in {"delete", "filter"}:
        return {id: text for id, text in texts.items() if id not in changes}
    return texts | changes


def difference(found: Texts, expected: Texts) -> str:
    wrong = {id for id in found.keys() | expected.keys() if found.get(id) != expected.get(id)}
    return f"lost or undone: {[(id, expected.get(id), found.get(id)) for id in sorted(wrong)[:5]]}"


def path_of(number: int) -> str:
    return "/collections/other" if number == CLIENTS - 1 else ""


def wait_for(true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not true():
        assert time.monotonic() < deadline, "the service does not come so far"
        time.sleep(0.01)


class Killed:
    """A service that is killed again and again. Its checks raise AssertionError."""

    def __init__(self, folder: Path, seed: int) -> None:
        self._random = random.Random(seed)
        self._versions = published(folder / "models", 3)
        self._oracle = Oracle(folder / "models", self._versions)
        self._texts: list[Texts] = [{} for _ in range(CLIENTS)]
        self.service = Service(folder, SIMILE_BUILD_RATE=str(BUILD_RATE), SIMILE_INDEXED_FIELDS="color")
        self._database = folder / "data/simile.db"
        self._active, self._before = self._versions[:2]
        self.acknowledged = self.kills = self.swaps = self.in_hand = 0

    def round(self, *, swap: bool) -> None:
        """Write, kill, start, look. A swap that was over before the kill does not count as one."""
        writers = [
            Writer(self.service.port, number, texts, self._random.getrandbits(32))
            for number, texts in enumerate(self._texts)
        ]
        for writer in writers:
            writer.start()
        # The version before has its vectors still: only the third must be built.
        [target] = set(self._versions) - {self._active, self._before}
        if swap:
            self._wait_for_documents()
            answer = self.service.client.post(f"/models/{target}/activate")
            assert answer.status_code == 202, answer.text
            self._wait_until_building(target)
        else:
            time.sleep(self._random.uniform(0.0, 0.6))
        self.service.kill()
        for writer in writers:
            writer.join(PATIENCE_SECONDS)
            assert writer.broken is None, writer.broken
            self.acknowledged += writer.acknowledged
            self.in_hand += writer.in_hand is not None
        self.kills += 1
        building = swap and self._building() == target
        self.service.start()
        self._look(writers, {self._active, target} if swap else {self._active})
        self._texts = [writer.texts for writer in writers]
        if swap:
            wait_for(lambda: self.service.client.get("/info").json()["model_version"] == target)
            self._active, self._before = target, self._active
            self._look(writers, {target})
        self.swaps += building

    def _wait_for_documents(self) -> None:
        """A build of few is over before anybody can look."""
        wait_for(lambda: self.service.client.get("/documents/count").json()["count"] >= 2 * IDS)

    def _wait_until_building(self, target: str) -> None:
        """Until some documents are embedded for it; or it is live already, on a machine that stalled."""
        least = self._random.randint(1, IDS)

        def building() -> bool:
            answer = self.service.client.get("/models").json()
            [model] = [model for model in answer["models"] if model["version"] == target]
            assert model["state"] != "failed", model
            some = model["state"] == "building" and least <= (model["done"] or 0) < model["total"]
            return bool(some or answer["active"] == target)

        wait_for(building)

    def _building(self) -> str | None:
        """The version that was being built, with some of its documents, while another was live."""
        connection = sqlite3.connect(self._database)
        row = connection.execute(
            "SELECT version FROM generations WHERE state = 'building' "
            "AND EXISTS (SELECT 1 FROM vectors WHERE generation = number)"
        ).fetchone()
        [active] = connection.execute("SELECT version FROM generations WHERE state = 'active'").fetchone()
        connection.close()
        return row[0] if row and active == self._active else None

    def _look(self, writers: list[Writer], versions: set[str]) -> None:
        """Everything that was answered is there, and found by both kinds of search."""
        for at in {path_of(writer.number) for writer in writers}:
            mine = [writer for writer in writers if path_of(writer.number) == at]
            stored = self._stored(at)
            for writer in mine:
                prefix = f"c{writer.number}-"
                writer.settle({id: text for id, text in stored.items() if id.startswith(prefix)})
            if not stored:
                continue
            client = Client(self.service.port)
            answer, version = client.send("GET", f"{at}/search?k=1000&q={quote(QUERIES[0])}")
            worded, _ = client.send("GET", f"{at}/search?k=1000&mode=lexical&q=red+green")
            client.close()
            assert version == answer["model"]
            assert version in versions, f"{version} is live, and should be one of {versions}"
            self._oracle.check_search(answer)
            for hits in (answer["hits"], worded["hits"]):
                found = {hit["id"]: hit["text"] for hit in hits}
                assert found == stored, difference(found, stored)

    def _stored(self, at: str) -> Texts:
        answer = self.service.client.get(f"{at}/documents", params={"limit": 1000})
        if answer.status_code == 404 and at:  # its first document never came
            return {}
        assert answer.status_code == 200, answer.text
        return {document["id"]: document["text"] for document in answer.json()["documents"]}


def main() -> None:
    parser = arguments("service_kills", __doc__)
    parser.add_argument("--kills", type=int, default=300, help="in all (%(default)s)")
    parser.add_argument("--swaps", type=int, default=20, help="of them inside a swap (%(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="of the moments (%(default)s)")
    options = parser.parse_args()
    began = told = time.monotonic()
    every = max(1, options.kills // max(1, options.swaps))
    with scratch() as folder:
        killed = Killed(folder, options.seed)
        due = 0
        try:
            with killed.service:
                while killed.kills < options.kills or killed.swaps < options.swaps:
                    due += killed.kills % every == every - 1
                    swap = killed.swaps < min(options.swaps, due) or killed.kills >= options.kills
                    killed.round(swap=swap)
                    if time.monotonic() - told > SECONDS:
                        told = time.monotonic()
                        said = f"{killed.kills} kills, {killed.swaps} inside a swap"
                        print(f"{said}, {killed.acknowledged} answered", file=sys.stderr, flush=True)
                status = killed.service.stop()
                assert status == 0, f"it stopped with status {status}"
        except AssertionError as error:
            log = killed.service.log.read_text()[-4000:]
            sys.exit(f"After kill {killed.kills} (seed {options.seed}): {error}\n{log}")
    print(
        f"{killed.kills} kills in {time.monotonic() - began:.0f} s, {killed.swaps} of them while a version "
        f"was being built; {killed.acknowledged} requests were answered, {killed.in_hand} were in hand.\n"
        "Nothing that was answered was lost, both searches found exactly what was stored, no score was of "
        "another version, and each swap was finished after the start."
    )


if __name__ == "__main__":
    main()
