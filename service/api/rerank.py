"""Routes of the reranker: `/rerank` and `/predict` of TEI, `/v1/rerank` and `/v2/rerank` of Jina and Cohere.

Each route parses its fields into pairs of texts, which `score` scores with the active reranker.
"""

import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import numpy as np
from fastapi import APIRouter, Request
from numpy.typing import NDArray
from pydantic import BaseModel, Field, RootModel, StrictInt, StrictStr
from starlette.responses import Response

from models.errors import WrongKind
from models.manifest import Manifest, is_version
from models.messages import did_you_mean
from models.tokens.pairs import Pair
from service.api.embedding import VERSION_HEADER, check_count, inference_headers, parse_texts
from service.api.openapi import EMBEDS, TIMED, OpenTo, Role, ShownAs, Text, Texts, describe, example
from service.api.tei import Direction
from service.batching.request import Lane
from service.errors import Conflict, NotFound, Validation
from service.http.bodies import json_response
from service.http.routing import RoleRoute
from service.runtime.runtime import Runtime, Service
from service.settings import Settings

router = APIRouter(route_class=RoleRoute, tags=["rerank"])

_SCORES: dict[str, Any] = {"open_to": OpenTo.SCOPED, "raises": EMBEDS, "headers": TIMED}
ONLY_LABEL = "LABEL_0"  # Name of a single output, as in TEI.


class Options(BaseModel):
    """Options of TEI's routes."""

    raw_scores: bool = Field(False, strict=True, description="Scores before the model's activation")
    truncate: bool | None = Field(None, strict=True)  # null: the server's default, which is true
    truncation_direction: Direction = "Right"
    model: StrictStr | None = None


class RerankRequest(Options):
    model_config = example(
        {"query": "How do I get my money back?", "texts": ["Refunds take a week.", "We sell tea."]}
    )
    query: Text
    texts: Annotated[list[Any], ShownAs(Texts)]
    return_text: bool = Field(False, strict=True)


class TextDocument(BaseModel):
    text: Text


_Documents = Annotated[list[Text | TextDocument], Field(min_length=1)]


class RerankDocumentsRequest(BaseModel):
    """A request with the fields of Cohere and Jina. `return_documents` is true by default on `/v1` alone."""

    model_config = example({"query": "refund", "documents": ["Refunds take a week.", "We sell tea."]})
    query: Text
    documents: Annotated[list[Any], ShownAs(_Documents)]
    top_n: Annotated[StrictInt, Field(ge=1)] | None = Field(None, description="null: all documents")
    return_documents: bool | None = Field(None, strict=True)
    model: StrictStr | None = None


_PredictTexts = Annotated[list[Text], Field(min_length=1, max_length=2)]


class PredictRequest(Options):
    model_config = example({"inputs": [["A cat sleeps.", "An animal rests."]]})
    inputs: Annotated[
        StrictStr | list[Any],
        ShownAs(Text | _PredictTexts | Annotated[list[_PredictTexts], Field(min_length=1)]),
    ] = Field(description="A text, a pair of texts, or a batch of both: [[text], [text, text], …]")


class Rank(BaseModel):
    index: int
    score: float
    text: str = Field("", description="With `return_text`")


class Ranks(RootModel[list[Rank]]):
    """The texts, best first."""


class DocumentRank(BaseModel):
    index: int
    relevance_score: float
    document: TextDocument | None = Field(None, description="With `return_documents`")


class TokenUsage(BaseModel):
    prompt_tokens: int
    total_tokens: int


class RerankMeta(BaseModel):
    api_version: dict[Literal["version"], Literal["1", "2"]]
    billed_units: dict[Literal["search_units"], int]


class DocumentRanks(BaseModel):
    id: str
    object: Literal["list"]
    model: str
    results: list[DocumentRank] = Field(description="Best first")
    usage: TokenUsage
    meta: RerankMeta


class Prediction(BaseModel):
    label: str
    score: float


class Predictions(RootModel[list[Prediction] | list[list[Prediction]]]):
    """The labels of the input, or of each input of a batch, best first."""


@dataclass(frozen=True, slots=True)
class Scored:
    """Scores of pairs, shape (pairs, outputs), with the reranker's manifest and the answer's headers."""

    scores: NDArray[np.float32]
    manifest: Manifest
    tokens: int
    headers: dict[str, str]

    def order(self) -> list[int]:
        """Returns the positions of the pairs, best first. Equal scores keep their order."""
        order: list[int] = np.argsort(-self.scores[:, 0], kind="stable").tolist()
        return order


@router.post("/rerank", **describe(Role.READ, Ranks, **_SCORES))
async def rerank_texts(request: Request, runtime: Service, body: RerankRequest) -> Response:
    """Score each text together with the query by the active reranker. The answer has the best text first."""
    texts = parse_texts(body.texts, runtime.settings.max_inputs, "texts")
    pairs = _pair_with(body.query, texts, runtime.settings)
    found = await score(request, runtime, pairs, body, ranks=True)
    ranks = [
        {"index": at, "score": found.scores[at, 0], **({"text": texts[at]} if body.return_text else {})}
        for at in found.order()
    ]
    return json_response(ranks, found.headers)


