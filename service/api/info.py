"""Routes about the service.

`/info`, `/me` and `/examples` need an API key. `/health`, `/ready` and `/metrics` do not.
"""

import asyncio
from collections.abc import Sequence
from typing import Any, Literal

from fastapi import APIRouter, Request
from prometheus_client import CONTENT_TYPE_LATEST
from pydantic import BaseModel, ConfigDict, Field
from starlette.responses import Response

from models.encoder import Encoder
from models.manifest import Mode
from models.version import VERSION
from service.active import ActiveReranker
from service.api.openapi import OpenTo, Role, describe
from service.auth.access import Access, Account, get_scope
from service.corpus.examples import example_rows
from service.errors import Unhealthy
from service.http.bodies import check_parameters, collect_fields, json_response
from service.http.routing import RoleRoute
from service.runtime.runtime import Runtime, Service

DTYPES = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16", "int8": "int8"}
COSINE_DIGITS = 6  # about the precision of a sum of float32 products

router = APIRouter(route_class=RoleRoute)


class IndexInfo(BaseModel):
    documents: int
    passages: int = Field(description="The searched parts of documents, at least one per document")
    kind: str
    device: str
    bytes: int
    recall_at_10: float | None
    recall_queries: int | None


class WorkersInfo(BaseModel):
    workers: int
    threads: int = Field(description="Threads of each worker")
    reason: str


class CostInfo(BaseModel):
    """How much the vectors of the current precision differ from those of fp32, measured on fixed texts.

    The texts are the same for every model. The values of int8 come from the version's manifest, because they
    are measured when a version is published. This process measures the values of bf16 and fp16 when it opens
    a version. It then embeds the texts with which publishing verifies a version. Many of them are unusual.
    """

    texts: int
    cosine_mean: float
    cosine_least: float
    same_neighbours: float | None = Field(
        description="Mean share of equal texts among the ten nearest of each text. null: not measured"
    )


class QueryEncoderInfo(CostInfo):
    """The smaller query encoder of a pair. The values compare its vectors with those of the active model."""

    version: str
    fingerprint: str
    form: str


class RerankerInfo(BaseModel):
    version: str
    fingerprint: str
    form: str
    max_input_length: int = Field(description="Tokens of a query and a text together")
    labels: list[str] = Field(description="Names of the outputs, for POST /predict. Empty with one output")
    collections: list[str] = Field(
        description="SIMILE_RERANK_COLLECTIONS, whose searches rerank by default. *: all"
    )


class CacheInfo(BaseModel):
    vectors: int
    bytes: int
    limit_bytes: int


class Info(BaseModel):
    model_config = ConfigDict(protected_namespaces=())
    model_id: str
    model_sha: str
    model_dtype: str
    model_type: dict[str, Any]
    max_input_length: int
    max_batch_tokens: int
    max_client_batch_size: int
    auto_truncate: bool
    tokenization_workers: int
    version: str
    model_version: str
    fingerprint: str
    form: str = Field(description="Precision and runtime, such as fp32/onnxruntime")
    form_cost: CostInfo | None = Field(description="The cost of int8, bf16 or fp16. null for fp32")
    query_encoder: QueryEncoderInfo | None = Field(
        description="Of a pair: the encoder of search queries. null: the model itself"
    )
    reranker: RerankerInfo | None = Field(description="The active reranker. null: there is none")
    dimension: int
    deterministic: bool
    providers: list[str]
    search_mode: Mode | None = Field(
        description="SIMILE_SEARCH_MODE, for searches without a mode. null: the version's learned mode"
    )
    passages: bool = Field(
        description="SIMILE_PASSAGES: long documents are split. false: only their heads are searched"
    )
    live_test: float = Field(
        description="SIMILE_LIVE_TEST: share of the searches that a live test covers. 0: none can be started"
    )
    models_dir: str | None = Field(
        description="The models folder, as an absolute path on the service's machine. null for tenants"
    )
    models_id: str | None = Field(
        description="The unique id of this folder. null if the folder cannot be written"
    )
    threads: int = Field(description="Threads of all workers together")
    single_text_threads: int = Field(
        description="Threads that compute a single text together, after their start"
    )
    workers: WorkersInfo
    cache: CacheInfo | None = Field(
        description="null without one (SIMILE_CACHE_MB=0), and for a key with a scope"
    )
    index: IndexInfo | None = Field(description="null for a key with a scope, as it counts all documents")


