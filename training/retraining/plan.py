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
from models.engines.opening import form_for
from models.files.folders import lock
from models.manifest import Manifest
from models.progress import Say
from models.store import ModelStore
from training.errors import Busy, NothingToLearn
from training.evaluation.data import optional_data_folder
from training.evaluation.scorable import Scorable, build_scorable
from training.mining.corpus_report import look_at
from training.retraining import searches as own
from training.retraining import sides
from training.retraining.choosing import CANDIDATES, choose_by, compute_score
from training.retraining.config import Config, GateTable
from training.retraining.crossfit import Fold, queried
from training.retraining.gate.verdict import JUDGED
from training.retraining.gathered import Gathered, counts, gather, of_keys
from training.retraining.halves import OF_LABELS, all_judging, all_training, build_halves
from training.retraining.heldout import Split
from training.retraining.judgements import Judged
from training.retraining.looks import count_looks
from training.retraining.one import Job
from training.retraining.rows import build_corpus
from training.runs.options import Options
from training.text.corpus import LISTS, Corpus, Kind

if TYPE_CHECKING:
    from training.methods.recipe import Recipe


@contextlib.contextmanager
def alone(store: ModelStore) -> Iterator[None]:
    """Raise Busy when another retraining works on the same models folder, on this machine."""
    held = lock(store.root) if store.root.is_dir() else None
    if held is None and store.root.is_dir():
        raise Busy(f"Another retraining is at work on {store.root}. Wait for it, or stop it.")
    try:
        yield
    finally:
        if held is not None:
            os.close(held)


def prepare(config: Config, recipe: Recipe, store: ModelStore, work: Path, say: Say) -> Job:
    """Read everything and decide what judges. Raise NothingToLearn or TrainingError."""
    return build_job(gather(config, store, say), config, recipe, store, work, say)


def build_job(
    gathered: Gathered,
    config: Config,
    recipe: Recipe,
    store: ModelStore,
    work: Path,
    say: Say,
    *,
    labels: bool = False,
) -> Job:
    """The job of one recipe. Raise NothingToLearn when it finds nothing to read.

    labels: judged queries will be trained on, whatever kind of rows the recipe reads.
    """
    active, split, found, learned = gathered.active, gathered.split, gathered.found, {*gathered.learned}
    halves = build_halves(config, recipe.source.kind, split, found)
    if halves:
        say(f"{len(found.held) + len(found.crossed)} judged queries are few: each judges a model without it")
        split, found = all_training(split, found)
    elif not labels and recipe.source.kind not in OF_LABELS and config.gate.mode == "on":
        few = len(found.held)
        split, found = all_judging(split, found)
        if more := len(found.held) - few:
            say(f"{more:,} judged queries that other recipes train on judge this one, and their answers wait")
    material = partial(build_rows, recipe.source.kind, config, store, gathered)
    folds = tuple(_fold(half, config, material) for half in halves)
    searches = own.collections(split, found.held, config.corpus.candidates)
    data = optional_data_folder(config.gate.data)  # absent sets are none where the own text judges
    require_judge(config, bool(searches or folds), data)
    searches |= own.guarding(split, found.held, found.groups, config.corpus.candidates)
    looks = count_looks(store, {**searches, **queried(folds)})
    dev = own.dev_collections(split, found.dev, CANDIDATES)
    corpus = material(split, found)
    say(f"training on {corpus}")
    report = _report(corpus, recipe, store, active)
    report["warnings"] = [*report["warnings"], *gathered.used.warnings, *of_keys(found)]
    for warning in report["warnings"]:
        say(f"! {warning}")
    if recipe.source.kind in OF_LABELS:
        learned |= sides.learned(found.train)
    if recipe.source.kind is LISTS:
        of_people = {sides.digest(query) for queries in gathered.queried.values() for query in queries}
        learned |= of_people & {sides.digest(text) for text in corpus.texts[:: corpus.columns]}
    return Job(
        recipe=recipe,
        corpus=corpus,
        base=config.train.base,
        steps=config.train.steps,
        minutes=config.train.minutes,
        store=store,
        work=work,
        data=data,
        mode=config.gate.mode,
        thresholds=build_limits(config),
        require=config.gate.require,
        pair=config.train.pair,
        searches=searches if config.gate.mode == "on" else {},
        choose=choose_by(dev),
        evidence=own.evidence(searches, found.groups, found.keys),
        folds=folds,
        passages=gathered.served.passages,
        looks=looks.number,
        sweep=True,
        options=Options(dev=compute_score(dev)),
        about={
            "documents": counts(gathered.documents, split, found, gathered.used),
            "collections": dict(Counter(document.collection for document in gathered.documents.kept)),
            "corpus_report": report,
            "learned": sorted(learned),
            "cross_fitted": bool(folds),
            "asked": looks.queried,
        },
    )


