"""Token ids are counted before they are parsed, and work ends when its request passes its deadline."""

import threading
from collections.abc import Callable
from typing import Any

import pytest
from starlette.testclient import TestClient

from models.encoder import Encoder
from service.settings import Settings
from tests.waiting import LIMIT


@pytest.fixture
def special(encoder: Encoder) -> tuple[int, int]:
    ids = encoder.tokenize(["a"])[0].ids
    return ids[0], ids[-1]


EMBEDDING = [("/embed", "inputs", 422), ("/", "inputs", 422), ("/v1/embeddings", "input", 400)]


@pytest.mark.parametrize(("path", "field", "status"), EMBEDDING)
def test_as_many_ids_as_are_allowed_are_cut_like_a_text(
    client: TestClient, settings: Settings, special: tuple[int, int], path: str, field: str, status: int
) -> None:
    first, last = special
    row = [first, *[7] * (settings.max_ids - 2), last]
    whole = client.post(path, json={field: row})
    assert whole.status_code == 200
    assert whole.headers["x-truncated"] == "1"
    # More ids than are allowed, in two rows.
    for rows in ([row, [7]], [[10**9] * settings.max_ids, ["a"]]):
        refused = client.post(path, json={field: rows})
        assert refused.status_code == status
        assert f"{settings.max_ids} token ids (SIMILE_MAX_IDS)" in refused.text


def test_as_many_ids_as_are_allowed_are_decoded(client: TestClient, settings: Settings) -> None:
    most = settings.max_decode_ids
    [text] = client.post("/decode", json={"ids": [7] * most}).json()
    assert text
    for rows in ([[7] * most, [7]], [[10**9] * most, ["a"]]):
        refused = client.post("/decode", json={"ids": rows})
        assert refused.status_code == 422
        assert f"{most} token ids (SIMILE_MAX_DECODE_IDS)" in refused.text


@pytest.mark.parametrize(
    ("path", "body", "method"),
    [("/decode", {"ids": [[7]] * 2000}, "decode"), ("/tokenize", {"inputs": ["a"] * 2000}, "pieces")],
)
def test_rows_are_left_when_the_deadline_has_passed(
    client: TestClient,
    encoder: Encoder,
    path: str,
    body: dict[str, Any],
    method: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    answered, ended = threading.Event(), threading.Event()
    work: Callable[..., Any] = getattr(encoder, method)
    seen = 0

    def slow(*arguments: object, **options: object) -> object:
        nonlocal seen
        seen += 1
        assert answered.wait(LIMIT)
        return work(*arguments, **options)

    from service.api import tei

    stepwise = tei._stepwise

    def noted(*arguments: Any) -> bytes:
        try:
            return stepwise(*arguments)
        finally:
            ended.set()

    with monkeypatch.context() as patch:
        patch.setattr(encoder, method, slow)
        patch.setattr(tei, "_stepwise", noted)
        assert client.post(path, json=body, headers={"x-timeout-ms": "200"}).status_code == 504
        answered.set()
        assert ended.wait(LIMIT)
    assert seen == 1


def test_a_long_text_is_counted_no_further_when_the_deadline_has_passed(
    client: TestClient, encoder: Encoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    answered, ended = threading.Event(), threading.Event()
    tokenize = encoder.tokenize
    requested: list[bool] = []

    def slow(texts: list[str], *, truncate: bool, is_needed: Callable[[], bool]) -> object:
        def still_needed() -> bool:
            assert answered.wait(LIMIT)
            requested.append(is_needed())
            return requested[-1]

        try:
            return tokenize(texts, truncate=truncate, is_needed=still_needed)
        finally:
            ended.set()

    with monkeypatch.context() as patch:
        patch.setattr(encoder, "tokenize", slow)
        body = {"inputs": "a " * 1_000_000, "truncate": False}
        assert client.post("/embed", json=body, headers={"x-timeout-ms": "200"}).status_code == 504
        answered.set()
        assert ended.wait(LIMIT)
    assert requested == [False]
