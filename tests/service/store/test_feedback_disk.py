"""Judgments on disk after kill -9."""

import random
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx2
import pytest

from tests.service.api.test_feedback import judge, listed, pages, said
from tests.service.process import Service
from tests.waiting import LIMIT, until


def judge_until_killed(
    port: int, thread: int, answered: dict[tuple[str, str], bool]
) -> dict[tuple[str, str], bool]:
    """Judges pairs of documents alike, again and again. Returns the last request, which has no answer."""
    rng = random.Random(thread)
    with httpx2.Client(base_url=f"http://127.0.0.1:{port}", timeout=LIMIT, trust_env=False) as client:
        while True:
            query, relevant = f"{thread}-{rng.randrange(8)}", rng.random() < 0.5
            pair = {(query, "a"): relevant, (query, "b"): relevant}
            try:
                judge(client, *(said(*key, value) for key, value in pair.items()))
            except httpx2.TransportError:
                return pair
            answered |= pair


@pytest.mark.long
def test_kill_9_loses_no_answered_judgment_and_halves_no_list(tmp_path: Path, tiny_models_dir: Path) -> None:
    with Service(tmp_path, tiny_models_dir) as service, ThreadPoolExecutor(3) as pool:
        assert service.put({"a": "red", "b": "green"}).status_code == 200
        expected: dict[tuple[str, str], bool] = {}
        newest = 0
        for judged in (5, 9):
            answered: list[dict[tuple[str, str], bool]] = [{}, {}, {}]
            sent = [pool.submit(judge_until_killed, service.port, at, answered[at]) for at in range(3)]
            until(lambda: min(map(len, answered)) >= judged or any(one.done() for one in sent))  # noqa: B023
            service.kill()
            in_hand = {key: value for one in sent for key, value in one.result(LIMIT).items()}
            for one in answered:
                assert len(one) >= judged, "too few judgements for the kill to mean anything"
                expected |= one
            service.start()
            found = {(query, id): relevant for query, id, relevant in listed(service.client)}
            for key in expected.keys() | found.keys():
                allowed = {expected.get(key), in_hand.get(key, expected.get(key))}
                assert found.get(key) in allowed, key
            for query, _ in found:
                assert found[query, "a"] == found[query, "b"], "half of a list was stored"
            assert service.client.get("/feedback/count").json() == {"count": len(found)}
            expected = found
            assert judge(service.client, said("0-0", "a"), said("0-0", "b")) > newest
            expected |= {("0-0", "a"): True, ("0-0", "b"): True}
            newest = max(row["sequence"] for rows in pages(service.client, 1000) for row in rows)
        longest = "🙂" * 4096  # twelve characters each in a URL: the real server must take it
        judge(service.client, said(longest, "a"))
        assert service.client.delete("/feedback", params={"query": longest}).json() == {"deleted": 1}
