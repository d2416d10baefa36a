"""Every recipe from one backbone: `python -m benchmarks.methods --backbone FOLDER --data DIR --out FILE`.

    the backbone ─▶ each recipe at each of --rates, the first seed ─▶ the best on STS-B dev
                 └▶ at that rate, with each seed ─▶ evaluate ─▶ a line of JSON ─▶ --table

The backbone is a model folder: a stage of `benchmarks.reproduction ladder`, or `last` of a `train mlm`.

Each recipe reads equally many texts, --texts of them: a row of a triple counts as three, and a small corpus
is read more than once. What is in --out for the same backbone, recipe and texts is not made again, and a run
that was stopped goes on. --data has the sets as training/RESULTS.md names them. Recipes that learn from
STS-B's scores are scored on STS-B's test split and SICK-R alone, since STS12 to STS16 have pairs of STS-B.
"""

import hashlib
import json
import math
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import cache, partial
from itertools import chain, islice
from pathlib import Path
from threading import Lock
from typing import Any, TypeVar

from benchmarks.dev import dev_score, needed_dev
from benchmarks.method_recipes import METHODS, TRAINED
from benchmarks.method_tables import GEOMETRY, SETS, tables
from benchmarks.places import BenchError, add_row, arguments, row_of, rows, say
from benchmarks.workloads import WIKIPEDIA, texts_of
from models.seal import checksum
from training.arguments import changes
from training.methods.catalogue import load_recipe
from training.runfile import FILE_NAME as RUN
from training.runfile import read_run
from training.runs.log import ALARMS
from training.runs.log import FILE_NAME as RECORD
from training.text.lines import read_lines, read_records

_T = TypeVar("_T")
_SCORING = Lock()  # transformers loads one model at a time
_WEIGHTS = "model.safetensors"


def main() -> None:
    parser = arguments("methods", __doc__)
    parser.add_argument("--methods", nargs="*", choices=[*METHODS], default=[*METHODS])
    parser.add_argument("--rates", nargs="+", type=float, default=[1e-5, 3e-5, 1e-4, 3e-4])
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3])
    parser.add_argument("--texts", type=int, default=19_200, help="that each recipe reads")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--at-once", type=int, default=1, help="runs; a GPU has room for several")
    parser.add_argument("--batch", type=int, help="rows of a step, instead of the recipes'; also for --table")
    parser.add_argument("--backbone", type=Path, metavar="FOLDER")
    parser.add_argument("--data", type=Path, metavar="FOLDER")
    parser.add_argument("--work", type=Path, default=Path("methods"))
    parser.add_argument("--out", type=Path, default=Path("methods.jsonl"))
    parser.add_argument("--table", action="store_true", help="of the recipes as they are now")
    options = parser.parse_args()
    if options.batch:
        trained = {name: each for name, each in METHODS.items() if _trains(name)}
        METHODS.update({name: each._replace(batch=options.batch) for name, each in trained.items()})
    if options.table:
        found = [line for line in rows(options.out) if line.get("recipe") == _recipe(line["method"])]
        print(tables(found, {name for name in METHODS if METHODS[name].corpus == "scores"}))
        return
    if options.backbone is None or options.data is None:
        parser.error("--backbone and --data are needed, but for --table")
    if not (options.backbone / _WEIGHTS).is_file():
        parser.error(f"{options.backbone} has no {_WEIGHTS}: name a model folder, such as RUN/last")
    for name in options.methods:
        _all(name, options)


def _all(name: str, options: Any) -> None:
    """The lines of a recipe."""
    CORPORA[METHODS[name].corpus](options)  # type: ignore[no-untyped-call]  # before several runs want it
    if not _trains(name):
        _one(name, options.seeds[0], None, options)
        return
    rate = _best_rate(name, options)
    _at_once([partial(_one, name, seed, rate, options) for seed in options.seeds], options)