def build_limits(config: Config) -> GateTable:
    """The gate's; a pair holds two models, so it may have twice the size where the file does not say."""
    given = "larger" in config.gate.model_fields_set
    return config.gate if given or not config.train.pair else config.gate.model_copy(update={"larger": 1.0})


def _fold(half: tuple[Split, Judged], config: Config, material: Callable[[Split, Judged], Corpus]) -> Fold:
    split, found = half
    searches = own.collections(split, found.held, config.corpus.candidates, least=1)
    judging = {JUDGED: searches[JUDGED]}
    return Fold(material(split, found), judging, own.evidence(judging, found.groups, found.keys))


def build_rows(
    kind: Kind, config: Config, store: ModelStore, gathered: Gathered, split: Split, found: Judged
) -> Corpus:
    """Rows of what may be trained on. Raise NothingToLearn when there is nothing of that kind.

    split, found: those of `gathered`, or of one fold.
    """
    active = gathered.active
    withheld = own.withheld(split, (*found.held, *found.dev))
    with _active(config, store, active, passages=gathered.served.passages) as model:
        corpus = build_corpus(
            kind,
            split.train,
            found.train,
            model,
            config.train.negatives,
            withheld,
            found.negatives,
            gathered.queried,
        )
    if corpus.digest == corpus.rows:
        return corpus
    # Rows that the active model mined: another one finds others, so there is something new to learn.
    model_name = Manifest.read(store.folder(active)).fingerprint  # the same where only the search was retuned
    return replace(corpus, digest=sha256(f"{corpus.digest} by {model_name}".encode()).hexdigest())


@contextlib.contextmanager
def _active(
    config: Config, store: ModelStore, active: str, *, passages: bool
) -> Iterator[Callable[[], Scorable]]:
    """The active model, which mines: opened when it is first asked for, in bf16 where the training may be."""
    with contextlib.ExitStack() as opened:

        @cache
        def model() -> Scorable:
            form = form_for("fp32" if config.train.precision == "fp32" else "auto")
            encoder = store.open(active, config.schedule.threads or cpus.available(), form=form)
            opened.callback(encoder.close)
            return build_scorable(encoder, passages=passages)

        yield model


def require_judge(config: Config, searches: bool, data: Path | None) -> None:
    """Raise NothingToLearn where the gate is on and has neither searches nor evaluation sets."""
    if data is None and config.gate.mode == "on" and not searches:
        raise NothingToLearn(
            f"There is nothing to judge with: no search has {own.MIN_QUERIES} held-out queries (from "
            "documents with a title or two sentences, or judged ones), and gate.data names no evaluation "
            "sets. Add documents, or raise corpus.held_out."
        )


def _report(corpus: Corpus, recipe: Recipe, store: ModelStore, active: str) -> dict[str, Any]:
    """The corpus in figures, and what in it is likely to spoil a training."""
    # A text of several rows is no repetition.
    texts = (
        corpus if corpus.columns == 1 else Corpus.of(dict.fromkeys(filter(None, corpus.texts)), "the rows")
    )
    figures, found, _ = look_at(texts, recipe, store.folder(active))
    return asdict(figures) | {"warnings": found}
