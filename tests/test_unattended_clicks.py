"""Clicks of people and agents, and a night of training, improve search also for questions that are new.

The service and `simile rank` are separate processes. Users search for two words. The answer has both words as
its title, but keyword search prefers shorter texts that repeat the words.
"""

import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from mcp.client.client import Client

from service.auth.keys import UNTRUSTED, Role
from service.cli.keys import add
from tests.service.agents.calling import call, over_http
from tests.service.process import Service, plain_environment
from tests.service.swapping import WORDS
from tests.waiting import LIMIT, until

pytestmark = [pytest.mark.long, pytest.mark.sqlite("the store does not matter")]
pytest.importorskip("torch", reason="needs the extra train")

PAIRS = [(first, second) for at, first in enumerate(WORDS) for second in WORDS[at + 1 :]]
QUERIES = [f"{first} {second}" for first, second in PAIRS]
KNOWN, NEW, HOSTILE = QUERIES[0:80:2], QUERIES[1:80:2], QUERIES[80]
OTHERS = ("opens", "runs", "number", "account", "reset")
VISITORS = ("ann", "ben", "cem")


def documents() -> list[dict[str, str]]:
    found = []
    for at, (first, second) in enumerate(PAIRS):
        text = f"{first} {second} sleeps and {OTHERS[at % len(OTHERS)]} with the {OTHERS[at % 3]}"
        found.append({"id": answer_of(QUERIES[at]), "title": f"{first} {second}", "text": text})
        for copy in range(3):
            text = f"{second} {first} {second} {OTHERS[copy]} {first} {second} {first}"
            found.append({"id": f"other {at} {copy}", "text": text})
    return found


def answer_of(query: str) -> str:
    return f"answer {query}"


class Place:
    """A service with keys of an admin, of a page with visitors, of two agents, and an untrusted one."""

    def __init__(self, service: Service, keys: dict[str, str]) -> None:
        self.service = service
        self.keys = keys
        service.client.headers["authorization"] = f"Bearer {keys['admin']}"

    def search(self, query: str, **options: str) -> list[dict[str, Any]]:
        answer = self.service.client.get("/search", params={"q": query, "k": "10", "fields": "", **options})
        assert answer.status_code == 200, answer.text
        hits: list[dict[str, Any]] = answer.json()["hits"]
        return hits

    def rank(self, query: str) -> float:
        """Returns 1 / position of the answer on the first page, or 0."""
        ids = [hit["id"] for hit in self.search(query)]
        return 1 / (ids.index(answer_of(query)) + 1) if answer_of(query) in ids else 0.0

    def mean(self, queries: Sequence[str]) -> float:
        return sum(map(self.rank, queries)) / len(queries)

    def click(self, key: str, user: str, query: str, id: str, times: int = 1) -> None:
        """Repeats `times` times: a visitor searches, sees the first page, and clicks the hit `id`."""
        headers = {"authorization": f"Bearer {self.keys[key]}"}
        for _ in range(times):
            answer = self.service.client.get("/search", params={"q": query, "user": user}, headers=headers)
            shown = [hit["id"] for hit in answer.json()["hits"]]
            event = {"search_id": answer.json()["search_id"], "query": query, "id": id, "type": "click"}
            stored = self.service.client.post(
                "/events", json=event | {"user": user, "shown": shown}, headers=headers
            )
            assert stored.json()["stored"] == 1, stored.text

    def use(self, key: str, queries: Sequence[str], times: int = 1) -> None:
        """Repeats `times` times: an agent searches for each query, reads its answer, and cites it."""

        async def run(client: Client) -> None:
            for query in [*queries] * times:
                found = await call(client, "search", query=query)
                found |= {"id": answer_of(query)}
                assert found["id"] in {each["id"] for each in found["documents"]}
                named = {"id": found["id"], "search_id": found["search_id"]}
                assert (await call(client, "read_document", **named))["event_stored"]
                assert (await call(client, "give_feedback", query=query, relevant=True, **named))["stored"]

        over_http(self.service, run, self.keys[key])

    def list_senders(self) -> set[tuple[str, str, str]]:
        """Returns key, hash of the visitor and type of all stored events."""
        found, after = set(), 0
        while True:
            page = self.service.client.get("/events", params={"after": after}).json()
            found |= {(each["key"], each["user"], each["type"]) for each in page["events"]}
            if page["next"] is None:
                return found
            after = page["next"]

    def night(self) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "simile", "rank", "--threads", "1"]
        command += ["--from-service", str(self.service.client.base_url)]
        command += ["--models-dir", str(self.service.folder / "models")]
        done = subprocess.run(
            command,
            env=plain_environment(SIMILE_SERVICE_KEY=self.keys["admin"]),
            capture_output=True,
            text=True,
            timeout=LIMIT,
            check=False,
        )
        assert "Traceback" not in done.stderr, done.stderr
        return done

    def wait_for_ranking(self, done: subprocess.CompletedProcess[str]) -> None:
        """Waits until the service serves the version that a night has published."""
        assert done.returncode == 0, done.stdout + done.stderr
        published = max(path.name for path in (self.service.folder / "models").glob("2*"))
        info = "/info"
        until(lambda: self.service.client.get(info).json()["model_version"] == published, lambda: done.stdout)


