"""The plan of a retraining from retrain.toml: what there is to learn from, what is held out, and its job.

    documents ─▶ sides by id ──────────────┬─▶ judge: searches that judge
    judgements ─▶ sides with their answers ┤   dev: searches that choose the step and the weights
                                           └─▶ train: corpus of the recipe's kind ─▶ one.py

At most one retraining works on a models folder at a time.
"""

from __future__ import annotations

import contextlib
import os
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from functools import cache, partial
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

from models import cpus
from models.files.bounded import read_json
from models.files.lock import lock
from models.manifest import REPORT
from models.publishing.publish import Say
from models.store import Store
from training.errors import Busy, NothingToLearn
from training.evaluation.data import optional_data_folder
from training.evaluation.scorable import Scorable, scorable_of
from training.mining.look import look_at
from training.retraining import searches as own
from training.retraining import sides
from training.retraining.choosing import CANDIDATES, choose_by, score_of
from training.retraining.clicks import used_at
from training.retraining.config import Config, CorpusTable, require_enough
from training.retraining.crossfit import asked, fold, halves_of, whole
from training.retraining.documents import Documents, documents_at, documents_in
from training.retraining.heldout import Split, hold_out
from training.retraining.judgements import Judged, Judgement, judged, judgements_at, judgements_in
from training.retraining.looks import count_looks
from training.retraining.one import Job, active_version
from training.retraining.rows import corpus_of
from training.runs.options import Options
from training.text.corpus import PAIRS, TEXTS, TRIPLES, Corpus

if TYPE_CHECKING:
    from training.methods.recipe import Recipe


@contextlib.contextmanager
def alone(store: Store) -> Iterator[None]:
    """Raise Busy when another retraining works on the same models folder, on this machine."""
    held = lock(store.root) if store.root.is_dir() else None
    if held is None and store.root.is_dir():
        raise Busy(f"Another retraining is at work on {store.root}. Wait for it, or stop it.")
    try:
        yield
    finally:
        if held is not None:
            os.close(held)


def prepare(config: Config, recipe: Recipe, store: Store, work: Path, say: Say) -> Job:
    """Read everything and decide what judges. Raise NothingToLearn or TrainingError."""
    active = active_version(store)
    say("reading the documents")
    documents = _documents(config.corpus)
    say(str(documents))
    require_enough(len(documents.kept), config.corpus.least)
    split = hold_out(documents.kept, config.corpus.held_out)
    left = "documents that neither judge nor nearly repeat another"
    table, known = config.judgements, _stand_ins(documents, split)
    learned = _learned(store, active)
    found = judged(_judgements(config, say), known, table.held_out, table.trusted, learned)
    split = split.moved(found.parts)
    require_enough(len(split.train), config.corpus.least, left)
    say(f"{len(split.train):,} to train on, {len(split.held):,} held out; {_said(found)}")
    crossing = config.gate.mode == "on" and recipe.source.kind in (PAIRS, TRIPLES)
    halves = halves_of(split, found) if crossing else ()
    if halves:
        say(f"{len(found.held) + len(found.crossed)} judged queries are few: each judges a model without it")
        split, found = whole(split, found)
    material = partial(_material, config, recipe, store, active)
    folds = tuple(fold(half, config.corpus.candidates, material) for half in halves)
    searches = own.collections(split, found.held, config.corpus.candidates)
    data = _data(config, bool(searches or folds))
    looks = count_looks(store, {**searches, **asked(folds)})
    dev = own.dev_collections(split, found.dev, CANDIDATES)
    corpus = material(split, found)
    say(f"training on {corpus}")
    report = _report(corpus, recipe, store, active)
    report["warnings"] = [*report["warnings"], *_of_keys(found)]
    for warning in report["warnings"]:
        say(f"! {warning}")
    if recipe.source.kind is not TEXTS:
        learned |= sides.learned(found.train)
    return Job(
        recipe=recipe,
        corpus=corpus,
        base=config.train.base,
        steps=config.train.steps,
        store=store,
        work=work,
        data=data,
        mode=config.gate.mode,
        thresholds=config.gate.thresholds(),
        require=config.gate.require,
        searches=searches if config.gate.mode == "on" else {},
        choose=choose_by(dev),
        evidence=own.evidence(searches["judged"], found.groups, found.keys) if "judged" in searches else {},
        folds=folds,
        looks=looks.number,
        sweep=True,
        options=Options(dev=score_of(dev)),
        about={
            "documents": _counts(documents, split, found),
            "collections": dict(Counter(document.collection for document in documents.kept)),
            "corpus_report": report,
            "learned": sorted(learned),
            "cross_fitted": bool(folds),
            "asked": looks.asked,
        },
    )


def _documents(table: CorpusTable) -> Documents:
    if table.service is not None:
        return documents_at(table.service, table.collections)
    assert table.file is not None  # noqa: S101  one of the two is there
    return documents_in(table.file)


