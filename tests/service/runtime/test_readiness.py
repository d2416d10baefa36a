"""Each reason why `/ready` fails: its message, and its row in the docs."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from service.runtime.health import Reason
from service.runtime.runtime import Runtime
from service.store.postgres.replicas import Touch
from service.store.values import Active
from tests.service.conftest import new_settings, serving

OPERATIONS = Path(__file__).parents[3] / "docs/OPERATIONS.md"
DAMAGES = (
    "The database lacks the column documents.title.",
    "simile.db is not as Simile needs it: it lacks the table documents.",
    "A newer Simile has changed simile.db to schema 99, and this one knows 9.",
)

Force = Callable[[Runtime, pytest.MonkeyPatch], None]


def stop(runtime: Runtime, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(runtime, "leaving", True)


def hang(runtime: Runtime, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(runtime.watchdog, "look", lambda _: None)
    patch.setattr(runtime.watchdog, "illness", "1 of 2 workers hang")


def lose(runtime: Runtime, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(type(runtime.corpus.store), "lost", Touch("postgresql:///none").lost)


def fall_behind(runtime: Runtime, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(runtime.controller.following, "_ahead", Active(9, "20260101-00000000", "0" * 64, "fp32"))


def tear(runtime: Runtime, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(runtime.active.generation, "is_complete", False)


def damage(message: str) -> Force:
    def force(runtime: Runtime, patch: pytest.MonkeyPatch) -> None:
        patch.setattr(runtime.corpus.store, "damage", message)

    return force


CAUSES: list[tuple[Reason, Force]] = [
    (Reason.STOPPING, stop),
    (Reason.UNWELL, hang),
    *((Reason.CHANGED_STORE, damage(message)) for message in DAMAGES),
    (Reason.LOST_DATABASE, lose),
    (Reason.BEHIND, fall_behind),
    (Reason.INCOMPLETE, tear),
]


def test_each_reason_has_a_cause_here_and_a_row_in_the_documents() -> None:
    assert {reason for reason, _ in CAUSES} == set(Reason)
    section = (
        OPERATIONS.read_text(encoding="utf-8")
        .partition("**`/ready` is red.**")[2]
        .partition("**`/health`")[0]
    )
    listed = {
        cell for row in section.splitlines() for cell in re.findall(r"`([^`]+)`", row.partition(" | ")[0])
    }
    assert listed == {message for reason in Reason for message in reason.value}


@pytest.mark.sqlite("it changes attributes of the store")
@pytest.mark.parametrize(("reason", "force"), CAUSES)
def test_a_red_answer_is_one_of_its_reasons_messages(
    client: TestClient, runtime: Runtime, monkeypatch: pytest.MonkeyPatch, reason: Reason, force: Force
) -> None:
    assert client.get("/ready").status_code == 200
    force(runtime, monkeypatch)
    found = runtime.readiness.check()
    assert found is not None
    assert found.reason is reason
    patterns = [re.escape(message).replace("…", ".*") for message in reason.value]
    assert any(re.fullmatch(pattern, found.message) for pattern in patterns), found.message
    answer = client.get("/ready")
    assert (answer.status_code, answer.json()["error"]) == (503, found.message)
    monkeypatch.undo()
    assert client.get("/ready").status_code == 200


def test_the_wait_for_a_start_that_keeps_failing_ends_with_the_exception(
    tmp_path: Path, tiny_models_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def build(*_: object) -> None:
        raise ValueError("a bug in the builder")

    monkeypatch.setattr("service.runtime.index_keeper.Builder", build)
    monkeypatch.setattr("service.runtime.index_keeper.RETRY_SECONDS", 0.01)
    settings = new_settings(tmp_path, tiny_models_dir)
    reason = r"(?s)Not ready yet: .*ValueError: a bug in the builder"
    with pytest.raises(AssertionError, match=reason), serving(settings):
        pass