@pytest.fixture
def place(tmp_path: Path, tiny_models_dir: Path) -> Iterator[Place]:
    file = tmp_path / "keys"
    keys = {
        "admin": add(file, "admin", Role.ADMIN),
        "page": add(file, "page", Role.WRITE),
        "agent": add(file, "agent", Role.WRITE),
        "second agent": add(file, "second-agent", Role.WRITE),
        "public": add(file, "public", Role.WRITE, trust=UNTRUSTED),
    }
    with Service(tmp_path, tiny_models_dir, SIMILE_API_KEYS_FILE=str(file)) as service:
        found = Place(service, keys)
        response = service.client.post("/documents", json={"documents": documents()})
        assert response.status_code == 200, response.text
        yield found


def test_clicks_improve_the_search_for_questions_that_nobody_has_asked(place: Place) -> None:
    first = place.search(HOSTILE)
    spam = first[7]["id"]
    for user in ("one", "two", "three"):
        place.click("public", user, HOSTILE, spam, times=2)
    place.click("page", "mallory", HOSTILE, spam, times=6)
    done = place.night()
    assert done.returncode == 4, done.stdout + done.stderr
    assert "0 clicked answers are remembered in default" in done.stderr + done.stdout
    assert place.search(HOSTILE) == first, "an untrusted key and a single visitor change nothing"

    known, new = place.mean(KNOWN), place.mean(NEW)
    clicked = [query for query in KNOWN if place.rank(query)]
    assert len(clicked) >= 30, "too few answers are on the first page"
    for query in clicked:
        for user in VISITORS:
            place.click("page", user, query, answer_of(query))
    place.wait_for_ranking(place.night())
    assert all(place.rank(query) == 1 for query in clicked)
    assert place.mean(KNOWN) > known
    assert place.mean(NEW) > new + 0.2, f"{new:.2f} before"
    ids = [hit["id"] for hit in place.search(HOSTILE)]
    assert spam not in ids[:1]

    erased, client = clicked[0], place.service.client
    assert place.search(erased, mode="hybrid", explain="true")[0]["features"]["memory_best"] > 0
    for user in VISITORS:
        assert client.delete("/events", params={"user": user, "collection": "*"}).status_code == 200
    assert place.night().returncode == 4
    hits = place.search(erased, mode="hybrid", explain="true")
    assert all(hit["features"]["memory_best"] == 0 for hit in hits), "erased visitors are forgotten"


def test_a_night_learns_from_agents_together_with_people_and_never_from_agents_alone(place: Place) -> None:
    known, new = place.mean(KNOWN), place.mean(NEW)
    used = [query for query in KNOWN if place.rank(query)]
    assert len(used) >= 30, "too few answers are on the first page"
    before = {query: place.search(query) for query in QUERIES}
    place.use("agent", used, times=2)
    place.use("second agent", used, times=2)
    agents = place.list_senders()
    assert {(key, type) for key, _, type in agents} == {
        (key, type) for key in ("agent", "second-agent") for type in ("open", "convert")
    }
    [agent] = {user for _, user, _ in agents}
    assert agent
    done = place.night()
    said = done.stdout + done.stderr
    assert done.returncode == 4, said
    assert f"{len(used)} single visitor" in said
    assert "0 clicked answers are remembered in default" in said
    assert {query: place.search(query) for query in QUERIES} == before, "agents alone change nothing"

    for query in used:
        place.click("page", "ann", query, answer_of(query))
    [(key, person, _)] = place.list_senders() - agents
    assert (key, person == agent) == ("page", False)
    place.wait_for_ranking(place.night())
    assert all(place.rank(query) == 1 for query in used)
    assert place.mean(KNOWN) > known
    assert place.mean(NEW) > new + 0.2, f"{new:.2f} before"