def _trains(name: str) -> bool:
    return METHODS[name].recipe in TRAINED


def _asked(name: str, seed: int, rate: float | None, options: Any) -> dict[str, Any]:
    """The keys of a line that say what was asked."""
    about = {"texts": options.texts, "backbone": _backbone(options), "recipe": _recipe(name)}
    return {"method": name, "seed": seed, "rate": rate, **about}


@cache
def _recipe(name: str) -> str:
    """The digest of what is trained but for its rate, so that no line and no run of before counts as one."""
    method = METHODS[name]
    digest = load_recipe(method.recipe, changes(method.set)).digest()
    return hashlib.sha256(f"{digest} {method.row} {method.batch}".encode()).hexdigest()[:12]


def _backbone(options: Any) -> str:
    """It is known by its weights, wherever it lies."""
    return checksum(options.backbone / _WEIGHTS)[:12]


def _work(options: Any) -> Path:
    """The folder of this backbone and of so many texts, so that no run of others goes on in it."""
    folder: Path = options.work / f"{_backbone(options)}-{options.texts}"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _line(asked: dict[str, Any], key: str, options: Any) -> dict[str, Any] | None:
    """The line of --out that answers, and has `key`: `dev` of a rate that is tried, `stsb` of a score."""
    return row_of((line for line in rows(options.out) if key in line), asked)


def _best_rate(name: str, options: Any) -> float:
    """The one of --rates with the best STS-B dev score, by the first seed."""
    tried = _at_once([partial(_tried, name, rate, options) for rate in options.rates], options)
    found: dict[float, float]
    found = {rate: dev for rate, dev in zip(options.rates, tried, strict=True) if dev is not None}
    if not found:
        raise BenchError(f"An alarm ended {name} at every rate: name other --rates.")
    return max(found, key=lambda rate: found[rate])


def _at_once(jobs: list[Callable[[], _T]], options: Any) -> list[_T]:
    """What the jobs return, --at-once of them at a time."""
    if options.at_once == 1:  # a pool would begin the next one before it is told of a failure
        return [job() for job in jobs]
    with ThreadPoolExecutor(options.at_once) as pool:
        runs = [pool.submit(job) for job in jobs]
        try:
            return [run.result() for run in runs]
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)  # those under way end by themselves
            raise


def _tried(name: str, rate: float, options: Any) -> float | None:
    """The first seed's STS-B dev score at a rate, from --out or from a run."""
    asked = _asked(name, options.seeds[0], rate, options)
    line = _line(asked, "dev", options)
    if line is None:
        line = asked | {"dev": _dev(name, options.seeds[0], rate, options)}
        add_row(options.out, line)
    score: float | None = line["dev"]
    return score


def _dev(name: str, seed: int, rate: float, options: Any) -> float | None:
    """The best STS-B dev score of a run; None where an alarm ended it, as of a loss that is no number."""
    try:
        run = _trained(name, seed, rate, options)
    except subprocess.CalledProcessError as error:
        record = rows(_run_of(name, seed, rate, options) / RECORD)
        if error.returncode != 1 or not record or record[-1]["event"] not in ALARMS:
            raise  # stopped, refused, or out of memory
        return None
    found = read_run(run)["finished"]["dev"].values()
    # STS-B dev is not looked at while a recipe learns lists of a search.
    return max((score for score in found if score), default=None) if found else _score(name, run, options)


def _score(name: str, run: Path, options: Any) -> float | None:
    """STS-B dev of a run as it ended; None where every cosine is the same."""
    recipe = load_recipe(METHODS[name].recipe, changes(METHODS[name].set))
    with _SCORING:
        score = dev_score(run / "last", recipe, needed_dev(options.data))
    return score if math.isfinite(score) else None


def _run_of(name: str, seed: int, rate: float | None, options: Any) -> Path:
    return _work(options) / f"{name}-{seed}-{rate}-{_recipe(name)}"


