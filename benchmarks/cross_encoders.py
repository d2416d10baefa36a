"""Measure cross-encoders: `python -m benchmarks.cross_encoders WHAT… --work FOLDER`.

nli            accuracy of `cross-encoder-nli` on held-out sources
stsb           Spearman's correlation of `cross-encoder-scores`, from the default model and from the NLI model
augmented      `sbert-regression` on STS-B, with and without the silver pairs of a cross-encoder
distil         `distil-rerank` on half of the queries of a set, without judgments; the other half is searched

The teacher of `distil` learns from the training queries of SciFact, unless --teacher names one. Each row has
the mean and the standard deviation over the seeds. FOLDER keeps all trainings, so a stopped command goes on.
SIMILE_EVAL_DATA names the folder of the sets.
"""

import argparse
import csv
import gzip
import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from statistics import fmean, stdev

import numpy as np

from benchmarks.command import build_parser, format_table, progress, report
from benchmarks.workloads import evaluation_folder
from models.search.measures import judge
from models.tokens.pairs import Pair
from training.__main__ import main as command
from training.evaluation.data import load as load_pairs
from training.evaluation.retrieval import Collection, retrieval, search
from training.evaluation.retrieval import load as load_collection
from training.evaluation.scorable import open_scorable
from training.evaluation.sts import similarity, spearman
from training.mining.neighbors import unit_vectors
from training.mining.rerankers import open_reranker
from training.model.reranker import load_reranker
from training.text.corpus import RELATION_NAMES

HELD = {("snli", "test"), ("mnli", "dev_mismatched"), ("xnli", "test")}  # and every "val" of LingNLI
SETS = ("mlqa_en", "cranfield")
RERANKED = 20  # hits of hybrid search
LOSSES = {"kl": [], "margin": ["--set", 'objectives=[{ name = "margin_mse", tau = 0.05 }]']}
Figures = Mapping[str, float]
Row = tuple[str, Figures]  # what was measured by one seed


def main() -> None:
    parser = build_parser("cross_encoders", __doc__)
    parser.add_argument("what", nargs="+", choices=MEASURES)
    parser.add_argument("--work", type=Path, required=True, metavar="FOLDER", help="keeps all trainings")
    parser.add_argument("--seeds", type=int, default=3, metavar="N", help="(%(default)s)")
    parser.add_argument("--base", default="default", help="as for `train` (%(default)s)")
    parser.add_argument("--steps", type=int, help="of each training, for a trial")
    parser.add_argument("--teacher", type=Path, metavar="FOLDER", help="a cross-encoder for `distil`")
    options = parser.parse_args()
    options.work.mkdir(exist_ok=True, parents=True)
    found: dict[tuple[str, str], list[float]] = {}
    for seed in range(1, options.seeds + 1):
        for what in options.what:
            for name, figures in MEASURES[what](options, seed):
                progress(f"{what}, {name}, seed {seed}: {figures}")
                for figure, value in figures.items():
                    found.setdefault((f"{what}, {name}", figure), []).append(100 * value)
    rows = [[*key, fmean(each), stdev(each) if len(each) > 1 else "-"] for key, each in found.items()]
    each_seed = {f"{name}: {figure}": each for (name, figure), each in found.items()}
    report(
        "cross_encoders", {"figures": each_seed}, [format_table(["what", "figure", "mean", "sd"], rows)], []
    )


def measure_nli(options: argparse.Namespace, seed: int) -> Iterator[Row]:
    run, held = train_nli(options, seed)
    model = load_reranker(run / "best")
    right: dict[str, list[bool]] = {}
    scores = model.score([Pair(row["premise"], row["hypothesis"]) for row in held])
    for row, best in zip(held, scores.argmax(1).tolist(), strict=True):
        for source in (row["source"], "all"):
            right.setdefault(source, []).append(RELATION_NAMES[best] == row["label"])
    yield "accuracy", {source: fmean(each) for source, each in right.items()}


def train_nli(options: argparse.Namespace, seed: int) -> tuple[Path, list[dict[str, str]]]:
    """Trains on NLI without the held-out sources. Returns the run and the held-out rows."""
    with gzip.open(evaluation_folder() / "nli" / "pairs.tsv.gz", "rt", encoding="utf-8") as stream:
        rows = list(csv.DictReader(stream, delimiter="\t", quoting=csv.QUOTE_NONE))
    held = [row for row in rows if (row["source"], row["split"]) in HELD or row["split"].startswith("val")]
    texts = {row["premise"] for row in held}
    file = options.work / "nli.jsonl"
    write(file, (row for row in rows if row["premise"] not in texts))
    return train(options, seed, "cross-encoder-nli", file), held


def measure_stsb(options: argparse.Namespace, seed: int) -> Iterator[Row]:
    file, nli = evaluation_folder() / "stsb" / "train.tsv.gz", train_nli(options, seed)[0]
    for name, base in (("from the base", options.base), ("from NLI", str(nli))):
        yield name, {"stsb": score_pairs(train(options, seed, "cross-encoder-scores", file, base))}


def score_pairs(run: Path) -> float:
    """Returns Spearman's correlation of a cross-encoder on the test pairs of STS-B."""
    pairs = load_pairs("stsb", evaluation_folder())
    scores = load_reranker(run / "best").score([*map(Pair, pairs.left, pairs.right)])
    return spearman(scores[:, 0].astype(float), pairs.gold)


