"""The table of all recipes: a rate that dev chooses, runs that an alarm ended, lines that are there."""

from __future__ import annotations

import gzip
import json
import shutil
import subprocess
import threading
from argparse import Namespace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="needs the extra train")
from scipy.stats import spearmanr

from benchmarks import methods
from benchmarks.method_recipes import METHODS
from benchmarks.method_tables import tables
from benchmarks.places import BenchError
from models.encoder import Encoder
from training.arguments import changes
from training.methods.catalogue import load_recipe
from training.methods.fit import columns_of
from training.runs.log import FILE_NAME as RECORD

SCORES = {"sts12": 0.3, "sts14": 0.3, "sts16": 0.3, "stsb": 0.3, "sickr": 0.3}
SHAPE = {"alignment": 0.2, "uniformity": -1.5}


def line(method: str, seed: int, rate: float | None, **found: Any) -> dict[str, Any]:
    about = {"texts": 1200, "backbone": "a1"}
    return {"method": method, "seed": seed, "rate": rate, **about, **found}


def test_scores_are_means_over_the_seeds_of_a_rate_and_dev_scores_stand_beside() -> None:
    lines = [
        line("ct", 1, 1e-5, dev=0.4),
        line("ct", 1, 3e-4, dev=None),
        line("ct", 1, 1e-5, **SCORES, **SHAPE),
        line("ct", 2, 1e-5, **SCORES | {"stsb": 0.4}, **SHAPE),
        line("sif", 1, None, **SCORES | {"sickr": 0.9}, **SHAPE),
        line("cosent", 1, 1e-5, **SCORES, **SHAPE),
    ]
    title, _, _, _, best, second, third, *_, head, _, dev = tables(lines, {"cosent"}).splitlines()
    assert title == "Backbone a1, 1,200 texts"
    assert best == "| sif |  | 1 | 30.0 | 30.0 | 30.0 | 30.0 | 90.0 | 42.00 | 0.200 | -1.500 |"
    assert second.startswith("| ct | 1e-05 | 2 | 30.0 | 30.0 | 30.0 | 35.0 ± 7.1 | 30.0 | 31.00 ± 1.41 |")
    assert third.startswith("| cosent | 1e-05 | 1 |  |  |  | 30.0 | 30.0 |  |"), "STS12 to 16 have its pairs"
    assert head == "| STS-B dev at | 1e-05 | 0.0003 |"
    assert dev == "| ct | 40.0 | ended |"


def test_another_backbone_or_budget_is_no_seed() -> None:
    found = [line("ct", 1, 1e-5, **SCORES | {"backbone": name}, **SHAPE) for name in ("a1", "b2")]
    said = tables([*found, line("ct", 1, 1e-5, texts=64, **SCORES, **SHAPE)], ())
    assert said.count("| ct | 1e-05 | 1 | 30.0 |") == 3
    assert [each for each in said.splitlines() if each.startswith("Backbone")] == [
        "Backbone a1, 1,200 texts",
        "Backbone b2, 1,200 texts",
        "Backbone a1, 64 texts",
    ]


@pytest.mark.parametrize("name", [name for name in METHODS if METHODS[name].corpus != "documents"])
def test_a_row_counts_as_many_texts_as_its_source_has(name: str) -> None:
    """Spans and neighbours of documents are no rows with a number of their own."""
    assert METHODS[name].row == columns_of(load_recipe(METHODS[name].recipe))


@pytest.mark.parametrize("name", METHODS)
def test_each_recipe_takes_what_is_changed(name: str) -> None:
    method = METHODS[name]
    tuned = ("optim.lr=1e-4", f"optim.batch={method.batch}") if methods._trains(name) else ()
    load_recipe(method.recipe, changes((*method.set, *tuned)))


def write_run(folder: Path, dev: dict[str, float | None] | None) -> None:
    """run.json; without `dev` of a run that did not come to its end."""
    keys = ("method", "recipe", "corpus", "base", "seed", "steps", "precision", "texts", "base_name")
    run: dict[str, Any] = dict.fromkeys((*keys, "parent", "code"), "")
    if dev is not None:
        run |= {"finished": {"done": 1, "loss": 0.0, "dev": dev}}
    (folder / "run.json").write_text(json.dumps(run))


class Runs:
    """In the place of the commands: a training scores by its rate, and the largest one fails after `last`."""

    def __init__(self, options: Namespace, last: str = "diverged") -> None:
        self.options, self.last, self.made = options, last, list[str]()

    def __call__(self, *arguments: object) -> None:
        words = [str(word) for word in arguments]
        if words[0] == "evaluate":
            found = {"sts": {key: {"spearman_all": 0.3} for key in SCORES}, "geometry": SHAPE}
            Path(words[words.index("--json") + 1]).write_text(json.dumps(found))
            return
        rate = float(next(word for word in words if word.startswith("optim.lr=")).split("=")[1])
        out = Path(words[words.index("--out") + 1])
        self.made.append(f"{words[words.index('--seed') + 1]} {rate:g}")
        out.mkdir(exist_ok=True)
        write_run(out, {"1": 0.1, "2": 0.3 + rate, "3": None} if rate < 1e-3 else None)
        if rate >= 1e-3:
            (out / RECORD).write_text(f'{{"event": "start"}}\n{{"event": "{self.last}"}}\n')
            raise subprocess.CalledProcessError(1, words)


