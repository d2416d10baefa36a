"""The options, the cost and the results of a search."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from types import MappingProxyType
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from models.manifest import Mode
from models.search.features import Memory
from models.search.fusion import DENSE_WEIGHT, Part
from models.search.ranking import MAX_RANKED, MAX_RECALLED
from models.search.syntax import Condition
from models.search.terms import NO_SAME, NO_WEIGHTS, Weights
from models.search.terms import Query as Terms
from models.tokens.late import Tokens
from service.active import Generation
from service.corpus.interleaving import Coins, Side
from service.ranking import TOKENS_WORK, WORK, Explanation
from service.store.filters.grammar import Predicate
from service.store.values import COLUMNS, DEFAULT_COLLECTION, Column, Facet, Record

# Length of each ranking in hybrid search. The first thousand hits use the same candidates, so their pages are
# consistent. A search beyond them uses the largest number that a client can request.
CANDIDATES, ALL_CANDIDATES = 1000, 11_000
# Costs of other work. Each costs about as much as fusing this many candidates.
RERANK_WORK = 1500  # Scoring a pair of 128 tokens with a small reranker.
PASSAGE_WORK = 150  # Choosing the passage of a long text.
HIGHLIGHT_WORK = 100  # Finding the terms in a text of some thousand characters.
CONDITION_WORK = 10_000  # Evaluating a phrase, an excluded word or a word of titles.
HEAVY_CANDIDATES = 10_000  # Searches with a higher cost may not use all reading threads.

Source = Literal["correction", "synonym"]  # The source of a term that the user did not type.
NO_SOURCES: Mapping[str, Source] = MappingProxyType({})


class Query(NamedTuple):
    """A query: a text, a vector, a text with its vector, or the id of a document to compare others with."""

    text: str = ""
    vector: NDArray[np.float32] | None = None
    similar_to: str | None = None
    tokens: Tokens | None = None  # Token vectors, for late interaction.
    weights: Weights = NO_WEIGHTS  # Weights of corrected terms and synonyms in keyword search.
    same: Mapping[str, str] = NO_SAME  # Synonyms that count as words of the query.
    sources: Mapping[str, Source] = NO_SOURCES  # Sources of the terms that the user did not type.
    conditions: Sequence[Condition] = ()  # Conditions of a query with syntax.
    typed: str = ""  # The query as sent, if `text` differs, as with corrected words or syntax.
    typed_vector: NDArray[np.float32] | None = None  # Vector of `typed`, for the memory of judgments.


@dataclass(frozen=True, slots=True, kw_only=True)
class Search:
    """Options of a search.

    Attributes:
        collection: Name of the collection.
        k: Number of hits.
        offset: Number of better hits to skip.
        mode: Dense, lexical or hybrid.
        weight: Weight of the dense ranking in hybrid search.
        unrelated: Mean cosine of unrelated texts, for hybrid search. 1 if unknown.
        where: Filter. None matches all documents.
        bounds: Condition of the documents that exist for the client. `where` includes it. None: all.
        min_score: Lowest cosine in dense search.
        passages: If true, all passages of a document are compared, otherwise only the first passage.
        max_bytes: Maximum size of all hits in bytes.
        columns: Columns of the documents to read.
        kept: True if the generation may be inactive.
        rank_seconds: Maximum time of the second stage for a query. 0: hits keep the hybrid order.
        explain: True if hits have an explanation.
        highlight: True if hits show the places of the query's terms, and a snippet.
        memory: Judged queries of the collection, for the second stage.
        judgments: Expected state of the judgments. None: any.
        compares_tokens: True if the second stage uses late interaction.
        rerank_k: Number of hits that the reranker orders again. 0: none.
        typos: If true, words of text queries that no document has are corrected.
        conditions: Average number of conditions of a query with syntax.
        is_later: True if this is a later page although the offset is 0.
        ends: The deadline of the request, by `time.monotonic`. The reranker ends before it.
        facets: Metadata fields whose values are counted.
        facet_values: Maximum number of values, and of ranges, of each facet.
        max_faceted: Maximum product of the number of documents to count and the number of facets.
    """

    collection: str = DEFAULT_COLLECTION
    k: int = 10
    offset: int = 0
    mode: Mode = "dense"
    weight: float = DENSE_WEIGHT
    unrelated: float = 1.0
    where: Predicate | None = None
    bounds: Predicate | None = None
    min_score: float | None = None
    passages: bool = True
    max_bytes: float = inf
    columns: Sequence[Column] = COLUMNS
    kept: bool = False
    rank_seconds: float = 0.0
    explain: bool = False
    highlight: bool = False
    memory: Memory | None = None
    judgments: str | None = None
    compares_tokens: bool = False
    rerank_k: int = 0
    typos: bool = False
    conditions: int = 0
    is_later: bool = False
    ends: float = inf
    facets: Sequence[str] = ()
    facet_values: int = 10
    max_faceted: float = inf

    @property
    def is_reranked(self) -> bool:
        """True if the page has hits that the reranker orders."""
        return self.offset < self.rerank_k

    @property
    def is_marked(self) -> bool:
        """True if the query's terms are looked up in the hits."""
        return self.highlight or (self.explain and not {"title", "text"}.isdisjoint(self.columns))

    @property
    def is_first(self) -> bool:
        """True if this is the first page."""
        return self.offset == 0 and not self.is_later

    @property
    def has_stage(self) -> bool:
        """True if the search has a second stage, which orders the candidates."""
        return self.mode == "hybrid" and self.passages and (self.rank_seconds > 0 or self.explain)

    @property
    def is_ranked(self) -> bool:
        """True if the page may have candidates of the second stage. Later hits keep their hybrid order."""
        return self.has_stage and self.offset < MAX_RANKED + MAX_RECALLED

    @property
    def reach(self) -> int:
        return self.offset + self.k

    @property
    def candidates(self) -> int:
        """Number of documents to rank for each query, in both rankings together."""
        return 2 * self.depth if self.mode == "hybrid" else self.reach

    @property
    def depth(self) -> int:
        """Length of each ranking in hybrid search."""
        return CANDIDATES if self.reach <= CANDIDATES else ALL_CANDIDATES

    @property
    def work(self) -> int:
        """Cost of each query, in candidates."""
        stage = WORK + (TOKENS_WORK if self.compares_tokens else 0)
        return self.candidates + (stage if self.is_ranked else 0) + CONDITION_WORK * self.conditions

    @property
    def cost(self) -> int:
        """Cost of each query with its pairs for the reranker and its highlights, in candidates."""
        pairs = RERANK_WORK * self.rerank_k if self.is_reranked else 0
        return self.work + pairs + (HIGHLIGHT_WORK * self.k if self.is_marked else 0)

    def is_heavy(self, queries: int) -> bool:
        """Returns whether a search with `queries` queries takes long, so it must leave threads to others."""
        scans = bool(self.facets) or (self.where is not None and not self.where.indexed)
        texts = PASSAGE_WORK * self.rerank_k + (HIGHLIGHT_WORK * self.k if self.is_marked else 0)
        return scans or queries * (self.work + texts) > HEAVY_CANDIDATES


