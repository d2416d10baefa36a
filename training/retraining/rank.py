"""`python -m training rank`: learn the ranking of each collection, and publish it. Start at `rank`.

    judgments, clicks ─▶ judged queries ─▶ candidates and features of the service ─▶ cross-validation
                                                              ranking/COLLECTION.json ◀── rules ┘

The new version has the encoder of the active one, so its activation embeds nothing. `python -m models
rollback` undoes it. Exit status: 0 published, 3 refused, 4 nothing to learn, 5 another retraining is running.
"""

from __future__ import annotations

import argparse
import hashlib
import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from models import cpus
from models.manifest import Manifest
from models.messages import positive
from models.progress import Say, to_stderr
from models.search.features import FEATURES
from models.search.ranking import MAX_RANKED, get_default
from models.store import ModelStore
from training.errors import Busy, NothingToLearn, TrainingError
from training.evaluation.geometry import directions
from training.evaluation.scorable import build_scorable
from training.ranking.cross_validation import COMING, NEW, compare, draw_folds, learn
from training.ranking.examples import Example
from training.ranking.fitting import MIN_QUERIES
from training.ranking.rules import describe, judge_first, judge_refit
from training.retraining import ledger
from training.retraining.anchor import active_version
from training.retraining.clicks import used_at
from training.retraining.config import (
    Config,
    CorpusTable,
    FoldersTable,
    JudgmentsTable,
    ScheduleTable,
    check,
    folders,
)
from training.retraining.heldout import place
from training.retraining.judgements import Judged, Judgment, judged, judgments_at, judgments_in
from training.retraining.publication import Learned, Outcome, get_learned, left, publish_learned
from training.retraining.scoring import add_judgments, read_rankings, refitting
from training.runs.export import add_models_dir
from training.text.service import add_options, chosen, fetch_explained, split_qualified

RANKING = "ranking"  # The recipe, as reports name it.
_HYBRID = FEATURES.index("hybrid")


def rank(found: Judged, config: Config, store: ModelStore, say: Say, *, publishing: bool = True) -> Outcome:
    """Learns the ranking of each collection with enough judged queries, and publishes those accepted.

    Args:
        found: The judged queries.
        config: The configuration, which names a service.
        store: Store of model versions.
        say: Called with progress messages and the report.
        publishing: False: report only.

    Raises:
        NothingToLearn: No collection has enough judged queries, or none has new judgments.
    """
    active = active_version(store)
    served = store.verify(active)
    if config.corpus.service is None:
        raise NothingToLearn("A ranking is learned from the searches of a service: set corpus.service.")
    pending = store.requested()
    if pending not in {None, active} and not left(store, str(pending)):
        raise NothingToLearn(f"{pending} is about to go live. Run this again once it is.")
    learned = _learn_all(found, config.corpus.service, store, served, say)
    return publish_learned(store, served, RANKING, learned, say, publishing=publishing)


def _learn_all(found: Judged, url: str, store: ModelStore, served: Manifest, say: Say) -> dict[str, Learned]:
    """Learns the ranking of each collection. Raises an error only if no collection has one."""
    learned: dict[str, Learned] = {}
    missing = []
    failed: TrainingError | None = None
    for name, queries in sorted(_by_collection(found).items()):
        try:
            learned[name] = _learn(name, queries, found, url, store, served, say)
        except TrainingError as error:  # Other collections can still learn.
            missing.append(f"{name}: {error}")
            say(f"! {missing[-1]}")
            if not isinstance(error, NothingToLearn):
                failed = error
    if failed is not None and not learned:
        raise failed
    if not learned:
        raise NothingToLearn(" ".join(missing) or _too_few(0))
    return learned


def _by_collection(found: Judged) -> dict[str, set[str]]:
    """Returns the queries with a judged document in each collection."""
    queries: dict[str, set[str]] = {}
    for judgments in (found.answers, found.negatives):
        for query, ids in judgments.items():
            for id in ids:
                queries.setdefault(split_qualified(id)[0], set()).add(query)
    return queries