@pytest.mark.parametrize("last", ["saturated", "diverged", "step"])
def test_a_run_that_failed_is_an_answer_when_an_alarm_ended_it(
    last: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = Namespace(texts=64, backbone=tmp_path, threads=1, data=tmp_path, work=tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"weights")
    monkeypatch.setattr(methods, "_run", Runs(options, last))
    monkeypatch.setitem(methods.CORPORA, "sentences", lambda _: tmp_path / "sentences.txt")
    if last != "step":
        assert methods._dev("ct", 1, 1e-3, options) is None
    else:  # as one does for want of memory
        with pytest.raises(subprocess.CalledProcessError):
            methods._dev("ct", 1, 1e-3, options)


def test_dev_chooses_the_rate_and_what_is_there_is_not_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = Namespace(
        rates=[1e-5, 3e-5, 1e-3], seeds=[1, 2], texts=64, backbone=tmp_path, threads=1,
        data=tmp_path, work=tmp_path, out=tmp_path / "out.jsonl", at_once=1,
    )  # fmt: skip
    (tmp_path / "model.safetensors").write_bytes(b"weights")
    runs = Runs(options)
    monkeypatch.setattr(methods, "_run", runs)
    monkeypatch.setitem(methods.CORPORA, "sentences", lambda _: tmp_path / "sentences.txt")

    methods._all("ct", options)
    assert runs.made == ["1 1e-05", "1 3e-05", "1 0.001", "1 3e-05", "2 3e-05"]
    assert not [*tmp_path.glob("*/ct-*-*")], "the folders of the runs"
    methods._all("ct", options)
    assert len(runs.made) == 5
    options.seeds = [2, 3]
    methods._all("ct", options)
    assert runs.made[5:] == ["2 1e-05", "2 3e-05", "2 0.001", "3 3e-05"], "a score is no dev score"
    options.at_once = 2
    options.texts, options.seeds = 128, [1]
    methods._all("ct", options)
    assert len(runs.made) == 9 + 4, "another budget is another run"
    left = methods._run_of("ct", 1, 1e-5, options)
    (tmp_path / "model.safetensors").write_bytes(b"others")
    assert methods._run_of("ct", 1, 1e-5, options) != left, "a run that was stopped is not gone on with"
    methods._all("ct", options)
    assert len(runs.made) == 9 + 8, "and another backbone"
    monkeypatch.setattr(methods, "_recipe", lambda _: "changed")
    methods._all("ct", options)
    assert len(runs.made) == 9 + 12, "and a recipe that was changed"


def test_a_run_that_looked_at_no_dev_set_is_scored_as_it_ended(
    tmp_path: Path, tiny_source: Path, tiny_models_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second, scores = (
        ["a river", "my password", "a cat"],
        ["a bridge", "a red letter", "the market"],
        [1, 3, 2],
    )
    pairs = zip(scores, first, second, strict=True)
    rows = ["score\tsentence1\tsentence2", *("\t".join(map(str, pair)) for pair in pairs)]
    (tmp_path / "stsb").mkdir()
    (tmp_path / "stsb" / "dev.tsv.gz").write_bytes(gzip.compress("\n".join(rows).encode()))
    shutil.copytree(tiny_source, tmp_path / "run" / "last")
    write_run(tmp_path / "run", {})
    monkeypatch.setattr(methods, "_trained", lambda *_: tmp_path / "run")
    encoder = Encoder.open(next(tiny_models_dir.glob("2*")))
    cosines = (encoder.encode(first).vectors * encoder.encode(second).vectors).sum(1)
    expected = spearmanr(cosines, scores).statistic
    found = methods._dev("augmented-sbert", 1, 1e-5, Namespace(data=tmp_path))
    assert found == pytest.approx(expected)
    with pytest.raises(BenchError, match=r"stsb/dev\.tsv\.gz"):
        methods._dev("augmented-sbert", 1, 1e-5, Namespace(data=tiny_source))


def test_runs_at_once_return_in_their_order_and_one_that_fails_ends_them() -> None:
    meet = threading.Barrier(2)

    def job(number: int) -> int:
        meet.wait(timeout=60)  # alone it would wait for ever
        return number

    assert methods._at_once([partial(job, 1), partial(job, 2)], Namespace(at_once=2)) == [1, 2]
    for at_once in (1, 2):
        with pytest.raises(ZeroDivisionError):
            methods._at_once([partial(divmod, 1, 0), partial(divmod, 1, 1)], Namespace(at_once=at_once))