class Snippet(NamedTuple):
    """A part of a text, with its start and end in characters."""

    start: int
    end: int
    text: str


class Highlight(NamedTuple):
    """The query's terms in a hit, as starts and ends in characters.

    Attributes:
        title: Ranges of the title.
        text: Ranges of the text.
        snippet: The part of the text to show. None if the text is blank.
        sentences: Parts of a text without terms. The best part should become the snippet.
    """

    title: Sequence[tuple[int, int]]
    text: Sequence[tuple[int, int]]
    snippet: Snippet | None
    sentences: Sequence[Snippet] = ()


class TermMatch(NamedTuple):
    """A term of the query that a hit has. `columns` names the places: the title, the text, or both.

    With a filter, `idf` is None, because it counts documents that the filter hides. `source` is None for a
    term as typed.
    """

    term: str
    source: Source | None
    idf: float | None
    columns: Sequence[Column]


@dataclass(frozen=True, slots=True)
class Hit:
    """A document with its score.

    Attributes:
        document: The document.
        score: A cosine, a BM25 score or a fused score. Larger is better.
        passage: Start and end of the nearest passage in characters. None in lexical search, or if the text
            has only one passage.
        explanation: Features and their parts in the score, if they were requested.
        terms: The query's terms that the hit has, if they were requested.
        fusion: Parts of both rankings in the fused score, if they were requested.
        highlight: Highlights and snippet, if they were requested.
        rerank_score: Score of the reranker, if it has scored the hit.
        search_place: Place in the order of the search, from 1, if the reranker ordered the hits.
        ranking_score: Score of the second stage, if it has scored the hit.
        side: In a tested search, the side that chose the hit.
    """

    document: Record
    score: np.float32
    passage: tuple[int, int] | None = None
    explanation: Explanation | None = None
    rerank_score: np.float32 | None = None
    search_place: int | None = None
    terms: Sequence[TermMatch] | None = None
    fusion: Mapping[str, Part] | None = None
    highlight: Highlight | None = None
    ranking_score: float | None = None
    side: Side = 0


