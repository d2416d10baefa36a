"""Compares the whole service with a dictionary and numpy, over steps that Hypothesis chooses.

The steps put, change and delete documents, search, restart and swap the model. Each run has the same
sequences.
"""

import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pytest
from hypothesis import HealthCheck, Phase, settings, strategies
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test
from starlette.testclient import TestClient

from service.app import create_app
from service.settings import Settings
from service.store.sqlite import filter_cache
from tests.service.conftest import HOST, wait_until_ready
from tests.service.swapping import QUERIES, TEXTS, Oracle, published
from tests.waiting import until

EXAMPLES, STEPS = 12, 40
TOLERANCE = 1e-5

Metadata = dict[str, Any]
ids = strategies.sampled_from([f"d{at}" for at in range(12)] + ["é/?", " "])
texts = strategies.sampled_from(TEXTS[:40])
metadata = strategies.fixed_dictionaries(
    {},
    optional={
        "n": strategies.integers(0, 4),
        "tag": strategies.sampled_from(["a", "b", ["a", "c"]]),
        "on": strategies.booleans(),
    },
)


def tags(metadata: Metadata) -> list[str]:
    tag = metadata.get("tag", [])
    return tag if isinstance(tag, list) else [tag]


# Each filter, and a Python function that tells whether metadata match.
FILTERS: list[tuple[Metadata, Callable[[Metadata], bool]]] = [
    ({"n": 1}, lambda m: m.get("n") == 1),
    ({"n": {"$gte": 2, "$lt": 4}}, lambda m: m.get("n") in {2, 3}),
    ({"on": True}, lambda m: m.get("on") is True),
    ({"tag": "a"}, lambda m: "a" in tags(m)),
    ({"tag": {"$in": ["b", "c"]}}, lambda m: bool({"b", "c"} & set(tags(m)))),
    ({"tag": {"$exists": False}}, lambda m: "tag" not in m),
    ({"n": {"$ne": 0}}, lambda m: m.get("n") != 0),
    (
        {"$or": [{"n": 0}, {"$and": [{"on": False}, {"tag": "b"}]}]},
        lambda m: m.get("n") == 0 or (m.get("on") is False and "b" in tags(m)),
    ),
]
filters = strategies.sampled_from(FILTERS)


