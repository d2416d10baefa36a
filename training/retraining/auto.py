"""`recipe = "auto"`: learn the ranking first. Else choose recipes, and try them until one is accepted.

    judged queries, titles, text, tokens ─▶ Material ─▶ choices ─▶ train and judge one after another

Each choice has a reason, and the gain that was measured elsewhere (training/RESULTS.md). If no recipe can
help, nothing is trained.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from models.errors import ModelError
from models.progress import Say
from models.store import ModelStore
from models.tokens.tokenizer import FILE_NAME as TOKENIZER
from training.errors import NothingToLearn, TrainingError
from training.methods.recipe import load_recipe
from training.methods.recipe_files import SEARCH
from training.methods.stages import find_stages
from training.mining.queries import build_queries
from training.model.new_bases import takes_tokens
from training.retraining.adapt import adapt_job
from training.retraining.config import Config, TrainTable
from training.retraining.crossfit import judged_to_train_on
from training.retraining.gathered import Gathered, gather
from training.retraining.one import Job, retrain
from training.retraining.plan import build_job
from training.retraining.publication import Outcome
from training.retraining.rank import RANKING, rank
from training.retraining.readability import measure_reading
from training.retraining.retune import retune
from training.retraining.scoring import KnownScores

MINUTES = 30.0  # of training for each choice, where train.minutes is not set
# Fewest of each to learn from. Chosen by us: below, a run has no ten batches to see.
MIN_JUDGED, MIN_QUERIES = 30, 200
MIN_TO_READ = 1000  # documents, for tokens of their own


class Material(NamedTuple):
    """Counts and properties of the data that may be used for training."""

    documents: int
    judged: int  # queries with a relevant document
    queries: int  # that the text itself gives: titles, headings, first sentences
    unreadable: str  # the reason why the model cannot read the text as a whole; empty when it can
    takes_tokens: bool = True  # new ones, into its vocabulary
    titles: int = 0  # documents that have one
    most_read: bool = False  # of the documents, where the text as a whole cannot be

    def __str__(self) -> str:
        what = "can read most documents, but not the others" if self.most_read else "cannot read the text"
        told = f" The model {what}: {self.unreadable}." if self.unreadable else ""
        return (
            f"There are {self.documents:,} documents, {self.judged:,} judged queries, and {self.queries:,} "
            f"titles, headings and first sentences to learn from.{told}"
        )


class Choice(NamedTuple):
    recipe: str
    why: str
    gained: str  # where it was measured


ADAPT = Choice(
    "adapt",
    "the model cannot read the text, and can learn tokens of the text's own",
    "16 points of nDCG@10 on a search in Korean by text alone, and 42 with 1,669 triples that people made",
)
ADAPT_PART = ADAPT._replace(
    why="the model cannot read all of the text, and can learn tokens of the text's own"
)
TRIPLES = Choice(
    "triples",
    "people judged queries, and the model finds documents for them that look right and are not",
    "4.5 points of nDCG@10 on SciFact with 809 judged queries, most of it on answers seen in training",
)
DISTIL = Choice(
    "distil-hybrid",
    "words find what vectors miss, and the titles and first sentences of the text can ask for it",
    "0.2 to 1.7 points of dense nDCG@10 on four sets, 0.8 in the mean, from text alone",
)
TUNE = Choice(
    SEARCH,
    "words, vectors and passages may be set better for this text",
    "2 points of dense nDCG@10 on MLQA by shorter passages",
)


def choices(material: Material) -> list[Choice]:
    """Returns the recipes that can help, the most promising first. Empty if no recipe can."""
    found = []
    if material.unreadable and material.takes_tokens and material.documents >= MIN_TO_READ:
        found.append(ADAPT_PART if material.most_read else ADAPT)
    if material.unreadable and not material.most_read:
        return found  # the others would learn from text that the model cannot read
    if material.judged >= MIN_JUDGED:
        found.append(TRIPLES)
    if material.queries >= MIN_QUERIES:
        found.append(DISTIL)
    return found


def build_material(gathered: Gathered, config: Config, tokenizer: Path) -> Material:
    """Summarizes the data for training. `tokenizer` is the path of the base's tokenizer.json."""
    documents = gathered.split.train
    reading = measure_reading(documents, tokenizer)
    return Material(
        len(documents),
        judged_to_train_on(gathered, config),
        len(build_queries([(document.title, document.text) for document in documents]))
        + sum(map(len, gathered.queried.values())),
        reading.why_not,
        takes_tokens(json.loads(tokenizer.read_bytes())),
        sum(bool(document.title) for document in documents),
        bool(reading.why_not) and reading.most,
    )


def look(config: Config, store: ModelStore, say: Say) -> tuple[Gathered, Material]:
    """Reads all data and summarizes them. Raises the errors of `gather`."""
    gathered = gather(config, store, say)
    return gathered, build_material(gathered, config, store.folder(gathered.active) / TOKENIZER)


def get_minutes(train: TrainTable) -> float | None:
    """Returns the maximum minutes of training for each choice, or None if train.steps is set."""
    return MINUTES if train.steps is None and train.minutes is None else train.minutes


