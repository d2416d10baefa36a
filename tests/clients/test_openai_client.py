"""The openai client: vectors, token ids, models, and the exceptions that it raises for errors."""

import asyncio
import base64
import json

import numpy as np
import openai
import pytest

from tests.clients import page
from tests.clients.running import HURRIED, Running

TEXTS = ["The cat sleeps.", "a", "Ein Satz auf Deutsch.", "猫が好き", "x " * 900]


def client_of(service: Running, key: str | None = None) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{service.url}/v1", api_key=key or service.key, max_retries=0)


def test_the_snippet_gives_the_vectors_of_embed(service: Running) -> None:
    names = page.run("openai", service)
    np.testing.assert_allclose(names["vectors"], service.embed(names["texts"]), atol=1e-6)
    cut = service.embed(names["texts"])[:, :128]
    cut /= np.linalg.norm(cut, axis=1, keepdims=True)
    np.testing.assert_allclose([row.embedding for row in names["short"].data], cut, atol=1e-6)
    published = [model["version"] for model in service.get("/models")["models"]]
    assert names["versions"] == published


def test_it_asks_for_base64_and_gets_the_same_numbers_as_floats(service: Running) -> None:
    client = client_of(service)
    raw = client.embeddings.with_raw_response.create(model="any", input=TEXTS)
    assert json.loads(raw.http_request.content)["encoding_format"] == "base64"
    sent = json.loads(raw.text)["data"]
    expected = service.embed(TEXTS)
    np.testing.assert_allclose(
        [np.frombuffer(base64.b64decode(row["embedding"]), "<f4") for row in sent], expected, atol=1e-6
    )
    assert [row["index"] for row in sent] == list(range(len(TEXTS)))
    np.testing.assert_allclose([row.embedding for row in raw.parse().data], expected, atol=1e-6)
    floats = client.embeddings.with_raw_response.create(model="any", input=TEXTS, encoding_format="float")
    np.testing.assert_allclose([row.embedding for row in floats.parse().data], expected, atol=1e-6)
    assert len(raw.text) < len(floats.text) / 2, "as the page says"
    assert raw.headers["x-truncated"] == "1"


def test_usage_counts_the_tokens_that_the_model_saw(service: Running) -> None:
    rows = service.post("/tokenize", {"inputs": TEXTS})
    longest = service.get("/info")["max_input_length"]
    assert len(rows[-1]) > longest
    expected = sum(min(len(row), longest) for row in rows)
    usage = client_of(service).embeddings.create(model="any", input=TEXTS).usage
    assert (usage.prompt_tokens, usage.total_tokens) == (expected, expected)


def test_token_ids_give_the_vector_of_their_text(service: Running) -> None:
    ids = [[token["id"] for token in row] for row in service.post("/tokenize", {"inputs": TEXTS[:4]})]
    client = client_of(service)
    many = client.embeddings.create(model="any", input=ids)
    expected = service.embed(TEXTS[:4])
    np.testing.assert_allclose([row.embedding for row in many.data], expected, atol=1e-6)
    one = client.embeddings.create(model="any", input=ids[0])
    np.testing.assert_allclose([row.embedding for row in one.data], expected[:1], atol=1e-6)


def test_the_asynchronous_client_gives_the_same(service: Running) -> None:
    async def ask() -> list[list[float]]:
        async with openai.AsyncOpenAI(base_url=f"{service.url}/v1", api_key=service.key) as client:
            answers = await asyncio.gather(
                *(client.embeddings.create(model="any", input=text) for text in TEXTS)
            )
        return [answer.data[0].embedding for answer in answers]

    np.testing.assert_allclose(asyncio.run(ask()), service.embed(TEXTS), atol=1e-6)


def test_a_pinned_version_answers(service: Running) -> None:
    names = page.run("A pinned version", service)
    assert names["version"] == service.get("/info")["model_version"]
    assert names["again"].model == names["version"]
    expected = service.embed(["Unused goods may be sent back within a month."])
    np.testing.assert_allclose([names["again"].data[0].embedding], expected, atol=1e-6)


@pytest.mark.parametrize(
    ("requested", "word"),
    [
        ({"input": []}, "input"),
        ({"input": ["fine", ""]}, "input[1]"),
        ({"input": " \n"}, "input"),
        ({"input": ["a"] * 2049}, "2048"),
        ({"input": "a", "dimensions": 385}, "384"),
        ({"input": "a", "encoding_format": "int8"}, "encoding_format"),
        ({"input": [[15339, 1917]]}, "check_embedding_ctx_length=False"),
        ({"input": [101, 30522, 102]}, "30522"),
    ],
)
def test_bad_input_is_a_bad_request_that_says_what_is_wrong(
    service: Running, requested: dict[str, object], word: str
) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        client_of(service).embeddings.create(model="any", **requested)
    assert refused.value.status_code == 400
    assert word in refused.value.body["message"]
    assert refused.value.type == "invalid_request_error"
    assert refused.value.request_id


def test_a_wrong_key_is_an_authentication_error(keyed_service: Running) -> None:
    client = client_of(keyed_service, "not-a-key")
    for call in (client.models.list, lambda: client.embeddings.create(model="any", input="a")):
        with pytest.raises(openai.AuthenticationError) as refused:
            call()
        assert refused.value.status_code == 401
        assert "key" in refused.value.body["message"]
        assert "not-a-key" not in refused.value.body["message"]


def test_a_spent_rate_is_a_rate_limit_error(keyed_service: Running) -> None:
    client = client_of(keyed_service, HURRIED)
    keyed_service.spend(HURRIED)
    with pytest.raises(openai.RateLimitError) as refused:
        client.embeddings.create(model="any", input="a")
    assert refused.value.status_code == 429
    assert 1 <= int(refused.value.response.headers["retry-after"]) <= 60
    assert "minute" in refused.value.body["message"]
    client_of(keyed_service).embeddings.create(model="any", input="a")  # Other keys are still accepted.


def test_other_refusals_have_their_exception(service: Running) -> None:
    client = client_of(service)
    with pytest.raises(openai.NotFoundError, match="/v1/models/unheard-of"):
        client.models.retrieve("unheard-of")
    with pytest.raises(openai.NotFoundError, match="/v1/chat/completions"):
        client.chat.completions.create(model="any", messages=[{"role": "user", "content": "Hello"}])
    with pytest.raises(openai.APIStatusError, match="SIMILE_MAX_BODY_MB") as large:
        client.embeddings.create(model="any", input="a" * (17 << 20))
    assert large.value.status_code == 413
    unread = [f"{at} {TEXTS[2]}" for at in range(400)]  # No vectors of these texts are in the cache.
    with pytest.raises(openai.InternalServerError) as late:
        client.embeddings.create(model="any", input=unread, extra_headers={"x-timeout-ms": "1"})
    assert late.value.status_code == 504