def _trained(name: str, seed: int, rate: float | None, options: Any) -> Path:
    """The folder of a finished run."""
    method = METHODS[name]
    run = _run_of(name, seed, rate, options)
    say(f"{name}, seed {seed}, rate {rate}")
    corpus: Path = CORPORA[method.corpus](options)  # type: ignore[no-untyped-call]
    how = ["--base", options.backbone, "--seed", seed, "--threads", options.threads, "--data", options.data]
    changed = method.set
    if rate is not None:
        steps = max(2, round(options.texts / method.row / method.batch))
        how += ["--steps", steps, "--eval-steps", -(-steps // 3)]
        changed = (*changed, f"optim.lr={rate}", f"optim.batch={method.batch}")
    given = ("--corpus", corpus, *how, *_sets(changed))
    _run("train", method.recipe, *given, "--out", run, *_resumed(run))
    return run


def _one(name: str, seed: int, rate: float | None, options: Any) -> None:
    """Train and score, unless there is a line of it."""
    asked = _asked(name, seed, rate, options)
    if _line(asked, "stsb", options) is None:
        scores = _work(options) / f"{name}-{seed}.json"
        run = _trained(name, seed, rate, options)
        _run("evaluate", run, "--data", options.data, "--suite", "sts,geometry", "--json", scores)
        found = json.loads(scores.read_text())
        line = asked | {key: found["sts"][key]["spearman_all"] for key in SETS}
        add_row(options.out, line | {key: found["geometry"][key] for key in GEOMETRY})
    for run in _work(options).glob(f"{name}-{seed}-*"):  # each holds two models
        shutil.rmtree(run)


def _run(*arguments_: object) -> None:
    subprocess.run([sys.executable, "-m", "training", *map(str, arguments_)], check=True)


def _sets(changes: tuple[str, ...]) -> list[str]:
    return [part for change in changes for part in ("--set", change)]


def _resumed(run: Path) -> tuple[str, ...]:
    return ("--resume",) if (run / RUN).exists() else ()


def _written(out: Path, lines: Iterable[str]) -> Path:
    """The file with these lines, made unless it is there."""
    if not out.exists():
        out.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return out


def _sentences(options: Any) -> Path:
    return _written(
        _work(options) / "sentences.txt", islice(texts_of(options.data / WIKIPEDIA), options.texts)
    )


def _definitions(options: Any) -> Path:
    """Titles of one word, and the first sentences of Simple English Wikipedia on them: a weak dictionary."""
    records = read_records(options.data / "wiki_pairs" / "simple_en_intro.tsv.gz")
    found = ((record.fields["simple_intro"], record.fields["title"]) for record in records)
    rows = (f"{intro}\t{title.lower()}" for intro, title in found if title.isalpha())
    return _written(_work(options) / "definitions.tsv", chain(["anchor\tpositive"], rows))


def _first(file: Path, count: int, out: Path) -> Path:
    return _written(out, (line.text for line in islice(read_lines(file), count)))


def _lists(options: Any) -> Path:
    """Lists over the abstracts of SciFact, scored by hybrid search with the default model."""
    out = _work(options) / "lists.jsonl"
    if not out.exists():
        plain = _first(options.data / "scifact" / "corpus.jsonl.gz", 1500, _work(options) / "scifact.jsonl")
        _run("mine", "lists", "--corpus", plain, "--out", out)
    return out


CORPORA = {
    "sentences": _sentences,
    "documents": lambda options: _first(
        options.data / "wiki_docs" / "train.jsonl.gz", 1200, _work(options) / "documents.jsonl"
    ),
    "definitions": _definitions,
    "lists": _lists,
    "triples": lambda options: options.data / "nli" / "triples.tsv.gz",
    "relations": lambda options: options.data / "nli" / "pairs.tsv.gz",
    "scores": lambda options: options.data / "stsb" / "train.tsv.gz",
}


if __name__ == "__main__":
    main()
