"""What searches need is in memory before they ask, after a start and after writes."""

from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from models.search.spelling import Word
from models.search.terms import stem
from service.corpus import warming
from service.store.sql import facets
from service.store.sqlite import vocabulary
from tests.parts.documents import put
from tests.service.conftest import new_settings, serving
from tests.waiting import until

TEXTS = [{"id": f"{at}", "text": f"A printer {at}", "metadata": {"a": at, "b": at}} for at in range(20)]


def shared(client: TestClient) -> Any:
    """Returns the reading threads, which share what is in memory."""
    return client.app.state.runtime.corpus.store.readers  # type: ignore[attr-defined]


def knows(client: TestClient, term: str) -> bool:
    vocabularies = shared(client)._vocabularies
    word = Word(0, len(term), f"{term}x", stem(f"{term}x"))
    found = [vocabularies.get(key).find_nearest(word) for key in [*vocabularies._recent]]
    return any(term in near.terms for groups in found for near in groups)


def columns(client: TestClient) -> dict[str, int]:
    """Returns the number of documents in each column."""
    found = shared(client)._columns._columns
    return {field: len(column.rows.revisions) for (_, field), column in found.items()}


def test_terms_and_values_are_read_after_a_start_and_after_writes(
    tmp_path: Path, tiny_models_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(warming, "LOOK_SECONDS", 0.02)
    settings = new_settings(tmp_path, tiny_models_dir, indexed_fields="a")
    with serving(settings) as client:
        put(client, *TEXTS)
    with serving(settings) as client:
        until(lambda: knows(client, "printer") and columns(client) == {"a": 20})
        client.get("/search", params={"q": "printer", "facets": "metadata.b"}).raise_for_status()
        put(client, {"id": "new", "text": "telescope"}, {"id": "0", "text": "other"})
        until(lambda: knows(client, "telescop") and columns(client) == {"a": 22, "b": 22})

        def read(*_: object) -> None:
            pytest.fail("metadata is read again")

        monkeypatch.setattr(facets, "_read", read)
        client.get("/search", params={"q": "printer", "facets": "metadata.a,metadata.b"}).raise_for_status()


def test_terms_of_collections_without_corrections_are_not_read(
    tmp_path: Path, tiny_models_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(warming, "LOOK_SECONDS", 0.02)
    settings = new_settings(tmp_path, tiny_models_dir, exact_collections="default", indexed_fields="a")
    with serving(settings) as client:
        put(client, *TEXTS)
        put(client, {"id": "x", "text": "A telescope"}, path="/collections/other/documents")
        until(lambda: knows(client, "telescop") and columns(client)["a"] > 0)
        assert not knows(client, "printer")


def test_documents_are_not_listed_if_no_field_is_read(
    tmp_path: Path, tiny_models_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(warming, "LOOK_SECONDS", 0.02)
    listed: list[str] = []
    read = warming._read

    def watched(snapshot: Any, collection: str, **rest: Any) -> None:
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(type(snapshot), "list_matching", lambda *_: listed.append(collection))
            read(snapshot, collection, **rest)

    monkeypatch.setattr(warming, "_read", watched)
    with serving(new_settings(tmp_path, tiny_models_dir)) as client:
        put(client, *TEXTS)
        until(lambda: knows(client, "printer"))
    assert not listed


@pytest.mark.sqlite("PostgreSQL has a list of terms")
def test_a_search_lists_the_terms_of_a_large_collection_only_if_it_has_none(
    tmp_path: Path, tiny_models_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After many writes it uses the terms that are known, until they are read in the background."""
    monkeypatch.setattr(warming, "LOOK_SECONDS", 1e9)
    monkeypatch.setattr(vocabulary, "LARGE", 0)
    monkeypatch.setattr(vocabulary, "FAR", 10)
    with serving(new_settings(tmp_path, tiny_models_dir)) as client:

        def corrected(typed: str) -> str | None:
            answer = client.get("/search", params={"q": typed, "mode": "lexical"})
            found: str | None = answer.json().get("corrected_query")
            return found

        put(client, TEXTS[0])
        assert corrected("pritner") == "printer"
        put(client, *({"id": f"new {at}", "text": "telescope"} for at in range(20)))
        assert corrected("pritner") == "printer"
        assert corrected("telescpoe") is None
        runtime: Any = client.app.state.runtime  # type: ignore[attr-defined]
        load = runtime.corpus.store.search(lambda snapshot: snapshot.load_vocabulary("default"))
        assert client.portal is not None
        client.portal.call(lambda: load)
        assert corrected("telescpoe") == "telescope"
