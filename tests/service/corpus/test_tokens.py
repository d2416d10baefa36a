"""Late interaction in the service: token vectors of documents and queries, in both stores."""

import base64
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from starlette.testclient import TestClient

from models.encoder import Encoder, TokenEncoder
from models.search.features import FEATURES
from models.search.ranking import MAX_RANKED, Ranking
from models.tokens.late import COMPARED, LATE, compare, compress, fit_projection
from service.batching.request import Lane
from service.corpus import tokens
from service.corpus.query import CANDIDATES
from service.errors import Backend
from service.ranking import TOKENS_WORK, WORK, Rankings
from service.runtime.runtime import Runtime
from service.store.sql.connection import fetch_column
from tests.service.conftest import new_settings, serving
from tests.service.corpus.test_ranking import QUERY, TEXTS, fill, hits, ids
from tests.waiting import until


@pytest.fixture(scope="module", autouse=True)
def _often() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(tokens, "EVERY_SECONDS", 0.05)
        yield


@pytest.fixture(scope="module", autouse=True)
def _filled(_often: None, running: TestClient) -> None:
    fill(running)


def comparing(encoder: Encoder) -> Ranking:
    """Returns a ranking in which late interaction decides."""
    projection = fit_projection(np.concatenate(encoder.encode_tokens([*TEXTS.values()])))
    late = base64.b64encode(projection.astype("<f2").tobytes()).decode()
    weights = {"maxsim": 5.0, "hybrid": 0.1}
    return Ranking.model_validate({"weights": weights, "late": late, "fingerprint": encoder.fingerprint})


@pytest.fixture
def ranking(client: TestClient, runtime: Runtime, encoder: Encoder) -> Iterator[Ranking]:
    """The ranking of the collection. No token vectors are stored before and after."""
    found = comparing(encoder)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(runtime.active.generation.rankings, "_learned", {"default": found})
        yield found
    wait(client, 0)


def stored(client: TestClient) -> list[int]:
    """Returns the revisions with token vectors."""
    store = client.app.state.runtime.corpus.store  # type: ignore[attr-defined]
    assert client.portal is not None
    sql = "SELECT revision FROM tokens ORDER BY revision"
    found: list[int] = client.portal.call(store.readers.own, lambda it: fetch_column(it, sql))
    return found


def bodies(client: TestClient, space: str) -> dict[int, bytes]:
    store = client.app.state.runtime.corpus.store  # type: ignore[attr-defined]
    revisions = stored(client)
    assert client.portal is not None
    read: Callable[[Any], dict[int, bytes]] = lambda it: it.get_tokens(space, revisions)  # noqa: E731
    return client.portal.call(store.readers.own, read)


def wait(client: TestClient, count: int = len(TEXTS)) -> None:
    until(lambda: len(stored(client)) == count, lambda: str(len(stored(client))))


def test_the_best_hits_are_compared_token_by_token(
    client: TestClient, encoder: Encoder, ranking: Ranking
) -> None:
    wait(client)
    found = hits(client, explain=True)[:MAX_RANKED]
    assert [hit["id"] for hit in found] == ids(client)[:MAX_RANKED]
    ordered = sorted(found, key=lambda hit: -hit["features"]["hybrid"])
    projection = ranking.projection
    assert projection is not None

    def compressed(texts: list[str]) -> list[np.ndarray]:
        return [compress(each, projection) for each in encoder.encode_tokens(texts)]

    [query] = compressed([QUERY])
    late = compare(query, [*compressed([TEXTS[hit["id"]] for hit in ordered])])
    features = np.array([[hit["features"][name] for name in FEATURES] for hit in ordered])
    for row, hit in enumerate(ordered):
        assert {*hit["features"]} - {*FEATURES} == ({*LATE} if row < COMPARED else set())
        if row < COMPARED:
            # A component may be rounded to the next number in another batch.
            values = [hit["features"][name] for name in LATE]
            np.testing.assert_allclose(values, late[row], atol=0.01)
            late[row] = values
        part = ranking.contribute(features, late)["maxsim"][row] if row == len(ordered) - 1 else None
        assert part is None or hit["contributions"]["maxsim"] == pytest.approx(part, abs=1e-6)
    scores = {hit["id"]: score for hit, score in zip(ordered, ranking.score(features, late), strict=True)}
    assert (np.diff([scores[hit["id"]] for hit in found]) <= 1e-6).all()


def test_a_changed_or_deleted_document_has_no_old_token_vectors(client: TestClient, ranking: Ranking) -> None:
    wait(client)
    before = stored(client)
    changed = {"documents": [{"id": "d000", "text": "a new text about bridges"}]}
    assert client.post("/documents", json=changed).status_code == 200
    assert client.delete("/documents/d001").status_code == 200
    assert len({*before} - {*stored(client)}) == 2
    until(lambda: len(stored(client)) == len(TEXTS) - 1)
    where = {"filter": '{"$ids": ["d002", "d003"]}'}
    assert client.delete("/documents", params=where).status_code == 200
    until(lambda: len(stored(client)) == len(TEXTS) - 3)
    fill(client)
    wait(client)


