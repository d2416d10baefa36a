"""`docker compose up` as in the README, from no container to `down -v`. Tests depend on earlier ones."""

from __future__ import annotations

import re
import shutil
import threading
import time
from collections.abc import Iterator
from functools import partial

import httpx2
import pytest

from tests.docker.stack import ROOT, Stack, docker
from tests.test_documentation import answered, blocks, commands
from tests.waiting import LIMIT, until

DOCUMENTS = 320  # the example corpus
LONG = "the pump of the second floor was repaired on monday and the invoice came a week later " * 4


@pytest.fixture(scope="module")
def story(trainer_image: str, wheels: dict[str, str]) -> Iterator[Stack]:
    # Two seconds of grace before the port closes, as behind a load balancer.
    settings = {"SIMILE_EXAMPLES": "1", "SIMILE_STOP_DELAY_SECONDS": "2", "SIMILE_CACHE_MB": "0"}
    with Stack("story", **settings, **wheels) as stack:
        readme = (ROOT / "README.md").read_text(encoding="utf-8")
        [block] = [part for part in blocks(readme) if "docker compose up" in part]
        stack.shell(block)
        yield stack


def count(stack: Stack) -> int:
    return int(stack.client.get("/documents/count").json()["count"])


def version(stack: Stack) -> str:
    return str(stack.client.get("/info").json()["model_version"])


def test_up_waits_until_service_and_trainer_are_there(story: Stack) -> None:
    assert story.client.get("/ready").status_code == 200
    assert count(story) == DOCUMENTS
    assert story.inspect("trainer")["State"]["Health"]["Status"] == "healthy"
    assert "next retraining is due at" in story.compose("logs", "trainer")
    schedule = story.client.get("/models").json()["schedule"]
    assert schedule["cron"] == "30 3 * * *"


@pytest.mark.skipif(shutil.which("curl") is None, reason="needs curl")
def test_every_curl_of_the_readme_is_answered(story: Stack) -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    said = [answered(command, story.port) for command in commands(readme)]
    assert said[0]["hits"][0]["id"] == "support-refund-window"
    assert count(story) == DOCUMENTS + 2


def test_a_retraining_in_the_trainer_swaps_what_the_service_serves(story: Stack) -> None:
    before = version(story)
    texts = [
        f"Note {at}: the {word} of machine {at} was changed." for at in range(60) for word in ("belt", "oil")
    ]
    documents = [{"id": f"note-{at}", "text": text} for at, text in enumerate(texts)]
    assert story.client.post("/documents", json={"documents": documents}).status_code == 200
    readme = (ROOT / "docker" / "README.md").read_text(encoding="utf-8")
    [line] = re.findall(
        r"^docker compose (run --rm trainer retrain --from-service .*)$", readme, re.MULTILINE
    )
    said = story.compose(*line.split(), seconds=600)
    [published] = re.findall(r"(\S+) is published and requested", said)
    until(lambda: version(story) == published, partial(story.compose, "logs", "service"), pause=0.5)
    assert published != before
    hits = story.client.get("/search", params={"q": texts[7], "k": 1}).json()
    assert (hits["model"], hits["hits"][0]["id"]) == (published, "note-7")


def test_a_killed_service_comes_back_with_every_answered_document(story: Stack) -> None:
    written = [f"kept-{at}" for at in range(20)]
    for id in written:
        answer = story.client.post(
            "/documents", json={"documents": [{"id": id, "text": f"The text of {id}."}]}
        )
        assert answer.status_code == 200
    before = count(story)
    restarts = story.inspect()["RestartCount"]
    story.compose("kill", "--signal", "KILL", "service")
    assert story.inspect()["State"]["Status"] == "exited"
    story.up("service")
    story.wait_until_ready()
    assert story.inspect()["RestartCount"] == restarts
    assert count(story) == before
    for id in written:
        assert story.client.get(f"/documents/{id}").json()["text"] == f"The text of {id}."


def test_a_service_that_dies_by_itself_is_started_anew(story: Stack) -> None:
    before = count(story)
    kill = "kill -9 $(cat /proc/1/task/1/children)"  # the only child of init
    story.compose("exec", "-T", "service", "sh", "-c", kill, status=None)  # killed with the container
    until(lambda: story.inspect()["RestartCount"], partial(story.compose, "logs", "service"), pause=0.2)
    story.wait_until_ready()
    assert count(story) == before


