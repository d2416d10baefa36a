"""The command `python -m training mine`."""

import gzip
import itertools
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.service.process import Service
from tests.training.conftest import WORDS
from tests.training.mining.test_dedupe import exact
from training.__main__ import main
from training.text.corpus import TRIPLES, read_corpus

pytestmark = pytest.mark.usefixtures("version")


def rows(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text().splitlines()]


@pytest.fixture
def pairs(tmp_path: Path) -> Path:
    lines = [f"what is a {word}\tthe {word} is {other}" for word, other in itertools.pairwise(WORDS)]
    (tmp_path / "pairs.tsv").write_text("query\tpositive\n" + "\n".join(lines) + "\n")
    return tmp_path / "pairs.tsv"


def negatives_of(row: dict[str, Any]) -> list[str]:
    found = row["negative"]
    return found if isinstance(found, list) else [found]


def test_negatives_are_written_as_triples_alike_each_time(
    pairs: Path, tiny_source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["mine", "negatives", "--pairs", str(pairs), "--model", str(tiny_source), "--count", "2"]
    for name in ("one.jsonl", "two.jsonl"):
        assert main([*arguments, "--margin", "0", "--out", str(tmp_path / name)]) == 0
    found = rows(tmp_path / "one.jsonl")
    assert (tmp_path / "two.jsonl").read_text() == (tmp_path / "one.jsonl").read_text()
    assert list(found[0]) == ["anchor", "positive", "negative", "score_positive", "score_negative"]
    known = dict(line.split("\t") for line in pairs.read_text().splitlines()[1:])
    for row in found:
        assert known[row["anchor"]] == row["positive"]
        negatives, scores = negatives_of(row), row["score_negative"]
        scores = scores if isinstance(scores, list) else [scores]
        assert 1 <= len(negatives) == len(scores) <= 2
        assert set(negatives) <= {*known.values()} - {row["positive"]}
        assert row["score_positive"] >= scores[0] >= scores[-1]
    said = capsys.readouterr().out.splitlines()
    count = sum(len(negatives_of(row)) for row in found)
    assert count > len(found) == len({row["anchor"] for row in found}), "a pair has one row"
    assert said[0] == f"{count} negatives of {len(found)} of {len(known)} pairs; candidates: {len(known)}"
    assert read_corpus(tmp_path / "one.jsonl", TRIPLES).columns == 4
    assert "candidates dropped as likely answers: " in said[3]


def test_negatives_of_a_corpus(pairs: Path, tiny_source: Path, tmp_path: Path) -> None:
    (tmp_path / "more.txt").write_text("a stone sleeps\n\nhow do i open it\n")
    out = tmp_path / "out.jsonl.gz"
    common = ["--model", str(tiny_source), "--count", "10", "--out", str(out)]
    given = ["--pairs", str(pairs), "--corpus", str(tmp_path / "more.txt")]
    assert main(["mine", "negatives", *given, *common]) == 0
    found = [json.loads(line) for line in gzip.decompress(out.read_bytes()).splitlines()]
    told = {text for row in found for text in negatives_of(row)}
    assert told <= {"a stone sleeps", "how do i open it"}


def test_negatives_of_the_judged_queries_of_a_service(
    tiny_models_dir: Path, tiny_source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    documents = [{"id": word, "title": f"about {word}", "text": f"the {word} sleeps"} for word in WORDS]
    judgments = [{"query": f"what is a {word}", "id": word, "relevant": word != "cat"} for word in WORDS]
    out = tmp_path / "out.jsonl"
    with Service(tmp_path / "service", tiny_models_dir) as service:
        path = "/collections/words/documents"
        service.client.post(path, json={"documents": documents}).raise_for_status()
        service.client.post("/collections/words/feedback", json={"feedback": judgments}).raise_for_status()
        url = f"http://127.0.0.1:{service.port}"
        common = ["mine", "negatives", "--from-service", url, "--model", str(tiny_source), "--out", str(out)]
        assert main(common) == 1, "the default collection has no judgment"
        assert "holds no pair" in capsys.readouterr().err
        assert main([*common, "--collection", "words", "--margin", "0"]) == 0
    found = rows(out)
    assert {row["anchor"] for row in found} <= {f"what is a {word}" for word in WORDS if word != "cat"}
    told = {text for row in found for text in [row["positive"], *negatives_of(row)]}
    assert told <= {f"about {word} the {word} sleeps" for word in WORDS}
    for row in found:
        assert row["positive"].endswith(f"the {row['anchor'].removeprefix('what is a ')} sleeps")


def test_pairs_of_titles_and_of_neighbors(
    tiny_source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    corpus, out = tmp_path / "c.jsonl", tmp_path / "out.jsonl"
    texts = [f"the {word} {other}" for word, other in zip(WORDS, reversed(WORDS), strict=True)]
    documents = [{"title": f"about {word}", "text": text} for word, text in zip(WORDS, texts, strict=True)]
    corpus.write_text("\n".join(map(json.dumps, documents)))
    common = ["mine", "pairs", "--corpus", str(corpus), "--model", str(tiny_source), "--out", str(out)]
    assert main([*common, "--min-score", "-1"]) == 0
    both = rows(out)
    assert [row for row in both if row["source"] == "title"] == [
        {"anchor": d["title"], "positive": d["text"], "score_positive": None, "source": "title"}
        for d in documents
    ]
    neighbors = [row for row in both if row["source"] == "neighbours"]
    assert neighbors
    assert {row[side] for row in neighbors for side in ("anchor", "positive")} <= set(texts)
    assert f"{len(texts)} titles with text, {len(neighbors)} pairs" in capsys.readouterr().out
    before = out.read_text()
    for document in documents:
        del document["title"]
    corpus.write_text("\n".join(map(json.dumps, documents)))
    assert main([*common, "--min-score", "0.9999999"]) == 1
    assert "has no pair" in capsys.readouterr().err
    assert out.read_text() == before
    assert sorted(file.name for file in tmp_path.iterdir()) == ["c.jsonl", "out.jsonl"]


@pytest.mark.parametrize(
    ("name", "content", "expected"),
    [
        ("c.txt", "The cat sleeps\n\nä dog\nthe  cat sleeps\n", "The cat sleeps\nä dog\n"),
        (
            "c.jsonl",
            '{"id": 7, "text": "The cat sleeps", "n": {"x": 1.5}}\n{"id": 8, "text": "the cat SLEEPS"}\n',
            '{"id": 7, "text": "The cat sleeps", "n": {"x": 1.5}}\n',
        ),
        ("c.tsv", "n\tsentence\n1\tThe cat\n2\tthe cat\n3\ta dog\n", "n\tsentence\n1\tThe cat\n3\ta dog\n"),
    ],
)
def test_dedupe_keeps_the_first_of_each_as_it_was(
    tmp_path: Path, name: str, content: str, expected: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / name).write_text(content)
    for out in (tmp_path / f"out-{name}", tmp_path / f"out-{name}.gz"):
        assert main(["mine", "dedupe", "--corpus", str(tmp_path / name), "--out", str(out)]) == 0
    assert (tmp_path / f"out-{name}").read_text() == expected
    assert gzip.decompress((tmp_path / f"out-{name}.gz").read_bytes()).decode() == expected
    assert "dropped: 1 near-duplicate, of which 1 share every shingle" in capsys.readouterr().out


def test_dedupe_shows_what_it_dropped(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = "it is a long text of many words, so that one more full stop is hardly any difference at all to it"
    (tmp_path / "c.txt").write_text(f"{text}\n{text}.\n")
    given = ["mine", "dedupe", "--corpus", str(tmp_path / "c.txt")]
    assert main([*given, "--out", str(tmp_path / "o.txt")]) == 0
    said = capsys.readouterr().out.splitlines()
    assert said[0].startswith("1 text kept of 2; dropped: 1 near-duplicate, of which 0 share every shingle")
    assert said[1].split()[:3] == [f"{exact(text, text + '.'):.3f}", "kept", "it"]
    assert said[2].split()[:2] == ["dropped", "it"]


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ("dedupe --corpus c.txt --out c.txt", "is also the file to read: name another file"),
        ("dedupe --corpus c.txt --out o.jsonl", "must end as c.txt does"),
        ("dedupe --corpus c.txt --out no/o.txt", "cannot be written: name a file in a folder"),
        ("lists --corpus c.txt --out o.jsonl", "no title, heading or first sentence for a query"),
        ("pairs --corpus c.txt --out o.jsonl --min-score 2", "--min-score must be from -1"),
    ],
)
def test_what_cannot_be_done_is_one_line_and_exit_1(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    arguments: str,
    reason: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "c.txt").write_text("a cat\na dog\n")
    assert main(["mine", *arguments.split()]) == 1
    message = capsys.readouterr().err
    assert reason in message
    assert len(message.splitlines()) == 1
    assert [file.name for file in tmp_path.iterdir()] == ["c.txt"]


def test_mining_needs_no_torch() -> None:
    program = (
        "import sys, training.mining.command, training.mining.corpus_report; sys.exit('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def mined_lists(folder: Path, model: Path, texts: list[dict[str, Any]]) -> list[dict[str, Any]]:
    corpus, out = folder / "c.jsonl", folder / "lists.jsonl"
    corpus.write_text("".join(json.dumps(text) + "\n" for text in texts))
    given = ["mine", "lists", "--corpus", str(corpus), "--model", str(model), "--out", str(out)]
    assert main(given) == 0
    return rows(out)


def test_lists_of_text_alone_are_what_the_recipe_trains_on(tiny_source: Path, tmp_path: Path) -> None:
    texts = [
        {"text": f"the {word} is in the {other}. the {other} sleeps", "title": f"{word} {n}"}
        for n, (word, other) in enumerate(itertools.pairwise(WORDS))
    ]
    found, out = mined_lists(tmp_path, tiny_source, texts), tmp_path / "lists.jsonl"
    assert len(found) == 2 * len(texts)  # a title and a first sentence each
    assert found[1]["doc_1"] == f"{WORDS[0]} 0 the {WORDS[1]} sleeps"
    run = ["train", "distil-hybrid", "--corpus", str(out), "--base", str(tiny_source), "--steps", "2"]
    assert main([*run, "--out", str(tmp_path / "run"), "--threads", "1"]) == 0
    assert json.loads((tmp_path / "run" / "run.json").read_text())["texts"] == len(found)


def test_a_title_that_no_search_looks_into_is_in_front_of_no_document(
    tiny_source: Path, tmp_path: Path
) -> None:
    texts = [
        {"text": f"the {word} is here. it sleeps {n}", "metadata": {"title": f"Title {n}"}}
        for n, word in enumerate(WORDS)
    ]
    found = mined_lists(tmp_path, tiny_source, texts)
    assert {row["query"] for row in found} >= {f"Title {n}" for n in range(len(texts))}
    assert not any("Title" in row[f"doc_{at}"] for row in found for at in range(1, 9))
