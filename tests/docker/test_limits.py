"""With 1.5 processors and 1 GiB, the service uses one thread and refuses overload without being killed."""

from __future__ import annotations

import json
import threading
import time
from collections import Counter
from collections.abc import Iterator

import httpx2
import pytest

from tests.docker.stack import docker
from tests.service.process import free_port, is_ready
from tests.waiting import LIMIT, until

CALLERS, INPUTS = 32, 2048
ADMITTED_MB = 64  # a sixteenth of the container's memory
WORDS = "the pump of the second floor was repaired on monday and the invoice came a week later by post"


@pytest.fixture(scope="module")
def small(service_image: str) -> Iterator[tuple[str, str]]:
    """Name and address of a container with --cpus 1.5, --memory 1g and no swap."""
    port = free_port()
    name = f"simile-small-{port}"
    limits = ["--cpus=1.5", "--memory=1g", "--memory-swap=1g"]
    docker(
        "run", "--detach", "--name", name, *limits, f"--publish=127.0.0.1:{port}:8000",
        "--env=SIMILE_INSECURE=1", "--env=SIMILE_CACHE_MB=0", "--env=SIMILE_TIMEOUT_SECONDS=600",
        service_image,
    )  # fmt: skip
    address = f"http://127.0.0.1:{port}"
    try:
        with httpx2.Client(base_url=address, trust_env=False) as client:
            until(lambda: is_ready(client), lambda: docker("logs", name), pause=0.2)
        yield name, address
    finally:
        docker("rm", "--force", "--volumes", name)


def test_it_serves_with_one_thread(small: tuple[str, str]) -> None:
    info = httpx2.get(f"{small[1]}/info", trust_env=False).json()
    assert (info["workers"]["workers"], info["workers"]["threads"], info["threads"]) == (1, 1, 1)


@pytest.mark.parametrize("words", [18, 180, 1200])
def test_32_callers_of_2048_inputs_are_served_or_refused_and_nothing_is_killed(
    small: tuple[str, str], words: int
) -> None:
    name, address = small
    text = " ".join(([*WORDS.split()] * 70)[:words])
    patient = 4 if words <= 18 else 0  # callers that send first and wait long
    body = json.dumps({"inputs": [f"{at} {text}" for at in range(INPUTS)]}).encode()
    seen: Counter[int | str] = Counter()
    said: list[str] = []
    headers = {"Content-Type": "application/json"}
    start = threading.Barrier(CALLERS)

    def ask(at: int) -> None:
        seconds = 600 if at < patient else 20
        waiting = headers | {"x-timeout-ms": f"{1000 * seconds}"}
        start.wait()
        time.sleep(0 if at < patient else 0.5)
        try:
            with httpx2.Client(timeout=620, trust_env=False) as client:
                answer = client.post(f"{address}/embed", content=body, headers=waiting)
            seen[answer.status_code] += 1
            if answer.status_code == 429:
                said.append(answer.json()["error"])
        except httpx2.HTTPError as error:
            seen[repr(error)] += 1

    threads = [threading.Thread(target=ask, args=(at,)) for at in range(CALLERS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    [found] = json.loads(docker("inspect", name))
    state = found["State"]
    assert (state["OOMKilled"], state["Status"], found["RestartCount"]) == (False, "running", 0)
    by_bytes = sum(f"exceed {ADMITTED_MB} MiB" in line for line in said)
    print(f"{words} words, {len(body)} bytes: {dict(seen)}, {by_bytes} of them refused for their bytes")
    assert set(seen) <= {200, 429, 504}, seen
    assert seen[429] >= CALLERS // 4, seen
    one = httpx2.post(f"{address}/embed", json={"inputs": [text] * 16}, timeout=LIMIT, trust_env=False)
    assert one.status_code == 200, one.text[:500]
    assert seen[200] >= patient, seen
    if CALLERS * len(body) > 4 * ADMITTED_MB << 20:
        assert by_bytes, Counter(said)
