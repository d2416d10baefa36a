"""Read the documents and judgments for a retraining, and assign each to a part: train, dev or judge."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from types import MappingProxyType
from typing import NamedTuple

from models.messages import amount
from models.progress import Say
from models.store import ModelStore
from training.errors import NothingToLearn
from training.mining.dedupe import near_duplicates
from training.retraining.clicks import Use, used_at
from training.retraining.config import Config, require_enough
from training.retraining.documents import Documents, documents_at, documents_in
from training.retraining.judgements import (
    CONTRADICTED,
    JUDGMENTS,
    UNKNOWN,
    UNTRUSTED,
    Judged,
    Judgment,
    judged,
    judgments_at,
    judgments_in,
)
from training.retraining.lineage import active_version
from training.retraining.publication import activated_by_hand, get_learned
from training.retraining.split import Split, hold_out, plain
from training.retraining.trust import REASONS, described
from training.text.service import Searches, fetch_searches


class Gathered(NamedTuple):
    """The data of a retraining, with its configuration, the model store and a function for messages."""

    config: Config
    store: ModelStore
    say: Say
    active: str  # the active version, to which a candidate is compared
    documents: Documents
    split: Split
    found: Judged
    learned: frozenset[str]  # split.digest_pairs of the models so far
    queried: Mapping[str, Sequence[str]] = MappingProxyType({})  # unjudged queries, by collection
    served: Searches = Searches()  # search settings of the service
    used: Use = Use([], "", {})


def gather(config: Config, store: ModelStore, say: Say) -> Gathered:
    """Reads all data that the configuration names, and splits it. Raises NothingToLearn or TrainingError."""
    active = active_version(store)
    if chosen := activated_by_hand(store):
        raise NothingToLearn(
            f"{chosen} is about to be activated, by hand: what is trained now would be "
            f"compared with {active}. Run this again once it is active."
        )
    say("reading the documents")
    corpus, table = config.corpus, config.judgements
    documents = (
        documents_in(corpus.file) if corpus.file else documents_at(str(corpus.service), corpus.collections)
    )
    say(str(documents))
    require_enough(len(documents.kept), corpus.least)
    split = hold_out(documents.kept, corpus.held_out)
    # Maps the id of each document to itself, and the id of a near copy to the id of its original.
    known = {document.id: split.copies.get(document.id, document.id) for document in documents.kept}
    known |= {id: known[first] for id, first in documents.copies.items()}
    learned = get_learned(store, active)
    said, used = read_judgments(config, say)
    found = judged(said, known, table.held_out, table.trusted, learned, used.clicked)
    split = split.moved(found.parts)
    left = "documents that neither judge nor nearly repeat another"
    require_enough(len(split.train), corpus.least, left)
    say(f"{len(split.train):,} to train on, {len(split.held):,} held out; {_said(found)}")
    served = Searches() if corpus.service is None else fetch_searches(corpus.service)
    data = active, documents, split, found, frozenset(learned), _unjudged(config, used, found)
    return Gathered(config, store, say, *data, served, used)


def read_judgments(config: Config, say: Say) -> tuple[list[Judgment], Use]:
    """Returns the judgments from the configured sources, and the data that was derived from events."""
    table, events, service = config.judgements, config.events, config.corpus.service
    used = Use([], "", {})
    if events.use and service is not None:
        bias = None if events.position_bias == "estimate" else events.position_bias
        used = used_at(service, config.corpus.collections, bias, events.least, events.visitors)
        for line in (used.line, *(f"! {warning}" for warning in used.warnings)):
            say(line)
    found = [*used.judgements]
    if table.file is not None:
        found += judgments_in(table.file)
    if table.feedback and service is not None:
        found += judgments_at(service, config.corpus.collections)
    return found, used


def _unjudged(config: Config, used: Use, found: Judged) -> dict[str, list[str]]:
    """Returns unjudged queries of users for training, by collection, if the configuration allows it.

    Queries that equal or nearly equal a judged query are left out.
    """
    if not config.events.queries:
        return {}
    judged = [*found.train, *found.dev, *found.held]
    every = [*judged, *chain.from_iterable(used.queried.values())]
    near = {
        every[each.place] for each in near_duplicates(every, keep=len(judged)) if each.first < len(judged)
    }
    said = {plain(query) for query in (*judged, *near)}
    return {
        collection: [query for query in queries if plain(query) not in said]
        for collection, queries in used.queried.items()
    }


def counts(documents: Documents, split: Split, found: Judged, used: Use) -> dict[str, int]:
    return {
        "all": len(documents.kept),
        "blank": documents.blank,
        "repeated": documents.repeated,
        "trained_on": len(split.train),
        "held_out": len(split.held),
        "held_out_for_dev": len(split.dev),
        "left_out_as_near_copies": len(split.copies),
        "queries_trained_on": len(found.train),
        "queries_held_out": len(found.held),
        "queries_held_out_for_dev": len(found.dev),
        "judged_not_relevant": sum(map(len, found.negatives.values())),
        **found.counts,
        **{
            f"clicked_answers_dropped_{reason.replace(' ', '_')}": used.dropped.get(reason, 0)
            for reason in REASONS
        },
    }


def of_keys(found: Judged) -> Iterator[str]:
    """Yields warnings: most judgments are from untrusted keys, or most queries depend on one key."""
    untrusted, others = found.counts[UNTRUSTED], found.counts[JUDGMENTS]
    if untrusted > others:
        yield (
            f"{amount(untrusted, 'judgment')} of untrusted keys not counted; {others:,} of others counted. "
            "`simile keys list` shows which keys the service trusts."
        )
    every = {*found.train, *found.dev, *found.held}
    rests = Counter(found.keys[query] for query in every if query in found.keys)
    for name, count in rests.most_common(1):
        if 2 * count > len(every):
            yield (
                f"{count:,} of {len(every):,} judged queries rest on the word of {described(name)} alone. "
                "They train, and judge only as far as others do. If you trust that word, name it in "
                "judgements.trusted."
            )


def _said(found: Judged) -> str:
    left_out = {
        UNKNOWN: "judgments of documents that are not there",
        CONTRADICTED: "pairs on which keys disagree evenly",
        UNTRUSTED: "judgments of untrusted keys left out",
    }
    more = "".join(
        f", {found.counts[name]:,} {what}" for name, what in left_out.items() if found.counts[name]
    )
    train = amount(len(found.train), "judged query", "judged queries")
    return f"{train} to train on, {len(found.held):,} held out{more}"
