"""Orders the best hits of hybrid search again, by the learned ranking of the collection. Start at `order`.

    hybrid order ─▶ the best CANDIDATES ─▶ vectors and beginnings of texts ─▶ features ─▶ scores from 1 to 2
                 └▶ all other hits keep their place and their score, which is at most 1

A query always has the same candidates, so pages neither repeat nor skip a hit. Later pages of a query use the
scores of its first page, even if the first page was late or failed.
"""

import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from pydantic import ValidationError

from models.files.bounded import read_bytes
from models.manifest import Manifest
from models.search import ranking as ranking_file
from models.search.features import FEATURES, MEMORY, VERSION, Candidates, Features, Memory, build
from models.search.ranking import FOLDER, Ranking
from service.observability.logs import safe_message
from service.store.protocol import Snapshot
from service.store.scheduling import pause
from service.store.values import Ranked

log = logging.getLogger(__name__)

clock = time.perf_counter

CHARACTERS = 20_000  # Of a text that is read for its features, and of a title.
REMEMBERED = 1000  # Queries whose scores later pages use.
WORK = 2000  # The second stage costs about as much as fusing this many candidates.


class Explanation(NamedTuple):
    """The features of a hit, and their parts in its ranking score."""

    features: Mapping[str, float]
    contributions: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Ordered:
    """Hits in their new order.

    Attributes:
        hits: All hits of hybrid search. The candidates have new scores.
        explanations: Of the candidates by revision, if they were requested.
        fault: The reason why the hits are in hybrid order although there is a ranking, or empty.
    """

    hits: Sequence[Ranked]
    explanations: Mapping[int, Explanation]
    fault: str = ""


@dataclass(frozen=True, slots=True)
class Stage:
    """What the second stage of a search needs besides the hits.

    Attributes:
        generation: Number of the generation.
        rankings: Rankings of the generation.
        collection: Name of the collection.
        seconds: Maximum time for each query. 0: explain only, and leave the hybrid order.
        explain: Whether to return explanations. They are computed for every page, without a limit of time.
        first: Whether this is the first page.
        memory: Judged queries of the collection.
    """

    generation: int
    rankings: "Rankings"
    collection: str
    seconds: float
    explain: bool
    first: bool
    memory: Memory | None


class _Late(Exception):
    """The stage has no time left."""


class Rankings:
    """The rankings of a generation by collection, and the scores of recent queries.

    Collections without a ranking of their own have the default ranking.
    """

    def __init__(self, learned: Mapping[str, Ranking]) -> None:
        self._learned = learned
        self._recent: OrderedDict[int, NDArray[np.float64] | None] = OrderedDict()
        self._lock = threading.Lock()

    def __getitem__(self, collection: str) -> Ranking:
        return self._learned.get(collection) or get_default()

    def is_learned(self, collection: str) -> bool:
        return collection in self._learned

    def recall(self, name: int) -> tuple[bool, NDArray[np.float64] | None]:
        """Returns whether the candidates were scored before, and their scores, or None for hybrid order."""
        with self._lock:
            return name in self._recent, self._recent.get(name)

    def remember(self, name: int, scores: NDArray[np.float64] | None) -> None:
        with self._lock:
            self._recent[name] = scores
            self._recent.move_to_end(name)
            if len(self._recent) > REMEMBERED:
                self._recent.popitem(last=False)


@cache
def get_default() -> Ranking:
    """Returns the ranking of collections that have not learned one."""
    folder = Path(ranking_file.__file__).parent
    return Ranking.model_validate_json(read_bytes(folder / "default_ranking.json"))


def read_rankings(folder: Path, manifest: Manifest) -> Rankings:
    """Reads the rankings of a version. Ignores those that this release or this encoder cannot use."""
    found: dict[str, Ranking] = {}
    for path in manifest.files:
        name = path.removeprefix(f"{FOLDER}/")
        if name == path:
            continue
        reason = ""
        try:
            ranking = Ranking.model_validate_json(read_bytes(folder / path))
            if ranking.features != VERSION:
                reason = f"it has features of version {ranking.features}, and this release has {VERSION}"
            elif ranking.fingerprint not in {None, manifest.fingerprint}:
                reason = f"it was learned with the encoder {str(ranking.fingerprint)[:8]}"
        except ValidationError as error:
            reason = f"it is malformed: {error.errors()[0]['msg']}"
        except (OSError, ValueError) as error:
            reason = f"it cannot be read: {error}"
        if reason:
            log.warning("The ranking %s of %s is ignored, because %s.", name, manifest.version, reason)
        else:
            found[name.removesuffix(".json")] = ranking
    return Rankings(found)