class Page(NamedTuple):
    """The hits of a query.

    Attributes:
        hits: The hits.
        fault: The reason why the second stage failed or was late, or empty.
        reranker: The version that ordered the hits, or empty.
        rerank_fault: The reason why the reranker did not order all of its hits, or empty.
        highlight_fault: The reason why some hits are without highlights or the best snippet, or empty.
        tokens: Token counts of the pairs and sentences that were computed.
        terms: Terms of the query, if they are looked up in the hits.
        groups: The terms of each correction and synonym. The terms of a group count only together.
        sources: Sources of the terms that the user did not type.
        idf: The inverse document frequencies of all terms.
        vector: Vector of the query. None in keyword search.
        facets: Counts of each field, or None.
        facet_faults: Reasons why counts are missing.
        seconds: Computing time of both sides of a tested search. None if the search is not tested.
    """

    hits: list[Hit]
    fault: str = ""
    reranker: str = ""
    rerank_fault: str = ""
    highlight_fault: str = ""
    tokens: Sequence[int] = ()
    terms: Terms | None = None
    groups: Collection[Sequence[str]] = ()
    sources: Mapping[str, Source] = NO_SOURCES
    idf: Mapping[str, float] = {}
    vector: NDArray[np.float32] | None = None
    facets: Mapping[str, Facet] | None = None
    facet_faults: Sequence[str] = ()
    seconds: tuple[float, float] | None = None


class Rival(NamedTuple):
    """The candidate's side of a tested search, which has one query.

    Attributes:
        generation: The candidate's generation, which must be borrowed while it is read. Or the active
            generation, if both versions have the same vectors.
        queries: The query, as this side embeds and corrects it.
        search: The search, as this side plans it.
        coins: Decide which side chooses first.
        embedding: Seconds that each side took to embed the query. Zeros if the sides did not both embed it.
    """

    generation: Generation
    queries: Sequence[Query]
    search: Search
    coins: Coins
    embedding: tuple[float, float] = (0.0, 0.0)

    def shares_vectors(self, generation: Generation) -> bool:
        """Returns whether this side has the vectors of the active generation."""
        return self.generation.number == generation.number

    def retrieves_as(self, generation: Generation, search: Search) -> bool:
        """Returns whether this side finds the same documents before the second stage."""
        own = self.generation.number, self.search.mode, self.search.weight
        return own == (generation.number, search.mode, search.weight)


class Judged(Exception):
    """Raised if judgments or clicks changed after the memory was read. `state` is their current state."""

    def __init__(self, state: str) -> None:
        super().__init__(state)
        self.state = state
