"""Rate limits of keys: the bucket with a fake clock, and the limits over HTTP."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from service.auth.access import Access, Bucket
from tests.parts.clock import Clock
from tests.service.conftest import new_settings, serving
from tests.service.keyed import bearer, keys_file, line

LIMITED = {"few": (3, ""), "small": ("", 30), "free": (0, 0), "plain": ("", "")}


def test_a_bucket_gives_a_minutes_worth_at_once_and_then_as_it_drops_in() -> None:
    clock = Clock()
    bucket = Bucket(6, clock)  # refills one unit in ten seconds
    for _ in range(6):
        assert bucket.wait(1) == 0
        bucket.take(1)
    assert bucket.wait(1) == pytest.approx(10)
    clock.now += 4
    assert bucket.wait(1) == pytest.approx(6)
    clock.now += 6
    assert bucket.wait(1) == pytest.approx(0)
    bucket.take(1)
    clock.now += 25
    assert bucket.wait(2) == 0
    assert bucket.wait(3) == pytest.approx(5)
    clock.now += 86_400
    assert bucket.wait(6) == 0
    assert bucket.wait(7) == pytest.approx(10), "a day does not save up more than a minute's worth"


def test_a_debt_is_paid_before_anything_more_is_given() -> None:
    clock = Clock()
    bucket = Bucket(600, clock)  # refills ten units per second
    bucket.take(1000)
    assert bucket.wait(0) == pytest.approx(40)
    clock.now += 39.9
    assert bucket.wait(0) == pytest.approx(0.1)
    clock.now += 0.2
    assert bucket.wait(0) == 0


def test_no_limit_is_no_limit_and_a_new_one_begins_full() -> None:
    clock = Clock()
    bucket = Bucket(0, clock)
    bucket.take(1_000_000)
    assert bucket.wait(1) == 0
    bucket.resize(60)
    assert bucket.wait(60) == 0
    bucket.take(90)
    bucket.resize(120)
    assert bucket.wait(0) == pytest.approx(15), "30 are owed, and two drop in each second now"
    bucket.resize(0)
    assert bucket.wait(1000) == 0


@pytest.fixture
def client(tmp_path: Path, tiny_models_dir: Path) -> Iterator[TestClient]:
    lines = [line(name, "write", f"sk-{name}", *limits) for name, limits in LIMITED.items()]
    settings = new_settings(
        tmp_path, tiny_models_dir, api_keys_file=keys_file(tmp_path, *lines), key_requests_per_minute=10
    )
    with serving(settings) as client:
        yield client


def embed(client: TestClient, name: str, text: str = "river") -> int:
    return client.post("/embed", json={"inputs": text}, headers=bearer(f"sk-{name}")).status_code


def series(client: TestClient, name: str, key: str) -> float:
    start = f'simile_key_{name}_total{{key="{key}"}} '
    [found] = [text for text in client.get("/metrics").text.splitlines() if text.startswith(start)]
    return float(found.removeprefix(start))


def test_requests_beyond_the_minutes_are_429_before_they_are_read(client: TestClient) -> None:
    assert [embed(client, "few") for _ in range(5)] == [200, 200, 200, 429, 429]
    broken = {"content-type": "application/json", **bearer("sk-few")}
    answer = client.post("/embed", content=b"{", headers=broken)
    assert answer.status_code == 429
    assert answer.json()["error_type"] == "RateLimited"
    assert "3 requests per minute" in answer.json()["error"]
    assert "SIMILE_KEY_REQUESTS_PER_MINUTE" in answer.json()["error"]
    assert 15 < int(answer.headers["retry-after"]) <= 20, "one drops in every 20 seconds"
    openai = client.post("/v1/embeddings", content=b"{", headers=broken)
    assert openai.status_code == 429
    assert openai.json()["error"]["type"] == "rate_limit_error"
    assert embed(client, "plain") == 200, "another key is another bucket"
    assert series(client, "requests", "few") == 3, "refused ones are not counted"


def test_the_setting_is_for_keys_without_a_limit_of_their_own(client: TestClient) -> None:
    assert [embed(client, "plain") for _ in range(11)].count(429) == 1
    assert {embed(client, "free") for _ in range(15)} == {200}


def test_open_routes_cost_nothing_and_forbidden_ones_neither(client: TestClient) -> None:
    headers = bearer("sk-few")
    for _ in range(5):
        assert client.get("/health", headers=headers).status_code == 200
        assert client.post("/models/rollback", headers=headers).status_code == 403
        assert client.get("/nothing", headers=headers).status_code == 404
    assert embed(client, "few") == 200
    assert series(client, "requests", "few") == 1


def test_tokens_are_charged_when_they_are_known_and_a_debt_is_paid_first(client: TestClient) -> None:
    assert embed(client, "small", "river " * 20) == 200  # 20 tokens and two special ones
    assert embed(client, "small", "river " * 20) == 200, "8 were left, so it goes 14 into debt"
    answer = client.post("/embed", json={"inputs": "river"}, headers=bearer("sk-small"))
    assert answer.status_code == 429
    assert "30 tokens per minute" in answer.json()["error"]
    assert 15 < int(answer.headers["retry-after"]) <= 28, "14 tokens, one every two seconds"
    assert series(client, "tokens", "small") == 44

    access: Access = client.app.state.access  # type: ignore[attr-defined]
    access._accounts["small"]._tokens._filled -= 28
    assert embed(client, "small") == 200
    assert series(client, "tokens", "small") == 47


@pytest.mark.parametrize(
    ("method", "path", "body", "tokens"),
    [
        ("POST", "/similarity", {"pairs": [["river", "red river"]]}, 3 + 4),
        ("POST", "/", {"inputs": "red river"}, 4),
        ("POST", "/v1/embeddings", {"input": ["red river", "river"]}, 4 + 3),
        ("POST", "/v2/embed", {"texts": ["river"], "model": "m", "input_type": "search_query"}, 3),
        ("GET", "/search?q=red+river", None, 4),
        ("POST", "/search", {"queries": ["red river", "river"]}, 4 + 3),
        ("POST", "/documents", {"documents": [{"id": "a", "text": "red river"}]}, 4),
        ("GET", "/documents/count", None, 0),
    ],
)
def test_whatever_is_embedded_is_counted_for_its_key(
    client: TestClient, method: str, path: str, body: object, tokens: int
) -> None:
    answer = client.request(method, path, json=body, headers=bearer("sk-free"))
    assert answer.status_code == 200, answer.text
    assert series(client, "tokens", "free") == tokens
    assert series(client, "requests", "free") == 1
    again = client.request(method, path, json=body, headers=bearer("sk-free"))
    assert again.status_code == 200
    stored = path == "/documents"  # The second request stores unchanged texts and embeds none.
    assert series(client, "tokens", "free") == (tokens if stored else 2 * tokens)


def test_a_key_has_its_series_from_the_first_scrape(client: TestClient) -> None:
    for name in ("reader", "writer", "boss", *LIMITED):
        assert series(client, "requests", name) == 0
        assert series(client, "tokens", name) == 0


def test_a_jump_of_the_clock_frees_nobody(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    assert [embed(client, "few") for _ in range(4)] == [200, 200, 200, 429]
    real = time.time
    for jump in (86_400.0, -86_400.0):
        monkeypatch.setattr(time, "time", lambda jump=jump: real() + jump)
        assert embed(client, "few") == 429


def test_what_a_key_has_used_stays_used_after_the_file_changed(client: TestClient, tmp_path: Path) -> None:
    assert [embed(client, "few") for _ in range(4)] == [200, 200, 200, 429]
    access: Access = client.app.state.access  # type: ignore[attr-defined]
    access._file._look_at += 60
    keys_file(tmp_path, line("few", "read", "sk-few", 3), line("late", "read", "sk-late"))
    assert embed(client, "late") == 401, "a second has not passed"
    access._file._look_at -= 61
    assert embed(client, "late") == 200
    assert embed(client, "few") == 429
    assert embed(client, "plain") == 401, "it is gone"
    assert series(client, "requests", "late") == 1
