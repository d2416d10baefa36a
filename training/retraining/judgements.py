"""Queries and the documents that answer them, as people judged: from a file, from feedback, from events.

    .tsv     columns query and id, and relevant (1 or 0) where there are any that are not
    .jsonl   {"query": …, "id": …, "relevant": true}

    a line may name the document's collection under `collection`

Each key has one vote on a query and a document: its newest judgment, whichever visitor it names. Two keys
that name the same visitor (trust.py) have one vote, the newer one. The majority counts; what they disagree on
evenly counts for nothing. Untrusted keys have no vote. Feedback is newer than the file: where there is any,
the file's word does not count. What users do with hits (clicks.py) counts where neither says anything. A
query judges or is trained on, never both, and so are its answers (sides.py).

A key may not judge alone. A query rests on a key when no other key, no trusted one and no file says that an
answer of it is relevant. Users that a key names do not vouch for its feedback, since it may invent them. For
clicks, two visitors of one key do (trust.py), and one does not. Queries that rest on a key judge only as far
as others do: of the queries that judge, one key's are at most half. Where `trusted` names keys, the queries
of all others are for training only.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from training.errors import TrainingError
from training.mining.pairs import folded
from training.retraining.documents import get_collection
from training.retraining.heldout import Part, place
from training.retraining.sides import sides
from training.retraining.trust import build_visitor, get_number
from training.text.lines import Record, build_text, layout, read_records, valid
from training.text.service import ONLY_DEFAULT, fetch_collections, fetch_feedback, qualified, shown

_QUERY, _ID = ("query",), ("id", "document")
_TRUTH = {"1": True, "true": True, "0": False, "false": False}
NO_KEY = ""  # the name under which a service without keys stores judgements


class Judgment(NamedTuple):
    query: str
    id: str  # of the document, qualified by its collection
    relevant: bool
    key: str | None = None  # the name of the key that judged, empty where there was none; None: of a file
    of_use: bool = False  # the key's users did not say so, but acted so
    user: str = ""  # the hash of the visitor's id, empty if none was given
    trusted: bool = True  # False: the keys file of the service calls the key untrusted


PER_DOCUMENT = 10  # queries on one document that judge: a document of many queries is one piece of evidence


class Judged(NamedTuple):
    """Ids of relevant documents, by query. Each query has one at least."""

    train: dict[str, list[str]]
    dev: dict[str, list[str]]
    held: dict[str, list[str]]  # to judge
    answers: Mapping[str, list[str]]  # of each query, on whatever side
    crossed: dict[str, list[str]]  # of `train`: those that may judge a model that is trained without them
    unknown: int  # judgements left out: of documents that are not there
    contradicted: int  # pairs left out: as many keys say relevant as say not
    parts: Mapping[str, Part]  # of each document that answers a query
    groups: Mapping[str, int]  # of each query: those of one group share an answer
    keys: Mapping[str, str]  # of each query that rests on one key: its name
    of_use: frozenset[str]  # queries whose answers nobody named, but users clicked
    kept_from_judging: int  # queries that rest on a key which may not judge, or not so much
    negatives: Mapping[str, list[str]]  # ids of documents that are not relevant, by query, of any side
    untrusted: int = 0  # judgements left out: of untrusted keys
    said: int = 0  # judgements of files and trusted keys, those of clicks not counted


def judgments_in(file: Path) -> Iterator[Judgment]:
    """Raise TrainingError with the line that cannot be read."""
    if file.is_file() and not layout(file):
        raise TrainingError(f"{file} holds no judgements: give a .tsv or .jsonl with query and id.")
    for record in read_records(file, (_QUERY, _ID)):
        if record.fields:
            yield Judgment(build_text(record, _QUERY), _document(record), _relevant(record))


def judgments_at(url: str, requested: Sequence[str] = ONLY_DEFAULT) -> Iterator[Judgment]:
    """Judgements sent to `POST /feedback` of the service at `url`. Raise TrainingError.

    wanted: the names of the collections to read, or service.ALL.
    """
    for collection in fetch_collections(url, requested):
        for row in fetch_feedback(url, collection):
            query = valid(row["query"], f"{shown(url)}, feedback")
            yield Judgment(
                query,
                qualified(collection, row["id"]),
                row["relevant"],
                str(row.get("key", "")),
                user=str(row.get("user", "")),
                trusted=bool(row.get("trusted", True)),
            )


def judged(
    found: Iterable[Judgment],
    known: Mapping[str, str],
    share: float,
    trusted: Collection[str] = (),
    learned: Collection[str] = (),
) -> Judged:
    """known: the id of every document, to that of the one that stands for it, where it is a copy of one.

    share: of the queries, how many are held out, 0 to 1. trusted: names of the keys whose word judges; none:
    each key's does, within bounds. learned: as sides.learned, of the models so far; nothing of it judges, and
    its queries train.
    """
    newest: dict[tuple[str, str], dict[str | None, Judgment]] = {}  # of each key, the oldest first
    of_use: dict[tuple[str, str], dict[str | None, Judgment]] = {}  # of each visitor
    unknown = contradicted = untrusted = said_in_all = 0
    for judgment in found:
        query = folded(judgment.query)
        if query:
            pair = query, known.get(judgment.id, judgment.id)
            if not judgment.trusted:
                untrusted += 1
                continue
            said_in_all += not judgment.of_use
            votes = (of_use if judgment.of_use else newest).setdefault(pair, {})
            owner = _voter(judgment, trusted) if judgment.of_use else judgment.key
            votes.pop(owner, None)
            votes[owner] = judgment
    answers: dict[str, dict[str, str | None]] = {}  # of a query, each with the key that it rests on
    negatives: dict[str, list[str]] = {}
    for (query, id), said in sorted((of_use | newest).items(), key=lambda item: item[0]):
        of_voters = {_voter(judgment, trusted): judgment for judgment in said.values()}
        relevant = _majority({voter: judgment.relevant for voter, judgment in of_voters.items()})
        if id not in known:
            unknown += 1
        elif relevant is None:
            contradicted += 1
        elif relevant:
            yes = [judgment for judgment in of_voters.values() if judgment.relevant]
            answers.setdefault(query, {})[id] = _single_answer(yes, trusted)
        else:
            negatives.setdefault(query, []).append(id)
    # Where some answers of a query are vouched for, those that rest on one key are left out.
    vouched = {query: [id for id, key in ids.items() if key is None] for query, ids in answers.items()}
    relevants = {query: vouched[query] or [*ids] for query, ids in answers.items()}
    keys = {
        query: min(key for key in ids.values() if key is not None)
        for query, ids in answers.items()
        if not vouched[query]
    }
    of_use_alone = frozenset(
        query for query, ids in relevants.items() if not any((query, id) in newest for id in ids)
    )
    may_judge = [
        query for query in relevants if query not in keys or not (trusted or _alone(keys, relevants))
    ]
    split = sides(relevants, share, may_judge, learned)
    held = bounded(split.judge, keys)
    may_cross = {*may_judge} - split.known
    return Judged(
        split.train,
        split.dev,
        held,
        relevants,
        bounded({query: ids for query, ids in split.train.items() if query in may_cross}, keys),
        unknown,
        contradicted,
        split.parts,
        split.groups,
        keys,
        of_use_alone,
        len(relevants) - len(may_judge) + len(split.judge) - len(held),
        negatives,
        untrusted,
        said_in_all,
    )


def _voter(judgment: Judgment, trusted: Collection[str]) -> str | None:
    """The name under which a judgment votes: its visitor's. A key that may judge alone stays one voter."""
    key = judgment.key
    return key if key is None or key in (trusted or [NO_KEY]) else build_visitor(key, judgment.user)