@router.get("/info", tags=["models"], **describe(Role.READ, Info, open_to=OpenTo.SCOPED))
async def describe_service_and_model(request: Request, runtime: Service) -> Response:
    """Describe the active model and its engine.

    The answer has the fields of text-embeddings-inference, and more.

    `index.kind` is `exact`, or `IVF,SQ8` for approximate search. For approximate search, `recall_at_10` is
    the share of the ten nearest documents that the latest `recall_queries` searches found. It is null until
    it is measured. `index.device` is the device that searches the largest index: `cpu`, or a GPU such as
    `cuda:0`.
    """
    models_id = await asyncio.to_thread(runtime.store.id)  # Another service may renew it.
    scope = get_scope(request.scope)
    reranked = [name for name in runtime.settings.reranked if scope is None or scope.allows(name)]
    with runtime.active.borrow() as generation:
        manifest, encoder, settings = generation.manifest, generation.encoder, runtime.settings
        largest, cache, layout = generation.indexes.largest, runtime.batcher.cache, runtime.layout
        measured = largest.measured
        answer = {
            "model_id": manifest.origin,
            "model_sha": manifest.fingerprint,
            "model_dtype": DTYPES[encoder.form.precision],
            "model_type": {"embedding": {"pooling": manifest.pooling}},
            "max_input_length": encoder.max_length,
            "max_batch_tokens": runtime.batcher.sizes.batch_tokens,
            "max_client_batch_size": settings.max_inputs,
            "auto_truncate": True,
            "tokenization_workers": layout.workers,
            "version": VERSION,
            "model_version": generation.version,
            "fingerprint": manifest.fingerprint,
            "form": str(encoder.form),
            "form_cost": _cost(encoder),
            "query_encoder": _query_encoder(encoder),
            "reranker": _reranker(runtime.active.reranker, reranked),
            "dimension": encoder.dimension,
            "deterministic": encoder.deterministic,
            "providers": encoder.providers,
            "search_mode": settings.search_mode,
            "passages": settings.passages,
            "live_test": settings.live_test,
            "models_dir": str(runtime.store.root.absolute()),
            "models_id": models_id,
            "threads": layout.workers * layout.threads,
            "single_text_threads": runtime.batcher.single_text.threads if encoder.opens_single_text else 1,
            "workers": layout._asdict(),
            "cache": None
            if cache is None
            else {"vectors": len(cache), "bytes": cache.nbytes, "limit_bytes": cache.limit_bytes},
            "index": {
                "documents": generation.indexes.documents,
                "passages": generation.indexes.rows,
                "kind": largest.kind,
                "device": largest.device,
                "bytes": generation.indexes.nbytes,
                "recall_at_10": measured and round(measured.recall, 4),
                "recall_queries": measured and measured.queries,
            },
        }
    hidden: dict[str, Any] = {} if scope is None else dict.fromkeys(("cache", "index", "models_dir"))
    return json_response(answer | hidden)


def _reranker(active: ActiveReranker, collections: Sequence[str]) -> dict[str, Any] | None:
    if active.current is None:
        return None
    reranker = active.current.reranker
    return {
        "version": reranker.manifest.version,
        "fingerprint": reranker.manifest.fingerprint,
        "form": str(reranker.form),
        "max_input_length": reranker.max_length,
        "labels": reranker.manifest.labels,
        "collections": collections,
    }


def _query_encoder(encoder: Encoder) -> dict[str, Any] | None:
    said = encoder.manifest.query_encoder
    if said is None or encoder.queries is None:
        return None
    more = {"texts": said.measured_on, "form": str(encoder.queries.form)}
    return said.model_dump(exclude={"measured_on"}) | more


