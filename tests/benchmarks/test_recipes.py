"""Candidates in --out are not computed again. The options decide, and nothing else."""

from __future__ import annotations

import json
from argparse import Namespace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="needs the extra train")

from benchmarks import recipes
from benchmarks.recipes import read_rows, tables
from tests.benchmarks.test_sets import write
from training.evaluation.retrieval import Collection

MODES = ("dense", "hybrid", "lexical", "served", "seen, dense", "seen, lexical", "seen, hybrid")


class Trial:
    """Replaces trainings, which take minutes."""

    made: list[str]

    def __init__(self, folder: Path, name: str, whole: Collection, options: Namespace) -> None:
        self.options = options

    def candidate(self, name: str, seed: int) -> dict[str, Any]:
        Trial.made.append(f"{name} {seed} {self.options.steps} {self.options.ungated}")
        verdict = "nothing to learn" if name == "crops" else "accepted"
        figures = {mode: [0.5, 0.25] for mode in MODES}
        return {"verdict": verdict, "reason": "", "before": figures, "after": figures}


def test_a_candidate_is_computed_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "few"
    write(folder / "corpus.jsonl.gz", [json.dumps({"_id": "d", "text": "a text"})])
    write(folder / "queries.jsonl.gz", [json.dumps({"_id": "q", "text": "a query"})])
    write(folder / "qrels.test.tsv.gz", ["query_id\tcorpus_id\tscore", "q\td\t1"])
    monkeypatch.setattr(recipes, "evaluation_folder", lambda: tmp_path)
    monkeypatch.setattr(recipes, "Trial", Trial)
    out = tmp_path / "out.jsonl"

    def made(*options: str) -> list[str]:
        Trial.made = []
        given = [*f"recipes few --out {out} --recipes titles crops --steps 3".split(), *options]
        monkeypatch.setattr("sys.argv", given)
        recipes.main()
        return Trial.made

    assert made("--ungated") == ["titles 1 3 True", "crops 1 3 True"]
    assert made("--ungated") == [], "also without anything to learn"
    assert made() == ["titles 1 3 False", "crops 1 3 False"], "the rows have no verdict of a gate"
    assert made("--seeds", "1", "2") == ["titles 2 3 False", "crops 2 3 False"]
    for change in (("--negatives", "1"), ("--share", "0.5"), ("--noise", "0.1"), ("--steps", "4")):
        assert len(made(*change)) == 2
    write(folder / "queries.jsonl.gz", [json.dumps({"_id": "q", "text": "another query"})])
    assert len(made()) == 2, "another set under the same name"
    assert len(read_rows(out)) == 2 * 8


ROW = {
    "set": "few",
    "recipe": "crops",
    "seed": 1,
    "steps": 3,
    "share": 1.0,
    "noise": 0.0,
    "form": "fp32",
    "verdict": "not asked",
    "ungated": True,
    "sts_before": 0.7,
    "before": {mode: [0.5, 0.25] for mode in MODES},
    "after": {mode: [0.75, 0.5] for mode in MODES},
}


def test_tables_of_results() -> None:
    verdicts = [("nothing to learn", True), ("accepted", False), ("not asked", True)]
    found = tables([ROW | {"verdict": verdict, "ungated": off} for verdict, off in verdicts])
    assert found.splitlines()[-3:] == ["| better | 1 | 0 |", "| no different | 0 | 0 |", "| worse | 0 | 0 |"]
    learned = {"recipe": "search", "kept": None, "sts": 0.7, "minutes": 5.0}
    line = next(line for line in tables([ROW | learned]).splitlines() if line.startswith("| few | search |"))
    assert line.endswith("|  | 70.0 | 5.0 | 1 not asked |")
    other = {"set": "other", "after": {mode: [0.4, 0.25] for mode in MODES}}
    # Half of 12.706 (Student's quantile with one degree of freedom) times an error of 5 points.
    assert tables([ROW, ROW | other]).splitlines()[-1].startswith("| crops | 3 | 1 | 2 | +10.00 ± 31.77 |")
