"""Read judgments: queries with the documents that people called relevant. Combine them by votes.

    .tsv     the columns query and id, and optionally relevant (1 or 0)
    .jsonl   {"query": …, "id": …, "relevant": true}

    a line may name the document's collection under `collection`

Judgments come from a file, from feedback (`POST /feedback`) and from clicks (clicks.py). For each query and
document, feedback overrides the file, and clicks count only if there is neither. Each API key has one vote on
a query and a document, its newest judgment. Keys that name the same visitor (trust.py) have one vote
together, the newest. Untrusted keys have no vote. The majority decides. After a tie, the document is neither
right nor wrong. Each query, with its answers, is in one part: it judges, chooses settings (dev), or is used
for training (split.py).

A single API key must not control the gate. A query rests on a key if no other key, no trusted key and no file
confirms one of its answers. For feedback, users that a key names do not count, because the key could invent
them. For clicks, two visitors of one key are enough (trust.py). Of the queries that judge, at most half rest
on the same key. If `trusted` names keys, queries that rest on other keys are used for training only.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from training.errors import TrainingError
from training.mining.pairs import folded
from training.retraining.documents import get_collection
from training.retraining.grouping import group
from training.retraining.split import Part, assign_queries, place
from training.retraining.trust import build_visitor, get_number
from training.text.lines import Record, build_text, layout, read_records, valid
from training.text.service import (
    ONLY_DEFAULT,
    fetch_collections,
    fetch_feedback,
    qualified,
    shown,
    split_qualified,
)

_QUERY, _ID = ("query",), ("id", "document")
_TRUTH = {"1": True, "true": True, "0": False, "false": False}
NO_KEY = ""  # the name under which a service without keys stores judgments


class Judgment(NamedTuple):
    query: str
    id: str  # id of the document, qualified by its collection
    relevant: bool
    key: str | None = None  # name of the key that judged, empty without a key; None: a file
    user: str = ""  # the hash of the visitor's id, empty if none was given
    trusted: bool = True  # False: the keys file of the service calls the key untrusted
    of_use: bool = False  # derived from clicks, and not stated by a user


class Clicked(NamedTuple):
    """What clicks say about the hits of a query.

    Attributes:
        gains: The gain of each clicked document (clicks.get_gain). 0: users passed it over.
        unclear: Documents with too few clicks. They are neither right nor wrong.
        examined: For each document on a recorded page, the probability that a user has examined it.
        unrecorded: Number of searches without a recorded page, by collection.
        bias: Position bias.
    """

    gains: Mapping[str, float]
    unclear: frozenset[str]
    examined: Mapping[str, float]
    unrecorded: Mapping[str, float]
    bias: float

    def get_examined(self, collection: str, ids: Sequence[str]) -> NDArray[np.float64]:
        """Returns the probabilities that a user has examined hits, by the model of clicks.py. 0 if unclear.

        Searches without a recorded page count as if they had shown these hits.

        Args:
            collection: The collection.
            ids: Ids of the hits in the collection, best first.
        """
        positions = np.arange(1, len(ids) + 1, dtype=np.float64)
        missed = (1 - positions**-self.bias) ** self.unrecorded.get(collection, 0.0)
        names = [qualified(collection, id) for id in ids]
        recorded = np.array([self.examined.get(name, 0.0) for name in names])
        return np.where([name in self.unclear for name in names], 0.0, 1 - missed * (1 - recorded))


# Names of counts. JUDGMENTS counts those of files and trusted keys. Those of the next three are ignored.
JUDGMENTS = "judgements"
UNKNOWN, CONTRADICTED = "judgements_of_unknown_documents", "judgements_contradicted"
UNTRUSTED, KEPT = "judgements_of_untrusted_keys", "queries_kept_from_judging"
# Maximum number of judging queries per document, because all queries of a document are one piece of evidence.
PER_DOCUMENT = 10


class Judged(NamedTuple):
    """Judged queries by part.

    `train`, `dev`, `held` and `answers` map each query to the ids of its relevant documents.
    """

    train: dict[str, list[str]]
    dev: dict[str, list[str]]
    held: dict[str, list[str]]  # held out to judge versions
    answers: Mapping[str, list[str]]  # answers of the queries of all parts
    judges: frozenset[str]  # queries of any part that may judge rankings and settings
    parts: Mapping[str, Part]  # part of each document that answers a query
    alike: Mapping[str, str]  # for each query, a text that nearly equal queries share
    keys: Mapping[str, str]  # for each query that rests on a single key, the name of that key
    of_use: frozenset[str]  # queries whose answers were clicked only
    negatives: Mapping[str, list[str]]  # ids of documents that are not relevant, by query of any part
    counts: Mapping[str, int]  # numbers for the report, by name
    clicked: Mapping[str, Clicked] = MappingProxyType({})  # by query, without the gains of judged documents
    # Documents that are neither right nor wrong, by query: tied, or they rest on a single key, and other
    # answers do not.
    undecided: Mapping[str, list[str]] = MappingProxyType({})
    # Answers that rest on a single key, if only answers in other collections do not, by query. The query
    # trains the ranking of their collection, and does not judge it.
    single: Mapping[str, list[str]] = MappingProxyType({})
    stated: frozenset[tuple[str, str]] = frozenset()  # query and collection of each answer that people named


def judgments_in(file: Path) -> Iterator[Judgment]:
    """Yields the judgments in a file. Raises TrainingError, which names the line that cannot be read."""
    if file.is_file() and not layout(file):
        raise TrainingError(f"{file} holds no judgments: give a .tsv or .jsonl with query and id.")
    for record in read_records(file, (_QUERY, _ID)):
        if record.fields:
            yield Judgment(build_text(record, _QUERY), _document(record), _relevant(record))


def judgments_at(url: str, requested: Sequence[str] = ONLY_DEFAULT) -> Iterator[Judgment]:
    """Yields the judgments that were sent to `POST /feedback` of the service at `url`.

    Args:
        url: Address of the service.
        requested: Names of the collections to read, or service.ALL.

    Raises:
        TrainingError: The service does not answer as expected.

    """
    for collection in fetch_collections(url, requested):
        for row in fetch_feedback(url, collection):
            query = valid(row["query"], f"{shown(url)}, feedback")
            id = qualified(collection, row["id"])
            key, user = str(row.get("key", "")), str(row.get("user", ""))
            yield Judgment(query, id, row["relevant"], key, user, bool(row.get("trusted", True)))


def judged(
    found: Iterable[Judgment],
    known: Mapping[str, str],
    share: float,
    trusted: Collection[str] = (),
    learned: AbstractSet[str] = frozenset(),
    clicked: Mapping[str, Clicked] = MappingProxyType({}),
) -> Judged:
    """Combines judgments by votes, and assigns the queries to parts.

    Args:
        found: The judgments. A later one replaces an earlier one of the same voter.
        known: Maps each document id to itself, or for a near copy to the id of the original.
        share: Share of the queries to hold out, 0 to 1.
        trusted: Names of the keys whose queries may judge. Empty means all keys, but a single
            key may have at most half of the queries that judge.
        learned: Digests from split.digest_pairs, of all models so far. Queries with such a digest are used
            for training only.
        clicked: What clicks say about each query.

    """
    newest: dict[tuple[str, str], dict[str | None, Judgment]] = {}  # by pair and key, oldest first
    of_use: dict[tuple[str, str], dict[str | None, Judgment]] = {}  # by pair and visitor
    counts = dict.fromkeys((JUDGMENTS, UNKNOWN, CONTRADICTED, UNTRUSTED, KEPT), 0)
    for judgment in found:
        query = folded(judgment.query)
        if query and not judgment.trusted:
            counts[UNTRUSTED] += 1
        elif query:
            pair = query, known.get(judgment.id, judgment.id)
            counts[JUDGMENTS] += not judgment.of_use
            votes = (of_use if judgment.of_use else newest).setdefault(pair, {})
            owner = _voter(judgment, trusted) if judgment.of_use else judgment.key
            votes.pop(owner, None)
            votes[owner] = judgment
    answers: dict[tuple[str, str], str | None] = {}  # by pair: the only key, or None
    negatives: list[tuple[str, str]] = []
    undecided: list[tuple[str, str]] = []
    for pair, said in sorted((of_use | newest).items(), key=lambda item: item[0]):
        of_voters = {_voter(judgment, trusted): judgment for judgment in said.values()}
        relevant = _majority({voter: judgment.relevant for voter, judgment in of_voters.items()})
        if pair[1] not in known:
            counts[UNKNOWN] += 1
        elif relevant is None:
            counts[CONTRADICTED] += 1
            undecided.append(pair)
        elif relevant:
            yes = [judgment for judgment in of_voters.values() if judgment.relevant]
            answers[pair] = _single_answer(yes, trusted)
        else:
            negatives.append(pair)
    # If some answers of a query do not rest on a single key, its other answers are left out.
    vouched = {query for (query, _), key in answers.items() if key is None}
    right = [pair for pair, key in answers.items() if key is None or pair[0] not in vouched]
    relevants, answered = group(right), _places(right)
    stated = _places(pair for pair in right if pair in newest)
    others = [pair for pair in answers if pair[1] not in relevants[pair[0]]]
    single = {pair: None for pair in others if pair in newest and answered.isdisjoint(_places([pair]))}
    undecided += [pair for pair in others if pair not in single]
    of_keys = group((query, key) for (query, _), key in answers.items() if key is not None)
    keys = {query: min(each) for query, each in of_keys.items() if query not in vouched}
    of_use_alone = frozenset(relevants.keys() - {query for query, _ in stated})
    alone = len(keys) == len(relevants) and len({*keys.values()}) == 1  # All queries rest on the same key.
    may_judge = [query for query in relevants if query not in keys or not (trusted or alone)]
    may_decide = [query for query in may_judge if query not in of_use_alone]
    gains = {  # without documents that people judged
        query: {
            id: gain for id, gain in each.gains.items() if id in known and (query, known[id]) not in newest
        }
        for query, each in clicked.items()
    }
    split = assign_queries(relevants, share, may_decide, learned, may_judge)
    held = bounded(split.judge, keys)
    unknown_to_all = {query: relevants[query] for query in may_judge if query not in split.known}
    counts[KEPT] = len(relevants) - len(may_judge) + len(split.judge) - len(held)
    return Judged(
        split.train,
        split.dev,
        held,
        relevants,
        frozenset(bounded(unknown_to_all, keys)),
        split.parts,
        split.alike,
        keys,
        of_use_alone,
        group(negatives),
        counts,
        {query: each._replace(gains=gains[query]) for query, each in clicked.items()},
        group(undecided),
        group(single),
        stated,
    )


def _places(pairs: Iterable[tuple[str, str]]) -> frozenset[tuple[str, str]]:
    """Returns the query and the collection of each pair of a query and a document."""
    return frozenset((query, split_qualified(id)[0]) for query, id in pairs)


def _voter(judgment: Judgment, trusted: Collection[str]) -> str | None:
    """Returns the name under which a judgment votes: its visitor, or a key that may judge alone.

    None for a judgment from a file.
    """
    key = judgment.key
    return key if key is None or key in (trusted or [NO_KEY]) else build_visitor(key, judgment.user)


def _single_answer(yes: Collection[Judgment], trusted: Collection[str]) -> str | None:
    """Returns the key on which an answer rests, or None if a second voter, a trusted key or a file agrees.

    If `trusted` names keys, a second voter is not enough. Judgments without a key count as trusted if
    `trusted` is empty, because a service without keys serves only its own machine.

    Args:
        yes: Judgments that call the answer relevant: one per key for feedback, one per visitor for clicks.
        trusted: Names of the keys whose queries may judge.

    """
    keys = {judgment.key for judgment in yes}
    if {None, *(trusted or [NO_KEY])} & keys:
        return None
    named = [(judgment.key, judgment.user) for judgment in yes if judgment.key is not None]
    return None if get_number(named) > 1 and not trusted else min(key for key, _ in named)


def bounded(judge: Mapping[str, list[str]], keys: Mapping[str, str]) -> dict[str, list[str]]:
    """Limits the queries that judge: per document to PER_DOCUMENT, and per key to half of all.

    Queries with the smallest hash stay, so every run chooses the same ones.
    """
    of_document: Counter[str] = Counter()
    kept: dict[str, list[str]] = {}
    for query in sorted(judge, key=lambda query: place(f"asked\0{query.casefold()}")):
        if all(of_document[id] < PER_DOCUMENT for id in judge[query]):
            of_document.update(judge[query])
            kept[query] = judge[query]
    of_key = Counter(keys[query] for query in kept if query in keys)
    for name, count in of_key.items():
        spare = max(0, 2 * count - len(kept))
        for query in [query for query in kept if keys.get(query) == name][count - spare :]:
            del kept[query]
    return kept


def _majority(votes: Mapping[str | None, bool]) -> bool | None:
    """Returns the vote of most keys, or None for a tie. A file (key None) votes only if no key does."""
    of_keys = [relevant for key, relevant in votes.items() if key is not None] or [*votes.values()]
    both = 2 * sum(of_keys)
    return None if both == len(of_keys) else both > len(of_keys)


def _document(record: Record) -> str:
    id = next((record.fields[name] for name in _ID if name in record.fields), None)
    if not isinstance(id, int) or isinstance(id, bool):  # An integer is a valid id, as in documents.
        id = build_text(record, _ID)
    return qualified(get_collection(record), str(id))


def _relevant(record: Record) -> bool:
    value = record.fields.get("relevant", True)
    known = value if isinstance(value, bool) else _TRUTH.get(str(value).strip().lower())
    if known is None:
        raise TrainingError(f"{record.at}: relevant must be 1 or 0, not {str(value)[:40]!r}.")
    return known
