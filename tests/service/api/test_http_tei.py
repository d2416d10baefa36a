"""TEI's routes `/`, `/tokenize` and `/decode`, options in `parameters`, and timing headers."""

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import tokenizers
from starlette.testclient import TestClient

from models.encoder import Encoder
from service.settings import Settings
from tests.parts.faults import before_passes, broken
from tests.service.api.test_http_errors import refused
from tests.service.conftest import serving_prompts

LONG = "the red river " * 40  # 122 tokens, more than the model accepts
STRANGE = "The 日本 émarket 🙂s [SEP] engines"


@pytest.fixture
def own_tokenizer(tiny_source: Path) -> tokenizers.Tokenizer:
    """The model's tokenizer, opened without our code."""
    tokenizer = tokenizers.Tokenizer.from_file(str(tiny_source / "tokenizer.json"))
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


@pytest.fixture(scope="module")
def prompted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[TestClient, Encoder]]:
    with serving_prompts(tmp_path_factory.mktemp("prompted"), {"query": "market letter "}) as served:
        yield served


def test_the_root_embeds_as_embed_does(client: TestClient) -> None:
    body = {"inputs": ["red river", LONG], "dimensions": 8, "truncation_direction": "left"}
    root, embed = client.post("/", json=body), client.post("/embed", json=body)
    assert root.json() == embed.json()
    assert root.headers["x-truncated"] == "1"
    raw = client.post("/", json={"inputs": "a"}, headers={"accept": "application/octet-stream"})
    assert raw.headers["x-embedding-shape"] == "1,32"


def test_the_root_compares_when_its_inputs_are_an_object(client: TestClient, encoder: Encoder) -> None:
    texts = ["red river", "the cat sleeps", LONG]
    inputs = {"source_sentence": texts[0], "sentences": texts[1:]}
    answer = client.post("/", json={"inputs": inputs, "parameters": {"truncation_direction": "right"}})
    vectors = encoder.encode(texts).vectors
    np.testing.assert_allclose(answer.json(), vectors[1:] @ vectors[0], atol=1e-6)
    assert answer.headers["x-truncated"] == "1"
    response = client.post("/", json={"inputs": inputs, "parameters": {"truncate": False}})
    refused(response, 422, "Validation", "122", "64")


def test_the_root_refuses_what_is_neither(client: TestClient) -> None:
    refused(
        client.post("/", json={"inputs": {"source_sentence": "a"}}), 422, "Validation", "inputs.sentences"
    )
    refused(client.post("/", json={"inputs": 7}), 422, "Validation", "inputs")
    refused(client.post("/", json={}), 422, "Validation", "inputs")
    refused(client.post("/", json={"inputs": {"source_sentence": "a", "sentences": []}}), 400, "Empty")
    refused(client.delete("/"), 405, "MethodNotAllowed")


@pytest.mark.parametrize("path", ["/", "/embed"])
def test_options_may_stand_in_parameters_and_those_beside_inputs_count_first(
    prompted: tuple[TestClient, Encoder], path: str
) -> None:
    client, encoder = prompted
    [expected] = encoder.encode(["market letter red"]).vectors
    inner = {"prompt_name": "query", "dimensions": 8, "normalize": False}
    answer = client.post(path, json={"inputs": "red", "parameters": inner, "normalize": True}).json()
    np.testing.assert_allclose(answer[0], expected[:8] / np.linalg.norm(expected[:8]), atol=1e-6)
    answer = client.post(path, json={"inputs": "red", "parameters": inner, "prompt_name": None}).json()
    [plain] = encoder.forward([encoder.tokenize(["red"])[0].ids], normalize=False)
    np.testing.assert_allclose(answer[0], plain[:8], atol=1e-6)
    refused(
        client.post(path, json={"inputs": "a", "parameters": {"truncate": 1}}), 422, "Validation", "truncate"
    )


@pytest.mark.parametrize("path", ["/", "/embed"])
@pytest.mark.parametrize("given", [{}, {"truncate": None}, {"truncate": True}])
def test_a_long_text_is_cut_unless_that_was_refused(
    client: TestClient, encoder: Encoder, path: str, given: dict[str, object]
) -> None:
    response = client.post(path, json={"inputs": [LONG, "a", LONG], **given})
    np.testing.assert_allclose(response.json()[0], encoder.encode([LONG]).vectors[0], atol=1e-6)
    assert response.headers["x-truncated"] == "2"
    refused(
        client.post(path, json={"inputs": ["a", LONG], "truncate": False}), 422, "Validation", "Input 1", "64"
    )


