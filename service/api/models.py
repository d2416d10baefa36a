"""Routes for model versions, reports of the promotion gate, and retrainings."""

import asyncio
import contextlib
import re
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import PurePosixPath
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query, Request
from pydantic import BaseModel, Field, RootModel
from starlette.responses import Response

from models.errors import Damaged, DamagedRequest, UnknownVersion, Unreadable, WrongKind
from models.files.retrainings import NO_TRAINER, read_refused, request_run, schedule_state
from models.manifest import (
    REPORT,
    REPORT_PAGE,
    Manifest,
    ModelKind,
    is_version,
    read_manifest,
    require_kind,
)
from models.store import ModelStore, RequestedReranker
from service.api.openapi import OpenTo, Role, describe
from service.auth.access import get_scope
from service.auth.audit import audit
from service.errors import Conflict, NotFound, Storage
from service.http.bodies import json_response
from service.http.routing import RoleRoute
from service.lifecycle.controller import as_state
from service.lifecycle.live_tests import LiveTest
from service.lifecycle.live_tests import describe as describe_test
from service.lifecycle.sequential import Standing
from service.runtime.runtime import Runtime, Service

MAX_SECONDS = 86_400  # longest time that the `keep` route accepts
_FILE = re.compile(r"[A-Za-z0-9_-]{1,64}\.[a-z]{1,8}")
_IN_MEMORY = {"active", "building", "ready"}
_PAGES = {
    ".md": "text/markdown; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".svg": "image/svg+xml",
    ".jsonl": "application/x-ndjson",
}

# Forbids scripts, other hosts, forms and frames. The report contains its own styles.
REPORT_POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)

router = APIRouter(route_class=RoleRoute, tags=["models"])


class CanaryInCollection(BaseModel):
    collection: str
    queries: int
    overlap_at_10: float


class CanaryOut(BaseModel):
    queries: int
    overlap_at_10: float
    collections: list[CanaryInCollection] = Field(
        [], description="Those with the lowest overlap, lowest first"
    )


class LiveTestOut(BaseModel):
    version: str = Field(description="The candidate")
    active: str = Field(description="The version that it is compared with")
    collections: list[str] = Field(description="Collections in which their searches differ")
    state: Literal["preparing", "running", "accepted", "rejected", "stopped"] = Field(
        description="Preparing: the candidate's vectors are being built"
    )
    says: str = Field(description="The state as a sentence")
    wins: int = Field(description="Decided searches that the candidate wins")
    decided: int = Field(description="Searches that count")
    started: str
    ended: str | None


class Listed(BaseModel):
    version: str
    kind: ModelKind | None = Field(description="A reranker scores pairs of texts. null: unreadable")
    fingerprint: str | None
    query_encoder: str | None = Field(description="Of a pair: the version that encodes the queries")
    state: Literal["candidate", "refused", "building", "ready", "active", "retired", "failed"]
    done: int | None
    total: int | None
    eta_seconds: float | None
    reason: str | None
    canary: CanaryOut | None
    created: str | None
    parent: str | None
    scores: dict[str, Any]
    gate: str | None
    loaded: bool = Field(description="Whether x-model-version can name it. A reranker: on POST /rerank only")
    live_test: LiveTestOut | None = Field(description="The last live test, if it was of this version")


class RerankerInUse(BaseModel):
    active: str | None
    wanted: str | None
    previous: str | None = Field(description="For POST /models/rollback?kind=reranker")
    reason: str | None = Field(description="Why the wanted one is not active")


class ModelsAnswer(BaseModel):
    active: str
    wanted: str | None
    reranker: RerankerInUse
    models: list[Listed]
    schedule: dict[str, Any] | None


class Requested(BaseModel):
    wanted: str


class Deactivated(BaseModel):
    wanted: None
    previous: str | None = Field(description="For POST /models/rollback?kind=reranker")