def measure_augmented(options: argparse.Namespace, seed: int) -> Iterator[Row]:
    file = evaluation_folder() / "stsb" / "train.tsv.gz"
    teacher = train(options, seed, "cross-encoder-scores", file)
    plain = train(options, seed, "sbert-regression", file)
    silver = options.work / f"silver-{seed}.jsonl"
    models = ["--model", str(plain), "--reranker", str(teacher)]
    if not silver.exists():
        given = ["--pairs", str(file), "--highest", "5", "--out", str(silver)]
        run("mine", "silver", *given, *models)
    augmented = train(options, seed, "augmented-sbert", silver)
    yield "the cross-encoder", {"stsb": score_pairs(teacher)}
    for name, folder in (("SBERT", str(plain)), ("Augmented SBERT", str(augmented))):
        with open_scorable(folder) as model:
            pairs = load_pairs("stsb", evaluation_folder())
            yield name, {"stsb": similarity(pairs, model.encode)["spearman_all"]}


def measure_distil(options: argparse.Namespace, seed: int) -> Iterator[Row]:
    teacher = options.teacher or train_for_search(options, seed) / "best"
    for name in SETS:
        collection = load_collection(evaluation_folder() / name)
        halves = [dict([*collection.queries.items()][at::2]) for at in (0, 1)]
        test = collection._replace(queries=halves[1])
        documents, queries = options.work / f"{name}.jsonl", options.work / f"{name}-queries.jsonl"
        write(documents, ({"title": each.title, "text": each.text} for each in collection.documents.values()))
        write(queries, ({"text": text} for text in halves[0].values()))
        lists = options.work / f"{name}-lists-{seed}.jsonl"
        if not lists.exists():
            given = ["--corpus", str(documents), "--queries", str(queries), "--model", options.base]
            run("mine", "lists", *given, "--reranker", str(teacher), "--out", str(lists))
        students = {
            loss: train(options, seed, "distil-rerank", lists, options.base, changes, f"-{name}-{loss}")
            for loss, changes in LOSSES.items()
        }
        yield f"{name}, reranked", {"hybrid": rerank(test, options.base, teacher)}
        for title, folder in {"base": options.base, **{k: str(v) for k, v in students.items()}}.items():
            with open_scorable(folder) as model:
                encoders = model.encode_queries, model.encode_documents
                found = retrieval(test, *encoders, model.split, model.unrelated)
            yield f"{name}, {title}", {"dense": found["ndcg10"], "hybrid": found["hybrid"]["ndcg10"]}


def train_for_search(options: argparse.Namespace, seed: int) -> Path:
    """Trains a cross-encoder on the training queries of SciFact, with mined negatives."""
    scifact = load_collection(evaluation_folder() / "scifact", "train")
    pairs, corpus, triples = (
        options.work / f"scifact-{name}.jsonl" for name in ("pairs", "texts", "triples")
    )
    if not triples.exists():
        texts = {id: each.whole for id, each in scifact.documents.items()}
        write(corpus, ({"text": text} for text in texts.values()))
        judged = ((scifact.queries[query], id) for query, ids in scifact.relevant.items() for id in ids)
        write(pairs, ({"anchor": query, "positive": texts[id]} for query, id in judged if id in texts))
        given = ["--pairs", str(pairs), "--corpus", str(corpus), "--model", options.base, "--count", "3"]
        run("mine", "negatives", *given, "--out", str(triples))
    return train(options, seed, "cross-encoder", triples)


def rerank(collection: Collection, base: str, teacher: Path) -> float:
    """Returns the mean nDCG@10 if a cross-encoder orders the first hits of hybrid search.

    As in the service, it reads the best passage of a hit.
    """
    with open_scorable(base) as model:
        encoders = model.encode_queries, model.encode_documents
        hits = search(collection, *encoders, model.split, model.unrelated)[0]["hybrid"]
        listed = {id: model.split(collection.documents[id], None) for ids in hits for id in ids[:RERANKED]}
        parts = [*dict.fromkeys(part for each in listed.values() for part in each)]
        vectors = dict(zip(parts, unit_vectors(model.encode_documents, parts), strict=True))
        queries = unit_vectors(model.encode_queries, [*collection.queries.values()])
    found = []
    with open_reranker(str(teacher), os.environ, normalize=False) as score:
        for (query, text), vector, ids in zip(collection.queries.items(), queries, hits, strict=True):
            first, rest = ids[:RERANKED], ids[RERANKED:]
            best = [max(listed[id], key=lambda part: float(vectors[part] @ vector)) for id in first]
            scores = score([Pair(text, part) for part in best])
            ranked = [*(first[at] for at in np.argsort(-scores, kind="stable")), *rest]
            found.append(judge(ranked, collection.relevant[query])["ndcg10"])
    return fmean(found)


def train(
    options: argparse.Namespace,
    seed: int,
    recipe: str,
    corpus: Path,
    base: str | None = None,
    changes: Sequence[str] = (),
    suffix: str = "",
) -> Path:
    """Trains a recipe, or goes on with a stopped training. Returns the folder of the run."""
    base = base or options.base
    out: Path = options.work / f"{recipe}{suffix}-{Path(base).name}-{seed}"
    steps = ["--steps", str(options.steps)] if options.steps else []
    resume = ["--resume"] if (out / "run.json").exists() else []
    given = ["--corpus", str(corpus), "--base", base, "--out", str(out), "--seed", str(seed)]
    run("train", recipe, *given, *steps, *resume, *changes)
    return out


def run(*arguments: str) -> None:
    if status := command(arguments):
        sys.exit(f"`python -m training {' '.join(arguments)}` returned {status}.")


def write(file: Path, rows: Iterator[Mapping[str, object]]) -> None:
    file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


MEASURES: dict[str, Callable[[argparse.Namespace, int], Iterator[Row]]] = {
    "nli": measure_nli,
    "stsb": measure_stsb,
    "augmented": measure_augmented,
    "distil": measure_distil,
}

if __name__ == "__main__":
    main()