def _learn(
    name: str, queries: Iterable[str], found: Judged, url: str, store: ModelStore, served: Manifest, say: Say
) -> Learned:
    relevant = {query: _of(name, found.answers.get(query, ())) for query in sorted(queries)}
    wrong = {query: _of(name, found.negatives.get(query, ())) for query in relevant}
    if (count := sum(map(bool, relevant.values()))) < MIN_QUERIES:
        raise NothingToLearn(_too_few(count))
    digest = _digest(served.fingerprint, served.search.get(name), relevant, wrong)
    if ledger.read(store, RANKING).get(name) == digest:
        raise NothingToLearn("no judgment changed since the last ranking was learned.")
    before = read_rankings(store, served).get(name)
    say(f"searching {count:,} judged queries of {name}")
    order = sorted(relevant, key=lambda query: place(f"ranking\0{query}"))
    with closing(store.open(served.version, threads=cpus.available())) as encoder:
        vectors = directions(build_scorable(encoder).encode_queries(order)).astype(np.float32)
    candidates = fetch_explained(url, name, order, MAX_RANKED, served.version)
    examples = [
        add_judgments(_example(query, vector, hits, relevant[query]), found, found.judges)._replace(
            wrong=frozenset(wrong[query])
        )
        for query, vector, hits in zip(order, np.nan_to_num(vectors), candidates, strict=True)
    ]
    if (count := sum(bool(each.gains.any()) for each in examples)) < MIN_QUERIES:
        raise NothingToLearn(f"of the judged queries, {count} find a relevant document. {_too_few(count)}")
    say(f"fitting a ranking of {name} to {len(examples):,} judged queries, eleven times")
    prior = get_default().weights
    fitting = partial(learn, prior=prior, mean_query=before.mean_query if before else None)
    rows = {each: compare(examples, draw_folds(examples, each), fitting) for each in (NEW, COMING)}
    if not len(rows[COMING].after):
        raise NothingToLearn("no judged query may judge: each rests on one key, or the encoder learned it.")
    if before is None:
        reasons = judge_first(rows)
    else:
        against = {each: compare(examples, draw_folds(examples, each), refitting(before)) for each in rows}
        reasons = judge_refit(
            rows, {each: row._replace(before=against[each].after) for each, row in rows.items()}
        )
    ranking = fitting(examples).model_copy(update={"fingerprint": served.fingerprint})
    return Learned(rows, reasons, describe(rows, ranking), digest, ranking)


def _too_few(count: int) -> str:
    return (
        f"{count} queries have a relevant document, and {MIN_QUERIES} are needed: judge "
        f"{MIN_QUERIES - count} more (POST /feedback)."
    )


def _of(collection: str, ids: Iterable[str]) -> list[str]:
    names = map(split_qualified, ids)
    return sorted(id for within, id in names if within == collection)


def _example(
    query: str,
    vector: np.ndarray,
    hits: Sequence[Mapping[str, Any]],
    relevant: Sequence[str],
) -> Example:
    features = np.array([[hit["features"][name] for name in FEATURES] for hit in hits], np.float64)
    features = features.reshape(-1, len(FEATURES))
    order = np.argsort(-features[:, _HYBRID], kind="stable")  # The service may have ordered them again.
    ids = [str(hits[at]["id"]) for at in order]
    return Example(query, vector, ids, features[order], dict.fromkeys(relevant, 1.0))


def _digest(*known: object) -> str:
    return hashlib.sha256(repr(known).encode()).hexdigest()[:16]


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    command = commands.add_parser(
        "rank",
        help="learn the order of hits from judgments and clicks, in seconds",
        description="Learns the order of the best hits of hybrid search from all judged queries, and "
        "publishes it if cross-validation shows a gain.",
    )
    command.add_argument("--from-service", metavar="URL", required=True, help="the running service")
    add_options(command)
    command.add_argument("--judgements", type=Path, metavar="FILE", help="further judgments: .tsv or .jsonl")
    command.add_argument("--threads", type=positive, metavar="N", help="that embed queries (default: all)")
    command.add_argument("--dry-run", action="store_true", help="report only, and publish nothing")
    add_models_dir(command)
    command.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Learns the rankings, prints the report and returns the exit status."""
    config = Config(
        corpus=CorpusTable(service=options.from_service, collections=chosen(options)),
        judgements=JudgmentsTable(file=options.judgements),
        schedule=ScheduleTable(threads=options.threads),
        folders=FoldersTable(models=options.models_dir),
    )
    check(config)
    from training.retraining.plan import alone  # noqa: PLC0415  torch

    store = ModelStore(folders(config).models)
    try:
        with alone(store):
            found = read_judged(config, store, to_stderr)
            outcome = rank(found, config, store, _print, publishing=not options.dry_run)
    except NothingToLearn as error:
        _print(f"Nothing to learn: {error}")
        return 4
    except Busy as error:
        _print(str(error))
        return 5
    if outcome.published:
        _print(
            f"{outcome.version} is published and requested. Undo: python -m models rollback "
            f"--models-dir {store.root}"
        )
        return 0
    _print(f"Nothing was published: {outcome.reason}")
    return 0 if options.dry_run else 3


def read_judged(config: Config, store: ModelStore, say: Say) -> Judged:
    """Reads judgments and clicks without the documents. The rules are those of a retraining."""
    table, service = config.judgements, config.corpus.service
    found: list[Judgment] = []
    if service is not None and config.events.use:
        bias = None if config.events.position_bias == "estimate" else config.events.position_bias
        used = used_at(service, config.corpus.collections, bias, config.events.least, config.events.visitors)
        say(used.line)
        found += used.judgements
    if table.file is not None:
        found += judgments_in(table.file)
    if service is not None and table.feedback:
        found += judgments_at(service, config.corpus.collections)
    known = {each.id: each.id for each in found}
    return judged(found, known, table.held_out, table.trusted, get_learned(store, active_version(store)))


def _print(line: str) -> None:
    sys.stdout.write(f"{line}\n")
