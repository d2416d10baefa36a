"""The cache of vectors changes no HTTP response."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pytest
from prometheus_client.parser import text_string_to_metric_families
from starlette.testclient import TestClient

from models.encoder import Encoder
from models.store import ModelStore
from service.runtime.runtime import Runtime
from service.settings import Settings
from tests.parts.faults import broken
from tests.service.conftest import HOST, new_settings, serving, wait_until_active
from tests.service.swapping import published
from tests.waiting import until

LONG = "river stone " * 60  # more tokens than the model reads (64)
EQUAL_HEADERS = ("x-model-version", "x-compute-tokens", "x-compute-characters", "x-truncated", "content-type")

REQUESTS: list[tuple[str, str, Any]] = [
    ("POST", "/embed", {"inputs": "red river"}),
    ("POST", "/embed", {"inputs": ["red river", "Red  River", "the cat", "red river", LONG]}),
    ("POST", "/embed", {"inputs": ["red river", LONG], "normalize": False}),
    ("POST", "/embed", {"inputs": LONG, "truncation_direction": "Left"}),
    ("POST", "/embed", {"inputs": LONG, "truncate": False}),
    ("POST", "/embed", {"inputs": "red river", "dimensions": 8}),
    ("POST", "/embed", {"inputs": [[2, 40, 41, 3], [2, 41, 40, 3]]}),
    ("POST", "/", {"inputs": "red river"}),
    ("POST", "/similarity", {"inputs": {"source_sentence": "a dog", "sentences": ["a dog", "red river"]}}),
    ("POST", "/similarity", {"pairs": [["red river", "a dog"], ["a dog", "a dog"]]}),
    ("POST", "/v1/embeddings", {"input": ["red river", LONG], "model": "any"}),
    ("POST", "/v1/embeddings", {"input": "red river", "model": "any", "encoding_format": "base64"}),
    ("POST", "/v2/embed", {"texts": ["red river", LONG], "model": "m", "embedding_types": ["float", "int8"]}),
    ("GET", "/search?q=red+river&k=5", None),
    ("POST", "/search", {"queries": ["red river", "a dog"], "k": 5}),
    ("POST", "/documents", {"documents": [{"id": "1", "text": "red river"}, {"id": "2", "text": LONG}]}),
    ("GET", "/search?q=red+river&k=5", None),
]
VARIES = {"took_ms", "id", "sequence", "search_id", "search_ids"}


def numbers(value: Any) -> Any:
    """Returns `value` with rounded floats and without fields that differ in every answer."""
    if isinstance(value, dict):
        return {key: numbers(inner) for key, inner in value.items() if key not in VARIES}
    if isinstance(value, list):
        return [numbers(inner) for inner in value]
    return round(value, 5) if isinstance(value, float) else value


def counted(client: TestClient, name: str) -> float:
    series = text_string_to_metric_families(client.get("/metrics").text)
    return next(s.value for family in series for s in family.samples if s.name == f"simile_cache_{name}")


@pytest.fixture(scope="module")
def both(
    tmp_path_factory: pytest.TempPathFactory, tiny_models_dir: Path
) -> Iterator[tuple[TestClient, TestClient]]:
    """Clients of a service with a cache, and of one without."""
    folders = [tmp_path_factory.mktemp("cached"), tmp_path_factory.mktemp("uncached")]
    kept, computed = (
        serving(new_settings(folder, tiny_models_dir, cache_mb=megabytes))
        for folder, megabytes in zip(folders, (4, 0), strict=True)
    )
    with kept as with_cache, computed as without:
        yield with_cache, without


def test_every_route_that_embeds_answers_the_same_with_the_cache_and_without(
    both: tuple[TestClient, TestClient],
) -> None:
    kept, computed = both
    for method, path, body in REQUESTS:
        for _ in range(3):
            expected = computed.request(method, path, json=body)
            answer = kept.request(method, path, json=body)
            assert answer.status_code == expected.status_code, f"{path} {body}"
            assert numbers(answer.json()) == numbers(expected.json()), f"{path} {body}"
            for header in EQUAL_HEADERS:
                assert answer.headers.get(header) == expected.headers.get(header), f"{path} {body} {header}"
    assert counted(kept, "hits_total") >= 2 * len(REQUESTS)


def test_raw_bytes_of_a_hit_are_those_of_the_computed_vector(both: tuple[TestClient, TestClient]) -> None:
    raw = {"Accept": "application/octet-stream"}
    body = {"inputs": ["a green forest", "an open account"]}
    first, again = (both[0].post("/embed", json=body, headers=raw) for _ in range(2))
    assert first.content == again.content
    assert again.headers["x-inference-time"] == again.headers["x-queue-time"] == "0"


def test_info_shows_how_full_it_is_and_that_there_is_none(both: tuple[TestClient, TestClient]) -> None:
    both[0].post("/embed", json={"inputs": "red river"})
    cache = both[0].get("/info").json()["cache"]
    assert cache["limit_bytes"] == 4 * 2**20
    assert 0 < cache["bytes"] == counted(both[0], "bytes")
    assert cache["vectors"] > 0
    assert both[1].get("/info").json()["cache"] is None


def test_health_is_a_real_forward_pass_and_a_broken_model_still_answers_what_is_kept(
    tmp_path: Path, tiny_models_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with serving(new_settings(tmp_path, tiny_models_dir, cache_mb=4)) as client:
        assert client.post("/embed", json={"inputs": "red river"}).status_code == 200
        forward = Encoder.forward

        for _ in range(2):  # The text of the health check must not be in the cache.
            monkeypatch.setattr(Encoder, "forward", broken)
            assert client.post("/embed", json={"inputs": "something else"}).status_code == 424
            assert client.get("/health").status_code == 503
            assert client.post("/embed", json={"inputs": "red river"}).status_code == 200
            monkeypatch.setattr(Encoder, "forward", forward)
            assert client.get("/health").status_code == 200


def test_a_swap_answers_from_the_new_version_and_the_old_ones_vectors_go_with_it(tmp_path: Path) -> None:
    versions = published(tmp_path / "models", 2)
    settings = Settings(
        data_dir=tmp_path / "data",
        models_dir=tmp_path / "models",
        cache_mb=4,
        grace_seconds=0.1,
        allowed_hosts=HOST,
    )
    store = ModelStore(tmp_path / "models")
    with serving(settings) as client:
        old = client.post("/embed", json={"inputs": ["red river", "the cat sleeps"]}).json()
        runtime: Runtime = client.app.state.runtime  # type: ignore[attr-defined]
        store.request(versions[1])
        wait_until_active(client, versions[1])
        answer = client.post("/embed", json={"inputs": "red river"})
        expected = runtime.active.generation.encoder.encode(["red river"]).vectors
        assert answer.headers["x-model-version"] == versions[1]
        np.testing.assert_allclose(orjson.loads(answer.content), expected, atol=1e-6)
        assert np.abs(np.subtract(old[0], expected[0])).max() > 0.01
        until(lambda: client.get("/info").json()["cache"]["vectors"] == 1, lambda: client.get("/info").text)
