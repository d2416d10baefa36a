"""Plan a retraining from retrain.toml: read the data, split it into parts, and create the job to run.

    documents ─▶ parts by id ────────────────────┬─▶ judge: searches that the gate compares
    judged queries ─▶ parts with their answers ──┤   dev: searches that choose the step and the weights
                                                 └─▶ train: corpus of the recipe's kind ─▶ one.py

At most one retraining works on a models folder at a time.
"""

from __future__ import annotations

import contextlib
import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
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
from training.retraining.choosing import build_choose, compute_score
from training.retraining.config import Config, GateTable
from training.retraining.crossfit import OF_LABELS, Fold, all_judging, all_training, build_halves, queried
from training.retraining.gate.gains import count_looks
from training.retraining.gate.verdict import JUDGED
from training.retraining.gathered import Gathered, counts, gather, of_keys
from training.retraining.heldout import Split
from training.retraining.judgements import Judged
from training.retraining.one import Job
from training.retraining.rows import build_corpus
from training.runs.options import Options
from training.text.corpus import LISTS, Corpus, Kind

if TYPE_CHECKING:
    from training.methods.recipe import Recipe


@contextlib.contextmanager
def alone(store: ModelStore) -> Iterator[None]:
    """Locks the models folder inside the `with` block. Raises Busy if another retraining has locked it."""
    held = lock(store.root) if store.root.is_dir() else None
    if held is None and store.root.is_dir():
        raise Busy(f"Another retraining is at work on {store.root}. Wait for it, or stop it.")
    try:
        yield
    finally:
        if held is not None:
            os.close(held)


def prepare(config: Config, recipe: Recipe, store: ModelStore, work: Path, say: Say) -> Job:
    """Reads all data and creates the job of one recipe. Raises NothingToLearn or TrainingError."""
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
    """Creates the job of one recipe from data that is already read.

    Args:
        gathered: The data.
        config: The configuration.
        recipe: The recipe.
        store: Store of model versions.
        work: Work folder.
        say: Called with progress messages.
        labels: True if judged queries are used for training although the recipe does not read pairs.

    Raises:
        NothingToLearn: There are no rows for the recipe.

    """
    active, split, found, learned = gathered.active, gathered.split, gathered.found, {*gathered.learned}
    deciding = found._replace(held=_said(found.held, found), crossed=_said(found.crossed, found))
    halves = build_halves(config, recipe.source.kind, split, deciding)
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
    searches = own.collections(split, _said(found.held, found), config.corpus.candidates)
    data = optional_data_folder(config.gate.data)  # absent sets are none where the own text judges
    require_judge(config, bool(searches or folds), data)
    searches |= own.guarding(split, found.held, found.groups, config.corpus.candidates, found.of_use)
    looks = count_looks(store, {**searches, **queried(folds)})
    with _active(config, store, active, passages=gathered.served.passages) as model:
        settings = Manifest.read(store.folder(active)).search, gathered.served.mode
        choose = build_choose(split, found.dev, model, *settings, config.corpus.service)
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
        choose=choose,
        evidence=own.evidence(searches, found.groups, found.keys),
        folds=folds,
        passages=gathered.served.passages,
        looks=looks.number,
        sweep=True,
        options=Options(dev=compute_score(choose)),
        about={
            "documents": counts(gathered.documents, split, found, gathered.used),
            "collections": dict(Counter(document.collection for document in gathered.documents.kept)),
            "corpus_report": report,
            "learned": sorted(learned),
            "cross_fitted": bool(folds),
            "asked": looks.queried,
        },
    )


def _said(judged: Mapping[str, list[str]], found: Judged) -> dict[str, list[str]]:
    """Returns the judged queries without those whose answers rest on clicks alone, which do not decide."""
    return {query: ids for query, ids in judged.items() if query not in found.of_use}


def build_limits(config: Config) -> GateTable:
    """Returns the limits of the gate. A pair has two models, so its default size limit is twice as large."""
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
    """Builds the corpus of a kind from the documents and queries in the training part.

    `split` and `found` are those of `gathered`, or of one fold of cross-fitting.

    Raises:
        NothingToLearn: There are no rows of that kind.

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
            config.corpus.service,
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
    """Yields a function that opens the active model at its first call, for mining training data."""
    with contextlib.ExitStack() as opened:

        @cache
        def model() -> Scorable:
            form = form_for("fp32" if config.train.precision == "fp32" else "auto")
            encoder = store.open(active, config.schedule.threads or cpus.available(), form=form)
            opened.callback(encoder.close)
            return build_scorable(encoder, passages=passages)

        yield model


def require_judge(config: Config, searches: bool, data: Path | None) -> None:
    """Raises NothingToLearn if the gate is on but has neither searches nor evaluation sets."""
    if data is None and config.gate.mode == "on" and not searches:
        raise NothingToLearn(
            f"There is nothing to judge with: no search has {own.MIN_QUERIES} held-out queries (from "
            "documents with a title or two sentences, or judged ones), and gate.data names no evaluation "
            "sets. Add documents, or raise corpus.held_out."
        )


def _report(corpus: Corpus, recipe: Recipe, store: ModelStore, active: str) -> dict[str, Any]:
    """Returns statistics of the corpus, and warnings about properties that may harm the training."""
    # A text of several rows is no repetition.
    texts = (
        corpus if corpus.columns == 1 else Corpus.of(dict.fromkeys(filter(None, corpus.texts)), "the rows")
    )
    figures, found, _ = look_at(texts, recipe, store.folder(active))
    return asdict(figures) | {"warnings": found}
