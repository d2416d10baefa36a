"""Run suites of evaluations on an encoder. Start reading at `score`.

sts         Spearman of STS12 to STS16, STS-B (test) and SICK-R (test), and of KorSTS
geometry    alignment, uniformity, anisotropy and effective rank over STS-B (train, dev and test)
retrieval   nDCG@10 and other figures of dense, lexical and hybrid search, on every folder in BEIR's layout
transfer    accuracy of a linear classifier: MR, CR, SUBJ, MPQA, SST2, TREC and MRPC, and SICK-E
clustering  accuracy of k-means against the labels of the transfer sets with single sentences
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Sequence
from functools import cache
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

from models.messages import amount
from models.progress import Say, silent
from training.errors import TrainingError
from training.evaluation.data import OTHERS, SETS, STSB, EvaluationSet, Pairs, is_absent, load
from training.evaluation.encoding import Encode, encode_once
from training.evaluation.geometry import geometry
from training.evaluation.modes import whole
from training.evaluation.retrieval import Collection, collections, retrieval
from training.evaluation.retrieval import load as load_collection
from training.evaluation.scorable import Scorable
from training.evaluation.sts import sample, similarity
from training.evaluation.tasks import IN_MEAN, Task
from training.evaluation.tasks import load as load_tasks
from training.evaluation.transfer import clustering, transfer

SUITES = ("sts", "geometry", "retrieval", "transfer", "clustering")
DEFAULT = ("sts", "geometry")  # the fast suites, which the gate compares
_SPLITS = ("train", "dev", "test")


def check_suites(names: Iterable[str], known: Sequence[str] = SUITES) -> tuple[str, ...]:
    """Returns `names` without repetition.

    Raises:
        TrainingError: A suite is unknown, or no suite is named.
    """
    chosen = tuple(dict.fromkeys(name.strip() for name in names if name.strip()))
    there_are = f"There are: {', '.join(known)}."
    if not chosen:
        raise TrainingError(f"No suite is named. {there_are}")
    for name in chosen:
        if name not in known:
            raise TrainingError(f"There is no suite {name!r}. {there_are}")
    return chosen


def score(
    encode: Encode,
    data: Path,
    suites: Sequence[str] = DEFAULT,
    say: Say = silent,
    model: Scorable | None = None,
    *,
    samples: bool = False,
) -> dict[str, Any]:
    """Returns the scores of an encoder on the sets in `data`, as fractions in JSON values.

        {"sts": {"stsb": {"spearman_all": 0.82, …}}, "mean": {"spearman_all": 0.77, "sets": […]},
         "geometry": {"alignment": …, "uniformity": …, …},
         "retrieval": {"scifact": {"ndcg10": 0.65, …, "lexical": {"ndcg10": 0.66, …}, "hybrid": {…}}},
         "transfer": {"mr": {"accuracy": 0.76, …}}, "transfer_mean": {"accuracy": 0.82, "sets": […]},
         "clustering": {"trec": {"accuracy": 0.5, …}},
         "absent": ["sts13"], "sentences": …, "seconds": …}

    `mean` covers the English sets of `sts`. Figures that are not finite are None. `absent` lists the missing
    sets of the suites, except sets in other languages.

    Args:
        encode: Encodes sentences.
        data: The evaluation folder.
        suites: Names of the suites to run.
        say: Called with progress messages.
        model: Encodes the texts of searches. If None, `encode` encodes them, and documents are not split.
        samples: Adds {"samples": {"stsb": (gold, cosines)}}, arrays to compare two models pair by pair.

    Raises:
        TrainingError: A suite is unknown, a file cannot be read, or all sets are absent.
    """
    began = time.monotonic()
    suites = check_suites(suites)
    say("reading the evaluation sets")
    loaded = _load(data, suites)
    body: dict[str, Any] = {}
    sentences = loaded.sentences()
    if sentences:
        say("encoding the sentences")
        known = encode_once(encode, sentences)
        body |= _of_sentences(loaded, known, say)
        if samples:
            body["samples"] = {
                key: sample(loaded.sts[key], known) for key in body.get("mean", {}).get("sets", ())
            }
    model = model or Scorable(None, None, None, encode, encode, encode, whole, 0)
    for name, collection in loaded.collections.items():
        say(f"searching {name}, {amount(len(collection.documents), 'document')}")
        passages = cache(model.split)
        parts = chain.from_iterable(passages(content, None) for content in collection.documents.values())
        queries = encode_once(model.encode_queries, collection.queries.values())
        documents = encode_once(model.encode_documents, parts)
        figures = retrieval(collection, queries, documents, passages, model.unrelated)
        body.setdefault("retrieval", {})[name] = figures
    seconds = round(time.monotonic() - began, 2)
    return body | {"absent": loaded.absent, "sentences": len(sentences), "seconds": seconds}


class _Loaded(NamedTuple):
    sts: dict[str, Pairs]  # English sets first
    stsb: list[Pairs]  # each split, for the geometry
    collections: dict[str, Collection]
    tasks: dict[str, Task]
    clustered: dict[str, Task]
    absent: list[str]

    def sentences(self) -> set[str]:
        pairs = (*self.sts.values(), *self.stsb)
        texts = chain.from_iterable(side for each in pairs for side in (each.left, each.right))
        tasks = chain(self.tasks.values(), self.clustered.values())
        return {*texts, *chain.from_iterable(task.sentences() for task in tasks)}


def _load(data: Path, suites: tuple[str, ...]) -> _Loaded:
    """Reads all sets of the suites. `score` does this before encoding, so a damaged file fails early."""
    similar, geometric = "sts" in suites, "geometry" in suites
    requested = [known.key for known in SETS if similar or (geometric and known.key == STSB)]
    absent = [key for key in requested if is_absent(key, data)]
    folders = collections(data) if "retrieval" in suites else {}
    if "retrieval" in suites:
        requested += ["retrieval"]
        absent += [] if folders else ["retrieval"]
    tasks, missing = load_tasks(data) if {"transfer", "clustering"} & set(suites) else ({}, [])
    requested += [*tasks, *missing]
    absent += missing
    others = _present(OTHERS, data) if similar else []
    if len(absent) == len(requested) and not others:
        raise TrainingError(f"{data} holds none of {', '.join(requested)}.")
    return _Loaded(
        {key: load(key, data) for key in ([*_present(SETS, data), *others] if similar else [])},
        [load(STSB, data, split) for split in _SPLITS] if geometric and STSB not in absent else [],
        {name: load_collection(folder) for name, folder in folders.items()},
        tasks if "transfer" in suites else {},
        {key: task for key, task in tasks.items() if "clustering" in suites and task.single()},
        absent,
    )


def _present(sets: Iterable[EvaluationSet], data: Path) -> list[str]:
    return [known.key for known in sets if not is_absent(known.key, data)]


def _of_sentences(loaded: _Loaded, encode: Encode, say: Say) -> dict[str, Any]:
    body: dict[str, Any] = {}
    if loaded.sts:
        say("comparing with the gold scores")
        body["sts"] = {key: _plain(similarity(pairs, encode)) for key, pairs in loaded.sts.items()}
        english = {known.key: body["sts"][known.key] for known in SETS if known.key in body["sts"]}
        body |= {"mean": _mean(english, "spearman_all")} if english else {}
    if loaded.stsb:
        say("measuring the geometry")
        body["geometry"] = _plain(geometry(loaded.stsb, encode)) | {"splits": list(_SPLITS)}
    if loaded.tasks:
        body["transfer"] = {key: _plain(transfer(task, encode, say)) for key, task in loaded.tasks.items()}
        means = {key: figures for key, figures in body["transfer"].items() if key in IN_MEAN}
        body["transfer_mean"] = _mean(means, "accuracy")
    if loaded.clustered:
        body["clustering"] = {
            key: _plain(clustering(task, encode, say)) for key, task in loaded.clustered.items()
        }
    return body


def _mean(sets: dict[str, dict[str, Any]], figure: str) -> dict[str, Any]:
    """Returns the mean of a figure over sets, with the names of these sets."""
    each = [figures[figure] for figures in sets.values()]
    mean = None if None in each or not each else sum(each) / len(each)
    return {figure: mean, "sets": list(sets)}


def _plain(figures: dict[str, Any]) -> dict[str, Any]:
    """Converts figures to JSON values. NaN and infinite values become None."""
    return {
        name: None if isinstance(value, float) and not math.isfinite(value) else value
        for name, value in figures.items()
    }
