"""`recipe = "auto"`: learn the ranking first. Then choose recipes, and try them until one is accepted.

    judged queries, titles, text, tokens ─▶ Material ─▶ choices ─▶ train and judge one after another

Each choice has a reason, and the gain that was measured on other data (training/RESULTS.md). If no recipe is
accepted, the search settings are tuned (settings.py).
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from models.errors import ModelError
from models.messages import amount
from models.progress import Say
from models.store import ModelStore
from models.tokens.tokenizer import FILE_NAME as TOKENIZER
from training.errors import NothingToLearn, TrainingError
from training.methods.recipe import load_recipe
from training.methods.recipe_files import SEARCH
from training.methods.stages import Stages, find_stages
from training.mining.corpus_report import read
from training.mining.queries import build_queries
from training.model.new_bases import takes_tokens
from training.retraining import searches as own
from training.retraining.config import Config, TrainTable
from training.retraining.documents import Document
from training.retraining.gather import Gathered, gather
from training.retraining.one import Job, Staged, retrain
from training.retraining.plan import build_job, find_reranker, require_judge
from training.retraining.publication import Outcome
from training.retraining.rank import RANKING, rank, read_judged
from training.retraining.rows import build_corpus
from training.retraining.settings import tune
from training.retraining.split import digest_pairs
from training.text.corpus import PAIRS, TEXTS
from training.text.service import fetch_info

MINUTES = 30.0  # training time of each choice, if train.minutes is not set
# Minimum number of judged and of other queries. Chosen by us: fewer queries make fewer than ten batches.
MIN_JUDGED, MIN_QUERIES = 30, 200
_LOOKED_AT = 500  # documents whose tokens are counted: at least this many, fewer than twice as many
MIN_PAIRS = 32  # one batch of the recipe, because fewer pairs teach nothing
MIN_TO_READ = 1000  # documents, to learn new tokens from them
_LOOKS, _LOOK_SECONDS = 120, 1.0  # number and interval of checks whether the service serves a new ranking


class Material(NamedTuple):
    """Counts and properties of the data that may be used for training."""

    documents: int
    judged: int  # queries with a relevant document
    queries: int  # made from the text (titles, headings, first sentences), and queries of users
    unreadable: str  # reason why the model cannot read the whole text; empty if it can
    takes_tokens: bool = True  # True if the vocabulary can take new tokens
    titles: int = 0  # documents with a title
    most_read: bool = False  # True if the model reads most documents, but not the whole text
    of_users: int = 0  # unjudged queries of users
    reranker: bool = False  # True if a reranker is active that can teach

    def __str__(self) -> str:
        what = "can read most documents, but not the others" if self.most_read else "cannot read the text"
        told = f" The model {what}: {self.unreadable}." if self.unreadable else ""
        return (
            f"There are {amount(self.documents, 'document')}, "
            f"{amount(self.judged, 'judged query', 'judged queries')}, and {self.queries:,} titles, headings "
            f"and first sentences to learn from.{told}"
        )


class Choice(NamedTuple):
    recipe: str
    why: str
    gained: str  # measured gain, with the data of the measurement


ADAPT = Choice(
    "adapt",
    "the model cannot read all of the text, and can learn tokens of the text's own",
    "15 points of MRR@10 on a search in Korean by text alone, and 42 with 1,669 triples that people made",
)
TRIPLES = Choice(
    "triples",
    "people judged queries, and the model finds documents for them that look right and are not",
    "1.2 points of dense nDCG@10 on MLQA and -0.1 on Cranfield for queries with other answers than in "
    "training, and 1.9 and 5.9 for the others",
)
RERANK = Choice(
    "distil-rerank",
    "the active reranker knows which documents answer the unjudged queries of users",
    "-8.2 and -9.5 points of dense nDCG@10 on MLQA with a bad reranker; no good one was measured",
)
DISTIL = Choice(
    "distil-hybrid",
    "words find what vectors miss, and the titles and first sentences of the text can ask for it",
    "0.8 points of dense nDCG@10 on MLQA and 0.3 on Cranfield, from text alone",
)
TUNE = Choice(
    SEARCH,
    "another mode or other passages may find more in this text",
    "2 points of dense nDCG@10 on MLQA by shorter passages",
)


def choices(material: Material) -> list[Choice]:
    """Returns the recipes that can help, the most promising first. Empty if no recipe can."""
    found = []
    if material.unreadable and material.takes_tokens and material.documents >= MIN_TO_READ:
        found.append(ADAPT)
    if material.unreadable and not material.most_read:
        return found  # the others would learn from text that the model cannot read
    if material.judged >= MIN_JUDGED:
        found.append(TRIPLES)
    if material.reranker and material.of_users >= MIN_QUERIES:
        found.append(RERANK)
    if material.queries >= MIN_QUERIES:
        found.append(DISTIL)
    return found


def build_material(gathered: Gathered) -> Material:
    """Returns the counts and properties of the training part."""
    documents = gathered.split.train
    tokenizer = gathered.store.folder(gathered.active) / TOKENIZER
    why_not, most = measure_reading(documents, tokenizer)
    queries = len(build_queries([(document.title, document.text) for document in documents]))
    of_users = sum(map(len, gathered.queried.values()))
    teaches = False
    try:
        teaches = bool(find_reranker(gathered.store))
    except NothingToLearn:
        pass
    except ModelError as error:  # The other recipes do not need it.
        gathered.say(f"! The reranker cannot teach. {error}")
    return Material(
        len(documents),
        len(gathered.found.train),
        queries + of_users,
        why_not,
        takes_tokens(json.loads(tokenizer.read_bytes())),
        sum(bool(document.title) for document in documents),
        bool(why_not) and most,
        of_users,
        teaches,
    )


def measure_reading(documents: Sequence[Document], tokenizer: Path) -> tuple[str, bool]:
    """Tests if the vocabulary of a tokenizer.json suits a sample of the documents.

    A vocabulary that does not suit about a tenth of the documents does not suit them as a whole.

    Returns:
        Two values. The reason why the vocabulary does not suit the documents as a whole, or "". And True if
        it suits more than half of the documents.
    """
    sample = [document.whole for document in documents[:: max(1, len(documents) // _LOOKED_AT)]]
    why_not, found = read(sample, tokenizer)
    return why_not, 2 * len(found) > len(sample)


def get_minutes(train: TrainTable) -> float | None:
    """Returns the maximum minutes of training for each choice. None means no limit.

    The maximum is train.minutes, or MINUTES if neither train.minutes nor train.steps is set.
    """
    return MINUTES if train.steps is None and train.minutes is None else train.minutes


def retrain_auto(config: Config, store: ModelStore, work: Path, options: dict[str, Any], say: Say) -> Outcome:
    """Learns rankings (rank.py), then tries recipes until one is accepted. If none is, tunes the settings.

    Recipes and search settings are compared with the version that has the new rankings, if they were
    published. Rankings need a service, but not as many documents as recipes do. With the gate off, only
    recipes are tried.

    Args:
        config: The configuration.
        store: Store of model versions.
        work: Work folder.
        options: Options of each training run besides those in the configuration.
        say: Called with progress messages.

    Returns:
        The outcome of the last attempt that published a version, or else of the last attempt.

    Raises:
        NothingToLearn: No attempt could learn from the data. Also raises the errors of `one.retrain`.

    """
    train = config.train.model_copy(update={"minutes": get_minutes(config.train)})
    attempts = _Attempts(say, [], [])

    on, service = config.gate.mode == "on", config.corpus.service
    ranked = on and service is not None and attempts.run(RANKING, _rank, config, store, say)
    try:
        gathered = gather(config.model_copy(update={"train": train}), store, say)
    except TrainingError as error:
        if not (ranked or isinstance(error, NothingToLearn)):
            raise
        say(f"nothing to train: {error}")
        return attempts.conclude([str(error)])
    material = build_material(gathered)
    say(str(material))
    found = choices(material)
    if ranked:
        gathered = gathered._replace(active=str(attempts.outcomes[-1].version))
        # Until the version is active, the service does not search with its vectors.
        if found and not _is_served(str(service), gathered.active):
            say(f"{gathered.active} is not active yet, so encoders are not trained in this run")
            return attempts.outcomes[-1]
    for choice in found:
        say(f"{choice.recipe}, because {choice.why}")
        if attempts.run(choice.recipe, _train, choice, gathered, work, options):
            return attempts.outcomes[-1]
    if on:
        attempts.run(SEARCH, tune, gathered)
    return attempts.conclude([] if found else [nothing(material)])


class _Attempts(NamedTuple):
    """The attempts of a run."""

    say: Say
    outcomes: list[Outcome]
    reasons: list[str]  # why the other attempts had nothing to learn

    def run(self, name: str, run: Callable[..., Outcome], *arguments: Any) -> bool:
        """Runs one attempt. Returns True if it published a version."""
        try:
            outcome = run(*arguments)
        except NothingToLearn as error:
            self.reasons.append(f"{name}: {error}")
            self.say(f"nothing to learn by {name}: {error}")
            return False
        said = f"published as {outcome.version}" if outcome.published else f"refused: {outcome.reason}"
        self.say(f"{name} was {said}")
        self.outcomes.append(outcome)
        return outcome.published

    def conclude(self, missing: Sequence[str]) -> Outcome:
        """Returns the outcome of the last attempt that published a version, or else of the last attempt.

        Raises NothingToLearn without an outcome. `missing` says why fewer attempts were made.
        """
        if not self.outcomes:
            raise NothingToLearn(" ".join([*missing, *self.reasons]))
        return next((each for each in reversed(self.outcomes) if each.published), self.outcomes[-1])


def _is_served(url: str, version: str) -> bool:
    """Waits until the service serves a version. Returns False if this takes too long."""
    for _ in range(_LOOKS):
        with contextlib.suppress(TrainingError):  # The service may be starting.
            if fetch_info(url).get("model_version") == version:
                return True
        time.sleep(_LOOK_SECONDS)
    return False


def _rank(config: Config, store: ModelStore, say: Say) -> Outcome:
    try:
        # Near copies of a document are different hits, so judgments are read by the rules of `rank`.
        return rank(read_judged(config, store, say), config, store, say)
    except NothingToLearn:
        raise
    except (TrainingError, ModelError, OSError) as error:  # An encoder can still be trained.
        say(f"! {RANKING} failed: {error}")
        raise NothingToLearn(str(error)) from error


def _train(choice: Choice, gathered: Gathered, work: Path, options: dict[str, Any]) -> Outcome:
    stages = find_stages(choice.recipe)
    recipe = replace(stages.recipes()[0], name=stages.name) if stages else load_recipe(choice.recipe)
    job = build_job(gathered, recipe, work, labels=stages is not None)
    job = job if stages is None else _adapt(job, stages, gathered)
    return retrain(replace(job, options=replace(job.options, **options)), gathered.say)


def _adapt(job: Job, stages: Stages, gathered: Gathered) -> Job:
    """Adds all stages to the job of the first stage: new tokens, then texts, then pairs.

    Triples are not used, because a model whose vocabulary does not suit the text cannot mine useful
    negatives. For the same reason, the new version becomes a new anchor (lineage.py).
    """
    config = gathered.config
    require_judge(config, own.can_decide(job.searches, gathered.found), config.gate.data)
    corpora, found, learned = {TEXTS: job.corpus}, gathered.found, {*job.about["learned"]}
    with contextlib.suppress(NothingToLearn):  # Without titles and judged queries, only text is used.
        withheld = own.withheld(gathered.split, (*found.held, *found.dev))
        pairs = build_corpus(PAIRS, gathered.split.train, found.train, None, 0, withheld)
        if len(pairs) >= MIN_PAIRS:
            corpora[PAIRS] = pairs
            learned |= digest_pairs(found.train)
    timed = stages if job.minutes is None else replace(stages, minutes=job.minutes)
    return replace(
        job,
        steps=None,
        # Without the sets of SIMILE_EVAL_DATA, because they are in a language that the model already reads.
        data=config.gate.data,
        choose=None,
        options=replace(job.options, seed=config.train.seed, dev=None),
        staged=Staged(timed, corpora),
        about={**job.about, "learned": sorted(learned)},
    )


def nothing(material: Material) -> str:
    """Returns a message that says which data are missing, and how many would be enough."""
    needed = []
    if material.most_read or not material.unreadable:
        needed = [
            f"{MIN_JUDGED} judged queries (POST /feedback)",
            f"{MIN_QUERIES} documents with a title or several sentences",
        ]
    if material.unreadable and material.takes_tokens:
        needed.append(f"{MIN_TO_READ:,} documents to learn tokens from")
    if not needed:
        return (
            f"The model cannot read the text: {material.unreadable}, and its vocabulary takes no new tokens. "
            "Import a model for this language (docs/RETRAINING.md)."
        )
    return f"{material} That is too little: it takes {' or '.join(needed)}."
