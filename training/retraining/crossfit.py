"""Cross-fitting: if judged queries are few, each half judges a model that was trained on the other half.

    half A ─▶ train ─▶ model 1 ─▶ scored on half B ─┐
    half B ─▶ train ─▶ model 2 ─▶ scored on half A ─┴▶ one score per query ─▶ gate
    both   ─▶ train ─▶ the candidate, published if the halves show a gain and other searches do not get worse

So all judged queries are used for both training and judging, at the cost of three trainings instead of one.
The halves are parts from sides.py, so no model is trained on an answer of a query that judges it. The
candidate is trained on all judged queries. They never judge again after the candidate becomes active.

`build_halves` chooses the queries, by the rows that the recipe reads:

    text alone        held-out queries, and also queries for training, whose answers are then held out
    pairs, triples    held-out queries; if they are few, cross-fitting with both halves
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any, NamedTuple

from training.evaluation.retrieval import Collection
from training.retraining import searches as own
from training.retraining.config import Config
from training.retraining.gate.verdict import EACH, GROUPS, HITS, JUDGED, KEYS
from training.retraining.gathered import Gathered
from training.retraining.heldout import JUDGE, TRAIN, Split, place
from training.retraining.judgements import Judged, bounded
from training.text.corpus import PAIRS, TRIPLES, Corpus, Kind

CROSSFIT_GROUPS = 50  # groups of judged queries held out; with more, one half shows enough. Chosen by us
_LISTS = (EACH, HITS, GROUPS, KEYS)


class Fold(NamedTuple):
    corpus: Corpus  # of one half
    searches: Mapping[str, Collection]  # the judged queries of the other
    evidence: Mapping[str, Any]  # as searches.evidence


def pooled(halves: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Combines the scores of both halves as if they were one search."""
    weights = [half.get("queries", len(half[EACH])) for half in halves]
    found: dict[str, Any] = {}
    for key, value in halves[0].items():
        values = [half[key] for half in halves]
        if isinstance(value, Mapping):
            found[key] = pooled(values)
        elif key in _LISTS:
            found[key] = [each for of_half in values for each in of_half]
        elif key in {"queries", "undefined"}:
            found[key] = sum(values)
        elif key in {"documents", "empty"}:
            found[key] = max(values)
        else:
            found[key] = fmean(values, weights)
    return found


def queried(folds: Sequence[Fold]) -> dict[str, Collection]:
    """Combines the judged queries of all folds, in order, into one search."""
    return {JUDGED: merged([fold.searches[JUDGED] for fold in folds])} if folds else {}


def merged(searches: Sequence[Collection]) -> Collection:
    """Combines the documents and the queries of several collections, in order, into one collection."""
    return Collection(
        {id: content for one in searches for id, content in one.documents.items()},
        {name: query for one in searches for name, query in one.queries.items()},
        {name: ids for one in searches for name, ids in one.relevant.items()},
        0,
    )


OF_LABELS = (PAIRS, TRIPLES)  # kinds of rows that judged queries are in
_MAX_ANSWERS_SHARE = 0.1  # share of a collection's documents to train on that may be held back. Chosen by us


def build_halves(config: Config, kind: Kind, split: Split, found: Judged) -> tuple[tuple[Split, Judged], ...]:
    """Returns the two folds of cross-fitting: train on one half of the judged queries, judge with the other.

    Empty if the held-out half alone is enough, if both halves are too few, if rows of that kind contain no
    judged queries, or if the gate is off.
    """
    if config.gate.mode == "off" or kind not in OF_LABELS:
        return ()
    enough = len({found.groups[query] for query in found.held}) >= CROSSFIT_GROUPS
    both = len(found.held) + len(found.crossed)
    if enough or not found.held or not found.crossed or both < own.MIN_QUERIES:
        return ()
    groups = {found.groups[query] for query in found.crossed}
    # What no half may ask trains both: it was learned, or rests on a key that may not judge, or not so much.
    both_train = {query: ids for query, ids in found.train.items() if found.groups[query] not in groups}
    judging = {query: ids for query, ids in found.train.items() if query not in both_train}
    turned = split.moved(dict.fromkeys(_answers(found.held), TRAIN) | dict.fromkeys(_answers(judging), JUDGE))
    other = found._replace(train=found.held | both_train, held=found.crossed)
    return (split, found), (turned, other)


def judged_to_train_on(gathered: Gathered, config: Config) -> int:
    """Counts the judged queries for training `pairs` or `triples`. With cross-fitting, these are all."""
    found = gathered.found
    crossing = build_halves(config, TRIPLES, gathered.split, found)
    return len(found.train) + (len(found.held) if crossing else 0)


def all_training(split: Split, found: Judged) -> tuple[Split, Judged]:
    """Moves both halves to the training part. Then no judged query judges the published model."""
    moved = split.moved(dict.fromkeys(_answers(found.held), TRAIN))
    return moved, found._replace(train=found.train | found.held, held={})


def all_judging(split: Split, found: Judged) -> tuple[Split, Judged]:
    """Moves queries of the training half, with their answers, to the judging part.

    Used for recipes that learn from text alone. At most a tenth of each collection's training documents is
    moved. Queries are chosen in the order of a hash, each with all answers or not at all. Nothing changes if
    the queries that judge would form too few groups, or if enough queries judge already.
    """
    within = {document.id: document.collection for document in split.train}
    room = {name: int(_MAX_ANSWERS_SHARE * count) for name, count in Counter(within.values()).items()}
    back: set[str] = set()  # the answers that are held back
    held = dict(found.held)
    for query in sorted(found.crossed, key=lambda query: place(f"text\0{query.casefold()}")):
        more = {id for id in found.answers[query] if id in within} - back
        needed = Counter(within[id] for id in more)
        if len(held) < own.MAX_QUERIES and all(count <= room[name] for name, count in needed.items()):
            room = {name: left - needed[name] for name, left in room.items()}
            held[query] = found.answers[query]
            back |= more
    held = bounded(held, found.keys)
    if len(held) == len(found.held) or len({found.groups[query] for query in held}) < own.MIN_GUARDING:
        return split, found
    train = {query: ids for query, ids in found.train.items() if query not in held}
    moved = split.moved(dict.fromkeys(back & {*_answers(held)}, JUDGE))
    return moved, found._replace(train=train, held=held, crossed={})


def _answers(part: Mapping[str, Sequence[str]]) -> list[str]:
    return [id for ids in part.values() for id in ids]
