"""Search finds a long document by its best passage and returns it once."""

import sqlite3

import numpy as np
import pytest
from starlette.testclient import TestClient

from models.encoder import Encoder
from models.search import passages
from models.search.content import Content
from models.search.passages import split
from service.settings import Settings
from tests.parts.documents import activate_another, client, encoder_of, hits, place
from tests.parts.documents import put_texts as put
from tests.service.conftest import serving

__all__ = ["client", "place"]
WORDS = (
    "red green blue river stone market letter engine garden bridge paper window forest harbour cat dog"
).split()


def text(seed: int, sentences: int) -> str:
    chance = np.random.default_rng(seed)
    return " ".join(" ".join(chance.choice(WORDS, 10)) + "." for _ in range(sentences))


LONG = {f"long-{at:02}": text(at, 12 + at) for at in range(12)}
SHORT = {f"short-{at:02}": text(100 + at, 2) for at in range(12)}
TEXTS = {**LONG, **SHORT}


def test_a_text_that_the_model_reads_whole_has_passages_of_half_its_length(
    place: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The tiny model reads 64 tokens. A sentence has 11."""
    monkeypatch.setattr(passages, "MIN_DEFAULT", 16)
    with serving(place) as client:
        long, short = text(3, 5), text(4, 2)
        assert put(client, {"long": long, "short": short})["truncated"] == 0
        index = client.get("/info").json()["index"]
        assert (index["documents"], index["passages"]) == (2, 2 + 3)
        *_, last = (f"{sentence}." for sentence in long.removesuffix(".").split(". "))
        [found] = [hit for hit in hits(client, last, k=100) if hit["id"] == "long"]
        assert long[found["passage"]["start"] : found["passage"]["end"]].endswith(last)
        assert found["passage"]["start"] > 0
        heads = client.get("/search", params={"q": last, "mode": "dense", "passages": "false"}).json()["hits"]
        [head] = [hit for hit in heads if hit["id"] == "long"]
        assert head["score"] < found["score"]


def best(encoder: Encoder, text: str, query: np.ndarray) -> tuple[float, tuple[int, int] | None]:
    """Returns a document's expected score, and its best passage, or None if the text is not split."""
    where = split(Content(text), encoder)
    if where is None:
        return float(encoder.encode([text]).vectors[0] @ query), None
    spans = [where.head, *where.others]
    texts = [text, *(text[span.start : span.end] for span in where.others)]  # The model truncates the head.
    scores = encoder.encode(texts).vectors @ query
    return float(scores.max()), tuple(spans[int(scores.argmax())])  # type: ignore[return-value]


def check(client: TestClient, texts: dict[str, str]) -> None:
    encoder = encoder_of(client)
    for q in ("blue river", text(3, 1), text(5, 3)):
        query = encoder.encode([q]).vectors[0]
        expected = {id: best(encoder, given, query) for id, given in texts.items()}
        found = hits(client, q, k=100)
        assert sorted(hit["id"] for hit in found) == sorted(texts)
        for hit in found:
            score, passage = expected[hit["id"]]
            assert hit["score"] == pytest.approx(score, abs=2e-6)
            assert hit["text"] == texts[hit["id"]]
            if passage is None:
                assert "passage" not in hit
            else:
                assert hit["passage"] == {"start": passage[0], "end": passage[1]}
        scores = [hit["score"] for hit in found]
        assert scores == sorted(scores, reverse=True)
        assert [hit["id"] for hit in hits(client, q, k=3)] == [hit["id"] for hit in found[:3]]


def test_a_search_without_passages_is_one_of_heads(client: TestClient) -> None:
    put(client, TEXTS)
    encoder = encoder_of(client)
    query = encoder.encode(["blue river"]).vectors[0]
    expected = dict(zip(TEXTS, (encoder.encode([*TEXTS.values()]).vectors @ query).tolist(), strict=True))
    one = hits(client, "blue river", k=100, passages="false")
    body = {"queries": ["blue river"], "mode": "dense", "k": 100, "passages": False}
    [many] = client.post("/search", json=body).json()["results"]
    assert one == many
    assert {hit["id"]: hit["score"] for hit in one} == pytest.approx(expected, abs=2e-6)
    where = split(Content(LONG["long-00"]), encoder)
    assert where is not None
    [head] = [hit["passage"] for hit in one if hit["id"] == "long-00"]
    assert head == {"start": 0, "end": where.head.end}
    refused = client.get("/search", params={"q": "red", "mode": "lexical", "passages": "false"})
    assert refused.status_code == 422
    assert client.get("/search", params={"q": "red", "passages": "no"}).status_code == 422


def test_hybrid_search_tells_the_passage_too(client: TestClient) -> None:
    put(client, TEXTS)
    dense = {hit["id"]: hit.get("passage") for hit in hits(client, "blue river", k=100)}
    answer = client.get("/search", params={"q": "blue river", "k": 100, "mode": "hybrid"}).json()["hits"]
    assert {hit["id"]: hit.get("passage") for hit in answer} == dense


def get_passages(client: TestClient) -> tuple[int, int]:
    index = client.get("/info").json()["index"]
    return index["documents"], index["passages"]


def test_each_document_is_found_once_by_its_best_passage(client: TestClient) -> None:
    stored = put(client, TEXTS)
    assert stored["truncated"] == 0
    check(client, TEXTS)
    encoder = encoder_of(client)
    expected = sum(
        1 if (where := split(Content(t), encoder)) is None else 1 + len(where.others) for t in TEXTS.values()
    )
    assert get_passages(client) == (24, expected)


def test_an_update_or_a_delete_takes_every_passage_with_it(client: TestClient) -> None:
    put(client, TEXTS)
    put(client, dict.fromkeys(LONG, "a short letter"))
    check(client, {**SHORT, **dict.fromkeys(LONG, "a short letter")})
    assert get_passages(client) == (24, 24)
    put(client, LONG)
    for id in LONG:
        assert client.delete(f"/documents/{id}").json()["deleted"] == 1
    check(client, SHORT)
    assert get_passages(client) == (12, 12)


def test_the_tokens_of_every_passage_are_counted(client: TestClient) -> None:
    encoder = encoder_of(client)
    given = LONG["long-11"]
    where = split(Content(given), encoder)
    assert where is not None
    texts = [given, *(given[span.start : span.end] for span in where.others)]
    answer = client.post("/documents", json={"documents": [{"id": "x", "text": given}]})
    assert int(answer.headers["x-compute-tokens"]) == sum(encoder.encode(texts).tokens)


def test_passages_are_there_again_after_a_restart(place: Settings) -> None:
    with serving(place) as client:
        put(client, TEXTS)
    with serving(place) as client:
        check(client, TEXTS)


@pytest.mark.parametrize("passage", [0, 1])
@pytest.mark.sqlite("PostgreSQL has checksums of its own")
def test_a_damaged_passage_is_made_again_with_the_others(place: Settings, passage: int) -> None:
    with serving(place) as client:
        put(client, TEXTS)
    with sqlite3.connect(place.data_dir / "simile.db") as connection:
        damaged = connection.execute(
            "UPDATE vectors SET vector = zeroblob(length(vector)) WHERE revision = 4 AND passage = ?",
            [passage],
        )
        assert damaged.rowcount == 1
    connection.close()
    with serving(place) as client:
        check(client, TEXTS)


def test_a_new_model_splits_by_its_own_tokens(place: Settings) -> None:
    with serving(place) as client:
        put(client, TEXTS)
        activate_another(client, place.models_dir)
        check(client, TEXTS)


def test_without_passages_the_model_sees_the_head_and_says_so(place: Settings) -> None:
    heads = place.model_copy(update={"passages": False})
    with serving(heads) as client:
        for _ in range(2):  # Sending the documents again changes nothing.
            assert put(client, TEXTS)["truncated"] == len(LONG)
        assert get_passages(client) == (24, 24)
        encoder = encoder_of(client)
        query = encoder.encode(["blue river"]).vectors[0]
        expected = dict(zip(TEXTS, (encoder.encode([*TEXTS.values()]).vectors @ query).tolist(), strict=True))
        for hit in hits(client, "blue river", k=100):
            assert hit["score"] == pytest.approx(expected[hit["id"]], abs=2e-6)
            assert "passage" not in hit
    # After passages are turned on, a text is split when it is sent again.
    with serving(place) as client:
        assert get_passages(client) == (24, 24)
        again = {id: TEXTS[id] for id in [*LONG][:6]}
        assert put(client, again)["truncated"] == 0
        assert {hit["id"] for hit in hits(client, "blue river", k=100) if "passage" in hit} == {*again}
        put(client, TEXTS)
        check(client, TEXTS)
