"""The way back is quick while it is warm and exact when it is cold; and what fails stays failed."""

import hashlib
import json
import sqlite3
import time
from pathlib import Path
from typing import Any

import pytest

from models.manifest import FILE_NAME
from models.search.content import Content
from service.corpus.corpus import Corpus
from service.lifecycle.builder import HARMLESS
from service.live import Generation
from service.store.sql import generations, methods
from service.store.sqlite import vectors
from service.store.sqlite.store import SqliteStore
from tests.service.lifecycle.test_swap import DOCUMENTS, Place
from tests.service.swapping import TEXTS, published


@pytest.fixture
def place(tmp_path: Path) -> Place:
    published(tmp_path / "models", 3)
    return Place(tmp_path)


@pytest.mark.long
def test_a_rollback_within_the_grace_embeds_no_document_and_takes_a_moment(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    embed = Corpus.embed
    embedded: list[str] = []

    async def noted(
        self: Corpus, generation: Generation, documents: list[Content], collections: list[str]
    ) -> Any:
        embedded.extend(document.text for document in documents)
        return await embed(self, generation, documents, collections)

    monkeypatch.setattr(Corpus, "embed", noted)
    taken, expected = [], dict(DOCUMENTS)
    with place.serving() as client:
        place.fill()
        for at in range(5):
            place.activate(place.b)
            place.until(lambda: place.app.state.runtime.controller.swap is None)
            expected[f"since-{at}"] = TEXTS[80 + at]
            new = {"id": f"since-{at}", "text": TEXTS[80 + at]}
            client.post("/documents", json={"documents": [new]})
            place.until_followed()
            client.delete(f"/documents/d{at}")
            del expected[f"d{at}"]
            embedded.clear()
            begin = time.monotonic()
            assert client.post("/models/rollback").json() == {"wanted": place.a}
            while place.active() != place.a:
                time.sleep(0.001)
            taken.append(time.monotonic() - begin)
            assert embedded == [HARMLESS.text], "it follows every write, and needs one forward pass only"
            assert place.everything() == expected
    print(f"rollbacks within the grace: {', '.join(f'{1000 * seconds:.0f}' for seconds in taken)} ms")
    assert min(taken) < 0.4, "it waited for the watcher's next look"


@pytest.mark.long
def test_a_cold_version_is_caught_up_before_it_serves(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("service.lifecycle.controller.LINGER_SECONDS", 0.1)
    with place.serving(grace_seconds=0.1, build_rate=60) as client:
        place.fill()
        place.activate(place.b)
        place.until(lambda: place.app.state.runtime.live.followers == ())
        more = {f"since-{at}": TEXTS[100 + at] for at in range(20)}
        body = {"documents": [{"id": id, "text": text} for id, text in more.items()]}
        client.post("/documents", json=body)
        client.post("/documents", json={"documents": [{"id": "d1", "text": TEXTS[150]}]})
        client.delete("/documents/d2")
        expected = DOCUMENTS | more | {"d1": TEXTS[150]}
        del expected["d2"]
        release = place.hold(monkeypatch, place.a, 12)  # of twenty-one
        client.post("/models/rollback")
        place.until(lambda: bool(place.state(place.a)["done"]))
        assert place.active() == place.b
        seen = [place.state(place.a)["done"]]
        assert place.everything() == expected
        release.set()
        while place.active() != place.a:
            assert place.everything() == expected, "a search saw an index that is not whole"
            seen.append(place.state(place.a)["done"])
        assert place.everything() == expected
        assert min(done for done in seen if done) >= 58, "it did not begin with its stored vectors"


def test_a_version_that_gives_other_vectors_than_it_was_published_with_fails_and_stays_failed(
    place: Place,
) -> None:
    folder = place.store.root / place.b
    golden = json.loads((folder / "golden.json").read_bytes())
    golden["vectors"][0][0] += 0.01
    (folder / "golden.json").write_text(json.dumps(golden))
    manifest = json.loads((folder / FILE_NAME).read_bytes())
    manifest["files"]["golden.json"] = hashlib.sha256((folder / "golden.json").read_bytes()).hexdigest()
    (folder / FILE_NAME).write_text(json.dumps(manifest))
    reason = "differs from the published vector"
    with place.serving() as client:
        place.fill()
        place.store.want(place.b)
        place.until(lambda: place.state(place.b)["state"] == "failed")
        assert reason in place.state(place.b)["reason"]
        time.sleep(1.2)
        assert 'simile_swaps_total{outcome="failed"} 1.0' in client.get("/metrics").text, "tried again"
        assert place.active() == place.a
    with place.serving() as client:
        place.until(lambda: reason in (place.state(place.b)["reason"] or ""))
        time.sleep(1.2)
        assert 'simile_swaps_total{outcome="failed"} 0.0' in client.get("/metrics").text, "tried again"
        client.post(f"/models/{place.b}/activate")  # a decision is one more attempt
        place.until(lambda: 'outcome="failed"} 1.0' in client.get("/metrics").text)
        assert place.everything() == DOCUMENTS


@pytest.mark.parametrize("step", ["begin", "go_live"])
@pytest.mark.sqlite("a full disk is injected into its writer")
def test_a_disk_that_is_full_at_the_first_or_the_last_step_is_waited_for(
    place: Place, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    monkeypatch.setattr("service.lifecycle.swap.RETRY_SECONDS", 0.05)
    work: Any = {"begin": generations.begin, "go_live": vectors.swap}[step]
    failures = 0

    def full(*arguments: Any, **named: Any) -> Any:
        nonlocal failures
        if failures < 3:
            failures += 1
            error = sqlite3.OperationalError("database or disk is full")
            error.sqlite_errorcode = sqlite3.SQLITE_FULL
            raise error
        return work(*arguments, **named)

    with place.serving() as client:
        place.fill()
        monkeypatch.setattr(SqliteStore, step, methods.writing(full))
        place.activate(place.b)
        assert failures == 3
        assert place.everything() == DOCUMENTS
        assert 'simile_swaps_total{outcome="failed"} 0.0' in client.get("/metrics").text
