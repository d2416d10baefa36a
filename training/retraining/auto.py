"""`recipe = "auto"`: look at what there is to learn from, and train what can help.

    judged queries, titles, text, tokens ─▶ Material ─▶ choices ─▶ trained and judged in turn until one passes

Each choice says why, and what it gained where it was measured (training/RESULTS.md). Where nothing helps,
that is the answer: a model is not replaced so that something was trained.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from models.publishing.publish import Say
from models.store import Store
from models.tokens.tokenizer import FILE_NAME as TOKENIZER
from training.errors import NothingToLearn
from training.methods.catalogue import load_recipe
from training.mining.figures import unread
from training.mining.queries import queries_of
from training.retraining.config import Config
from training.retraining.gathered import Gathered, gather
from training.retraining.one import retrain
from training.retraining.plan import job_of
from training.retraining.publication import Outcome
from training.retraining.retune import RECIPE as SEARCH
from training.retraining.retune import retune

MINUTES = 30.0  # of training for each choice, where train.minutes is not set
# Fewest of each to learn from. Chosen by us: below, a run has no ten batches to see.
LEAST_JUDGED, LEAST_QUERIES = 30, 200
_LOOKED_AT = 500  # documents whose tokens are counted


class Material(NamedTuple):
    """Counts of what may be trained on."""

    documents: int
    judged: int  # queries with a relevant document
    queries: int  # that the text itself gives: titles, headings, first sentences
    unreadable: str  # the reason why the base cannot read the text; empty when it can

    def __str__(self) -> str:
        told = f" The model cannot read the text: {self.unreadable}." if self.unreadable else ""
        return (
            f"There are {self.documents:,} documents, {self.judged:,} judged queries, and {self.queries:,} "
            f"titles, headings and first sentences to learn from.{told}"
        )


class Choice(NamedTuple):
    recipe: str
    why: str
    gained: str  # where it was measured


TRIPLES = Choice(
    "triples",
    "people judged queries, and the model finds documents for them that look right and are not",
    "4.5 points of nDCG@10 on SciFact with 809 judged queries, most of it on answers seen in training",
)
DISTIL = Choice(
    "distil-hybrid",
    "words find what vectors miss, and the titles and first sentences of the text can ask for it",
    "2.3 points of dense nDCG@10 on MLQA and 0.7 on Cranfield, from text alone",
)


def choices(material: Material) -> list[Choice]:
    """The recipes that can help, the most promising first; empty when there is nothing to learn from."""
    if material.unreadable:
        return []
    found = []
    if material.judged >= LEAST_JUDGED:
        found.append(TRIPLES)
    if material.queries >= LEAST_QUERIES:
        found.append(DISTIL)
    return found


def material_of(gathered: Gathered, tokenizer: Path) -> Material:
    """tokenizer: the file of the base."""
    documents = gathered.split.train
    sample = [document.whole for document in documents[:: max(1, len(documents) // _LOOKED_AT)]]
    return Material(
        len(documents),
        len(gathered.found.train),
        len(queries_of([(document.title, document.text) for document in documents])),
        unread(sample, tokenizer),
    )


def look(config: Config, store: Store, say: Say) -> tuple[Gathered, Material]:
    """Read everything, and say what there is to learn from. Raise as `gather`."""
    gathered = gather(config, store, say)
    material = material_of(gathered, store.folder(gathered.active) / TOKENIZER)
    say(str(material))
    return gathered, material


def retrain_auto(config: Config, store: Store, work: Path, options: dict[str, Any], say: Say) -> Outcome:
    """Try each choice until one is published, then the search itself. Raise NothingToLearn, or as `retrain`.

    options: precision, threads and progress of each run.
    """
    gathered, material = look(config, store, say)
    table = config.train
    minutes = MINUTES if table.steps is None and table.minutes is None else table.minutes
    bounded = config.model_copy(update={"train": table.model_copy(update={"minutes": minutes})})
    refused: list[Outcome] = []
    reasons: list[str] = []
    for choice in choices(material):
        say(f"{choice.recipe}, because {choice.why}")
        try:
            recipe = load_recipe(choice.recipe)
            seeded = recipe if table.seed is None else replace(recipe, seed=table.seed)
            job = job_of(gathered, bounded, seeded, store, work, say)
            outcome = retrain(replace(job, options=replace(job.options, **options)), say)
        except NothingToLearn as error:
            reasons.append(f"{choice.recipe}: {error}")
            say(f"nothing to learn by {choice.recipe}: {error}")
            continue
        if outcome.published:
            return outcome
        say(f"{choice.recipe} was refused: {outcome.reason}")
        refused.append(outcome)
    if config.gate.mode == "on":
        try:
            say("search, because words and vectors may be weighed better for this text")
            outcome = retune(gathered, config, store, work, say)
            if outcome.published or not refused:
                return outcome
        except NothingToLearn as error:
            reasons.append(f"{SEARCH}: {error}.")
    if refused:
        return refused[-1]
    raise NothingToLearn(" ".join(reasons) or nothing(material))


def nothing(material: Material) -> str:
    """What is missing, and how much of it would be enough."""
    if material.unreadable:
        return (
            f"The model cannot read the text: {material.unreadable}. Teach it with `python -m training train "
            "adapt` (docs/RETRAINING.md), or import a model for this language."
        )
    return (
        f"{material} That is too little: it takes {LEAST_JUDGED} judged queries (POST /feedback) or "
        f"{LEAST_QUERIES} documents with a title or several sentences."
    )
