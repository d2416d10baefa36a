"""cohere's ClientV2: every type of vector, compared with `/embed` and with the service's own JSON."""

import base64

import cohere
import numpy as np
import pytest
from cohere.core import ApiError

from tests.clients import page
from tests.clients.running import HURRIED, Running

TYPES = ["float", "int8", "uint8", "binary", "ubinary", "base64"]


def client_of(service: Running, key: str | None = None) -> cohere.ClientV2:
    return cohere.ClientV2(api_key=key or service.key, base_url=service.url, max_retries=0)


def test_the_snippet_gives_the_vectors_of_embed(service: Running) -> None:
    names = page.run("cohere", service)
    expected = service.embed(names["texts"])
    found = names["answer"].embeddings
    np.testing.assert_allclose(names["vectors"], expected, atol=1e-6)
    np.testing.assert_allclose(
        [np.frombuffer(base64.b64decode(row), "<f4") for row in found.base64], expected, atol=1e-6
    )
    assert names["answer"].texts == names["texts"]
    tokens = sum(map(len, service.post("/tokenize", {"inputs": names["texts"]})))
    assert names["answer"].meta.tokens.input_tokens == tokens


def test_bits_are_the_signs_of_the_vector(service: Running) -> None:
    found = page.run("cohere", service)["answer"].embeddings
    signs = np.packbits(np.array(found.float_) > 0, axis=1)
    np.testing.assert_array_equal(found.ubinary, signs)
    np.testing.assert_array_equal(found.binary, signs.astype(int) - 128)


def test_small_numbers_are_as_sent_and_follow_the_vector(service: Running) -> None:
    names = page.run("cohere", service)
    body = {"texts": names["texts"], "input_type": "search_document", "embedding_types": TYPES}
    sent = service.post("/v2/embed", body)["embeddings"]
    found = names["answer"].embeddings
    assert found.int8 == sent["int8"]
    assert found.uint8 == sent["uint8"]
    np.testing.assert_array_equal(np.array(found.uint8) - np.array(found.int8), 128)
    vectors, small = np.array(found.float_), np.array(found.int8)
    levels = np.sum(vectors * small, axis=1)  # int8 steps per 1.0, as vectors have length 1
    np.testing.assert_allclose(levels, levels[0], rtol=0.01, err_msg="one range for all")
    np.testing.assert_allclose(small / levels[:, None], vectors, atol=1 / levels[0])
    for text, together in zip(names["texts"], found.int8, strict=True):
        alone = client_of(service).embed(
            model="any", texts=[text], input_type="search_document", embedding_types=["int8"]
        )
        assert alone.embeddings.int8 == [together], "the range is the version's, not the request's"


def test_short_vectors_and_truncation(service: Running) -> None:
    client = client_of(service)
    expected = service.embed(["red river"])[:, :64]
    expected /= np.linalg.norm(expected)
    types = {"embedding_types": ["float", "ubinary"], "output_dimension": 64}
    short = client.embed(model="any", texts=["red river"], input_type="search_query", **types).embeddings
    np.testing.assert_allclose(short.float_, expected, atol=1e-6)
    assert [len(row) for row in short.ubinary] == [8]
    text = "first " * 300 + "river " * 300
    start = client.embed(model="any", texts=[text], input_type="search_query", truncate="START")
    np.testing.assert_allclose(start.embeddings.float_, service.embed(["river " * 254]), atol=1e-6)
    with pytest.raises(cohere.BadRequestError) as refused:
        client.embed(model="any", texts=[text], input_type="search_query", truncate="NONE")
    assert "602" in refused.value.body["message"]


@pytest.mark.parametrize(
    ("requested", "word"),
    [
        ({"texts": []}, "texts"),
        ({"texts": ["a", ""]}, "texts[1]"),
        ({"texts": ["a"], "embedding_types": ["int4"]}, "embedding_types"),
        ({"texts": ["a"], "output_dimension": 1000}, "384"),
        ({"images": ["data:image/png;base64,AAAA"]}, "texts"),
    ],
)
def test_bad_input_is_a_bad_request_that_says_what_is_wrong(
    service: Running, requested: dict[str, object], word: str
) -> None:
    with pytest.raises(cohere.BadRequestError) as refused:
        client_of(service).embed(model="any", input_type="search_query", **requested)
    assert word in refused.value.body["message"]


def test_a_wrong_key_and_a_spent_rate_have_their_exceptions(keyed_service: Running) -> None:
    def ask(key: str) -> None:
        client_of(keyed_service, key).embed(model="any", texts=["a"], input_type="search_query")

    with pytest.raises(cohere.UnauthorizedError) as stranger:
        ask("not-a-key")
    assert "key" in stranger.value.body["message"]
    assert isinstance(stranger.value, ApiError)
    keyed_service.spend(HURRIED)
    with pytest.raises(cohere.TooManyRequestsError) as hurried:
        ask(HURRIED)
    assert "minute" in hurried.value.body["message"]


def test_documents_are_reranked_as_by_the_native_route(service: Running) -> None:
    service.use_reranker()
    query, texts = "red river", ["the cat sleeps", "a stone market", "green garden", "blue window"]
    expected = service.post("/rerank", {"query": query, "texts": texts})
    answer = client_of(service).rerank(model="rerank-v3.5", query=query, documents=texts, top_n=3)
    assert [each.index for each in answer.results] == [each["index"] for each in expected[:3]]
    scores = [each.relevance_score for each in answer.results]
    assert scores == pytest.approx([each["score"] for each in expected[:3]])
    first = cohere.Client(api_key=service.key, base_url=service.url).rerank(
        model="rerank-v3.5", query=query, documents=[{"text": text} for text in texts], return_documents=True
    )
    assert [each.document.text for each in first.results if each.document] == [
        texts[each["index"]] for each in expected
    ]
    with pytest.raises(ApiError) as refused:
        client_of(service).rerank(model="m", query="", documents=texts)
    assert refused.value.status_code == 400