def test_every_inference_says_where_its_time_went(
    client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    before_passes(monkeypatch, lambda *_: time.sleep(0.05))
    texts = ["red river", "日本"]  # 4 tokens each, 11 characters in total
    answers = [
        client.post("/embed", json={"inputs": texts}),
        client.post("/", json={"inputs": texts}),
        client.post("/similarity", json={"pairs": [texts]}),
        client.post("/v1/embeddings", json={"input": texts}),
        client.post("/v2/embed", json={"texts": texts}),
        client.post("/search", json={"queries": texts}),
    ]
    for answer in answers:
        assert answer.status_code == 200, answer.text
        names = ("total", "tokenization", "queue", "inference")
        spent = {name: int(answer.headers[f"x-{name}-time"]) for name in names}
        assert 50 <= spent["inference"] <= spent["total"] < 5000
        assert 0 <= spent["tokenization"] + spent["queue"] <= spent["total"]
        assert answer.headers["x-compute-tokens"] == "8"
        assert answer.headers["x-compute-characters"] == "11"
        assert "x-truncated" not in answer.headers
    one = client.get("/search", params={"q": LONG})
    assert int(one.headers["x-inference-time"]) >= 50
    assert one.headers["x-compute-characters"] == str(len(LONG))
    assert (one.headers["x-compute-tokens"], one.headers["x-truncated"]) == ("64", "1")


def test_characters_are_those_that_were_sent_and_tokens_those_that_were_computed(
    prompted: tuple[TestClient, Encoder],
) -> None:
    client, _ = prompted
    answer = client.post("/embed", json={"inputs": "red", "prompt_name": "query"})
    assert (answer.headers["x-compute-characters"], answer.headers["x-compute-tokens"]) == ("3", "5")


def test_tokens_are_the_tokenizers_own_with_offsets_in_characters(
    client: TestClient, own_tokenizer: tokenizers.Tokenizer
) -> None:
    answer = client.post("/tokenize", json={"inputs": [STRANGE, LONG]})
    assert answer.status_code == 200
    for text, tokens in zip([STRANGE, LONG], answer.json(), strict=True):
        own = own_tokenizer.encode(text)
        assert [token["id"] for token in tokens] == own.ids, "not cut, and with the special ones"
        first, *inner, last = tokens
        assert first == {"id": 2, "text": "[CLS]", "special": True, "start": None, "stop": None}
        assert last == {"id": 3, "text": "[SEP]", "special": True, "start": None, "stop": None}
        assert [(token["start"], token["stop"]) for token in inner] == own.offsets[1:-1]
        assert all(token["text"] == text[token["start"] : token["stop"]] for token in inner)
        assert not any(token["special"] for token in inner), "what a text says is no special token"
    words = [token["text"] for token in answer.json()[0]]
    assert words[1:4] == ["The", "日", "本"]
    assert "🙂s" in words


def test_tokens_without_the_special_ones_and_behind_a_prompt(prompted: tuple[TestClient, Encoder]) -> None:
    client, _ = prompted
    body = {"inputs": "red", "add_special_tokens": False, "prompt_name": "query"}
    [tokens] = client.post("/tokenize", json=body).json()
    found = [(token["text"], token["start"], token["stop"]) for token in tokens]
    assert found == [("market", 0, 6), ("letter", 7, 13), ("red", 14, 17)]


def test_many_tokens_are_made_aside_from_the_event_loop(
    client: TestClient, encoder: Encoder, own_tokenizer: tokenizers.Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    pieces, threads = encoder.pieces, []

    def noted(text: str, *, add_special_tokens: bool = True) -> object:
        threads.append(threading.current_thread().name)
        return pieces(text, add_special_tokens=add_special_tokens)

    monkeypatch.setattr(encoder, "pieces", noted)
    text = "red river " * 6000  # more tokens than one slice
    [tokens] = client.post("/tokenize", json={"inputs": text}).json()
    assert [token["id"] for token in tokens] == own_tokenizer.encode(text).ids
    assert [name.rpartition("_")[0] for name in threads] == ["tokens"]


def test_what_cannot_be_tokenized_is_refused(
    client: TestClient, encoder: Encoder, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    def post(inputs: object) -> object:
        return client.post("/tokenize", json={"inputs": inputs})

    refused(post([]), 400, "Empty", "inputs")
    refused(post(["a", " "]), 400, "Empty", "inputs[1]")
    refused(post([1, 2]), 422, "Validation", "inputs[0]")
    refused(post({"a": 1}), 422, "Validation", "inputs")
    refused(post(["a"] * 2049), 422, "Validation", "SIMILE_MAX_INPUTS")
    limit = settings.max_tokenize_characters
    refused(post(["a" * limit, "b"]), 422, "Validation", f"{limit + 1}", "SIMILE_MAX_TOKENIZE_CHARACTERS")
    unknown = {"inputs": "a", "prompt_name": "none-such"}
    refused(client.post("/tokenize", json=unknown), 422, "Validation", "none-such")

    monkeypatch.setattr(encoder, "pieces", broken)
    refused(post("a"), 422, "Tokenizer", "inputs[0]", "injected")


def test_ids_become_text_again(client: TestClient, own_tokenizer: tokenizers.Tokenizer) -> None:
    rows = [own_tokenizer.encode(text).ids for text in ("the red river", STRANGE)]
    answer = client.post("/decode", json={"ids": rows}).json()
    assert answer == [own_tokenizer.decode(row) for row in rows]
    assert answer[0] == "the red river"
    assert client.post("/decode", json={"ids": rows[0]}).json() == ["the red river"]
    whole = client.post("/decode", json={"ids": rows[0], "skip_special_tokens": False}).json()
    assert whole == ["[CLS] the red river [SEP]"]


def test_ids_that_are_no_tokens_are_refused(client: TestClient, encoder: Encoder) -> None:
    def post(ids: object) -> object:
        return client.post("/decode", json={"ids": ids})

    for id in (-1, 250, 2**31, 2**32, 2**40, 2**63):
        refused(post([[2], [5, id]]), 422, "Validation", "ids[1]", "Token 1", str(id), "250")
    refused(post([]), 400, "Empty", "ids")
    refused(post([[1], []]), 400, "Empty", "ids[1]")
    for wrong in ("text", ["text"], [1, "text"], [True], [1.5], [[1], 2], [2**70], None, {"a": 1}):
        refused(post(wrong), 422, "Validation", "ids")
    refused(post([[5]] * 2049), 422, "Validation", "SIMILE_MAX_INPUTS")


def test_unknown_fields_are_ignored(client: TestClient) -> None:
    for path, body in (
        ("/", {"inputs": "a"}),
        ("/", {"inputs": {"source_sentence": "a", "sentences": ["b"], "more": 1}}),
        ("/tokenize", {"inputs": "a"}),
        ("/decode", {"ids": [5]}),
    ):
        assert client.post(path, json={**body, "unheard": {"of": 1}}).status_code == 200