class Retraining(BaseModel):
    state: Literal["running", "requested", "waiting", "overdue", "stopped"]
    says: str = Field(description="The state as a sentence")
    trainer: bool = Field(description="Whether a schedule runs on the models folder")
    requested: dict[str, Any] | None = Field(description="Time of a request that has not begun (`at`)")
    running: dict[str, Any] | None = Field(
        description="Start of the run, and `why` it began: clock, documents or request"
    )
    progress: dict[str, Any] | None = Field(description="Of the running retraining, as in GET /models")
    last_run: dict[str, Any] | None = Field(
        description="Start, end, `outcome`, its `reason`, and the end of the output (`said`)"
    )
    next_run: str | None
    gains: list[dict[str, Any]] = Field(
        description="Of the ranking or search settings that were refused last, as in a report"
    )


class Report(RootModel[dict[str, Any]]):
    """The report of the promotion gate about a version."""


@router.get("/models", **describe(Role.READ, ModelsAnswer, open_to=OpenTo.SCOPED))
async def list_versions_and_their_states(request: Request, runtime: Service) -> Response:
    """List every published version and its state.

    `done` and `total` count documents while a version is built.

    `eta_seconds` estimates the rest of a build from its recent rate. It is null while the rate is unknown.
    When a version becomes ready, its answers are compared with those of the active version. `canary` has the
    number of queries and the mean share of common ids in the first ten hits, over all collections and in each
    of the 20 collections with the lowest share. It is null if no answers were compared.
    `schedule` has the last and the next retraining, the schedule's `state` (running, requested, waiting,
    stopped or overdue) and the state as a sentence (`says`). It is null without a schedule. Its `progress`
    describes the running retraining, which the schedule or an operator started: its activity (`doing`),
    `step` of `steps`, the `eta_seconds` of the training, and the curves `loss` and `dev` as [step, value].

    For a key with a scope, what could tell of others' documents is empty or null: `done`, `total`,
    `eta_seconds`, `reason`, `canary`, `scores`, `live_test` and `schedule`.
    """
    listed, wanted, schedule = await _list_versions(request, runtime)
    reranker, requested = runtime.active.reranker, runtime.rerankers.requested
    in_use = {
        "active": reranker.version,
        "wanted": requested.version,
        "previous": requested.previous,
        "reason": None if get_scope(request.scope) else reranker.trouble or None,
    }
    answer = {"active": runtime.active.generation.version, "wanted": wanted, "models": listed}
    return json_response(answer | {"reranker": in_use, "schedule": schedule})


@router.get("/models/{version}", **describe(Role.READ, Listed, open_to=OpenTo.SCOPED, raises=[NotFound]))
async def read_version(request: Request, runtime: Service, version: str) -> Response:
    """Return the entry of a version in `GET /models`."""
    listed, _, _ = await _list_versions(request, runtime)
    for shown in listed:
        if shown["version"] == version:
            return json_response(shown)
    raise NotFound(f"There is no version {version[:100]!r}. GET /models lists the versions.")


async def _list_versions(
    request: Request, runtime: Runtime
) -> tuple[list[dict[str, Any]], str | None, dict[str, Any] | None]:
    """Returns all versions, the requested version and the schedule, limited to what the key may see."""
    manifests, problems, wanted, schedule, away = await asyncio.to_thread(_look, runtime.store)
    states = await runtime.controller.states() | runtime.controller.reranker_states()
    listed = [_listed(manifest, states.get(manifest.version)) for manifest in manifests]
    listed += [
        _unread(name, reason, states.get(name)) for name, reason in problems.items() if is_version(name)
    ]
    there = {shown["version"] for shown in listed}
    trouble = away or runtime.controller.trouble or "its folder is not there now"
    listed += [  # versions in memory that the models folder does not list
        _unread(version, trouble, state)
        for version, state in states.items()
        if version not in there and state["state"] in _IN_MEMORY
    ]
    loaded = {generation.version for generation in runtime.active.generations}
    loaded |= {runtime.active.reranker.version or ""}
    test = await runtime.live_tests.find_last()
    candidate, tested = (test[0].candidate, _show_test(runtime, *test)) if test is not None else ("", None)
    listed = [
        shown
        | {
            "loaded": shown["version"] in loaded,
            "live_test": tested if shown["version"] == candidate else None,
        }
        for shown in listed
    ]
    if get_scope(request.scope) is None:
        return listed, wanted, schedule
    shared = ("done", "total", "eta_seconds", "reason", "canary", "live_test")
    hidden = dict.fromkeys(shared) | {"scores": {}}
    return [shown | hidden for shown in listed], wanted, None


