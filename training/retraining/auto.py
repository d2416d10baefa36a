"""`recipe = "auto"`: look at what there is to learn from, and train what can help.

    judged queries, titles, text, tokens ─▶ Material ─▶ choices ─▶ trained and judged in turn until one passes

Each choice says why, and what it gained where it was measured (training/RESULTS.md). Where nothing helps,
that is the answer: a model is not replaced so that something was trained.
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
from training.retraining.gathered import Gathered, gather
from training.retraining.halves import judged_to_train_on
from training.retraining.one import Job, retrain
from training.retraining.plan import build_job
from training.retraining.publication import Outcome
from training.retraining.readability import measure_reading
from training.retraining.retune import retune
from training.retraining.scoring import KnownScores

MINUTES = 30.0  # of training for each choice, where train.minutes is not set
# Fewest of each to learn from. Chosen by us: below, a run has no ten batches to see.
MIN_JUDGED, MIN_QUERIES = 30, 200
MIN_TO_READ = 1000  # documents, for tokens of their own


class Material(NamedTuple):
    """Counts of what may be trained on."""

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
    "11 points of nDCG@10 on MLQA and 4 on Cranfield by searching for words, too, and on MLQA 2 more by "
    "shorter passages",
)


def choices(material: Material) -> list[Choice]:
    """The recipes that can help, the most promising first; empty when there is nothing to learn from."""
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
    """tokenizer: the file of the base."""
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
    """Read everything, and sum up what there is to learn from. Raise as `gather`."""
    gathered = gather(config, store, say)
    return gathered, build_material(gathered, config, store.folder(gathered.active) / TOKENIZER)


def get_minutes(train: TrainTable) -> float | None:
    """Of training for each choice, at most; None where train.steps says how long."""
    return MINUTES if train.steps is None and train.minutes is None else train.minutes


def retrain_auto(config: Config, store: ModelStore, work: Path, options: dict[str, Any], say: Say) -> Outcome:
    """Try each choice until one is published, then the search itself. Raise NothingToLearn, or as `retrain`.

    The outcome is that of the search where that was published, too. options: precision, threads and progress
    of each run.
    """
    gathered, material = look(config, store, say)
    say(str(material))
    train = config.train.model_copy(update={"minutes": get_minutes(config.train)})
    bounded = config.model_copy(update={"train": train})
    refused: list[Outcome] = []
    reasons: list[str] = []
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


def _search(
    gathered: Gathered, config: Config, store: ModelStore, say: Say
) -> tuple[Outcome | None, list[str]]:
    """The outcome of learning the search of the active version, or why there is none."""
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
    """The sentence on what is missing, and how much of it would be enough."""
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
