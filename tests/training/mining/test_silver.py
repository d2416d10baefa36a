"""Silver pairs of Augmented SBERT: their sampling, their scores, and the command."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from models.publishing.default import publish_named
from models.sources.reranker import ACTIVATION_NAMES
from models.store import ModelStore
from models.tokens.pairs import Pair
from tests.tiny import tiny_cross_encoder
from tests.training.conftest import WORDS
from tests.training.evaluation.pairs import encode
from tests.training.runs.test_reranker import train_reranker
from training.__main__ import main
from training.errors import NothingToLearn, TrainingError
from training.mining.silver import sample_pairs, silver_pairs
from training.model.reranker import load_reranker
from training.text.corpus import SCORED, Corpus, read_corpus

GOLD = [("river stone", "0.9"), ("river market", "0.1"), ("paper window", "0.8"), ("cat dog", "0.5")]
SCORES = (5.0, 2.5, 0.0, 1.0)


def gold() -> Corpus:
    return Corpus.of_rows(((pair, (score,)) for pair, score in zip(GOLD, SCORES, strict=True)), "gold")


def halves(pairs: Sequence[Pair]) -> np.ndarray:
    return np.full(len(pairs), 0.5, np.float32)


def test_pairs_are_sampled_by_words_and_by_vectors() -> None:
    """`encode` maps a number to a vector of that cosine to "east", so close numbers are near."""
    found = {frozenset(pair) for pair in sample_pairs(GOLD, closeness, 1)}
    assert frozenset(("river stone", "river market")) in found  # share a word
    assert frozenset(("0.9", "0.8")) in found  # near vectors, without a common word
    assert not found & {frozenset(pair) for pair in GOLD}
    assert not any(len(pair) == 1 for pair in found)


def closeness(texts: Sequence[str]) -> np.ndarray:
    return encode([text if text[0].isdigit() else "-1" for text in texts])


@pytest.mark.parametrize("count", [1, 2, 3])
def test_more_neighbors_give_more_pairs_each_once(count: int) -> None:
    found = [frozenset(pair) for pair in sample_pairs(GOLD, closeness, count)]
    assert len(found) == len({*found}) < len(sample_pairs(GOLD, closeness, count + 1))
    assert sample_pairs(GOLD, closeness, count) == sample_pairs(GOLD, closeness, count)


def test_gold_scores_are_shares_of_the_highest_and_silver_scores_those_of_the_cross_encoder() -> None:
    found = [*silver_pairs(gold(), closeness, halves, 1, top=5.0)]
    assert [row.score for row in found if row.source == "gold"] == [0.2, 0.0, 0.5, 1.0]
    silver = [row for row in found if row.source == "silver"]
    assert [(row.anchor, row.positive) for row in silver] == sample_pairs(pairs_of(gold()), closeness, 1)
    assert {row.score for row in silver} == {0.5}


def pairs_of(corpus: Corpus) -> list[tuple[str, str]]:
    return list(zip(corpus.texts[::2], corpus.texts[1::2], strict=True))


@pytest.mark.parametrize("top", [1.0, 4.99, 0.1])
def test_a_gold_score_above_the_highest_is_refused(top: float) -> None:
    with pytest.raises(TrainingError, match=f"--highest {top:g}"):
        [*silver_pairs(gold(), closeness, halves, top=top)]


def test_a_single_pair_has_no_other_texts() -> None:
    alone = Corpus.of_rows([(("0.1", "0.9"), (1.0,))], "gold")
    with pytest.raises(NothingToLearn, match="No two texts"):
        [*silver_pairs(alone, closeness, halves)]


@pytest.mark.usefixtures("version")
def test_from_gold_pairs_to_the_augmented_encoder(
    run: Callable[..., Any], tiny_source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The steps of docs/METHODS.md, with a cross-encoder and an encoder of the tiny model."""
    rows = [{"anchor": f"{a} {b}", "positive": f"{b} runs", "score": 2.5} for a, b in pairwise(WORDS)]
    (tmp_path / "gold.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    teacher = train_reranker(run, "teacher", "scores", steps=2).out
    out = tmp_path / "silver.jsonl"
    given = ["mine", "silver", "--pairs", str(tmp_path / "gold.jsonl"), "--model", str(tiny_source)]
    given += ["--reranker", str(teacher), "--highest", "5", "--count", "2", "--out", str(out)]
    assert main(given) == 0
    count = len(out.read_text().splitlines()) - len(rows)
    assert f"{len(rows)} gold pairs and {count} silver pairs" in capsys.readouterr().out
    assert len(read_corpus(out, SCORED)) == count + len(rows) > 2 * len(rows)
    again = ["train", "augmented-sbert", "--corpus", str(out), "--base", str(tiny_source), "--steps", "2"]
    assert main([*again, "--out", str(tmp_path / "augmented"), "--threads", "1"]) == 0


@pytest.mark.usefixtures("version")
def test_lists_of_queries_are_scored_by_a_cross_encoder(
    run: Callable[..., Any], tiny_source: Path, tmp_path: Path
) -> None:
    (tmp_path / "texts.txt").write_text("\n".join(f"the {word} is here" for word in WORDS))
    (tmp_path / "queries.txt").write_text("where is the river\nwhere is the stone")
    teacher = train_reranker(run, "teacher", steps=2).out
    out = tmp_path / "lists.jsonl"
    given = ["mine", "lists", "--corpus", str(tmp_path / "texts.txt"), "--model", str(tiny_source)]
    given += ["--queries", str(tmp_path / "queries.txt"), "--reranker", str(teacher), "--out", str(out)]
    assert main(given) == 0
    found = [json.loads(line) for line in out.read_text().splitlines()]
    assert [row["query"] for row in found] == ["where is the river", "where is the stone"]
    model = load_reranker(teacher / "best")
    pairs = [(row["query"], row[f"doc_{at}"]) for row in found for at in range(1, 9)]
    expected = model.score(pairs)[:, 0]
    assert [each for row in found for each in row["scores"]] == pytest.approx(expected, abs=1e-5)
    for objectives in ('["kl_teacher"]', "[{ name = 'margin_mse', tau = 0.05 }]"):
        train = ["train", "distil-rerank", "--corpus", str(out), "--base", str(tiny_source), "--steps", "1"]
        changed = [] if "kl" in objectives else ["--set", f"objectives={objectives}"]
        to = ["--out", str(tmp_path / f"student{len(changed)}"), "--threads", "1"]
        assert main([*train, *changed, *to]) == 0


@pytest.mark.parametrize("place", ["config.json", "old config.json", "sentence-transformers", "published"])
@pytest.mark.parametrize("kind", ["identity", "softmax"])
def test_silver_scores_are_shares_so_a_reranker_without_sigmoid_is_refused(
    place: str,
    kind: str,
    tiny_source: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("SIMILE_MODELS_DIR", str(tmp_path / "models"))
    path = ACTIVATION_NAMES[kind]
    said: dict[str, Any] = {"sentence_transformers": {"activation_fn": path}}
    if place == "old config.json":
        said = {"sbert_ce_default_activation_function": path}
    reranker = tiny_cross_encoder(tmp_path / "reranker", **({} if "-" in place else said))
    if "-" in place:
        content = json.dumps({"model_type": "CrossEncoder", "activation_fn": path})
        (reranker / "config_sentence_transformers.json").write_text(content)
    name = str(reranker)
    if place == "published":
        name = publish_named(ModelStore(tmp_path / "models"), name).version
    (tmp_path / "gold.tsv").write_text("anchor\tpositive\tscore\na\tb\t1\nc\td\t0\n")
    (tmp_path / "texts.txt").write_text("\n".join(f"the {word} is here" for word in WORDS))
    given = ["--model", str(tiny_source), "--reranker", name, "--out", str(tmp_path / "out.jsonl")]
    assert main(["mine", "silver", "--pairs", str(tmp_path / "gold.tsv"), *given]) == 1
    said_of_it = capsys.readouterr().err
    assert f"activation {kind}" in said_of_it
    assert "train cross-encoder-scores" in said_of_it
    assert not (tmp_path / "out.jsonl").exists()
    queries = ["--queries", str(tmp_path / "texts.txt"), "--corpus", str(tmp_path / "texts.txt")]
    assert main(["mine", "lists", *queries, *given]) == 0, "lists have raw scores"


@pytest.mark.parametrize(
    ("case", "says"),
    [
        ("relations", "has 3 scores of a pair"),
        ("encoder", "is an encoder"),
        ("missing", "is not a reranker"),
        ("version", "is an encoder"),
    ],
)
def test_a_teacher_of_another_kind_is_refused(
    case: str,
    says: str,
    run: Callable[..., Any],
    tiny_source: Path,
    version: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    names = {"encoder": str(tiny_source), "missing": "nothing", "version": version}
    name = names.get(case) or str(train_reranker(run, "teacher", case, steps=1).out)
    (tmp_path / "gold.tsv").write_text("anchor\tpositive\tscore\na\tb\t1\nc\td\t0\n")
    given = ["mine", "silver", "--pairs", str(tmp_path / "gold.tsv"), "--model", str(tiny_source)]
    assert main([*given, "--reranker", name, "--out", str(tmp_path / "out.jsonl")]) == 1
    assert says in capsys.readouterr().err
    assert not (tmp_path / "out.jsonl").exists()
