"""The benchmark of retrainings: halves of a set, gains, and a command that goes on."""

from __future__ import annotations

import gzip
import itertools
import json
import sys
from pathlib import Path

import pytest

pytest.importorskip("lightgbm", reason="needs the extra train")

from benchmarks import command, retraining
from benchmarks.retraining import divide, main, read_rows, read_set, tabulate
from models.search.content import Content
from tests.training.conftest import WORDS
from training.evaluation.retrieval import Collection
from training.retraining.split import TRAIN, choose_part, place
from training.text.lines import read_records

DOCUMENTS, QUERIES = 180, 120


def collect(answers: dict[str, list[int]]) -> Collection:
    documents = {str(at): Content(f"text {at}") for at in range(1000)}
    relevant = {query: {str(id): 1.0 for id in ids} for query, ids in answers.items()}
    return Collection(documents, {query: f"about {query}" for query in answers}, relevant, 0)


@pytest.mark.parametrize("shared", [0, 999])
def test_no_unseen_query_has_a_seen_answer(shared: int) -> None:
    """All queries share one document, or each of ten documents answers every tenth query."""
    answers = {f"query {at}": [at, shared or 900 + at % 10] for at in range(200)}
    collection, seen = divide(collect(answers))
    halves = {True: set[str](), False: set[str]()}
    for query, known in zip(collection.queries, seen.tolist(), strict=True):
        halves[known].update(collection.relevant[query])
    assert not halves[True] & halves[False]
    assert 60 < seen.sum() < 140
    # A query keeps both answers where queries that share an answer are in one half.
    assert {len(each) for each in collection.relevant.values()} == ({1, 2} if shared else {2})
    assert len(collection.queries) == len(collection.relevant) == 200


def test_a_query_whose_answers_are_all_seen_is_left_out() -> None:
    collection, seen = divide(collect({f"query {at}": [at, 0] if at % 2 else [0] for at in range(200)}))
    unseen = [query for query, known in zip(collection.queries, seen, strict=True) if not known]
    assert all("0" not in collection.relevant[query] for query in unseen)
    assert len(collection.queries) < 200


def test_the_table_has_gains_in_points_in_the_mean_over_seeds() -> None:
    names = [f"{half}, {mode}" for half in ("unseen", "seen") for mode in ("dense", "hybrid", "ranked")]
    base = {"set": "a", "recipe": "base", "kept": None, "scores": {name: [0.5, 0.5, 0.5] for name in names}}
    base["groups"] = {"unseen": [0, 1, 2], "seen": [0, 1, 2]}
    scores = [{name: [0.5, 0.5, 0.5 + gain] for name in names} for gain in (0.3, 0.0)]
    seeds = [
        {"set": "a", "recipe": "triples", "steps": 2, "seed": at, "kept": 1, "scores": each}
        for at, each in enumerate(scores)
    ]
    first, second = tabulate([base, *seeds])
    assert first[5:] == ["50.0"] * 6
    assert second[:5] == ["a", "triples", 2, 2, "1 1"]
    assert second[5].startswith("+5.0 [-16.5, +26.5]")


def write(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Writes the set `tiny`: the query of a document is two of its three words."""
    (folder / "tiny").mkdir(parents=True)
    texts = [*itertools.islice(itertools.combinations(WORDS, 3), 0, 2 * DOCUMENTS, 2)]
    lines = {
        "corpus": [
            {"_id": f"d{at}", "title": each[0], "text": " ".join(each)} for at, each in enumerate(texts)
        ],
        "queries": [{"_id": f"q{at}", "text": " ".join(each[1:])} for at, each in enumerate(texts[:QUERIES])],
    }
    for name, rows in lines.items():
        with gzip.open(folder / "tiny" / f"{name}.jsonl.gz", "wt", encoding="utf-8") as file:
            file.writelines(f"{json.dumps(row)}\n" for row in rows)
    judged = "".join(f"q{at}\td{at}\t1\n" for at in range(QUERIES))
    (folder / "tiny" / "qrels.test.tsv").write_text(f"query_id\tcorpus_id\tscore\n{judged}", encoding="utf-8")
    monkeypatch.setenv("SIMILE_EVAL_DATA", str(folder))


def test_a_part_of_a_set_has_all_answers_and_documents_to_train_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path, monkeypatch)
    monkeypatch.setitem(retraining.DOCUMENTS, "tiny", QUERIES + 10)
    documents = read_set("tiny").documents.keys()
    others = documents - {f"d{at}" for at in range(QUERIES)}
    assert len(documents) == QUERIES + 10
    assert len(others) == 10
    assert sum(choose_part(place(id), 0.1) == TRAIN for id in others) > 5


def test_a_training_learns_from_the_seen_half_and_is_kept(
    tiny_source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write(tmp_path / "sets", monkeypatch)
    monkeypatch.setattr(command, "RESULTS", tmp_path / "results")
    work = tmp_path / "work"
    given = ["tiny", "--recipes", "triples", "--steps", "2", "--base", str(tiny_source), "--work", str(work)]
    monkeypatch.setattr(sys, "argv", ["retraining", *given])
    main()
    base, trained = read_rows(work / "rows.jsonl")
    assert trained["scores"] != base["scores"]
    [folder] = (path.parent for path in work.glob("*/judged.jsonl"))
    judged = {record.fields["id"] for record in read_records(folder / "judged.jsonl")}
    assert len(judged) == len(base["scores"]["seen, dense"]) == QUERIES - len(base["scores"]["unseen, dense"])
    assert (folder / "models").is_dir()
    capsys.readouterr()
    (work / "rows.jsonl").write_text(f"{json.dumps(base)}\n")
    (folder / "documents.jsonl").unlink()  # A training would write it again.
    main()
    assert read_rows(work / "rows.jsonl") == [base, trained]
    assert not (folder / "documents.jsonl").exists()
    assert "| tiny | triples | 2 | 1 |" in capsys.readouterr().out
