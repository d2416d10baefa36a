"""The second stage of hybrid search: orders the best hits again by a learned ranking. Start at `order`.

    hybrid order ─▶ candidates ─▶ vectors and beginnings of texts ─▶ features ─▶ scores from 1 to 2
                 └▶ all other hits keep their place and their score, which is at most 1

Candidates are the best MAX_RANKED hits, and at most MAX_RECALLED others that were judged relevant for
similar queries. While this process remembers a query, its later pages have the candidates and the order of
its first page, even if judgments have changed since, or the first page was late or failed. So pages neither
repeat nor skip a hit.
"""

import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Generic, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from models.manifest import Manifest
from models.search.features import CHARACTERS, FEATURES, MEMORY, Candidates, Features, Memory, build
from models.search.ranking import FOLDER, MAX_RANKED, Ranking, RerankerWeight, get_default, read_ranking
from models.search.terms import NO_SAME
from models.tokens.late import COMPARED, DIMENSIONS, LATE, Tokens, compare
from service.observability.logs import safe_message
from service.store.protocol import Snapshot
from service.store.scheduling import pause
from service.store.values import Ranked

log = logging.getLogger(__name__)

clock = time.perf_counter

EXPLAIN_SECONDS = 5.0  # An explanation may take this time for each query.
REMEMBERED = 1000  # Queries whose order later pages have.
TOKENS_WORK = 1000  # The same for late interaction.
WORK = 2000  # The second stage costs about as much as fusing this many candidates.


class Explanation(NamedTuple):
    """The features of a hit, and their contributions to its ranking score (None if hits are not ranked)."""

    features: Mapping[str, float]
    contributions: Mapping[str, float] | None


