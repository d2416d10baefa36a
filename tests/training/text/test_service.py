"""Reading a service: its key, its collections, and errors that name its address."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from pathlib import Path

import pytest

from tests.parts.json_server import json_server
from training.errors import TrainingError
from training.evaluation.scorable import Server
from training.retraining.documents import Document, documents_at
from training.retraining.judgements import Judgment, judgments_at
from training.text.corpus import from_service
from training.text.service import ALL, fetch_count, fetch_documents, fetch_searches, qualified

KEY = "sk-simile-remote"
JUDGMENT = {"query": "q", "id": "a", "relevant": True}
PAGES = {
    "/documents": {"documents": [{"id": "a", "text": "one"}], "next": None},
    "/documents/count": {"count": 1},
    "/feedback": {"feedback": [JUDGMENT | {"key": "ops"}], "next": None},
    "/collections": {"collections": [{"name": "default"}, {"name": "tickets"}]},
    "/collections/tickets/documents": {"documents": [{"id": "a", "text": "two"}], "next": None},
    "/collections/tickets/documents/count": {"count": 5},
    "/collections/tickets/feedback": {"feedback": [JUDGMENT], "next": None},
    "/info": {"model_version": "v", "fingerprint": "f"},
}


def keyed(path: str, _given: dict[str, str], headers: Mapping[str, str]) -> tuple[int, object]:
    lower = {name.lower(): value for name, value in headers.items()}
    allowed = lower.get("authorization") == f"Bearer {KEY}"
    return (200, PAGES[path]) if allowed else (401, {"error": "A key is needed."})


@pytest.fixture
def url() -> Iterator[str]:
    with json_server(keyed) as address:
        yield address


def test_the_key_is_shown_to_the_service(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SIMILE_SERVICE_KEY", KEY)
    assert list(fetch_documents(url)) == [{"id": "a", "text": "one"}]
    assert fetch_count(url) == 1
    with closing(Server(url)) as server:
        assert server.version == "v"


def test_the_key_may_be_in_a_file(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "key").write_text(f"{KEY}\n")
    monkeypatch.setenv("SIMILE_SERVICE_KEY_FILE", str(tmp_path / "key"))
    assert fetch_count(url) == 1


def test_without_a_key_or_with_a_wrong_one_the_answer_is_told_and_the_key_is_not(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(TrainingError, match=r"answered 401: .*A key is needed"):
        fetch_count(url)
    monkeypatch.setenv("SIMILE_SERVICE_KEY", "wrong-secret")
    with pytest.raises(TrainingError, match="answered 401") as refused:
        fetch_count(url)
    assert "wrong-secret" not in str(refused.value)


def test_a_key_that_cannot_be_one_is_refused_before_anything_is_sent(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SIMILE_SERVICE_KEY_FILE", str(tmp_path / "absent"))
    with pytest.raises(TrainingError, match="absent cannot be read: No such file or directory"):
        fetch_count(url)
    monkeypatch.setenv("SIMILE_SERVICE_KEY", "two\nlines")
    with pytest.raises(TrainingError, match="printable ASCII") as refused:
        fetch_count(url)
    assert "two" not in str(refused.value)


def test_one_collection_is_read_or_several_or_all_and_equal_ids_are_two_documents(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SIMILE_SERVICE_KEY", KEY)
    of_default = Document("a", "", "one")
    of_tickets = Document("collection:tickets/a", "", "two", "tickets")
    assert documents_at(url).kept == (of_default,)
    assert documents_at(url, ("tickets",)).kept == (of_tickets,)
    assert documents_at(url, ALL).kept == documents_at(url, ("default", "tickets")).kept
    assert documents_at(url, ALL).kept == (of_default, of_tickets)
    assert list(judgments_at(url, ALL)) == [
        Judgment("q", "a", True, "ops"),
        Judgment("q", "collection:tickets/a", True, ""),
    ]
    assert (fetch_count(url), fetch_count(url, ("tickets",)), fetch_count(url, ALL)) == (1, 5, 6)
    assert from_service(url, requested=ALL).texts == ("one", "two")


def test_no_id_can_be_taken_for_one_of_another_collection() -> None:
    names = [
        qualified(collection, id)
        for collection in ("default", "tickets", "a")
        for id in ("x", "tickets/x", "collection:tickets/x", "collection:a/collection:tickets/x", "/")
    ]
    assert len(set(names)) == len(names)
    assert names[:2] == ["x", "tickets/x"]


@pytest.mark.parametrize(
    ("typed", "told"),
    [
        ("HTTP://127.0.0.1:1", "HTTP://127.0.0.1:1"),
        ("http://127.0.0.1:1/", "http://127.0.0.1:1/"),
        ("http://127.0.0.1:1/behind/a/proxy", "http://127.0.0.1:1/behind/a/proxy"),
        ("http://me:secret@127.0.0.1:1", "http://127.0.0.1:1"),
        ("http://me:se/cret@127.0.0.1:1", "http://127.0.0.1:1"),
        ("me:secret@127.0.0.1:1", "127.0.0.1:1"),
        ("127.0.0.1:1", "127.0.0.1:1"),
        ("http://me:secret@[::1", "http://[::1"),
    ],
)
def test_a_service_that_is_not_reached_is_named_as_it_was_typed_without_a_password(
    typed: str, told: str
) -> None:
    readers: list[Callable[[], object]] = [
        lambda: fetch_count(typed),
        lambda: fetch_count(typed, ALL),
        lambda: next(fetch_documents(typed, "tickets")),
        lambda: fetch_searches(typed),
        lambda: Server(typed),
    ]
    for read in readers:
        with pytest.raises(TrainingError) as refused:
            read()
        said = str(refused.value)
        assert said.startswith((f"{told} cannot be reached: ", f"{told} is no address. "))
        assert "secret" not in said
        assert "cret" not in said
