"""`python -m training rank`: learn the ranking of each collection, and publish it. Start at `rank`.

    judgments, clicks ─▶ judged queries ─▶ candidates and features of the service ─▶ cross-validation
                                                              ranking/COLLECTION.json ◀── rules ┘

The new version has the encoder of the active one, so its activation embeds nothing. `python -m models
rollback` undoes it. Exit status: 0 published, 3 refused, 4 nothing to learn, 5 another retraining is running.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from models import cpus
from models.files.bounded import read_json
from models.manifest import ANCHOR, REPORT, Manifest
from models.messages import positive
from models.progress import Say, to_stderr
from models.search.features import FEATURES
from models.search.ranking import FOLDER, MAX_RANKED, Ranking, get_default, read_ranking
from models.store import ModelStore
from training.errors import Busy, NothingToLearn, TrainingError
from training.evaluation.geometry import directions
from training.evaluation.scorable import build_scorable
from training.ranking.cross_validation import CERTAIN, COMING, NEW, Comparison, compare, draw_folds, learn
from training.ranking.examples import Example
from training.ranking.fitting import MIN_QUERIES, Procedure, fit
from training.ranking.rules import Rows, describe, judge_first, judge_refit
from training.retraining.anchor import active_version
from training.retraining.changed import reordered
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
from training.retraining.gate.paired import spread
from training.retraining.gate.verdict import Gain, Verdict
from training.retraining.gate.words import report
from training.retraining.gathered import get_learned
from training.retraining.heldout import place
from training.retraining.judgements import Judged, Judgment, judged, judgments_at, judgments_in
from training.retraining.publication import Outcome, derive_manifest, left, publish
from training.retraining.scoring import describe_model
from training.runs.export import add_models_dir
from training.text.service import add_options, chosen, fetch_explained, fetch_texts, split_qualified

RANKING = "ranking"  # The recipe, as reports name it.
_HYBRID = FEATURES.index("hybrid")


class Learned(NamedTuple):
    """The new ranking of a collection with its report.

    Attributes:
        ranking: The ranking.
        rows: It against the hybrid order, cross-validated.
        reasons: Why it is refused. Empty if it is accepted.
        digest: Of the judgments.
    """

    ranking: Ranking
    rows: Rows
    reasons: Sequence[str]
    digest: str

    @property
    def told(self) -> list[str]:
        return describe(self.rows, self.ranking)


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
    for name, each in learned.items():
        lines = [*each.told, *each.reasons]
        for line in (f"Collection {name}: {'refused' if each.reasons else 'accepted'}.", *lines):
            say(line)
    accepted = {name: each for name, each in learned.items() if not each.reasons}
    verdict = _verdict(accepted or learned)
    if not publishing:
        return Outcome(None, False, "This was a dry run.", verdict)
    if not accepted:
        return Outcome(None, False, " ".join(verdict.reasons), verdict)
    files = {f"{FOLDER}/{name}.json": each.ranking.model_dump_json() for name, each in accepted.items()}
    manifest = derive_manifest(store, served, RANKING)
    content = report(verdict, {}, {}, _about(accepted, manifest, served, sorted(get_learned(store, active))))
    content |= {"summary": _summarize(accepted), "changed": _changed(accepted, config.corpus.service, say)}
    return publish(store, active, store.folder(active), manifest, verdict, content, files=files)


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
    relevant = {query: _of(name, found.answers.get(query, ())) for query in queries}
    wrong = {query: _of(name, found.negatives.get(query, ())) for query in relevant}
    if (count := sum(map(bool, relevant.values()))) < MIN_QUERIES:
        raise NothingToLearn(_too_few(count))
    digest = _digest(relevant, wrong)
    before = _active_ranking(store, served, name)
    if before is not None and _learned_before(store, served, name) == digest:
        raise NothingToLearn("no judgment changed since the active ranking was learned.")
    say(f"searching {count:,} judged queries of {name}")
    judging = {*found.held, *found.crossed, *(query for query in found.dev if query not in found.keys)}
    order = sorted(relevant, key=lambda query: place(f"ranking\0{query}"))
    with closing(store.open(served.version, threads=cpus.available())) as encoder:
        vectors = directions(build_scorable(encoder).encode_queries(order)).astype(np.float32)
    candidates = fetch_explained(url, name, order, MAX_RANKED)
    examples = [
        _example(query, vector, hits, relevant[query], wrong[query], query in judging)._replace(
            recalled=query not in found.of_use
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
        active = partial(fit, prior=prior, procedure=Procedure.of(before))
        against = {each: compare(examples, draw_folds(examples, each), active) for each in rows}
        reasons = judge_refit(
            rows, {each: row._replace(before=against[each].after) for each, row in rows.items()}
        )
    ranking = fitting(examples).model_copy(update={"fingerprint": served.fingerprint})
    return Learned(ranking, rows, reasons, digest)


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
    wrong: Sequence[str],
    judges: bool,
) -> Example:
    features = np.array([[hit["features"][name] for name in FEATURES] for hit in hits], np.float64)
    features = features.reshape(-1, len(FEATURES))
    order = np.argsort(-features[:, _HYBRID], kind="stable")  # The service may have ordered them again.
    ids = [str(hits[at]["id"]) for at in order]
    return Example(
        query, vector, ids, features[order], dict.fromkeys(relevant, 1.0), frozenset(wrong), judges
    )


def _digest(*judgments: Mapping[str, Sequence[str]]) -> str:
    return hashlib.sha256(json.dumps(judgments, sort_keys=True).encode()).hexdigest()[:16]


def _active_ranking(store: ModelStore, served: Manifest, collection: str) -> Ranking | None:
    """Returns the ranking that the active version serves, or None."""
    if f"{FOLDER}/{collection}.json" not in served.files:
        return None
    try:
        return read_ranking(store.folder(served.version), collection, served)
    except ValueError:
        return None


def _learned_before(store: ModelStore, served: Manifest, collection: str) -> str | None:
    try:
        meta = read_json(store.folder(served.version) / REPORT)["meta"]
        return str(meta["rankings"][collection]["judgments"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _verdict(learned: Mapping[str, Learned]) -> Verdict:
    reasons = tuple(f"{name}: {reason}" for name, each in learned.items() for reason in each.reasons)
    gains = tuple(
        _gain(f"own {row} of {name}", found)
        for name, each in learned.items()
        for row, found in each.rows.items()
    )
    return Verdict(not reasons, reasons, (), (), gains)


def _gain(name: str, row: Comparison) -> Gain:
    low, high = row.interval(CERTAIN)
    before, after = float(row.before.mean()), float(row.after.mean())
    found, level = spread(row.before.tolist(), row.after.tolist(), row.groups.tolist()), (1 - CERTAIN) / 2
    least = found.least_gain(level)
    return Gain(name, row.gain, low, high, before, after, found.queries, least, found.enough(level))


def _summarize(learned: Mapping[str, Learned]) -> list[str]:
    """Returns the sentences about the rankings, those about first hits at the beginning."""
    told = [
        [line if len(learned) == 1 else f"{name}: {line}" for line in each.told]
        for name, each in learned.items()
    ]
    return [line for lines in zip(*told, strict=True) for line in lines]


def _changed(learned: Mapping[str, Learned], url: str, say: Say) -> dict[str, Any]:
    def fetch(collection: str, ids: Sequence[str]) -> dict[str, str]:
        try:
            return fetch_texts(url, collection, ids)
        except TrainingError as error:  # The ids say enough.
            say(f"! The report has no texts: {error}")
            return {}

    return reordered({name: each.rows[COMING] for name, each in learned.items()}, fetch)


def _about(
    learned: Mapping[str, Learned], manifest: Manifest, served: Manifest, learned_by_encoder: Sequence[str]
) -> dict[str, Any]:
    """Returns the fields of the report besides the verdict."""
    return {
        "candidate": describe_model(manifest),
        "active": describe_model(served),
        "anchor": manifest.lineage[ANCHOR],
        "base": served.version,
        "recipe": RANKING,
        "texts": sum(each.ranking.queries for each in learned.values()),
        "gate": "on",
        "require": "better",
        "looks": 1,
        "asked": [],
        "learned": learned_by_encoder,
        "rankings": {name: {"judgments": each.digest, "told": each.told} for name, each in learned.items()},
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
    }


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
