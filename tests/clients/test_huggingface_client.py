"""huggingface_hub's InferenceClient, which posts to the service's address without a path."""

import numpy as np
import pytest
from huggingface_hub import InferenceClient, constants
from huggingface_hub.errors import HfHubHTTPError, OfflineModeIsEnabled

from tests.clients import page
from tests.clients.running import Running


def test_the_snippet_gives_the_vectors_of_embed(service: Running) -> None:
    names = page.run("huggingface_hub", service)
    expected = service.embed([*names["texts"], "It rains."])
    assert names["vectors"].shape == (2, 384)
    np.testing.assert_allclose(names["vectors"], expected[:2], atol=1e-6)
    np.testing.assert_allclose(names["scores"], expected[1:] @ expected[0], atol=1e-6)


def test_its_parameters_have_their_effect(service: Running) -> None:
    client = InferenceClient(base_url=service.url, api_key=service.key)
    plain = service.embed(["red river"])
    one = client.feature_extraction("red river")
    np.testing.assert_allclose(one, plain, atol=1e-6)
    short = client.feature_extraction("red river", dimensions=64)
    np.testing.assert_allclose(short, plain[:, :64] / np.linalg.norm(plain[:, :64]), atol=1e-6)
    long_one = client.feature_extraction("red river", normalize=False)
    assert np.linalg.norm(long_one) > 1.5
    np.testing.assert_allclose(long_one / np.linalg.norm(long_one), plain, atol=1e-6)
    text = "first " * 300 + "river " * 300
    left = client.feature_extraction(text, truncate=True, truncation_direction="left")
    np.testing.assert_allclose(left, service.embed(["river " * 254]), atol=1e-6)
    with pytest.raises(HfHubHTTPError, match="422") as refused:
        client.feature_extraction(text, truncate=False)
    assert refused.value.response.json()["error_type"] == "Validation"
    assert "602" in str(refused.value), "the client shows the body of a 422"
    with pytest.raises(HfHubHTTPError, match="no prompt 'unheard-of'"):
        client.feature_extraction("a", prompt_name="unheard-of")


def test_a_version_is_pinned_by_a_header(service: Running) -> None:
    version = service.get("/info")["model_version"]
    pinned = InferenceClient(base_url=service.url, api_key=service.key, headers={"x-model-version": version})
    np.testing.assert_allclose(pinned.feature_extraction("a"), service.embed(["a"]), atol=1e-6)
    other = InferenceClient(
        base_url=service.url, api_key=service.key, headers={"x-model-version": "unheard-of"}
    )
    with pytest.raises(HfHubHTTPError) as refused:
        other.feature_extraction("a")
    assert refused.value.response.status_code == 409
    assert "unheard-of" in refused.value.response.json()["error"]


def test_an_empty_text_and_a_wrong_key_are_refused(service: Running, keyed_service: Running) -> None:
    client = InferenceClient(base_url=service.url, api_key=service.key)
    with pytest.raises(HfHubHTTPError) as empty:
        client.feature_extraction(["a", ""])
    assert empty.value.response.status_code == 400
    assert empty.value.response.json()["error_type"] == "Empty"
    assert "inputs[1]" in empty.value.response.json()["error"]
    with pytest.raises(HfHubHTTPError) as stranger:
        InferenceClient(base_url=keyed_service.url, api_key="not-a-key").sentence_similarity("a", ["b"])
    assert stranger.value.response.status_code == 401
    assert stranger.value.response.json()["error_type"] == "Unauthorized"


def test_without_a_key_it_sends_the_account_s_token(
    keyed_service: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    """docs/CLIENTS.md warns of this. Here the account's token is a key, so the service accepts it."""
    monkeypatch.setenv("HF_TOKEN", keyed_service.key)
    vectors = InferenceClient(base_url=keyed_service.url).feature_extraction("a")
    np.testing.assert_allclose(vectors, keyed_service.embed(["a"]), atol=1e-6)


def test_offline_mode_blocks_even_this_machine(
    open_service: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(OfflineModeIsEnabled):
        InferenceClient(base_url=open_service.url, api_key="any").feature_extraction("a")
