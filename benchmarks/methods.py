"""Every recipe from one backbone: `python -m benchmarks.methods --data DIR --work DIR --out FILE`.

    blank ─▶ mlm ─▶ one backbone ─▶ each recipe, with each seed ─▶ evaluate ─▶ a line of JSON ─▶ --table

Unsupervised recipes read the same sentences, once. What is there is not made again: a run that was stopped
goes on. --data has the sets as training/RESULTS.md names them. Recipes that learn from STS-B's scores are
scored on STS-B's test split and SICK-R alone, since STS12 to STS16 have pairs of STS-B.
"""

import json
import statistics
import subprocess
import sys
from collections.abc import Iterable
from itertools import chain, islice
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.places import add_row, arguments, rows, say
from benchmarks.tables import mean_of, table
from benchmarks.workloads import WIKIPEDIA, texts_of
from training.text.lines import read_lines, read_records

SENTENCES = 19_200  # of the unsupervised recipes: 300 steps of 64
_SETS = ("sts12", "sts14", "sts16", "stsb", "sickr")
_GEOMETRY = ("alignment", "uniformity")
COLUMNS = ("method", "seeds", "STS12", "STS14", "STS16", "STS-B", "SICK-R", "mean", *_GEOMETRY)


class Method(NamedTuple):
    recipe: str
    corpus: str  # of CORPORA
    set: tuple[str, ...] = ()  # changes, beside those of every run
    share: float = 1.0  # of the steps


_MEAN = ('pool="mean"',)  # this backbone had no sentence task, so its first token means nothing yet
_64 = ("optim.batch=64", "optim.epochs=1")
METHODS = {
    "mean": Method("first-last", "sentences", _MEAN),
    "first-last": Method("first-last", "sentences"),
    "whitening": Method("whitening", "sentences", ("post=[{name='whiten', dimension=128}]",)),
    "all-but-the-top": Method("all-but-the-top", "sentences"),
    "bert-flow": Method("bert-flow", "sentences"),
    "static-average": Method("static-average", "sentences"),
    "static-max": Method("static-max", "sentences"),
    "power-means": Method("power-means", "sentences"),
    "sif": Method("sif", "sentences"),
    "usif": Method("usif", "sentences"),
    "simcse-unsup": Method("simcse-unsup", "sentences", _MEAN),
    "s-simcse": Method("s-simcse", "sentences", _MEAN),
    "esimcse": Method("esimcse", "sentences", _MEAN),
    "diffcse-transfer": Method("diffcse-transfer", "sentences", (*_MEAN, "optim.epochs=1")),
    "consert": Method("consert", "sentences", (*_64, "optim.lr=3e-5")),
    "ct": Method("ct", "sentences", (*_64, "optim.lr=3e-5")),
    "ct-in-batch": Method("ct-in-batch", "sentences", _64),
    "sg-opt": Method("sg-opt", "sentences", (*_MEAN, *_64)),
    "is-bert": Method("is-bert", "sentences", _64),
    "quickthoughts": Method("quickthoughts", "documents", _64),
    "defsent": Method("defsent", "definitions", share=0.5),
    "simcse-sup": Method("simcse-sup", "triples", (*_MEAN, *_64, "optim.lr=2e-4"), 0.5),
    "promptbert-sup": Method("promptbert-sup", "triples", (*_64, "optim.lr=2e-4"), 0.5),
    "sbert-nli": Method("sbert-nli", "relations", (*_64, "optim.lr=2e-4"), 0.5),
    "pairsupcon": Method("pairsupcon", "relations", (*_64, "optim.lr=1e-4"), 0.5),
    "sbert-regression": Method("sbert-regression", "scores", ("optim.lr=1e-4",)),
    "cosent": Method("cosent", "scores", ("optim.lr=1e-4",)),
    "augmented-sbert": Method("augmented-sbert", "lists", ("optim.lr=1e-4",), 0.5),
}


def main() -> None:
    parser = arguments("methods", __doc__)
    parser.add_argument("--methods", nargs="*", choices=[*METHODS], default=[*METHODS])
    parser.add_argument("--seeds", nargs="*", type=int, default=[1, 2, 3])
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--backbone-steps", type=int, default=3600)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--batch", type=int, default=128, help="of the backbone's training")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--work", type=Path, default=Path("methods"))
    parser.add_argument("--out", type=Path, default=Path("methods.jsonl"))
    parser.add_argument("--table", action="store_true")
    options = parser.parse_args()
    if options.table:
        print(shown(rows(options.out)))
        return
    options.work.mkdir(parents=True, exist_ok=True)
    backbone = _backbone(options)
    done = {(line["method"], line["seed"]) for line in rows(options.out)}
    for seed in options.seeds:
        for name in options.methods:
            if (name, seed) not in done and (seed == options.seeds[0] or _draws(name)):
                _one(name, seed, backbone, options)


def _draws(name: str) -> bool:
    """True for a method that chance has a part in: it trains."""
    return METHODS[name].recipe in _TRAINED


