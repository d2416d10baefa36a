"""Plan a retraining from retrain.toml: read the data, split it into parts, and create the job to run.

documents ─▶ parts by id ────────────────────┬─▶ judge: searches that the gate compares
judged queries ─▶ parts with their answers ──┤   dev: searches that choose the step and the weights
└─▶ train: corpus of the recipe's kind ─▶ one.py
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, replace
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from models.engines.opening import form_for
from models.manifest import Manifest, require_kind
from models.progress import Say
from models.store import ModelStore
from training.errors import NothingToLearn
from training.evaluation.data import optional_data_folder
from training.evaluation.scorable import Scorable, build_scorable
from training.methods.sources import ScoredLists
from training.mining.corpus_report import look_at
from training.mining.rerankers import single
from training.retraining import searches as own
from training.retraining.config import Config, GateTable, require_enough
from training.retraining.gate.verdict import JUDGED
from training.retraining.gather import Gathered, counts, gather, of_keys
from training.retraining.judgements import Judged, bounded
from training.retraining.one import Job
from training.retraining.rows import build_corpus
from training.retraining.scoring import read_rankings
from training.retraining.searches import build_choose, compute_score
from training.retraining.split import JUDGE, Split, digest, digest_pairs
from training.runs.options import Options
from training.text.corpus import LISTS, PAIRS, TRIPLES, Corpus, read_corpus

if TYPE_CHECKING:
    from training.methods.recipe import Recipe


OF_LABELS = (PAIRS, TRIPLES)  # kinds of rows that contain judged queries
_MAX_ANSWERS_SHARE = 0.1  # maximum share of the training documents that `let_judge` moves. Chosen by us


def _begin(config: Config, recipe: Recipe, corpus: Corpus, store: ModelStore, work: Path) -> Job:
    """Creates a job with the settings of the configuration. The gate has no searches yet."""
    data, gate, seed = optional_data_folder(config.gate.data), config.gate, config.train.seed
    recipe = recipe if seed is None else replace(recipe, seed=seed)
    given: dict[str, Any] = config.train.model_dump(include={"base", "steps", "minutes", "pair"})
    given |= {"mode": gate.mode, "require": gate.require, "thresholds": build_limits(config)}
    given["options"] = Options(precision=config.train.precision, threads=config.schedule.threads)
    return Job(recipe=recipe, corpus=corpus, store=store, work=work, data=data, **given)


def prepare_rows(config: Config, recipe: Recipe, store: ModelStore, work: Path, say: Say) -> Job:
    """Creates the job of a recipe that reads the rows of a file. No rows are held out."""
    say("reading the corpus")
    corpus = read_corpus(config.corpus.file or Path(), recipe.source.kind)
    say(str(corpus))
    require_enough(len(corpus), config.corpus.least, "texts")
    return _begin(config, recipe, corpus, store, work)


def prepare(config: Config, recipe: Recipe, store: ModelStore, work: Path, say: Say) -> Job:
    """Reads all data and creates the job of one recipe. Raises NothingToLearn or TrainingError."""
    return build_job(gather(config, store, say), recipe, work)


def build_job(gathered: Gathered, recipe: Recipe, work: Path, *, labels: bool = False) -> Job:
    """Creates the job of one recipe from data that is already read.

    Args:
        gathered: The data.
        recipe: The recipe.
        work: Work folder.
        labels: True if training uses judged queries although the recipe does not read pairs.

    Raises:
        NothingToLearn: The data have no rows for the recipe, or the gate has nothing to judge with.
        TrainingError: A retraining cannot create rows of the kind that the recipe reads.

    """
    config, store, say, active, _, split, found, *_ = gathered
    learned, passages = {*gathered.learned}, gathered.served.passages
    of_judged = labels or recipe.source.kind in OF_LABELS
    if not of_judged and config.gate.mode == "on":
        split, found = let_judge(split, found)
    searches = own.collections(split, config.corpus.candidates)
    manifest, service = Manifest.read(store.folder(active)), config.corpus.service
    # Clicked queries do not judge encoders, but rankings are also fitted to them.
    if found.held or (found.answers and read_rankings(store, manifest)):
        searches[JUDGED] = own.judged_search(split, found.answers, config.corpus.candidates, found.held)
    # Evaluation sets may be missing if the searches can decide.
    require_judge(config, own.can_decide(searches, found), optional_data_folder(config.gate.data))
    with contextlib.ExitStack() as opened:

        @cache
        def model() -> Scorable:
            """Opens the active model, which mines training data."""
            form = form_for("fp32" if config.train.precision == "fp32" else "auto")
            encoder = store.open(active, config.schedule.encoding_threads, form=form)
            opened.callback(encoder.close)
            return build_scorable(encoder, passages=passages)

        reranker, teachers = None, [manifest.fingerprint]
        if isinstance(recipe.source, ScoredLists) and recipe.source.teacher == "reranker":
            teacher = store.open_reranker(find_reranker(store), config.schedule.encoding_threads)
            opened.callback(teacher.close)
            teachers.append(teacher.fingerprint)
            reranker = single(partial(teacher.score, normalize=False), teacher.dimension)
        choose = build_choose(split, found.dev, model, manifest.search, gathered.served.mode, service)
        corpus = build_corpus(
            recipe.source.kind,
            split.train,
            found.train,
            model,
            config.train.negatives,
            own.withheld(split, (*found.held, *found.dev)),
            found.negatives,
            gathered.queried,
            service,
            reranker,
        )
    if corpus.digest != corpus.rows:
        # The active model mined the rows. Another model finds other rows, which teach something new. So the
        # digest includes the models.
        corpus = corpus.of_source(f"{corpus.digest} by {' and '.join(teachers)}")
    say(f"training on {corpus}")
    report = _report(corpus, recipe, store.folder(active), (*gathered.used.warnings, *of_keys(found)))
    for warning in report["warnings"]:
        say(f"! {warning}")
    if recipe.source.kind in OF_LABELS:
        learned |= digest_pairs(found.train)
    if recipe.source.kind is LISTS:
        of_people = {digest(query) for queries in gathered.queried.values() for query in queries}
        learned |= of_people & {digest(text) for text in corpus.texts[:: corpus.columns]}
    job = _begin(config, recipe, corpus, store, work)
    return replace(
        job,
        searches=searches if config.gate.mode == "on" else {},
        choose=choose,
        found=found,
        served=gathered.served,
        active=active,
        options=replace(job.options, dev=compute_score(choose)),
        about={
            "documents": counts(gathered.documents, split, found, gathered.used),
            "collections": dict(Counter(document.collection for document in gathered.documents.kept)),
            "corpus_report": report,
            "learned": sorted(learned),
        },
    )


def find_reranker(store: ModelStore) -> str:
    """Returns the active reranker, whose files are intact.

    Raises:
        NothingToLearn: No reranker is active, the requested reranker is not active, or it is a classifier.
        ModelError: The version is damaged, or not a reranker.

    """
    version = store.requested_reranker().version
    if version is None or version not in store.names():
        raise NothingToLearn("No reranker is active: `simile models activate RERANKER` makes one active.")
    state = store.read_state()
    if state and state.get("reranker") != version:
        raise NothingToLearn(f"The reranker {version} is requested, but the service has not made it active.")
    if (outputs := require_kind(store.verify(version), "reranker").dimension) > 1:
        raise NothingToLearn(f"{version} has {outputs} scores of a pair, and one is needed to learn from.")
    return version


def build_limits(config: Config) -> GateTable:
    """Returns the limits of the gate. By default, a pair may be twice as large: it has two models."""
    given = "larger" in config.gate.model_fields_set
    return config.gate if given or not config.train.pair else config.gate.model_copy(update={"larger": 1.0})


def let_judge(split: Split, found: Judged) -> tuple[Split, Judged]:
    """Moves training queries that may judge to the part `judge`, for a recipe that learns from text alone.

    Their answers are also moved, because training must not learn them. If that would remove too large a share
    of the training documents, nothing is moved.
    """
    may = found.held.keys() | (found.judges & found.train.keys()) - found.of_use
    held = bounded({query: ids for query, ids in found.answers.items() if query in may}, found.keys)
    moved = split.moved({id: JUDGE for ids in held.values() for id in ids})
    if len(moved.train) < (1 - _MAX_ANSWERS_SHARE) * len(split.train):
        return split, found
    train = {query: ids for query, ids in found.train.items() if query not in held}
    return moved, found._replace(train=train, held=held)


def require_judge(config: Config, searches: bool, data: Path | None) -> None:
    """Raises NothingToLearn if the gate is on but has neither searches nor evaluation sets."""
    if data is None and config.gate.mode == "on" and not searches:
        raise NothingToLearn(
            f"There is nothing to judge with: no search has {own.MIN_QUERIES} held-out queries (from "
            "documents with a title or two sentences, or judged ones), and gate.data names no evaluation "
            "sets. Add documents, or raise corpus.held_out."
        )


def _report(corpus: Corpus, recipe: Recipe, active: Path, more: Iterable[str]) -> dict[str, Any]:
    """Returns statistics of the corpus, with warnings about problems for the training, and `more`."""
    # A text may be in several rows, but counts once.
    texts = (
        corpus if corpus.columns == 1 else Corpus.of(dict.fromkeys(filter(None, corpus.texts)), "the rows")
    )
    figures, found, _ = look_at(texts, recipe, active)
    return asdict(figures) | {"warnings": [*found, *more]}
