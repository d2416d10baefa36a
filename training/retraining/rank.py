"""`simile rank`: learn the ranking of each collection, and publish it. Start at `rank`.

    judgments, clicks ─▶ judged queries ─▶ candidates and features of the service ─▶ cross-validation
                                                              ranking/COLLECTION.json ◀── rules ┘

The new version has the encoder of the active one, so its activation embeds nothing. `simile models
rollback` undoes it. Exit status: 0 published, 3 refused, 4 nothing to learn, 5 another retraining is running.
"""

from __future__ import annotations

import argparse
import hashlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from models.errors import ModelError
from models.manifest import Manifest, read_manifest
from models.messages import amount, plural, positive
from models.progress import Say, to_stderr
from models.search.features import FEATURES, VERSION
from models.search.ranking import (
    MAX_RANKED,
    MAX_RECALLED,
    Ranking,
    RerankerWeight,
    get_default,
    remove_activation,
)
from models.store import ModelStore
from training.errors import NothingToLearn, TrainingError
from training.evaluation.geometry import directions
from training.evaluation.scorable import build_scorable
from training.ranking import late as late_interaction
from training.ranking.cross_validation import (
    COMING,
    Folds,
    Rows,
    change_all,
    compare_all,
    fit_folds,
    learn,
    predict,
)
from training.ranking.examples import Example
from training.ranking.fitting import MIN_QUERIES, Weights
from training.ranking.reranked import add_weight, leave_alone
from training.ranking.rules import describe, judge_added, judge_first, judge_refit
from training.retraining import ledger
from training.retraining.config import MIN_ROWS, Config, JudgmentsTable, ScheduleTable, build_config, check
from training.retraining.exits import finish, tell
from training.retraining.gather import read_judgments
from training.retraining.judgements import Clicked, Judged, judged
from training.retraining.lineage import active_version
from training.retraining.publication import Learned, Outcome, get_learned, left, publish_learned
from training.retraining.scoring import read_rankings, refitting
from training.retraining.split import place
from training.retraining.workplace import alone
from training.runs.export import add_models_dir
from training.text.service import (
    MAX_CLICKED,
    add_options,
    fetch_collections,
    fetch_explained,
    fetch_reranked,
    fetch_reranker,
    fetch_texts,
    send_clicked,
    split_qualified,
)

RANKING = "ranking"  # The recipe, as reports name it.
_HYBRID = FEATURES.index("hybrid")


def rank(found: Judged, config: Config, store: ModelStore, say: Say, *, publishing: bool = True) -> Outcome:
    """Learns the ranking of each collection with enough judged queries, and publishes those accepted.

    Before that, the clicked answers are sent to the service, which remembers them from then on.

    Args:
        found: The judged queries.
        config: The configuration, which names a service.
        store: Store of model versions.
        say: Called with progress messages and the report.
        publishing: False: report only, and send nothing.

    Raises:
        NothingToLearn: No collection has enough judged queries, or none has new judgments. Or no service is
            named, or a requested version is not active yet.
        TrainingError: All collections failed, and at least one of them for another reason.
    """
    active = active_version(store)
    served = store.verify(active)
    if config.corpus.service is None:
        raise NothingToLearn("A ranking is learned from the searches of a service: set corpus.service.")
    if publishing:
        _send_clicked(found, config.corpus.service, config.corpus.collections, say)
    pending = store.requested()
    if pending not in {None, active} and not left(store, str(pending)):
        raise NothingToLearn(f"{pending} is about to be activated. Run this again once it is.")
    learned = _learn_all(
        _Given(found, config.corpus.service, store, served, config.schedule.encoding_threads, say)
    )

    def fetch(collection: str, ids: Sequence[str]) -> dict[str, str]:
        try:
            return fetch_texts(str(config.corpus.service), collection, ids)
        except TrainingError as error:  # The ids say enough.
            say(f"! The report has no texts: {error}")
            return {}

    return publish_learned(store, served, RANKING, learned, say, fetch, publishing=publishing)