def order(
    snapshot: Snapshot,
    query: str,
    vector: NDArray[np.float32],
    hits: Sequence[Ranked],
    best: Sequence[tuple[Ranked, str]],
    stage: Stage,
) -> Ordered:
    """Orders the candidates of a query. Does not raise if this fails or takes too long.

    Args:
        snapshot: The state that is searched.
        query: The text of the query.
        vector: Vector of the query, shape (d,).
        hits: All hits, in any order.
        best: The best CANDIDATES hits in hybrid order, with their document ids.
        stage: The ranking and the limits.
    """
    if not best:
        return Ordered(hits, {})
    ranking = stage.rankings[stage.collection]
    name = hash((stage.collection, query, id(ranking), tuple(ranked.revision for ranked, _ in best)))
    if not stage.first and not stage.explain:
        known, scores = stage.rankings.recall(name)
        if known:
            return Ordered(_rescored(hits, best, scores), {})
    fault, scores = "", None
    features = np.zeros((len(best), len(FEATURES)))
    try:
        features = _features(snapshot, query, vector, best, ranking, stage)
        scores = ranking.score(features)
    except _Late:
        fault = f"The learned ranking took longer than SIMILE_RANK_SECONDS={stage.seconds:g}."
        log.info("%s The hits are in hybrid order.", fault)
    except Exception as error:  # noqa: BLE001  a fault of the second stage must not fail a search
        fault = "The learned ranking failed; the log says why."
        log.warning("The ranking of the collection %r failed: %s", stage.collection, safe_message(error))
    told = _explained(features, best, ranking) if stage.explain and not fault else {}
    if not stage.seconds:
        return Ordered(hits, told, fault)
    stage.rankings.remember(name, scores)
    return Ordered(_rescored(hits, best, scores), told, fault and f"{fault} The hits are in hybrid order.")


def _rescored(
    hits: Sequence[Ranked], best: Sequence[tuple[Ranked, str]], scores: NDArray[np.float64] | None
) -> Sequence[Ranked]:
    """Gives the candidates scores from 1 to 2, above the scores of all others."""
    if scores is None:
        return hits
    low, high = float(scores.min()), float(scores.max())
    scaled = 1 + (scores - low) / (high - low if high > low else 1)
    new = {ranked.revision: np.float32(score) for (ranked, _), score in zip(best, scaled, strict=True)}
    return [ranked._replace(score=new.get(ranked.revision, ranked.score)) for ranked in hits]


def _features(
    snapshot: Snapshot,
    query: str,
    vector: NDArray[np.float32],
    best: Sequence[tuple[Ranked, str]],
    ranking: Ranking,
    stage: Stage,
) -> Features:
    late = clock() + stage.seconds

    def check() -> None:
        pause()
        if clock() > late and not stage.explain:
            raise _Late

    revisions = [ranked.revision for ranked, _ in best]
    vectors = snapshot.get_vectors(stage.generation, revisions)
    check()
    contents = snapshot.beginnings(revisions, CHARACTERS)
    check()
    none = np.empty((0, len(vector)), np.float32)
    candidates = Candidates(
        hybrid=np.array([ranked.score for ranked, _ in best], np.float64),
        bm25=np.array([ranked.bm25 for ranked, _ in best], np.float64),
        passages=[vectors.get(revision, none) for revision in revisions],
        titles=[contents[revision].title for revision in revisions],
        texts=[contents[revision].text for revision in revisions],
    )
    mean_query = np.array(ranking.mean_query, np.float32) if ranking.mean_query else None
    features = build(query, vector, candidates, mean_query)
    if stage.memory is not None:
        ids = [id for _, id in best]
        features[:, -len(MEMORY) :] = stage.memory.recall(vector, ids, ranking.memory_cosine)
    check()
    return features


def _explained(
    features: Features, best: Sequence[tuple[Ranked, str]], ranking: Ranking
) -> dict[int, Explanation]:
    parts = ranking.contribute(features)
    return {
        ranked.revision: Explanation(
            dict(zip(FEATURES, features[row].tolist(), strict=True)),
            {name: float(part[row]) for name, part in parts.items()},
        )
        for row, (ranked, _) in enumerate(best)
    }