def _cost(encoder: Encoder) -> dict[str, Any] | None:
    published, turned = encoder.manifest.quantised, encoder.turned
    if encoder.form.precision == "int8" and published is not None:
        measured = published.model_dump(exclude={"calibrated_on", "measured_on"})
        return measured | {"texts": published.measured_on}
    if turned is None:
        return None
    mean, least = round(turned.mean, COSINE_DIGITS), round(turned.least, COSINE_DIGITS)
    return {"texts": turned.texts, "cosine_mean": mean, "cosine_least": least, "same_neighbours": None}


class ScopeOut(BaseModel):
    collections: list[str] = Field(description="Names of collections, and prefixes that end with *")
    filter: dict[str, str | float | bool] = Field(description="Metadata of all documents that the key sees")
    max_documents: int | None
    max_bytes: int | None
    max_collections: int | None


class Caller(BaseModel):
    name: str | None = Field(description="The name of the key. null on a service without keys")
    role: Role = Field(description="admin on a service without keys")
    scope: ScopeOut | None = Field(description="null: the key sees everything")


@router.get("/me", tags=["operation"], **describe(Role.READ, Caller, open_to=OpenTo.SCOPED))
async def show_key(request: Request) -> Response:
    """Return the name, the role and the scope of the API key that was sent."""
    check_parameters(request)
    account: Account | None = request.scope.get("account")
    name, role = (None, Role.ADMIN) if account is None else (account.key.name, account.key.role)
    scope = get_scope(request.scope)
    shown = None if scope is None else collect_fields(ScopeOut, scope, filter=scope.conditions)
    return json_response({"name": name, "role": role, "scope": shown})


class Health(BaseModel):
    model_config = ConfigDict(protected_namespaces=())
    status: Literal["healthy"]
    model_version: str


class Ready(BaseModel):
    status: Literal["ready"]


@router.get("/health", tags=["operation"], **describe(None, Health))
async def check_health(request: Request) -> Response:
    """Answer 200 if a forward pass succeeded after the last failure and no part of the service hangs.

    The answer takes less than a second.
    """
    runtime: Runtime = request.app.state.runtime
    illness = await runtime.health.ask()
    if illness is not None:
        raise Unhealthy(f"Unhealthy: {illness}", retry_after_seconds=5)
    return json_response({"status": "healthy", "model_version": runtime.active.generation.version})


@router.get("/ready", tags=["operation"], **describe(None, Ready))
async def check_readiness(request: Request) -> Response:
    """Answer 200 while the service accepts work and the index is complete.

    Otherwise the answer is 503 with the reason and the progress.
    """
    runtime: Runtime = request.app.state.runtime
    red = runtime.readiness.check()
    if red is not None:
        raise Unhealthy(red.message, retry_after_seconds=1)
    return json_response({"status": "ready"})


@router.get("/metrics", tags=["operation"], **describe(None, also=["text/plain"]))
async def read_metrics(request: Request) -> Response:
    """Return metrics in Prometheus' text format. docs/METRICS.md lists them.

    If any key has a scope, this needs a key of role read without a scope, because the counts are of all
    tenants.
    """
    access: Access | None = request.app.state.access
    if access is not None and access.has_scopes:
        access.admit(request.scope, Role.READ)
    text = await asyncio.to_thread(request.app.state.runtime.scrape)  # off the event loop
    return Response(text, headers={"content-type": CONTENT_TYPE_LATEST})


class Example(BaseModel):
    id: str
    text: str
    metadata: dict[str, Any]


class Examples(BaseModel):
    documents: list[Example]


@router.get("/examples", tags=["documents"], **describe(Role.READ, Examples, open_to=OpenTo.SCOPED))
async def read_example_texts(request: Request) -> Response:
    """Return a few hundred short texts to try the search with. Each has `metadata.example = true`."""
    check_parameters(request)
    return json_response({"documents": await asyncio.to_thread(example_rows)})