class _Given(NamedTuple):
    """What a ranking is learned from: the judged queries, and the service that searches them."""

    found: Judged
    url: str
    store: ModelStore
    served: Manifest  # the active version
    threads: int  # that encode
    say: Say


def _send_clicked(found: Judged, url: str, requested: Sequence[str], say: Say) -> None:
    """Replaces the clicked answers that each collection remembers. A failure does not end the run."""
    for name in fetch_collections(url, requested):
        rows = [
            {"query": query, "id": id, "gain": gain}
            for query, clicked in found.clicked.items()
            for id, gain in _within(name, clicked.gains).items()
        ]
        try:
            send_clicked(url, name, rows[-MAX_CLICKED:])
        except TrainingError as error:
            say(f"! the clicked queries of {name} are not remembered: {error}")
        else:
            remembered = amount(len(rows[-MAX_CLICKED:]), "clicked answer is", "clicked answers are")
            say(f"{remembered} remembered in {name}")


def _learn_all(given: _Given) -> dict[str, Learned]:
    """Learns the ranking of each collection. Raises an error only if no collection has a new one."""
    learned: dict[str, Learned] = {}
    missing: dict[str, TrainingError] = {}
    for name, labels in _label_all(given.found):
        try:
            learned[name] = _learn(name, labels, given)
        except TrainingError as error:  # Other collections can still learn.
            missing[f"{name}: {error}"] = error
    failed = next((each for each in missing.values() if not isinstance(each, NothingToLearn)), None)
    if not (learned or failed):
        raise NothingToLearn(" ".join(missing) or _too_few(0))
    for line in missing:
        given.say(f"! {line}")
    if failed and not learned:
        raise failed
    return learned


def _label_all(found: Judged) -> Iterator[tuple[str, dict[str, Labels]]]:
    """Yields each collection with the labels of its queries: those with a judged document in it."""
    queries: dict[str, set[str]] = {}
    clicked = {query: each.gains for query, each in found.clicked.items()}
    for judgments in (found.answers, found.single, found.negatives, clicked):
        for query, ids in judgments.items():
            for id in ids:
                queries.setdefault(split_qualified(id)[0], set()).add(query)
    for name, some in sorted(queries.items()):
        yield name, {query: label(name, query, found) for query in some}


def forecast(found: Judged, config: Config, store: ModelStore, say: Say) -> Iterator[str]:
    """Yields a sentence for each collection: what more judged queries would gain."""
    served, threads = store.verify(active_version(store)), config.schedule.encoding_threads
    given = _Given(found, str(config.corpus.service), store, served, threads, say)
    for name, labels in _label_all(found):
        try:
            told = predict(_build_examples(name, labels, given), get_default().weights)
        except TrainingError as error:
            told = str(error)
        yield f"Ranking of {name}: {told}"