def _learned(store: Store, active: str) -> set[str]:
    """Digests of the judged pairs that the active version, or one before it, was trained on."""
    try:
        content = read_json(store.folder(active) / REPORT)
        return {*map(str, content["meta"]["learned"])}
    except (OSError, ValueError, KeyError, TypeError):  # it came here without a retraining, or before this
        return set()


def _stand_ins(documents: Documents, split: Split) -> dict[str, str]:
    """Every id, copies included, to that of the document that stands for it."""
    kept = {document.id: split.copies.get(document.id, document.id) for document in documents.kept}
    return kept | {id: kept[first] for id, first in documents.copies.items()}


def _judgements(config: Config, say: Say) -> Iterator[Judgement]:
    """Of two about one pair without a key the later counts: the file's word, rather than what events say."""
    table, events = config.judgements, config.events
    if events.use and config.corpus.service is not None:
        bias = None if events.position_bias == "estimate" else events.position_bias
        used, line = used_at(
            config.corpus.service, config.corpus.collections, bias, events.least, events.keys
        )
        say(line)
        yield from used
    if table.file is not None:
        yield from judgements_in(table.file)
    if table.feedback and config.corpus.service is not None:
        yield from judgements_at(config.corpus.service, config.corpus.collections)


def _material(
    config: Config, recipe: Recipe, store: Store, active: str, split: Split, found: Judged
) -> Corpus:
    withheld = own.withheld(split, (*found.held, *found.dev))
    with _active(config, store, active) as model:
        corpus = corpus_of(
            recipe.source.kind,
            split.train,
            found.train,
            model,
            config.train.negatives,
            withheld,
            found.negatives,
        )
    if corpus.digest == corpus.rows:
        return corpus
    # Rows that the active model mined: another one finds others, so there is something new to learn.
    return replace(corpus, digest=sha256(f"{corpus.digest} by {active}".encode()).hexdigest())


@contextlib.contextmanager
def _active(config: Config, store: Store, active: str) -> Iterator[Callable[[], Scorable]]:
    """The active model; it is opened when it is first asked for."""
    with contextlib.ExitStack() as opened:

        @cache
        def model() -> Scorable:
            encoder = store.open(active, threads=config.schedule.threads or cpus.available())
            opened.callback(encoder.close)
            return scorable_of(encoder)

        yield model


def _data(config: Config, searches: bool) -> Path | None:
    """The evaluation sets; they may be absent where the team's own text judges."""
    data = optional_data_folder(config.gate.data)
    if data is None and config.gate.mode == "on" and not searches:
        raise NothingToLearn(
            f"There is nothing to judge with: no search has {own.LEAST_QUERIES} held-out queries (from "
            "documents with a title or two sentences, or judged ones), and gate.data names no evaluation "
            "sets. Add documents, or raise corpus.held_out."
        )
    return data


def _report(corpus: Corpus, recipe: Recipe, store: Store, active: str) -> dict[str, Any]:
    """The corpus in figures, and what in it is likely to spoil a training."""
    texts = corpus if corpus.columns == 1 else Corpus.of(corpus.texts, "the rows")
    figures, found, _ = look_at(texts, recipe, store.folder(active))
    return asdict(figures) | {"warnings": found}


def _counts(documents: Documents, split: Split, found: Judged) -> dict[str, int]:
    return {
        "all": len(documents.kept),
        "blank": documents.blank,
        "repeated": documents.repeated,
        "trained_on": len(split.train),
        "held_out": len(split.held),
        "held_out_for_dev": len(split.dev),
        "left_out_as_near_copies": len(split.copies),
        "queries_trained_on": len(found.train),
        "queries_held_out": len(found.held),
        "queries_held_out_for_dev": len(found.dev),
        "queries_kept_from_judging": found.kept_from_judging,
        "judgements_of_unknown_documents": found.unknown,
        "judgements_contradicted": found.contradicted,
        "judged_not_relevant": sum(map(len, found.negatives.values())),
    }


def _of_keys(found: Judged) -> Iterator[str]:
    """Warnings on judgements that rest on one key."""
    every = {*found.train, *found.dev, *found.held}
    rests = Counter(found.keys[query] for query in every if query in found.keys)
    for name, count in rests.most_common(1):
        if 2 * count > len(every):
            who = f"the key {name!r}" if name else "callers without a key"
            yield (
                f"{count:,} of {len(every):,} judged queries rest on the word of {who} alone. They "
                "train, and judge only as far as others do. If you trust that word, name it in "
                "judgements.trusted."
            )


def _said(found: Judged) -> str:
    unknown = f", {found.unknown:,} judgements of documents that are not there" if found.unknown else ""
    tied = f", {found.contradicted:,} pairs on which keys disagree evenly" if found.contradicted else ""
    return f"{len(found.train):,} judged queries to train on, {len(found.held):,} held out{unknown}{tied}"