def test_sigterm_answers_every_request_that_came(story: Stack) -> None:
    """Eight clients that stop when /ready fails, as with a load balancer, see no failure."""
    story.wait_until_ready()
    leave, told = threading.Event(), threading.Event()
    failures: list[str] = []
    after: list[float] = []

    def ask() -> None:
        with httpx2.Client(
            base_url=f"http://127.0.0.1:{story.port}", timeout=LIMIT, trust_env=False
        ) as client:
            while not leave.is_set():
                try:
                    answer = client.post("/embed", json={"inputs": ["One sentence.", "And another one."]})
                except httpx2.HTTPError as error:
                    failures.append(repr(error))
                    return
                if answer.status_code not in {200, 429}:
                    failures.append(answer.text)
                if told.is_set():
                    after.append(time.monotonic())

    def watch() -> None:
        with httpx2.Client(
            base_url=f"http://127.0.0.1:{story.port}", timeout=LIMIT, trust_env=False
        ) as client:
            while client.get("/ready").status_code == 200:
                time.sleep(0.05)
        leave.set()

    threads = [threading.Thread(target=ask) for _ in range(8)] + [threading.Thread(target=watch)]
    for thread in threads:
        thread.start()
    time.sleep(1)
    told.set()
    begun = time.monotonic()
    story.compose("stop", "service")
    took = time.monotonic() - begun
    for thread in threads:
        thread.join()
    assert failures == []
    assert after, "no request was in hand when it was told to stop"
    state = story.inspect()["State"]
    assert (state["ExitCode"], state["OOMKilled"]) == (0, False)
    assert took < 30, "it was killed rather than stopped"


def test_sigterm_answers_a_request_that_is_in_hand_while_the_port_closes(story: Stack) -> None:
    story.up("service")
    story.wait_until_ready()
    texts = [f"{at} {LONG}" for at in range(2048)]
    begun = time.monotonic()
    assert story.client.post("/embed", json={"inputs": texts[:64]}).status_code == 200
    some = texts[
        : int(64 * 10 / (time.monotonic() - begun))
    ]  # ten seconds of requests; the port closes after two
    answers: list[tuple[int, float]] = []

    def ask() -> None:
        status = story.client.post("/embed", json={"inputs": some}).status_code
        answers.append((status, time.monotonic()))

    asking = threading.Thread(target=ask)
    asking.start()
    time.sleep(0.5)
    stopping = threading.Thread(target=story.compose, args=("stop", "service"))
    stopping.start()
    while True:
        try:
            httpx2.get(f"http://127.0.0.1:{story.port}/health", timeout=5, trust_env=False)
        except httpx2.TransportError:
            refused = time.monotonic()
            break
        time.sleep(0.05)
    asking.join()
    stopping.join()
    [(status, answered)] = answers
    assert status == 200
    assert answered > refused, "it was answered before the port closed"
    assert story.inspect()["State"]["ExitCode"] == 0


def test_a_backup_is_taken_while_it_serves_and_restored(story: Stack) -> None:
    story.up("service")
    before = count(story)
    backup = ["exec", "-T", "service", "simile", "backup", "--models", "/backups/monday"]
    assert f"{before} documents" in story.compose(*backup)
    assert story.client.delete("/documents/kept-3").status_code == 200
    assert count(story) == before - 1
    story.compose("stop")
    restore = ["run", "--rm", "--no-deps", "service", "restore", "--force", "/backups/monday"]
    assert f"{before} documents" in story.compose(*restore)
    story.up()
    story.wait_until_ready()
    assert count(story) == before
    assert story.client.get("/documents/kept-3").json()["text"] == "The text of kept-3."
    check = ["exec", "-T", "service", "simile", "check", "--data"]
    story.compose(*check)


def test_down_without_v_keeps_the_documents_and_with_it_nothing(story: Stack) -> None:
    before = count(story)
    story.compose("down")
    story.up("service")
    story.wait_until_ready()
    assert count(story) == before
    assert len(story.volumes()) == 4
    story.compose("down", "--volumes")
    assert story.volumes() == []
    label = f"label=com.docker.compose.project={story.name}"
    assert docker("ps", "--all", "--quiet", "--filter", label) == ""