def _learn(name: str, labels: Mapping[str, Labels], given: _Given) -> Learned:
    store, served = given.store, given.served
    reranker = _find_reranker(name, given)
    digest = _digest(served, name, labels, reranker)
    if ledger.read(store, RANKING).get(name) == digest:
        raise NothingToLearn("no judgment changed since the last ranking was learned.")
    before, default = read_rankings(store, served).get(name), get_default()
    kept, prior = before or default, default.weights
    examples = _build_examples(name, labels, given)
    given.say(f"fitting a ranking of {name} to {len(examples):,} judged queries, eleven times")
    fitting = partial(learn, prior=prior, mean_query=kept.mean_query)
    examples, late = _add_late(name, examples, given, kept.projection)
    if reranker is not None:
        try:
            examples = _add_scores(name, examples, given, reranker)
        except TrainingError as error:  # The next run tries it again.
            given.say(f"! the weight of the reranker is not learned: {error}")
            reranker, digest = None, _digest(served, name, labels, None)
    # Unclicked hits count as wrong here, which rather favors the order that users saw.
    judging = [labels[each.query]._replace(clicked=None).apply(each) for each in examples]
    folds = fit_folds(examples, fitting)
    rows = compare_all(judging, folds)
    if not len(rows[COMING].after):
        raise NothingToLearn("no judged query may judge: each rests on one key, or the encoder learned it.")
    told: list[str] = []
    if late:
        given.say("fitting it again with late interaction")
        fitting_late = partial(fitting, late=True)
        folds_late = fit_folds(examples, fitting_late)
        rows_late = compare_all(judging, folds_late)
        used, said = judge_added(_against(rows, rows_late), "Late interaction", used=bool(kept.late))
        told.append(said)
        if used:
            folds, rows, fitting = folds_late, rows_late, fitting_late
        else:
            late = b""
    reasons = find_reasons(examples, judging, rows, before, prior)
    about = {"fingerprint": served.fingerprint, "late": late, "reranker": kept.reranker}
    ranking = fitting(examples).model_copy(update=about)
    if reranker is not None:
        given.say(f"fitting the weight of {reranker.version}")
        weight, said = _weigh(ranking, examples, judging, folds, reranker.fingerprint)
        told.append(said)
        ranking = ranking.model_copy(update={"reranker": weight})
    return Learned(rows, reasons, [*describe(rows, ranking), *told], digest, ranking)


def _against(before: Rows, after: Rows) -> Rows:
    """Returns comparisons of two rankings with each other, from those with the hybrid order."""
    return {name: row._replace(before=before[name].after) for name, row in after.items()}


def _weigh(
    ranking: Ranking,
    examples: Sequence[Example],
    judging: Sequence[Example],
    folds: Folds,
    fingerprint: str,
) -> tuple[RerankerWeight | None, str]:
    """Returns the weight of a reranker, and a sentence about it. None: it orders the best hits alone.

    Args:
        ranking: The ranking, with the weight of the active ranking.
        examples: The judged queries to which it was fitted.
        judging: The same queries with the labels by which they judge.
        folds: The folds with their rankings.
        fingerprint: Fingerprint of the reranker.
    """
    weigh = partial(add_weight, prior=get_default().weights, fingerprint=fingerprint)
    alone = change_all(folds, lambda fold: fold._replace(ranking=leave_alone(fold.ranking)))
    weighed = change_all(folds, lambda fold: fold.fit(partial(weigh, fold.ranking)))
    rows = _against(compare_all(judging, alone), compare_all(judging, weighed))
    known = ranking.reranker is not None and ranking.reranker.fingerprint == fingerprint
    used, said = judge_added(rows, "The learned weight of the reranker", used=known)
    weight = weigh(ranking, examples).reranker if used else None
    return weight, f"{said} Without it, the reranker orders the best hits alone."


def _find_reranker(name: str, given: _Given) -> Manifest | None:
    """Returns the reranker that orders the hits of a collection by default, or None."""
    version = fetch_reranker(given.url, name)
    try:
        return None if version is None else read_manifest(given.store.folder(version))
    except (ModelError, OSError) as error:
        given.say(f"! the weight of the reranker is not learned: {error}")
        return None


def _add_scores(name: str, examples: Sequence[Example], given: _Given, reranker: Manifest) -> list[Example]:
    """Adds the scores of a reranker to the candidates. Raises TrainingError if most have none."""
    queries, version = [each.query for each in examples], given.served.version
    found = fetch_reranked(given.url, name, queries, MAX_RANKED + MAX_RECALLED, reranker.version, version)
    added = []
    for each, known in zip(examples, found, strict=True):
        scores = np.array([known.get(id, np.nan) for id in each.ids], np.float32)
        added.append(each._replace(reranked=remove_activation(scores, reranker.activation)))
    every = np.concatenate([each.reranked for each in added])
    if 2 * (scored := np.isfinite(every).sum()) < len(every):
        raise TrainingError(f"{reranker.version} scored only {scored:,} of {len(every):,} hits in time.")
    return added


