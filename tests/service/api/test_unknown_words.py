"""Words outside the model's vocabulary are counted in headers and answers, as truncated texts are."""

import json
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from models.tokens.tokenizer import Tokenizer
from tests.tiny import tiny_source

NDJSON = "application/x-ndjson"
UNKNOWN = ["ቡና ጥሩ ነው", "🍎", "𒀀𒀀", "red 🚗 river", "x" * 120, "กขคง" * 30]
HEADERS = ("x-unknown-texts", "x-unknown-tokens")


def bodies(texts: list[str]) -> dict[str, object]:
    """Requests whose inputs are `texts`, by path."""
    return {
        "/embed": {"inputs": texts},
        "/": {"inputs": texts},
        "/similarity": {"inputs": {"source_sentence": texts[0], "sentences": texts[1:]}},
        "/v1/embeddings": {"input": texts, "model": "m"},
        "/v2/embed": {"texts": texts, "input_type": "search_document"},
    }


@pytest.mark.parametrize("text", UNKNOWN, ids=range(len(UNKNOWN)))
def test_headers_count_texts_and_tokens(client: TestClient, text: str) -> None:
    ids = [
        [token["id"] for token in row]
        for row in client.post("/tokenize", json={"inputs": [text, "🍎"]}).json()
    ]
    tokens = ids[0].count(ids[1][1])
    assert tokens >= 1
    texts = ["red river", text, text]
    for path, body in bodies(texts).items():
        for _ in range(2):  # The second answer is from the cache.
            answer = client.post(path, json=body)
            assert answer.status_code == 200, answer.text
            assert [answer.headers[name] for name in HEADERS] == ["2", str(2 * tokens)]
    answer = client.post("/embed", json={"inputs": [ids[0]]})
    assert [answer.headers[name] for name in HEADERS] == ["1", str(tokens)]


def test_known_texts_have_no_such_header(client: TestClient) -> None:
    for path, body in bodies(["red river", "stone"]).items():
        assert not {*HEADERS} & {*client.post(path, json=body).headers}


@pytest.mark.parametrize("text", UNKNOWN, ids=range(len(UNKNOWN)))
def test_an_answer_to_a_write_counts_documents(client: TestClient, text: str) -> None:
    documents = [{"id": "unknown", "text": f"{text} a"}, {"id": "known", "text": "red river"}]
    lines = "\n".join(map(json.dumps, documents))
    titled = [{"id": "unknown", "text": "red river", "title": text}, documents[1]]
    late = [{"id": "unknown", "text": f"{'red river. ' * 200}{text}"}, documents[1]]
    file = "/files?name=a.jsonl&id=id&text=text"
    raw = {"content-type": "application/octet-stream"}
    for answer in (
        client.post("/documents", json={"documents": documents}),
        client.post("/documents", json={"documents": titled}),
        client.post("/documents", json={"documents": late}),
        client.post("/documents", content=lines, headers={"content-type": NDJSON}),
        client.post("/documents", json={"documents": titled}),
        client.post(file, content=lines, headers=raw),
    ):
        assert answer.status_code == 200, answer.text
        assert answer.json()["unknown"] == 1
    again = client.post(file, content=lines, headers=raw)
    assert again.json()["unknown"] == 0, "nothing was embedded"


def test_a_metric_counts_texts(client: TestClient) -> None:
    def counted() -> float:
        lines = client.get("/metrics").text.splitlines()
        return sum(float(line.split()[-1]) for line in lines if line.startswith("simile_unknown_texts_total"))

    before = counted()
    client.post("/embed", json={"inputs": UNKNOWN})
    assert counted() == before + len(UNKNOWN)


def test_a_model_without_a_token_for_unknown_words_counts_none(tmp_path: Path) -> None:
    content = json.loads((tiny_source(tmp_path / "source", seed=7) / "tokenizer.json").read_text())
    text = ["🍎 red"]
    assert Tokenizer(content, 64).tokenize(text)[0].unknown == 1
    bytes_of_all = {chr(at): at for at in range(256)} | {"[CLS]": 256, "[SEP]": 257}
    content["model"] = {"type": "BPE", "vocab": bytes_of_all, "merges": [], "unk_token": None}
    content["pre_tokenizer"] = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True}
    assert Tokenizer(content, 64).tokenize(text)[0].unknown == 0