class Service(RuleBasedStateMachine):
    """A service, and the documents that it must have: (text, metadata) by id."""

    models: Path  # with two versions; copied for each run
    oracle: Oracle
    versions: list[str]

    def __init__(self) -> None:
        super().__init__()
        self.documents: dict[str, tuple[str, Metadata]] = {}
        self.folder = Path(tempfile.mkdtemp())
        self.active = 0  # index into `versions`
        shutil.copytree(self.models, self.folder / "models")
        self.open()

    def open(self) -> None:
        chosen = Settings(
            data_dir=self.folder / "data", models_dir=self.folder / "models", cache_mb=0, allowed_hosts=HOST
        )
        self.client = TestClient(create_app(chosen))
        self.client.__enter__()
        wait_until_ready(self.client)

    def teardown(self) -> None:
        self.client.__exit__(None, None, None)
        shutil.rmtree(self.folder)

    def put(self, documents: list[tuple[str, str, Metadata]]) -> None:
        sent = [{"id": id, "text": text, "metadata": metadata} for id, text, metadata in documents]
        answer = self.client.post("/documents", json={"documents": sent})
        assert (answer.status_code, answer.json()["upserted"]) == (200, len(sent))
        self.documents |= {id: (text, metadata) for id, text, metadata in documents}

    @initialize(documents=strategies.lists(strategies.tuples(ids, texts, metadata), min_size=5, max_size=15))
    def begin(self, documents: list[tuple[str, str, Metadata]]) -> None:
        self.put(documents)

    @rule(id=ids, text=texts, metadata=metadata)
    def put_one(self, id: str, text: str, metadata: Metadata) -> None:
        self.put([(id, text, metadata)])

    @rule(documents=strategies.lists(strategies.tuples(ids, texts, metadata), min_size=1, max_size=6))
    def import_some(self, documents: list[tuple[str, str, Metadata]]) -> None:
        lines = [
            orjson.dumps({"id": id, "text": text, "metadata": metadata}) for id, text, metadata in documents
        ]
        headers = {"content-type": "application/x-ndjson"}
        answer = self.client.post("/documents", content=b"\n".join(lines), headers=headers)
        assert (answer.json()["upserted"], answer.json()["failed"]) == (len(documents), 0)
        self.documents |= {id: (text, metadata) for id, text, metadata in documents}

    @rule(id=ids, metadata=metadata)
    def change_metadata(self, id: str, metadata: Metadata) -> None:
        if id in self.documents:
            self.put([(id, self.documents[id][0], metadata)])

    @rule(id=ids)
    def delete(self, id: str) -> None:
        answer = self.client.request("DELETE", self.client.base_url.join(f"/documents/{quoted(id)}"))
        assert answer.json()["deleted"] == (1 if self.documents.pop(id, None) else 0)

    @rule(chosen=filters)
    def delete_by_filter(self, chosen: tuple[Metadata, Callable[[Metadata], bool]]) -> None:
        condition, passes = chosen
        gone = [id for id, (_, metadata) in self.documents.items() if passes(metadata)]
        answer = self.client.delete("/documents", params={"filter": orjson.dumps(condition).decode()})
        assert answer.json()["deleted"] == len(gone)
        for id in gone:
            del self.documents[id]

    @rule(
        query=strategies.sampled_from(QUERIES),
        k=strategies.integers(1, 20),
        chosen=strategies.none() | filters,
    )
    def search(self, query: str, k: int, chosen: tuple[Metadata, Callable[[Metadata], bool]] | None) -> None:
        passes = chosen[1] if chosen is not None else lambda metadata: True
        body: Metadata = {"queries": [query], "k": k, "mode": "dense"}
        answer = self.client.post("/search", json=body | ({"filter": chosen[0]} if chosen else {})).json()
        assert answer["model"] == self.versions[self.active]
        known = self.oracle.of(answer["model"])
        scores = {
            id: float(known[text] @ known[query])
            for id, (text, metadata) in self.documents.items()
            if passes(metadata)
        }
        [hits] = answer["results"]
        assert len({hit["id"] for hit in hits}) == len(hits) == min(k, len(scores))
        best = sorted(scores.values(), reverse=True)[:k]
        np.testing.assert_allclose([hit["score"] for hit in hits], best, atol=TOLERANCE)
        for hit in hits:
            assert abs(hit["score"] - scores[hit["id"]]) < TOLERANCE
            assert (hit["text"], hit["metadata"]) == self.documents[hit["id"]]

    @rule()
    def restart(self) -> None:
        self.client.__exit__(None, None, None)
        self.open()

    @rule()
    def swap(self) -> None:
        self.active = 1 - self.active
        self.client.post(f"/models/{self.versions[self.active]}/activate").raise_for_status()
        until(lambda: self.client.get("/models").json()["active"] == self.versions[self.active])

    @invariant()
    def all_is_there(self) -> None:
        found = self.client.get("/documents", params={"limit": 1000}).json()["documents"]
        assert [document["id"] for document in found] == sorted(self.documents)
        assert {row["id"]: (row["text"], row["metadata"]) for row in found} == self.documents


def quoted(id: str) -> str:
    return id.replace("/", "%2F").replace("?", "%3F").replace(" ", "%20")


@pytest.mark.long
def test_the_service_does_what_a_dictionary_and_numpy_would(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(filter_cache, "SLOW_SECONDS", 0.0)  # The cache keeps the matches of every filter.
    monkeypatch.setattr(Service, "versions", published(tmp_path / "models", 2), raising=False)
    monkeypatch.setattr(Service, "models", tmp_path / "models", raising=False)
    monkeypatch.setattr(Service, "oracle", Oracle(tmp_path / "models", Service.versions), raising=False)
    steps = settings(
        max_examples=EXAMPLES,
        stateful_step_count=STEPS,
        deadline=None,
        derandomize=True,
        phases=[Phase.generate],  # Shrinking a failure would take minutes.
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    run_state_machine_as_test(Service, settings=steps)