def _add_late(
    name: str, examples: list[Example], given: _Given, projection: NDArray[np.float32] | None
) -> tuple[list[Example], bytes]:
    """Computes the features of late interaction of the candidates, by the projection that is in use.

    Returns:
        The examples, and the projection as `Ranking.late` has it. It is empty if the queries are few, or the
        encoder computes no token vectors.
    """
    if len(examples) < late_interaction.MIN_QUERIES and projection is None:
        return examples, b""
    with closing(given.store.open(given.served.version, threads=given.threads)) as encoder:
        if not encoder.has_tokens:
            return examples, b""
        texts = fetch_texts(given.url, name, late_interaction.list_compared(examples))
        given.say(f"computing the token vectors of {amount(len(texts), 'document')} of {name}")
        found, projection, _ = late_interaction.compare_tokens(examples, encoder, texts, projection)
    return found, projection.astype("<f2").tobytes()


def find_reasons(
    examples: Sequence[Example],
    judging: Sequence[Example],
    rows: Rows,
    before: Ranking | None,
    prior: Weights,
) -> list[str]:
    """Returns the reasons not to publish a ranking.

    Args:
        examples: The judged queries, to which rankings are fitted.
        judging: The same queries, but unclicked hits count as wrong. They judge rankings.
        rows: Comparisons of the new ranking with the hybrid order, by kind of questions.
        before: The active ranking, or None.
        prior: Weights of the default ranking.
    """
    if before is None:
        return judge_first(rows)
    refitted = compare_all(judging, fit_folds(examples, refitting(before, prior)))
    return judge_refit(rows, _against(refitted, rows))


def _build_examples(name: str, labels: Mapping[str, Labels], given: _Given) -> list[Example]:
    """Searches the labelled queries of a collection. Raises NothingToLearn if too few have an answer."""
    if (count := sum(bool(each.gains) for each in labels.values())) < MIN_QUERIES:
        raise NothingToLearn(_too_few(count))
    found, served = given.found, given.served
    given.say(f"searching {amount(count, 'judged query', 'judged queries')} of {name}")
    order = sorted(labels, key=lambda query: place(f"ranking\0{query}"))
    with closing(given.store.open(served.version, threads=given.threads)) as encoder:
        unrelated = encoder.unrelated
        vectors = directions(build_scorable(encoder).encode_queries(order)).astype(np.float32)
    candidates = fetch_explained(given.url, name, order, MAX_RANKED, served.version)
    examples = [
        _example(query, vector, hits, labels[query])._replace(
            judges=query in found.judges and not labels[query].single,
            unrelated=unrelated,
            alike=found.alike.get(query, query),
        )
        for query, vector, hits in zip(order, np.nan_to_num(vectors), candidates, strict=True)
    ]
    if (count := sum(bool(each.gains.any()) for each in examples)) < MIN_QUERIES:
        raise NothingToLearn(
            f"of the judged queries, {count} {plural(count, 'finds', 'find')} a relevant document. "
            f"{_too_few(count)}"
        )
    return examples


def _too_few(count: int) -> str:
    return (
        f"{amount(count, 'query has', 'queries have')} a relevant document, and {MIN_QUERIES} are needed: "
        f"judge {MIN_QUERIES - count} more (POST /feedback)."
    )


class Labels(NamedTuple):
    """The labels of a query in one collection. Only `clicked` has documents of other collections, too.

    `clicked` is None if people judged its answers, or no one clicked. Documents in `undecided` are neither
    right nor wrong. `single`: the answers rest on a single key, so the query does not judge.
    """

    collection: str
    gains: Mapping[str, float]
    wrong: Sequence[str]
    undecided: Sequence[str]
    clicked: Clicked | None
    single: bool

    def apply(self, example: Example) -> Example:
        """Returns the example with these labels. Its candidates must be in the order that users see."""
        seen = None
        if self.clicked is not None:
            seen = self.clicked.get_examined(self.collection, example.ids)
            seen[np.isin(example.ids, self.wrong)] = 1.0
        if self.undecided:
            seen = np.ones(len(example.ids)) if seen is None else seen
            seen[np.isin(example.ids, self.undecided)] = 0.0
        return example._replace(relevant=dict(self.gains), wrong=frozenset(self.wrong), seen=seen)