def test_token_vectors_without_a_ranking_that_needs_them_are_deleted(
    client: TestClient, ranking: Ranking, runtime: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    wait(client)
    with monkeypatch.context() as patched:
        patched.setattr(runtime.active.generation.rankings, "_learned", {})
        wait(client, 0)
        assert not {*LATE} & {*hits(client, explain=True)[0]["features"]}
    wait(client)


def test_an_encoder_without_token_vectors_ranks_by_the_other_features(
    client: TestClient, ranking: Ranking, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Encoder, "has_tokens", False)
    wait(client, 0)
    found = hits(client, explain=True)
    assert {*found[0]["features"]} == {*FEATURES}
    assert found[0]["contributions"]["maxsim"] == 0


def test_a_search_whose_tokens_fail_ranks_by_the_other_features(
    client: TestClient, ranking: Ranking, monkeypatch: pytest.MonkeyPatch
) -> None:
    encode = tokens.TokenVectors._encode

    async def fail(self: Any, generation: Any, ranking: Any, texts: Any, lane: Lane) -> Any:
        if lane is Lane.INTERACTIVE:
            raise Backend("broken")
        return await encode(self, generation, ranking, texts, lane)

    monkeypatch.setattr(tokens.TokenVectors, "_encode", fail)
    found = hits(client, explain=True)
    assert {*found[0]["features"]} == {*FEATURES}
    assert client.get("/health").status_code == 200


@pytest.mark.parametrize("lost", [0, 1, 5, 49])
def test_hits_without_token_vectors_get_the_mean(
    client: TestClient, ranking: Ranking, runtime: Runtime, lost: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While the job has not reached a document, its other features decide."""
    wait(client)
    found = sorted(hits(client, explain=True)[:MAX_RANKED], key=lambda hit: -hit["features"]["hybrid"])
    id = found[lost]["id"]
    assert client.portal is not None
    with monkeypatch.context() as patched:
        patched.setattr(type(runtime.corpus.tokens), "_fill", lambda *_: _nothing())
        changed = {"documents": [{"id": id, "text": TEXTS[id], "metadata": {"lost": lost}}]}
        assert client.post("/documents", json=changed).status_code == 200
        again = next(hit for hit in hits(client, explain=True) if hit["id"] == id)
        assert not {*LATE} & {*again["features"]}
        assert again["contributions"]["maxsim"] == 0


async def _nothing() -> None:
    pass


def test_a_job_that_ended_goes_on_after_a_restart(
    tmp_path: Path, tiny_models_dir: Path, encoder: Encoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = comparing(encoder)
    monkeypatch.setattr("service.active.read_rankings", lambda *_: Rankings({"default": own}))
    monkeypatch.setattr(tokens, "STEP_DOCUMENTS", 1)
    settings = new_settings(tmp_path, tiny_models_dir)
    with serving(settings) as client:
        fill(client)
        until(lambda: len(stored(client)) > 2)
    with serving(settings) as client:
        before = bodies(client, own.space)
        wait(client)
        after = bodies(client, own.space)
        assert before.items() <= after.items()


@pytest.mark.parametrize("at", [0, 7, 15, 16, 99])
def test_a_text_on_which_the_model_fails_is_left_out(
    client: TestClient,
    runtime: Runtime,
    encoder: Encoder,
    monkeypatch: pytest.MonkeyPatch,
    at: int,
) -> None:
    [bad] = encoder.tokenize([[*TEXTS.values()][at]])
    forward = TokenEncoder.forward

    def fail(self: TokenEncoder, ids: list[list[int]], **how: bool) -> Any:
        if any([*row] == [*bad.ids] for row in ids):
            raise ArithmeticError("broken")
        return forward(self, ids, **how)

    wait(client, 0)  # Those of the test before are deleted.
    monkeypatch.setattr(TokenEncoder, "forward", fail)
    monkeypatch.setattr(runtime.active.generation.rankings, "_learned", {"default": comparing(encoder)})
    wait(client, len(TEXTS) - 1)


def test_late_interaction_counts_in_the_work_of_a_search(
    client: TestClient, runtime: Runtime, encoder: Encoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    most = runtime.settings.max_candidates // (2 * CANDIDATES + WORK)
    body = {"queries": [QUERY] * most, "mode": "hybrid", "k": 1, "fields": []}
    assert client.post("/search", json=body).status_code == 200
    own = {"default": comparing(encoder)}
    monkeypatch.setattr(runtime.active.generation.rankings, "_learned", own)
    refused = client.post("/search", json=body)
    assert refused.status_code == 422
    assert f"{2 * CANDIDATES + WORK + TOKENS_WORK} each in mode hybrid" in refused.text