def _backbone(options: Any) -> Path:
    start, made = options.work / "start", options.work / "mlm"
    if not start.exists():
        _run("blank", start, "--layers", options.layers, "--width", options.width)
    if not (made / "last").exists():
        rates = ("optim.lr=5e-4", f"optim.batch={options.batch}", "max_length=64")
        how = ("--base", start, "--steps", options.backbone_steps, "--threads", options.threads)
        given = ("--corpus", options.data / WIKIPEDIA, *how, *_sets(rates))
        _run("train", "mlm", *given, "--out", made, *_resumed(made))
    last: Path = made / "last"
    return last


def _one(name: str, seed: int, backbone: Path, options: Any) -> None:
    method = METHODS[name]
    corpus: Path = CORPORA[method.corpus](options)  # type: ignore[no-untyped-call]
    run, scores = options.work / f"{name}-{seed}", options.work / f"{name}-{seed}.json"
    say(f"{name}, seed {seed}")
    steps = ("--steps", max(round(options.steps * method.share), 2)) if _draws(name) else ()
    how = ("--base", backbone, "--seed", seed, "--threads", options.threads, "--eval-steps", 100, *steps)
    data = ("--data", options.data)
    given = ("--corpus", corpus, *how, *data, *_sets(method.set))
    _run("train", method.recipe, *given, "--out", run, *_resumed(run))
    _run("evaluate", run, *data, "--suite", "sts,geometry", "--json", scores)
    found = json.loads(scores.read_text())
    backbone_of = [options.layers, options.width, options.backbone_steps]
    line = {"method": name, "seed": seed, "backbone": backbone_of}
    line |= {key: found["sts"][key]["spearman_all"] for key in _SETS}
    add_row(options.out, line | {key: found["geometry"][key] for key in _GEOMETRY})


def _run(*arguments_: object) -> None:
    subprocess.run([sys.executable, "-m", "training", *map(str, arguments_)], check=True)


def _sets(changes: tuple[str, ...]) -> list[str]:
    return [part for change in changes for part in ("--set", change)]


def _resumed(run: Path) -> tuple[str, ...]:
    return ("--resume",) if (run / "run.json").exists() else ()


def _written(out: Path, lines: Iterable[str]) -> Path:
    """The file with these lines, made unless it is there."""
    if not out.exists():
        out.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return out


def _sentences(options: Any) -> Path:
    return _written(options.work / "sentences.txt", islice(texts_of(options.data / WIKIPEDIA), SENTENCES))


def _definitions(options: Any) -> Path:
    """Titles of one word, and the first sentences of Simple English Wikipedia on them: a weak dictionary."""
    records = read_records(options.data / "wiki_pairs" / "simple_en_intro.tsv.gz")
    found = ((record.fields["simple_intro"], record.fields["title"]) for record in records)
    rows = (f"{intro}\t{title.lower()}" for intro, title in found if title.isalpha())
    return _written(options.work / "definitions.tsv", chain(["anchor\tpositive"], rows))


def _first(file: Path, count: int, out: Path) -> Path:
    return _written(out, (line.text for line in islice(read_lines(file), count)))


def _lists(options: Any) -> Path:
    """Lists over the abstracts of SciFact, scored by hybrid search with the default model."""
    out: Path = options.work / "lists.jsonl"
    if not out.exists():
        plain = _first(options.data / "scifact" / "corpus.jsonl.gz", 1500, options.work / "scifact.jsonl")
        _run("mine", "lists", "--corpus", plain, "--out", out)
    return out


CORPORA = {
    "sentences": _sentences,
    "documents": lambda options: _first(
        options.data / "wiki_docs" / "train.jsonl.gz", 1200, options.work / "documents.jsonl"
    ),
    "definitions": _definitions,
    "lists": _lists,
    "triples": lambda options: options.data / "nli" / "triples.tsv.gz",
    "relations": lambda options: options.data / "nli" / "pairs.tsv.gz",
    "scores": lambda options: options.data / "stsb" / "train.tsv.gz",
}
_TRAINED = {method.recipe for method in METHODS.values()} - {
    *("first-last", "whitening", "all-but-the-top", "bert-flow"),
    *("static-average", "static-max", "power-means", "sif", "usif"),
}


def shown(lines: list[dict[str, Any]]) -> str:
    """A table, best first: the mean over the seeds, and its standard deviation."""
    by_method: dict[str, list[dict[str, Any]]] = {}
    for line in lines:
        by_method.setdefault(line["method"], []).append(line)

    def mean(line: dict[str, Any]) -> float:
        return statistics.fmean(line[key] for key in _SETS)

    cells = []
    for name, runs in sorted(by_method.items(), key=lambda each: -statistics.fmean(map(mean, each[1]))):
        scored = METHODS[name].corpus == "scores"
        scores = [
            "" if scored and key.startswith("sts1") else mean_of([100 * run[key] for run in runs], 1)
            for key in _SETS
        ]
        scores.append("" if scored else mean_of([100 * mean(run) for run in runs], 2))
        scores += [mean_of([run[key] for run in runs], 3) for key in _GEOMETRY]
        cells.append([name, len(runs), *scores])
    return table(COLUMNS, cells)


if __name__ == "__main__":
    main()