def label(collection: str, query: str, found: Judged) -> Labels:
    """Returns the labels of a query in a collection. Judgments of people override clicks."""
    clicked = found.clicked.get(query)
    single, undecided = (
        _within(collection, dict.fromkeys(each.get(query, ()), 1.0))
        for each in (found.single, found.undecided)
    )
    gains = {**dict.fromkeys(found.answers.get(query, ()), 1.0), **(clicked.gains if clicked else {})}
    gains |= dict.fromkeys(found.negatives.get(query, ()), 0.0)
    within = single | _within(collection, gains)
    people = bool(single) or (query, collection) in found.stated
    return Labels(
        collection,
        {id: gain for id, gain in within.items() if gain},
        [id for id, gain in within.items() if not gain],
        [*undecided],
        None if people else clicked,
        bool(single),
    )


def _within(collection: str, values: Mapping[str, float]) -> dict[str, float]:
    """Returns the values of the documents of one collection, by id within it, sorted."""
    named = ((*split_qualified(name), value) for name, value in values.items())
    return {id: value for within, id, value in sorted(named) if within == collection}


def _example(query: str, vector: np.ndarray, hits: Sequence[Mapping[str, Any]], labels: Labels) -> Example:
    features = np.array([[hit["features"][name] for name in FEATURES] for hit in hits], np.float64)
    features = features.reshape(-1, len(FEATURES))
    example = labels.apply(Example(query, vector, [str(hit["id"]) for hit in hits], features, {}))
    order = np.argsort(-features[:, _HYBRID], kind="stable")  # The service may have ordered them again.
    seen = None if example.seen is None else example.seen[order]
    ids = [example.ids[at] for at in order]
    return example._replace(ids=ids, features=features[order], seen=seen)


def _digest(
    served: Manifest, collection: str, labels: Mapping[str, Labels], reranker: Manifest | None
) -> str:
    """Returns the digest of everything from which a ranking is learned."""
    said = [
        (query, each.gains, each.wrong, each.undecided, each.single) for query, each in sorted(labels.items())
    ]
    known: tuple[object, ...] = VERSION, served.fingerprint, served.search.get(collection), said
    known += () if reranker is None else (reranker.fingerprint,)
    return hashlib.sha256(repr(known).encode()).hexdigest()[:16]


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
    command.set_defaults(run=partial(finish, run), config=None, corpus=None, least=MIN_ROWS)


def run(options: argparse.Namespace) -> int:
    """Learns the rankings, prints the report and returns the exit status."""
    judgements, schedule = JudgmentsTable(file=options.judgements), ScheduleTable(threads=options.threads)
    config = build_config(options, judgements=judgements, schedule=schedule)
    check(config)
    store = ModelStore(config.folders.models)
    with alone(store):
        found = read_judged(config, store, to_stderr)
        outcome = rank(found, config, store, print, publishing=not options.dry_run)
    return 0 if options.dry_run else tell(outcome._replace(verdict=None))


def read_judged(config: Config, store: ModelStore, say: Say) -> Judged:
    """Reads judgments and clicks by the rules of a retraining, but without documents: all ids count."""
    found, used = read_judgments(config, say)
    ids = {each.id for each in found}.union(*(each.gains for each in used.clicked.values()))
    learned, table = get_learned(store, active_version(store)), config.judgements
    return judged(
        found, dict(zip(ids, ids, strict=True)), table.held_out, table.trusted, learned, used.clicked
    )