@router.post("/v1/rerank", **describe(Role.READ, DocumentRanks, **_SCORES))
@router.post("/v2/rerank", **describe(Role.READ, DocumentRanks, **_SCORES))
async def rerank_documents(request: Request, runtime: Service, body: RerankDocumentsRequest) -> Response:
    """Score each document together with the query by the active reranker, as Cohere's and Jina's APIs do.

    Long documents are truncated.
    """
    texts = _get_texts(body.documents, runtime.settings)
    pairs = _pair_with(body.query, texts, runtime.settings)
    found = await score(request, runtime, pairs, Options(model=body.model), ranks=True)
    version = "1" if request.url.path.startswith("/v1/") else "2"
    shows = version == "1" if body.return_documents is None else body.return_documents
    results = [
        {
            "index": at,
            "relevance_score": found.scores[at, 0],
            **({"document": {"text": texts[at]}} if shows else {}),
        }
        for at in found.order()[: body.top_n]
    ]
    content = {
        "id": str(uuid.uuid4()),
        "object": "list",
        "model": found.manifest.version,
        "results": results,
        "usage": {"prompt_tokens": found.tokens, "total_tokens": found.tokens},
        "meta": {"api_version": {"version": version}, "billed_units": {"search_units": 1}},
    }
    return json_response(content, found.headers)


@router.post("/predict", **describe(Role.READ, Predictions, **_SCORES))
async def predict_labels(request: Request, runtime: Service, body: PredictRequest) -> Response:
    """Score the labels of a text or of a pair of texts, or of a batch of both, by the active reranker."""
    inputs = [body.inputs] if isinstance(body.inputs, str) else body.inputs
    single = bool(inputs) and all(isinstance(each, str) for each in inputs)
    sources = _parse_sources([inputs] if single else inputs, runtime.settings)
    found = await score(request, runtime, sources, body)
    labels = found.manifest.labels or [ONLY_LABEL]
    predictions = [
        [{"label": labels[at], "score": row[at]} for at in np.argsort(-row, kind="stable").tolist()]
        for row in found.scores
    ]
    return json_response(predictions[0] if single else predictions, found.headers)


async def score(
    request: Request,
    runtime: Runtime,
    pairs: Sequence[Pair | str],
    options: Options,
    *,
    ranks: bool = False,
) -> Scored:
    """Scores pairs or single texts with the active reranker.

    Args:
        request: The request.
        runtime: The service.
        pairs: The pairs or texts.
        options: Options of the request.
        ranks: True if the caller ranks the pairs. This needs a reranker with one output.

    Raises:
        NotFound: The request names an unknown version.
        Conflict: No reranker is active, the request names another version, or the reranker cannot rank.
        ServiceError: The batcher rejects the pairs, or the model fails.

    """
    with runtime.active.reranker.borrow() as reranker:
        manifest = reranker.manifest
        _check_version(request, options.model, runtime, manifest.version)
        if ranks and manifest.dimension != 1:
            raise Conflict(
                f"{manifest.version} has {manifest.dimension} outputs ({', '.join(manifest.labels)}), so it "
                "cannot rank texts. POST /predict returns its labels. Activate a reranker with one output."
            )
        answer = await runtime.batcher.embed(
            reranker,
            pairs,
            lane=Lane.RERANK,
            truncate=options.truncate is not False,
            left=options.truncation_direction == "Left",
            normalize=not options.raw_scores,
        )
    texts = [text for pair in pairs for text in ([pair] if isinstance(pair, str) else pair)]
    headers = inference_headers(manifest.version, answer, texts, request.scope["started"])
    return Scored(answer.vectors, manifest, sum(answer.tokens), headers)


def _check_version(request: Request, model: str | None, runtime: Runtime, active: str) -> None:
    """Checks that the active reranker is the version that the request names, if it names one."""
    named = request.headers.get(VERSION_HEADER) or (model if model and is_version(model) else None)
    if named in {None, active}:
        return
    assert named is not None  # noqa: S101
    rerankers, published = runtime.rerankers.published, runtime.controller.published
    if named in rerankers:
        raise Conflict(f"{named} is not the active reranker; {active} is. GET /models lists the versions.")
    if named in published:
        raise Conflict(str(WrongKind(named, "encoder")))
    hint = did_you_mean(named, {*published, active})
    raise NotFound(f"There is no version {named[:100]!r}.{hint} GET /models lists them.", param="model")


def _pair_with(query: str, texts: Sequence[str], settings: Settings) -> list[Pair]:
    parse_texts([query], 1, "query", single=True)
    limit = settings.max_query_characters
    if len(query) > limit:
        raise Validation(
            f"query has {len(query)} characters; at most {limit} (SIMILE_MAX_QUERY_CHARACTERS) are read with "
            "each text. Shorten it.",
            param="query",
        )
    return [Pair(query, text) for text in texts]


def _get_texts(documents: Sequence[Any], settings: Settings) -> list[str]:
    """Returns the texts of documents. Each document is a text or an object with a `text`."""
    check_count(documents, settings.max_inputs, "documents")
    texts = [each.get("text") if isinstance(each, dict) else each for each in documents]
    for at, text in enumerate(texts):
        if not isinstance(text, str):
            raise Validation(f'documents[{at}] must be a text or {{"text": "…"}}.', param="documents")
    return parse_texts(texts, settings.max_inputs, "documents")


def _parse_sources(inputs: Sequence[Any], settings: Settings) -> list[Pair | str]:
    """Parses the batch of `/predict`, a list of lists of one or two texts."""
    check_count(inputs, settings.max_inputs, "inputs")
    for at, texts in enumerate(inputs):
        if not isinstance(texts, list) or len(texts) not in {1, 2}:
            raise Validation(
                f"inputs[{at}] must be a list of one text, or of two texts that are read together.",
                param="inputs",
            )
    parsed = (parse_texts(texts, 2, f"inputs[{at}]") for at, texts in enumerate(inputs))
    return [Pair(*texts) if len(texts) == 2 else texts[0] for texts in parsed]