def _look(
    store: ModelStore,
) -> tuple[list[Manifest], dict[str, str], str | None, dict[str, Any] | None, str | None]:
    """Returns manifests, problems, requested version and schedule, or why the folder cannot be read."""
    try:
        schedule = schedule_state(store.root, datetime.now(UTC))
        return store.versions(), store.problems(), store.requested(), schedule, None
    except OSError as error:
        return [], {}, None, None, f"the models folder cannot be read now ({error.strerror or error})"


def _listed(manifest: Manifest, state: dict[str, Any] | None) -> dict[str, Any]:
    gate = manifest.gate
    if state is None:
        refused = gate is not None and gate.verdict == "refused"
        state = as_state("refused" if refused else "candidate")
        if gate is not None and refused:
            state["reason"] = gate.reason
    return {
        "version": manifest.version,
        "kind": manifest.kind,
        "fingerprint": manifest.fingerprint,
        "query_encoder": manifest.query_encoder and manifest.query_encoder.version,
        **state,
        "created": manifest.created,
        "parent": manifest.parent,
        "scores": manifest.scores,
        "gate": None if gate is None else gate.mode,
    }


def _unread(name: str, reason: str, state: dict[str, Any] | None) -> dict[str, Any]:
    """Returns the list entry of a version whose manifest cannot be read.

    The version may still be loaded in memory.
    """
    absent = dict.fromkeys(("kind", "fingerprint", "query_encoder", "created", "parent", "gate"))
    state = dict(state or as_state("failed"))
    state["reason"] = state["reason"] or reason
    return {"version": name, **absent, **state, "scores": {}}


@router.get("/models/{version}/report", **describe(Role.READ, Report, raises=[NotFound]))
async def read_report(runtime: Service, version: str) -> Response:
    """Return the promotion gate's measurements of a version, and the verdict."""
    content = await _of_report(runtime, version, REPORT)
    return Response(content, headers={"content-type": "application/json"})


@router.get(
    "/models/{version}/report/{file}",
    **describe(Role.READ, raises=[NotFound], also=[kind.partition(";")[0] for kind in _PAGES.values()]),
)
async def read_report_page(runtime: Service, version: str, file: str) -> Response:
    """Return a file of the report.

    `report.md` has separate pictures, and `report.html` has everything in one file. `answers.jsonl` contains
    the answers of both versions to each judged query.
    """
    kind = _PAGES.get(PurePosixPath(file).suffix)
    if kind is None or not _FILE.fullmatch(file):
        raise NotFound(
            f"A report has no file {file[:100]!r}. It has report.md, report.html, answers.jsonl, and the "
            "pictures named there."
        )
    content = await _of_report(runtime, version, f"{REPORT_PAGE}/{file}")
    # A name in the report may contain markup. It must not run.
    return Response(content, headers={"content-type": kind, "content-security-policy": REPORT_POLICY})


async def _of_report(runtime: Runtime, version: str, path: str) -> bytes:
    with _refusing(version):
        folder = await asyncio.to_thread(runtime.store.folder, version)
    try:
        return await asyncio.to_thread((folder / path).read_bytes)
    except FileNotFoundError as error:
        raise NotFound(f"There is no {path} of {version}: it came here without a promotion gate.") from error


_REQUEST_ERRORS = (NotFound, Conflict, Storage)


class RollbackParameters(BaseModel):
    kind: ModelKind = "encoder"


@router.post(
    "/models/{version}/activate",
    status_code=202,
    **describe(Role.ADMIN, Requested, statuses=(200, 202), raises=_REQUEST_ERRORS),
)
async def activate_version(request: Request, runtime: Service, version: str) -> Response:
    """Request that a version becomes active.

    The answer is 202, and `GET /models` shows the progress. If the version is already active, the answer is
    200. A reranker becomes the active reranker. The active encoder stays.
    """
    with _refusing(version):
        manifest = await asyncio.to_thread(lambda: read_manifest(runtime.store.folder(version)))
    if manifest.kind == "reranker":
        await _request_reranker(runtime, version)
        audit("activate", request.scope, version=version)
        status = 200 if version == runtime.active.reranker.version else 202
        return json_response({"wanted": version}, status=status)
    served = version == runtime.active.generation.version
    # A request for the active version cancels the build of another version. The models folder may name
    # another version that the controller does not consider yet (Controller.requested).
    others: set[str | None] = set()
    if served:
        requested = await runtime.controller.requested()
        others = {requested and requested.version, await asyncio.to_thread(runtime.store.requested)}
        others -= {None, version}
    if not served or others:
        with _refusing(version):
            await runtime.controller.request(version, "activate")
    audit("activate", request.scope, version=version)
    return json_response({"wanted": version}, status=200 if served else 202)