@dataclass(frozen=True, slots=True)
class Ordered:
    """The candidates in their new order.

    Attributes:
        hits: The candidates with their scores.
        explanations: The explanation of each candidate, by revision. Empty unless requested.
        scores: The ranking score of each candidate, by revision. Empty if the stage is off.
        fault: The reason why the second stage was late or failed, or empty.
    """

    hits: Sequence[Ranked]
    explanations: Mapping[int, Explanation]
    fault: str = ""
    scores: Mapping[int, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Stage:
    """Arguments of the second stage of a search, besides the hits.

    Attributes:
        generation: Number of the generation.
        rankings: Rankings of the generation.
        collection: Name of the collection.
        name: Name of the query's order (search.py).
        known: The remembered order of that name, or None.
        seconds: Maximum time for each query. 0: explain only, and leave the hybrid order.
        explain: Whether to return explanations.
        first: Whether this is the first page.
        memory: Judged queries of the collection.
    """

    generation: int
    rankings: "Rankings"
    collection: str
    name: int
    known: "Order | None"
    seconds: float
    explain: bool
    first: bool
    memory: Memory

    def get_scores(self, recalled: Sequence[str]) -> NDArray[np.float64] | None:
        """Returns the remembered scores, or None if the query had other candidates."""
        return None if self.known is None or self.known.recalled != recalled else self.known.scores


class _Late(Exception):
    """The stage has no time left."""


T = TypeVar("T")


class Orders(Generic[T]):
    """How the candidates of recent queries were scored, by a hash of query and best hits. Thread-safe."""

    def __init__(self) -> None:
        self._recent: OrderedDict[int, T] = OrderedDict()
        self._lock = threading.Lock()

    def recall(self, name: int) -> T | None:
        with self._lock:
            return self._recent.get(name)

    def remember(self, name: int, order: T) -> None:
        with self._lock:
            self._recent[name] = order
            self._recent.move_to_end(name)
            if len(self._recent) > REMEMBERED:
                self._recent.popitem(last=False)


class Order(NamedTuple):
    """How the candidates of a query were scored.

    Attributes:
        recalled: Ids of the candidates after the best MAX_RANKED hits.
        scores: Ranking scores of the candidates, in hybrid order.
    """

    recalled: Sequence[str]
    scores: NDArray[np.float64]


class Rankings:
    """The rankings of a generation by collection, and how the candidates of recent queries were scored.

    Collections without a ranking of their own have the default ranking.
    """

    def __init__(self, learned: Mapping[str, Ranking]) -> None:
        self._learned = learned
        self.orders: Orders[Order] = Orders()
        self._ignored: set[tuple[str, str]] = set()  # Weights of other rerankers that the log has named.

    def __getitem__(self, collection: str) -> Ranking:
        return self._learned.get(collection) or get_default()

    def find_weight(self, collection: str, reranker: Manifest) -> RerankerWeight | None:
        """Returns the weight of a reranker in a collection. None: it orders the best hits alone."""
        weight, place = self[collection].reranker, (collection, reranker.version)
        if weight is None or weight.fingerprint == reranker.fingerprint:
            return weight
        if place not in self._ignored:
            self._ignored.add(place)
            log.warning(
                "The weight of a reranker in the ranking of %r is ignored, because it was learned with the "
                "reranker %s, and %s is active. The next retraining learns another one.",
                collection,
                weight.fingerprint[:8],
                reranker.version,
            )
        return None

    def list_own(self) -> Sequence[tuple[str, Ranking]]:
        """Returns the collections that have a ranking of their own, with their rankings."""
        return [*self._learned.items()]


def read_rankings(folder: Path, manifest: Manifest) -> Rankings:
    """Reads the rankings of a version. Ignores those that this release or this encoder cannot use."""
    found: dict[str, Ranking] = {}
    for path in manifest.files:
        name = path.removeprefix(f"{FOLDER}/")
        if name == path:
            continue
        collection = name.removesuffix(".json")
        try:
            found[collection] = read_ranking(folder, collection, manifest)
        except (OSError, ValueError) as error:
            reason = f"it cannot be read: {error}" if isinstance(error, OSError) else error
            log.warning("The ranking %s of %s is ignored, because %s.", name, manifest.version, reason)
    return Rankings(found)


def order(
    snapshot: Snapshot,
    query: str,
    vector: NDArray[np.float32] | None,
    best: Sequence[tuple[Ranked, str]],
    stage: Stage | None,
    tokens: Tokens | None = None,
    same: Mapping[str, str] = NO_SAME,
    typed_vector: NDArray[np.float32] | None = None,
) -> Ordered:
    """Orders the candidates of a query.

    If this fails or takes too long, they get the remembered order of the last such search, or hybrid order.

    Args:
        snapshot: The state that is searched.
        query: The text of the query.
        vector: Vector of the query, shape (d,). None in keyword search.
        best: The candidates with their document ids. The first MAX_RANKED are in hybrid order.
        stage: The ranking and the limits. None if the search has no second stage.
        tokens: Token vectors of the query, if the ranking compares them.
        same: Synonyms that count as words of the query, with these words.
        typed_vector: Vector of the query as sent, if that is another text. It is compared with those of
            judged queries.
    """
    hits, ids = [ranked for ranked, _ in best], [id for _, id in best]
    if not hits or vector is None or stage is None:
        return Ordered(hits, {})
    ranking = stage.rankings[stage.collection]
    revisions = [ranked.revision for ranked in hits]
    recalled = ids[MAX_RANKED:]
    known = stage.get_scores(recalled)
    if known is not None and not stage.first and not stage.explain:
        return _ordered(hits, known)
    began = clock()
    candidates = _read(snapshot, hits, len(vector), stage)  # Errors of these reads are those of the search.
    stored = {} if tokens is None else snapshot.get_tokens(ranking.space, revisions[:COMPARED])
    pause()
    seconds = max(stage.seconds, EXPLAIN_SECONDS) if stage.explain else stage.seconds

    def check() -> None:
        if clock() - began > seconds:
            raise _Late

    fault, told = "", dict[int, Explanation]()
    found = -np.arange(len(hits), dtype=np.float64)
    try:
        features = build(query, vector, candidates, ranking.mean_vector, check, same)
        features[:, -len(MEMORY) :] = stage.memory.recall(
            vector if typed_vector is None else typed_vector, ids, ranking.memory_threshold
        )
        late = None if tokens is None else _compare(tokens, [*map(stored.get, revisions)])
        check()
        parts = ranking.contribute(features, late)
        found = _add_up(parts, len(hits))
        if stage.explain:
            told = _explained(revisions, features, late, parts if stage.seconds else None)
    except _Late:
        fault = f"The second stage of the search took longer than {seconds:g} s (SIMILE_RANK_SECONDS)."
    except Exception as error:  # noqa: BLE001  a fault of the second stage must not fail a search
        fault = "The second stage of the search failed; the log says why."
        log.warning("The ranking of the collection %r failed: %s", stage.collection, safe_message(error))
    if not stage.seconds:
        return Ordered(hits, told, fault)
    if known is None or (stage.first and not fault):
        stage.rankings.orders.remember(stage.name, Order(recalled, found))
        kept = "in hybrid order"
    else:
        found, kept = known, "in the order of the last such search"
    return _ordered(hits, found, told, fault and f"{fault} The hits are {kept}.")


def _read(snapshot: Snapshot, hits: Sequence[Ranked], dimension: int, stage: Stage) -> Candidates:
    revisions = [ranked.revision for ranked in hits]
    vectors = snapshot.get_vectors(stage.generation, revisions)
    contents = snapshot.beginnings(revisions, CHARACTERS)
    none = np.empty((0, dimension), np.float32)
    return Candidates(
        hybrid=np.array([ranked.score for ranked in hits], np.float64),
        bm25=np.array([ranked.bm25 for ranked in hits], np.float64),
        passages=[vectors.get(revision, none) for revision in revisions],
        titles=[contents[revision].title for revision in revisions],
        texts=[contents[revision].text for revision in revisions],
    )


def _compare(tokens: Tokens, stored: Sequence[bytes | None]) -> Features:
    """Returns the features of late interaction, shape (n, len(LATE))."""
    documents = [
        None if body is None else np.frombuffer(body, np.int8).reshape(-1, DIMENSIONS) for body in stored
    ]
    return compare(tokens, documents)


def _add_up(parts: Mapping[str, NDArray[np.float64]], count: int) -> NDArray[np.float64]:
    scores = sum(parts.values(), np.zeros(count))
    if not np.isfinite(scores).all():
        raise ArithmeticError("a score is not finite")
    return scores


def _ordered(
    hits: Sequence[Ranked],
    scores: NDArray[np.float64],
    told: Mapping[int, Explanation] = MappingProxyType({}),
    fault: str = "",
) -> Ordered:
    """Orders the candidates by their ranking scores. Equal scores keep their hybrid order.

    The scores of the hits fall evenly from 2 but stay above 1.
    """
    order = np.argsort(-scores, kind="stable").tolist()
    ranked = [hits[at]._replace(score=np.float32(2 - place / len(hits))) for place, at in enumerate(order)]
    by_revision = {hit.revision: score for hit, score in zip(hits, scores.tolist(), strict=True)}
    return Ordered(ranked, told, fault, by_revision)


def _explained(
    revisions: Sequence[int],
    features: Features,
    late: Features | None,
    parts: Mapping[str, NDArray[np.float64]] | None,
) -> dict[int, Explanation]:
    """Returns the explanations by revision. Features of late interaction are left out where unknown."""
    tokens = (
        [{}] * len(revisions)
        if late is None
        else [{} if np.isnan(row).any() else dict(zip(LATE, row.tolist(), strict=True)) for row in late]
    )
    return {
        revision: Explanation(
            dict(zip(FEATURES, features[row].tolist(), strict=True)) | tokens[row],
            None if parts is None else {name: float(part[row]) for name, part in parts.items()},
        )
        for row, revision in enumerate(revisions)
    }