def retrain_auto(config: Config, store: ModelStore, work: Path, options: dict[str, Any], say: Say) -> Outcome:
    """Learns the rankings (rank.py). If none is published, tries each choice until one is accepted.

    After an accepted choice, it learns the search settings (retune.py).

    Args:
        config: The configuration.
        store: Store of model versions.
        work: Work folder.
        options: Options of each training run, such as precision and threads.
        say: Called with progress messages.

    Returns:
        The outcome of the rankings or of the search settings if they were published, or else of the last
        choice.

    Raises:
        NothingToLearn: Nothing can help. Also raises the errors of `one.retrain`.

    """
    gathered, material = look(config, store, say)
    say(str(material))
    train = config.train.model_copy(update={"minutes": get_minutes(config.train)})
    bounded = config.model_copy(update={"train": train})
    refused: list[Outcome] = []
    reasons: list[str] = []
    if config.corpus.service is not None and config.gate.mode == "on":
        ranked, reasons = _rank(gathered, config, store, say)
        if ranked and ranked.published and not material.unreadable:
            return ranked
        refused += [ranked] if ranked else []
    found = choices(material)
    scored = KnownScores()
    for choice in found:
        say(f"{choice.recipe}, because {choice.why}")
        try:
            job = _job(choice, gathered, bounded, store, work, say)
            outcome = retrain(replace(job, options=replace(job.options, **options), scored=scored), say)
        except NothingToLearn as error:
            reasons.append(f"{choice.recipe}: {error}")
            say(f"nothing to learn by {choice.recipe}: {error}")
            continue
        if outcome.published:
            if job.folds:  # it has seen every judged query, so none can choose its search
                return outcome
            say(f"{choice.recipe} was published as {outcome.version}")
            learned = frozenset(map(str, job.about["learned"]))
            trained = gathered._replace(active=str(outcome.version), learned=learned)
            try:
                tuned, _ = _search(trained, config, store, say)
            except (TrainingError, ModelError, OSError) as error:  # the next run tries it again
                say(f"! {SEARCH} failed, and {outcome.version} keeps the one that it has: {error}")
                return outcome
            return tuned if tuned and tuned.published else outcome
        say(f"{choice.recipe} was refused: {outcome.reason}")
        refused.append(outcome)
    tuned, why = _search(gathered, config, store, say)
    if tuned and (tuned.published or not refused):
        return tuned
    reasons += why
    if refused:
        return refused[-1]
    missing = [] if found else [nothing(material)]
    raise NothingToLearn(" ".join([*missing, *reasons]))


def _rank(
    gathered: Gathered, config: Config, store: ModelStore, say: Say
) -> tuple[Outcome | None, list[str]]:
    """Learns the rankings. Returns the outcome, or reasons why there is none."""
    try:
        outcome = rank(gathered.found, config, store, say)
    except NothingToLearn as error:
        say(f"nothing to learn by {RANKING}: {error}")
        return None, [f"{RANKING}: {error}"]
    except (TrainingError, ModelError, OSError) as error:  # An encoder can still be trained.
        say(f"! {RANKING} failed: {error}")
        return None, []
    if not outcome.published:
        say(f"{RANKING} was refused: {outcome.reason}")
    return outcome, []


def _search(
    gathered: Gathered, config: Config, store: ModelStore, say: Say
) -> tuple[Outcome | None, list[str]]:
    """Learns the search settings of the active version. Returns the outcome, or reasons why there is none."""
    if config.gate.mode == "off":
        return None, []
    say(f"{TUNE.recipe}, because {TUNE.why}")
    try:
        outcome = retune(gathered, config, store, say)
    except NothingToLearn as error:
        say(f"nothing to learn by {SEARCH}: {error}")
        return None, [f"{SEARCH}: {error}."]
    if not outcome.published:
        say(f"{SEARCH} was refused: {outcome.reason}")
    return outcome, []


def _job(choice: Choice, gathered: Gathered, config: Config, store: ModelStore, work: Path, say: Say) -> Job:
    if stages := find_stages(choice.recipe):
        return adapt_job(stages, gathered, config, store, work, say)
    recipe = load_recipe(choice.recipe)
    seeded = recipe if config.train.seed is None else replace(recipe, seed=config.train.seed)
    return build_job(gathered, config, seeded, store, work, say)


def nothing(material: Material) -> str:
    """Returns a sentence about the data that are missing, and how much would be enough."""
    if material.most_read or not material.unreadable:
        learns = material.unreadable and material.takes_tokens
        tokens = f", or {MIN_TO_READ:,} documents, to learn tokens from" if learns else ""
        return (
            f"{material} That is too little: it takes {MIN_JUDGED} judged queries (POST /feedback) or "
            f"{MIN_QUERIES} documents with a title or several sentences{tokens}."
        )
    if not material.takes_tokens:
        return (
            f"The model cannot read the text: {material.unreadable}, and its vocabulary takes no new tokens. "
            "Import a model for this language (docs/RETRAINING.md)."
        )
    return (
        f"The model cannot read the text: {material.unreadable}. It takes {MIN_TO_READ:,} documents to "
        f"learn tokens from, and there are {material.documents:,}. Add some, or import a model for this "
        "language (docs/RETRAINING.md)."
    )