@router.post(
    "/models/rollback",
    status_code=202,
    **describe(Role.ADMIN, Requested, statuses=[202], raises=_REQUEST_ERRORS),
)
async def go_back_to_the_previous_version(
    request: Request, runtime: Service, params: Annotated[RollbackParameters, Query()]
) -> Response:
    """Return to the previous version. The service does not activate the current version again by itself.

    With `kind=reranker`, return to the previous reranker.
    """
    if params.kind == "reranker":
        with _refusing(""):
            version = (await asyncio.to_thread(runtime.store.requested_reranker)).previous
        if version is None:
            raise Conflict("There is no reranker to go back to.")
        await _request_reranker(runtime, version)
        audit("rollback", request.scope, version=version)
        return json_response({"wanted": version}, status=202)
    back = await runtime.controller.previous()
    if back is None:
        raise Conflict("There is no version to go back to.")
    with _refusing(back):
        await runtime.controller.request(back, "rollback")
    audit("rollback", request.scope, version=back)
    return json_response({"wanted": back}, status=202)


@router.post(
    "/models/deactivate",
    status_code=202,
    **describe(Role.ADMIN, Deactivated, statuses=[202], raises=(Conflict, Storage)),
)
async def deactivate_reranker(request: Request, runtime: Service) -> Response:
    """Serve no reranker. Requests that have begun keep it. The active encoder stays."""
    with _refusing(""), contextlib.suppress(DamagedRequest):  # The new request replaces a damaged request.
        if (await asyncio.to_thread(runtime.store.requested_reranker)).version is None:
            raise Conflict("No reranker is requested, so there is none to deactivate.")
    requested = await _request_reranker(runtime, None)
    audit("deactivate", request.scope)
    return json_response({"wanted": None, "previous": requested.previous}, status=202)


async def _request_reranker(runtime: Runtime, version: str | None) -> RequestedReranker:
    with _refusing(version or ""):
        requested = await asyncio.to_thread(runtime.store.request_reranker, version)
    runtime.rerankers.retry(version)
    return requested


class KeepParameters(BaseModel):
    seconds: int = Field(3600, ge=0, le=MAX_SECONDS, description="From now on. 0 releases the version")


class Kept(BaseModel):
    version: str
    seconds: int
    loaded: bool = Field(description="Whether it is loaded. GET /models shows the progress")


@router.post(
    "/models/{version}/keep",
    status_code=202,
    **describe(Role.ADMIN, Kept, statuses=(200, 202), raises=_REQUEST_ERRORS),
)
async def keep_version(
    request: Request, runtime: Service, version: str, params: Annotated[KeepParameters, Query()]
) -> Response:
    """Load a version without activating it, so that requests can select it with the header `x-model-version`.

    The answer is 200 if the version is loaded, otherwise 202. Missing vectors are embedded in the background,
    as before an activation. The version takes as much memory as an active version. Only one version is loaded
    in this way: the latest one that was requested here. A version that is requested for activation, or that a
    live test needs, replaces it.
    """
    with _refusing(version):
        await asyncio.to_thread(lambda: require_kind(read_manifest(runtime.store.folder(version)), "encoder"))
    loaded = runtime.controller.keep(version, params.seconds)
    audit("keep", request.scope, version=version)
    answer = {"version": version, "seconds": params.seconds, "loaded": loaded}
    return json_response(answer, status=200 if loaded else 202)


