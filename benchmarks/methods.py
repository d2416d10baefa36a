"""Every recipe from one backbone: `python -m benchmarks.methods --data DIR --work DIR --out FILE`.

    blank ─▶ mlm ─▶ one backbone ─▶ each recipe, with each seed ─▶ evaluate ─▶ a line of JSON ─▶ --table

Unsupervised recipes read the same sentences, once. What is there is not made again: a run that was stopped
goes on. --data has the sets as training/RESULTS.md names them. Recipes that learn from STS-B's scores are
scored on STS-B's test split and SICK-R alone, since STS12 to STS16 have pairs of STS-B.
"""

import gzip
import json
import statistics
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.places import arguments, say

SENTENCES = 19_200  # of the unsupervised recipes: 300 steps of 64
_SETS = ("sts12", "sts14", "sts16", "stsb", "sickr")


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
        print("\n".join(table([json.loads(line) for line in options.out.read_text().splitlines()])))
        return
    options.work.mkdir(parents=True, exist_ok=True)
    backbone = _backbone(options)
    done = {(line["method"], line["seed"]) for line in _lines(options.out)}
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
        corpus = options.data / "wiki_sentences" / "wiki_sentences.tsv.gz"
        _run("train", "mlm", "--corpus", corpus, *how, *_sets(rates), "--out", made, *_resumed(made))
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
    _run(
        "train",
        method.recipe,
        "--corpus",
        corpus,
        *how,
        *data,
        *_sets(method.set),
        "--out",
        run,
        *_resumed(run),
    )
    _run("evaluate", run, *data, "--suite", "sts,geometry", "--json", scores)
    found = json.loads(scores.read_text())
    with options.out.open("a", encoding="utf-8") as stream:
        line = {
            "method": name,
            "seed": seed,
            "backbone": [options.layers, options.width, options.backbone_steps],
        }
        line |= {key: found["sts"][key]["spearman_all"] for key in _SETS}
        line |= {key: found["geometry"][key] for key in ("alignment", "uniformity")}
        stream.write(json.dumps(line) + "\n")


def _run(*arguments_: object) -> None:
    subprocess.run([sys.executable, "-m", "training", *map(str, arguments_)], check=True)


def _sets(changes: tuple[str, ...]) -> list[str]:
    return [part for change in changes for part in ("--set", change)]


def _resumed(run: Path) -> tuple[str, ...]:
    return ("--resume",) if (run / "run.json").exists() else ()


def _lines(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def _rows(file: Path) -> Iterator[list[str]]:
    with gzip.open(file, "rt", encoding="utf-8") as stream:
        next(stream)
        for line in stream:
            yield line.rstrip("\n").split("\t")


def _sentences(options: Any) -> Path:
    out: Path = options.work / "sentences.txt"
    if not out.exists():
        rows = _rows(options.data / "wiki_sentences" / "wiki_sentences.tsv.gz")
        out.write_text("".join(f"{next(rows)[0]}\n" for _ in range(SENTENCES)), encoding="utf-8")
    return out


def _definitions(options: Any) -> Path:
    """Titles of one word, and the first sentences of Simple English Wikipedia on them: a weak dictionary."""
    out: Path = options.work / "definitions.tsv"
    if not out.exists():
        found = _rows(options.data / "wiki_pairs" / "simple_en_intro.tsv.gz")
        rows = [f"{intro}\t{title.lower()}" for title, intro, *_ in found if title.isalpha()]
        out.write_text("\n".join(["anchor\tpositive", *rows]) + "\n", encoding="utf-8")
    return out


def _documents(options: Any) -> Path:
    out: Path = options.work / "documents.jsonl"
    if not out.exists():
        with gzip.open(options.data / "wiki_docs" / "train.jsonl.gz", "rt", encoding="utf-8") as stream:
            out.write_text("".join(next(stream) for _ in range(1200)), encoding="utf-8")
    return out


def _lists(options: Any) -> Path:
    """Lists over the abstracts of SciFact, scored by hybrid search with the default model."""
    out: Path = options.work / "lists.jsonl"
    if not out.exists():
        plain = options.work / "scifact.jsonl"
        with gzip.open(options.data / "scifact" / "corpus.jsonl.gz", "rt", encoding="utf-8") as stream:
            plain.write_text("".join(next(stream) for _ in range(1500)), encoding="utf-8")
        _run("mine", "lists", "--corpus", plain, "--out", out)
    return out


CORPORA = {
    "sentences": _sentences,
    "documents": _documents,
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


def table(lines: list[dict[str, Any]]) -> Iterator[str]:
    """Rows of Markdown, best first: the mean over the seeds, and its standard deviation."""
    by_method: dict[str, list[dict[str, Any]]] = {}
    for line in lines:
        by_method.setdefault(line["method"], []).append(line)
    yield "| method | seeds | STS12 | STS14 | STS16 | STS-B | SICK-R | mean | alignment | uniformity |"
    yield "|" + "---|" * 10

    def mean(line: dict[str, Any]) -> float:
        return statistics.fmean(line[key] for key in _SETS)

    order = sorted(by_method.items(), key=lambda each: -statistics.fmean(map(mean, each[1])))
    for name, runs in order:
        scored = METHODS[name].corpus == "scores"
        cells = [
            "" if scored and key.startswith("sts1") else _cell([100 * run[key] for run in runs], 1)
            for key in _SETS
        ]
        cells.append("" if scored else _cell([100 * mean(run) for run in runs], 2))
        cells += [_cell([run[key] for run in runs], 3) for key in ("alignment", "uniformity")]
        yield f"| {name} | {len(runs)} | {' | '.join(cells)} |"


def _cell(values: list[float], decimals: int) -> str:
    spread = f" ± {statistics.stdev(values):.{decimals}f}" if len(values) > 1 else ""
    return f"{statistics.fmean(values):.{decimals}f}{spread}"


if __name__ == "__main__":
    main()
