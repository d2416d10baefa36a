"""What is served, and which versions there are."""

from importlib.metadata import version as package_version
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from service.activation import form
from service.api.body import Direct, Role, describe
from service.api.inference import json_response, runtime_of
from service.errors import NotFound
from service.lanes import BATCH_TOKENS

router = APIRouter(route_class=Direct, tags=["models"])


@router.get("/info", **describe(Role.READ))
async def info(request: Request) -> Response:
    """The model in service and how it runs; text-embeddings-inference's keys and our own."""
    runtime = runtime_of(request)
    with runtime.live.borrow() as generation:
        manifest, encoder, settings = generation.manifest, generation.encoder, runtime.settings
        answer = {
            "model_id": manifest.origin,
            "model_sha": manifest.fingerprint,
            "model_dtype": "float32",
            "model_type": {"embedding": {"pooling": manifest.pooling}},
            "max_input_length": encoder.max_length,
            "max_batch_tokens": BATCH_TOKENS,
            "max_client_batch_size": settings.max_inputs,
            "auto_truncate": True,
            "tokenization_workers": runtime.workers,
            "version": package_version("simile"),
            "model_version": generation.version,
            "fingerprint": manifest.fingerprint,
            "form": form(manifest),
            "dimension": encoder.dimension,
            "providers": encoder.providers,
            "threads": runtime.workers,
            "index": {"documents": len(generation.index), "kind": "exact", "bytes": generation.index.nbytes},
        }
    return json_response(answer)


@router.get("/models", **describe(Role.READ))
async def models(request: Request) -> Response:
    """Every published version and its state."""
    runtime = runtime_of(request)
    active = runtime.live.generation.version
    listed: list[dict[str, Any]] = [
        {
            "version": manifest.version,
            "fingerprint": manifest.fingerprint,
            "state": "active" if manifest.version == active else "candidate",
            "done": None,
            "total": None,
            "reason": None,
            "created": manifest.created,
            "parent": manifest.parent,
            "scores": manifest.scores,
        }
        for manifest in runtime.store.versions()
    ]
    return json_response({"active": active, "wanted": runtime.store.wanted(), "models": listed})


@router.get("/models/{version}/report", **describe(Role.READ))
async def report(request: Request, version: str) -> Response:
    """The report of a version's promotion gate; no version has one until retraining is built."""
    raise NotFound(f"There is no report of {version[:100]!r}: it came here without a promotion gate.")
