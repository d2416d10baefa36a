"""The plan of a retraining from retrain.toml: what there is to learn from, what is held out, and its job.

    documents ─▶ held out by id ─┬─▶ searches that judge
                                 └─▶ corpus of the recipe's kind ─▶ one.py
    judgements ─▶ held out by query ─┘

At most one retraining works on a models folder at a time.
"""

from __future__ import annotations

import contextlib
import os
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from models import cpus
from models.files.lock import lock
from models.publishing.publish import Say
from models.store import Store
from training.errors import Busy, NothingToLearn
from training.evaluation.data import optional_data_folder
from training.evaluation.scorable import Scorable, scorable_of
from training.mining.look import look_at
from training.retraining import searches as own
from training.retraining.chooser import Searches, set_aside
from training.retraining.config import Config, CorpusTable, require_enough
from training.retraining.documents import Documents, documents_at, documents_in
from training.retraining.heldout import Split, hold_out
from training.retraining.judgements import Judged, Judgement, judged, judgements_at, judgements_in
from training.retraining.one import Job, active_version
from training.retraining.rows import corpus_of
from training.text.corpus import Corpus

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
    require_enough(len(split.train), config.corpus.least, left)
    found = judged(_judgements(config), _stand_ins(documents, split), config.judgements.held_out)
    say(f"{len(split.train):,} to train on, {len(split.held):,} held out; {_said(found)}")
    searches = own.collections(split, found.held, config.corpus.candidates)
    data = _data(config, bool(searches))
    aside = set_aside(split.train)
    chooser, before = Searches(aside), len(split.train)
    if chooser.enough():
        say(f"{len(chooser.queries):,} searches over {len(aside.chooses):,} others choose the weights")
        split = split._replace(train=aside.train)
    corpus = _material(config, recipe, store, active, split, found)
    say(f"training on {corpus}")
    report = _report(corpus, recipe, store, active)
    for warning in report["warnings"]:
        say(f"! {warning}")
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
        choose=chooser if chooser.enough() else None,
        sweep=True,
        about={
            "documents": _counts(documents, split, found, before - len(split.train)),
            "collections": dict(Counter(document.collection for document in documents.kept)),
            "corpus_report": report,
        },
    )


def _documents(table: CorpusTable) -> Documents:
    if table.service is not None:
        return documents_at(table.service, table.collections)
    assert table.file is not None  # noqa: S101  one of the two is there
    return documents_in(table.file)


def _stand_ins(documents: Documents, split: Split) -> dict[str, str]:
    """Every id, copies included, to that of the document that stands for it."""
    kept = {document.id: split.copies.get(document.id, document.id) for document in documents.kept}
    return kept | {id: kept[first] for id, first in documents.copies.items()}


def _judgements(config: Config) -> Iterator[Judgement]:
    table = config.judgements
    if table.file is not None:
        yield from judgements_in(table.file)
    if table.feedback and config.corpus.service is not None:
        yield from judgements_at(config.corpus.service, config.corpus.collections)


def _material(
    config: Config, recipe: Recipe, store: Store, active: str, split: Split, found: Judged
) -> Corpus:
    withheld = own.withheld(split, found.held)
    with _active(config, store, active) as model:
        return corpus_of(
            recipe.source.kind, split.train, found.train, model, config.train.negatives, withheld
        )


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


def _counts(documents: Documents, split: Split, found: Judged, chosen: int) -> dict[str, int]:
    return {
        "all": len(documents.kept),
        "blank": documents.blank,
        "repeated": documents.repeated,
        "trained_on": len(split.train),
        "choose_the_weights": chosen,
        "held_out": len(split.held),
        "left_out_as_near_copies": len(split.copies),
        "queries_trained_on": len(found.train),
        "queries_held_out": len(found.held),
        "judgements_of_unknown_documents": found.unknown,
        "judgements_contradicted": found.contradicted,
    }


def _said(found: Judged) -> str:
    unknown = f", {found.unknown:,} judgements of documents that are not there" if found.unknown else ""
    tied = f", {found.contradicted:,} pairs on which keys disagree evenly" if found.contradicted else ""
    return f"{len(found.train):,} judged queries to train on, {len(found.held):,} held out{unknown}{tied}"