@router.post(
    "/models/{version}/test",
    status_code=201,
    **describe(Role.ADMIN, LiveTestOut, statuses=[201], raises=_REQUEST_ERRORS),
)
async def start_live_test(request: Request, runtime: Service, version: str) -> Response:
    """Start a live test of a version.

    A share of the searches (`SIMILE_LIVE_TEST`) shows hits of both versions in turn. Clicks decide: the
    version becomes active, or the active version stays. One test runs at a time. It ends if another version
    becomes active, or if a collection of it is deleted.

    For another encoder, the test is `preparing` while missing vectors are embedded in the background, as
    before an activation. It takes the memory of an active version, without which the answer is 507.
    """
    with _refusing(version):
        test = await runtime.live_tests.start(version)
    audit("test", request.scope, version=version)
    return json_response(_show_test(runtime, test, Standing()), status=201)


@router.get("/models/{version}/test", **describe(Role.READ, LiveTestOut, raises=[NotFound]))
async def read_live_test(runtime: Service, version: str) -> Response:
    """Return how the last live test stands or ended, if it was of this version."""
    return json_response(_show_test(runtime, *await runtime.live_tests.get(version)))


@router.delete("/models/{version}/test", **describe(Role.ADMIN, LiveTestOut, raises=[NotFound, Storage]))
async def stop_live_test(request: Request, runtime: Service, version: str) -> Response:
    """Stop the live test of a version. The active version stays."""
    test = await runtime.live_tests.stop(version)
    audit("stop-test", request.scope, version=version)
    return json_response(_show_test(runtime, test, Standing(test.wins, test.decided)))


def _show_test(runtime: Runtime, test: LiveTest, standing: Standing) -> dict[str, Any]:
    def show_time(at: float | None) -> str | None:
        return None if at is None else datetime.fromtimestamp(at, UTC).isoformat(timespec="seconds")

    return {
        "version": test.candidate,
        "active": test.active,
        "collections": test.collections,
        "state": test.state,
        "says": describe_test(test, standing, runtime.live_tests.find_pause(test)),
        "wins": standing.wins,
        "decided": standing.decided,
        "started": show_time(test.started),
        "ended": show_time(test.ended),
    }


@router.get("/retraining", **describe(Role.READ, Retraining))
async def read_retraining(runtime: Service) -> Response:
    """Return the state of the retraining: its progress, the last outcome, and the next run."""
    return json_response(await asyncio.to_thread(_look_at_retraining, runtime.store))


@router.post(
    "/retraining",
    status_code=202,
    **describe(Role.ADMIN, Retraining, statuses=[202], raises=[Conflict, Storage]),
)
async def retrain_now(request: Request, runtime: Service) -> Response:
    """Request a retraining from the trainer, which begins within seconds.

    The answer is 409 if a retraining is requested or running, or if no trainer runs.
    """
    found = await asyncio.to_thread(_look_at_retraining, runtime.store)
    if found["state"] in {"running", "requested"}:
        raise Conflict(f"{found['says']} GET /retraining shows its progress.")
    if not found["trainer"]:
        raise Conflict(found["says"])
    try:
        await asyncio.to_thread(request_run, runtime.store.root)
    except FileExistsError as error:
        raise Conflict("A retraining was requested already. GET /retraining shows its progress.") from error
    except OSError as error:
        raise Storage(f"The models folder cannot be used ({error}). Repair it, then ask again.") from error
    audit("retrain", request.scope)
    return json_response(await asyncio.to_thread(_look_at_retraining, runtime.store), status=202)


def _look_at_retraining(store: ModelStore) -> dict[str, Any]:
    state = schedule_state(store.root, datetime.now(UTC))
    found = state or {"state": "stopped", "says": NO_TRAINER, "trainer": False}
    return {name: found.get(name) for name in Retraining.model_fields} | {"gains": read_refused(store.root)}


@contextlib.contextmanager
def _refusing(version: str) -> Iterator[None]:
    """Turns errors of the model store into errors of the service.

    Raises:
        NotFound: The version does not exist.
        Conflict: The version, or the request for a reranker, is damaged.
        Storage: The models folder or the version cannot be read or written.

    """
    try:
        yield
    except UnknownVersion as error:
        raise NotFound(f"There is no version {version[:100]!r}. GET /models lists them.") from error
    except (Damaged, DamagedRequest, WrongKind) as error:
        raise Conflict(str(error)) from error
    except Unreadable as error:
        raise Storage(f"{error} Repair it, then ask again.") from error
    except OSError as error:
        raise Storage(f"The models folder cannot be used ({error}). Repair it, then ask again.") from error