def _single_answer(yes: Collection[Judgment], trusted: Collection[str]) -> str | None:
    """The key that an answer rests on; None where a file, a trusted key or a second voter says the same.

    Callers without a key are trusted unless others are named: a service without keys serves its own machine,
    and nobody else could ever judge there.

    Args:
        yes: What was said for the answer: feedback has one judgment of a key, clicks one of a visitor.
        trusted: Names of the keys whose word judges.

    """
    keys = {judgment.key for judgment in yes}
    if {None, *(trusted or [NO_KEY])} & keys:
        return None
    named = [(judgment.key, judgment.user) for judgment in yes if judgment.key is not None]
    return None if get_number(named) > 1 and not trusted else min(key for key, _ in named)


def _alone(keys: Mapping[str, str], queries: Collection[str]) -> bool:
    """True when every query rests on one and the same key: then nobody speaks beside it."""
    return len(keys) == len(queries) and len({*keys.values()}) == 1


def bounded(judge: Mapping[str, list[str]], keys: Mapping[str, str]) -> dict[str, list[str]]:
    """At most PER_DOCUMENT queries on a document; of each key at most as many as of all others together.

    Those of the least hash stay, so they are the same ones every night.
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
    """The opinion of most keys; None when as many say the one as the other."""
    of_keys = [relevant for key, relevant in votes.items() if key is not None] or [*votes.values()]
    both = 2 * sum(of_keys)
    return None if both == len(of_keys) else both > len(of_keys)


def _document(record: Record) -> str:
    id = next((record.fields[name] for name in _ID if name in record.fields), None)
    if not isinstance(id, int) or isinstance(id, bool):  # as a document's may be written
        id = build_text(record, _ID)
    return qualified(get_collection(record), str(id))


def _relevant(record: Record) -> bool:
    value = record.fields.get("relevant", True)
    known = value if isinstance(value, bool) else _TRUTH.get(str(value).strip().lower())
    if known is None:
        raise TrainingError(f"{record.at}: relevant must be 1 or 0, not {str(value)[:40]!r}.")
    return known
