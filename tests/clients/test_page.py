"""The snippets and curl commands of docs/CLIENTS.md work, and its versions are the tested ones."""

import json
import re
import subprocess
import sys
from importlib.metadata import version

import numpy as np
import pytest

from tests.clients import page
from tests.clients.running import Running
from tests.parts.served import ROOT


@pytest.mark.parametrize("heading", page.snippets())
def test_every_snippet_runs_as_it_stands(heading: str, service: Running) -> None:
    page.run(heading, service)


def test_every_client_has_a_snippet() -> None:
    clients = ["openai", "A pinned version", "huggingface_hub", "LlamaIndex", "LangChain", "cohere", "Chroma"]
    integrations = [
        "A LangChain vector store",
        "A LangChain retriever",
        "A LlamaIndex vector store",
        "A Haystack document store",
    ]
    assert list(page.snippets()) == [*clients, *integrations, "Raw vectors"]


def test_the_versions_of_the_page_are_pinned_and_installed() -> None:
    said = page.versions()
    assert len(said) == 12
    assert said == {name: version(name) for name in said}
    pins = (ROOT / "tests/clients/requirements.txt").read_text(encoding="utf-8").splitlines()
    direct = dict(line.split("==") for line in pins if re.match(r"[a-z]", line))
    assert said.items() <= direct.items()
    constraints = (ROOT / "tests/clients/constraints.txt").read_text(encoding="utf-8").lower()
    for name, pin in direct.items():
        assert re.search(rf"^{name.replace('_', '[_-]')}=={re.escape(pin)}$", constraints, re.MULTILINE), name


def test_every_curl_answers_and_all_families_give_one_vector(service: Running) -> None:
    said = {}
    for command in page.curls():
        with_key = f"{page.here(command, service)} -H 'Authorization: Bearer {service.key}'"
        done = subprocess.run(
            ["bash", "-c", f"{with_key} --silent --show-error --fail-with-body"],
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
        [path] = re.findall(rf"{page.ADDRESS}(/[^ '?]*)", command)
        said[path] = json.loads(done.stdout)
    text = "How do I get my money back?"
    vectors = service.embed([text, "It rains.", "A refund takes a week."])
    openai, cohere = said["/v1/embeddings"]["data"][0], said["/v2/embed"]["embeddings"]
    for vector in (said["/embed"][0], said["/"][0], openai["embedding"], cohere["float"][0]):
        np.testing.assert_allclose(vector, vectors[0], atol=1e-6)
    np.testing.assert_allclose(said["/similarity"], vectors[1:] @ vectors[0], atol=1e-6)
    assert [token["id"] for token in said["/tokenize"][0]] == [101, 2009, 15811, 1012, 102]
    assert said["/decode"] == ["it rains."]
    active = said["/info"]["model_version"]
    assert active in [model["id"] for model in said["/v1/models"]["data"]]
    assert said["/search"]["hits"][0]["id"] == "support-refund-window"
    assert len(said) == 10


def test_raw_vectors_are_those_of_embed(service: Running) -> None:
    names = page.run("Raw vectors", service)
    np.testing.assert_allclose(names["vectors"], service.embed(names["texts"]), atol=1e-6)


def test_nothing_of_the_project_is_imported_here() -> None:
    assert not {"service", "models", "training"} & set(sys.modules)
