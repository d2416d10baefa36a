"""`simile models COMMAND`: manages the published versions of a models folder. Start at `main`.

`activate` and `rollback` only write a request. The service reads the request, builds the index of the
requested version, and makes that version active.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from models.errors import DamagedRequest, InUse, ModelError, UnknownVersion, denied, not_installed
from models.messages import (
    Parser,
    add_version,
    did_you_mean,
    discard_output,
    format_table,
    positive,
)

try:
    from models import cpus
    from models.bulk.command import add_command as add_embed
    from models.files.retrainings import schedule_state
    from models.graph.head import POOLINGS
    from models.manifest import Manifest, read_manifest
    from models.progress import step_to_stderr
    from models.publishing.limited import MAX_SECONDS, MEMORY_FACTOR, MIN_MB, Limits, publish_limited
    from models.publishing.pair import pair
    from models.publishing.proof import check_golden
    from models.publishing.publish import quantize
    from models.publishing.scores import check_golden_scores
    from models.sources.folder import LONGEST, NO_OVERRIDES, Overrides
    from models.store import ModelStore, RequestedReranker, activate_command, models_dir
except ModuleNotFoundError as missing:
    sys.exit(not_installed(missing))

REASON_CHARACTERS = 60  # Limit of a reason in the table; `--json` and `show` print all of it.
_HEADS = ("VERSION", "PUBLISHED", "STATE", "SCORE", "VERDICT")


PROG = "python -m models"


def main(
    arguments: Sequence[str] | None = None, environ: Mapping[str, str] = os.environ, prog: str = PROG
) -> int:
    """Runs a command. `prog` is the program as the user typed it. Returns the exit status."""
    options = parser(environ, prog).parse_args(arguments)
    store = ModelStore(options.models_dir)
    try:
        options.run(store, options)
        print(end="", flush=True)  # Otherwise a closed pipe is an error when Python ends, with status 120.
    except BrokenPipeError:  # For example with `| head`. The rest of the output is dropped.
        discard_output()
        return 1
    except KeyboardInterrupt:
        print("Stopped.", file=sys.stderr)
        return 130
    except UnknownVersion as error:
        hint = did_you_mean(error.version, store.names())
        said = f"{error}{hint} `simile models list` shows them."
    except ModelError as error:
        said = str(error)
    except OSError as error:
        said = denied(error, options.models_dir)
    else:
        return 0
    print(f"{prog}: {said}", file=sys.stderr)
    return 1


def parser(environ: Mapping[str, str] = os.environ, prog: str = PROG) -> argparse.ArgumentParser:
    parser = Parser(prog=prog, description="Published versions of embedding models.")
    add_version(parser)
    place: dict[str, Any] = {
        "type": Path,
        "help": "where the versions are (SIMILE_MODELS_DIR, else SIMILE_DATA_DIR/models; now "
        f"{models_dir(environ)})",
    }
    parser.add_argument("--models-dir", default=models_dir(environ), **place)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    command = commands.add_parser(
        "import", help="publish an encoder or a reranker, after verifying that it computes correctly"
    )
    command.add_argument(
        "source",
        metavar="FOLDER_OR_HUB_ID",
        help="`default`, a hub id, or a sentence-transformers or Hugging Face folder. A cross-encoder is "
        "published as a reranker",
    )
    command.add_argument(
        "--name", default="", help="the middle part of the version's name (default: the source's)"
    )
    command.add_argument(
        "--pooling",
        choices=POOLINGS,
        action="append",
        default=[],
        help="pooling of a folder without modules.json (default: mean); several are concatenated. A "
        "classifier is then published as an encoder",
    )
    command.add_argument(
        "--max-length",
        type=positive,
        metavar="N",
        help=f"tokens of the longest text (default: the folder's limit, else {LONGEST})",
    )
    command.add_argument(
        "--prompt",
        type=_prompt,
        action="append",
        default=[],
        metavar="NAME=TEXT",
        help="add a prompt to those of the folder; search uses `query` and `document`",
    )
    command.add_argument(
        "--max-seconds",
        type=positive,
        default=0,
        metavar="N",
        help=f"end an import that takes longer (default: {MAX_SECONDS}); a download does not count",
    )
    command.add_argument(
        "--max-memory",
        type=positive,
        default=0,
        metavar="MIB",
        help=f"end an import that takes more memory (default: {MIN_MB}, and {MEMORY_FACTOR} times the "
        "folder's size)",
    )
    command.add_argument(
        "--int8",
        action="store_true",
        default=environ.get("SIMILE_PRECISION") in {"int8", "auto"},
        help="add an int8 graph (half a minute; the default if SIMILE_PRECISION is int8 or auto)",
    )
    command.set_defaults(run=_import)
    command = commands.add_parser(
        "pair",
        help="publish a version with a student that encodes the queries of searches",
        description="Documents keep the version's vectors, so nothing is embedded again. Nothing serves the "
        "pair until it is activated.",
    )
    command.add_argument("version", metavar="VERSION", help="the teacher, which encodes documents")
    command.add_argument(
        "student", metavar="STUDENT", help="trained from it: `simile train distil --base VERSION`"
    )
    command.set_defaults(run=_pair)
    add_embed(commands, environ)
    command = commands.add_parser("list", help="every version, oldest first: its state, score and verdict")
    command.add_argument("--json", action="store_true", help="for programs, with each reason in full")
    command.set_defaults(run=_list)
    for name, run, text in (
        ("show", _show, "print a version's manifest"),
        ("verify", _verify, "check every file of a version and compute its golden results again"),
        ("quantize", _quantize, "publish a version again with an int8 graph, for SIMILE_PRECISION=int8"),
        (
            "activate",
            _activate,
            "verify a version and request it: the service builds its index and swaps, or adds the reranker",
        ),
    ):
        command = commands.add_parser(name, help=text)
        command.add_argument("version", metavar="VERSION")
        command.set_defaults(run=run)
    command = commands.add_parser("prune", help="delete versions that nothing needs any more")
    command.add_argument("versions", metavar="VERSION", nargs="*", help="the versions to delete")
    command.add_argument("--keep", type=int, metavar="N", help="delete all but the newest N and those in use")
    command.set_defaults(run=_prune)
    command = commands.add_parser("deactivate", help="serve no reranker any more")
    command.set_defaults(run=_deactivate)
    command = commands.add_parser("rollback", help="go back to the previous version")
    command.add_argument("--reranker", action="store_true", help="go back to the previous reranker")
    command.set_defaults(run=_rollback)
    for command in commands.choices.values():
        command.add_argument("--models-dir", default=argparse.SUPPRESS, **place)
    return parser


def _import(store: ModelStore, options: argparse.Namespace) -> None:
    known = {manifest.version for manifest in store.versions()}
    overrides = Overrides(tuple(options.pooling), options.max_length, dict(options.prompt))
    if options.source == "default" and overrides != NO_OVERRIDES:
        raise ModelError(
            "`default` brings its own pooling, length and prompts. Leave --pooling, --max-length and "
            "--prompt out, or name a folder."
        )
    limits = Limits(options.max_seconds, options.max_memory)
    manifest = publish_limited(
        store,
        options.source,
        options.name,
        step_to_stderr,
        overrides=overrides,
        int8=options.int8,
        limits=limits,
    )
    print(
        f"{manifest.version} {'was published before' if manifest.version in known else 'published'}. "
        f"`{activate_command(store.root, manifest.version)}` serves it."
    )


def _prompt(text: str) -> tuple[str, str]:
    name, found, prompt = text.partition("=")
    if not name or not found:
        raise argparse.ArgumentTypeError(f"{text!r} must be NAME=TEXT, as query='query: '")
    return name, prompt


def _pair(store: ModelStore, options: argparse.Namespace) -> None:
    known = {manifest.version for manifest in store.versions()}
    manifest = pair(store, options.version, options.student, step_to_stderr)
    if found := manifest.query_encoder:
        print(
            f"{manifest.version} {'was published before' if manifest.version in known else 'published'}: the "
            f"student's queries have a mean cosine of {found.cosine_mean:.3f} to the teacher's, and "
            f"{found.same_neighbours:.0%} of the ten nearest texts are the same. "
            f"`simile models activate {manifest.version}` serves it."
        )


def _list(store: ModelStore, options: argparse.Namespace) -> None:
    found = listed(store, datetime.now(UTC))
    print(json.dumps(found, indent=2, ensure_ascii=False) if options.json else table(found, store.root))


def _show(store: ModelStore, options: argparse.Namespace) -> None:
    print(read_manifest(store.folder(options.version)).text(), end="")


def _verify(store: ModelStore, options: argparse.Namespace) -> Manifest:
    version, threads = options.version, cpus.available()
    folder = store.folder(version)
    manifest = read_manifest(folder)
    step_to_stderr("checking every file")
    if manifest.kind == "reranker":
        reranker = store.open_reranker(version, threads=threads)
        step_to_stderr("computing the golden scores again")
        what, worst = "scores", check_golden_scores(reranker, folder)
    else:
        encoder = store.open(version, threads=threads)
        step_to_stderr("computing the golden vectors again")
        what, worst = "vectors", check_golden(encoder, folder)
    print(f"{version} is whole: {len(manifest.files)} files, golden {what} within {worst:.1g}")
    return manifest


def _quantize(store: ModelStore, options: argparse.Namespace) -> None:
    manifest = quantize(store, options.version, step_to_stderr)
    if manifest.version == options.version:
        print(f"{options.version} has an int8 graph already.")
    else:
        print(f"{manifest.version} published. `simile models activate {manifest.version}` serves it.")


def _activate(store: ModelStore, options: argparse.Namespace) -> None:
    if _verify(store, options).kind == "reranker":
        store.request_reranker(options.version)
        print(
            f"The service opens {options.version} and then reranks with it, beside its encoder. If no "
            "service runs, the next start does. `simile models deactivate` ends that."
        )
        return
    store.request(options.version, "activate")
    print(
        f"The service builds an index for {options.version} and then activates it. If no service runs, "
        "the next start does. `simile models list` or GET /models shows the progress."
    )


def _deactivate(store: ModelStore, options: argparse.Namespace) -> None:
    try:
        before = store.requested_reranker().version
    except DamagedRequest:
        before = "the active reranker"
    if before is None:
        raise ModelError("No reranker is requested, so there is none to deactivate.")
    store.request_reranker(None)
    print(
        f"The service closes {before} and serves no reranker. `simile models rollback --reranker` "
        "activates it again."
    )


def _rollback(store: ModelStore, options: argparse.Namespace) -> None:
    if options.reranker:
        _rollback_reranker(store)
        return
    state = store.read_state()
    back, active = state.get("previous"), state.get("live")
    if not back:
        raise ModelError(
            "There is no version to go back to: the service has served only one, or the previous version was "
            "deleted. `simile models list` shows the published versions."
        )
    store.request(back, "rollback")
    print(
        f"The service goes back to {back}: at once while it is still loaded (SIMILE_GRACE_SECONDS after a "
        f"swap), else when its index is ready. Search keeps working.\n"
        f"Documents and judgments stay as they are. {active} stays on disk until you prune it. To activate "
        f"it again: `simile models activate {active}`."
    )


def _rollback_reranker(store: ModelStore) -> None:
    requested = store.requested_reranker()
    if requested.previous is None:
        raise ModelError(
            "There is no reranker to go back to: at most one was activated. `simile models list` shows "
            "the published versions, and `simile models deactivate` ends the reranking."
        )
    store.request_reranker(requested.previous)
    print(f"The service goes back to the reranker {requested.previous}.")


def _prune(store: ModelStore, options: argparse.Namespace) -> None:
    """Deletes versions. A named version in use is an error; with --keep, versions in use are skipped."""
    if bool(options.versions) == (options.keep is not None):
        raise ModelError("Name the versions to prune, or set how many to --keep.")
    if options.versions:
        for version in options.versions:
            store.prune(version)
            print(f"{version} is deleted")
        return
    if options.keep < 0:
        raise ModelError("--keep must be 0 or more.")
    versions = [manifest.version for manifest in store.versions()]
    for version in versions[: max(0, len(versions) - options.keep)]:
        try:
            store.prune(version)
            print(f"{version} is deleted")
        except InUse as kept:
            print(kept)


def listed(store: ModelStore, now: datetime) -> dict[str, Any]:
    """Returns every version, and the state of the schedule of retrainings.

    Versions are sorted from oldest to newest. Damaged ones come last. A version's `state` is live (active),
    previous, wanted (requested), building, ready, failed, refused, retired, candidate or damaged.
    """
    known = store.read_state()
    reranker = RequestedReranker()
    with contextlib.suppress(DamagedRequest):  # `problems` has it.
        reranker = store.requested_reranker()
    roles: dict[str, dict[str, Any]] = {
        "encoder": {
            "live": known.get("live"),
            "wanted": store.requested(),
            "previous": known.get("previous"),
        },
        "reranker": {
            "live": known.get("reranker"),
            "wanted": reranker.version,
            "previous": reranker.previous,
        },
    }
    states = known.get("versions", {})
    versions = [_entry(manifest, roles[manifest.kind], states) for manifest in store.versions()]
    versions += [
        {
            "version": name,
            "kind": None,
            "published": None,
            "state": "damaged",
            "score": None,
            "verdict": reason,
        }
        for name, reason in store.problems().items()
    ]
    return {"versions": versions, "schedule": schedule_state(store.root, now)}


def _entry(manifest: Manifest, roles: Mapping[str, Any], states: Mapping[str, Any]) -> dict[str, Any]:
    state = states.get(manifest.version, {})
    label, gate = state.get("state", "candidate"), manifest.gate
    verdict = "no gate" if gate is None else ": ".join(filter(None, (gate.verdict, gate.reason)))
    if label in {"building", "ready"}:
        if state.get("total") is not None:  # A reranker has no documents.
            label = f"{label} {state.get('done')}/{state['total']}"
        if state.get("reason"):
            verdict = f"waits: {state['reason']}"
    elif label == "failed":
        verdict = f"failed: {state.get('reason')}"
    elif label == "candidate" and gate is not None and gate.verdict == "refused":
        label = "refused"
    role = next((role for role, version in roles.items() if version == manifest.version), None)
    told = label.startswith(("building", "ready")) or (label, role) == ("failed", "wanted")
    if role is not None and not told:
        label = role
    return {
        "version": manifest.version,
        "kind": manifest.kind,
        "published": manifest.created,
        "state": label,
        "score": _score(manifest.scores),
        "verdict": verdict,
    }


def _score(scores: Mapping[str, Any]) -> dict[str, Any] | None:
    """Returns the first nDCG@10 on the team's own texts, else the first STS score, else None."""
    for kind, measure in (("own", "nDCG@10"), ("sts", "Spearman")):
        for name, value in (scores.get(kind) or {}).items():
            return {"measure": f"{name} {measure}", "value": value}
    return None


def table(found: Mapping[str, Any], root: Path) -> str:
    """Formats the result of `listed` as a table, followed by a sentence about the schedule.

    Args:
        found: The result of `listed`.
        root: The models folder, which is named if it has no version.
    """
    rows = [_HEADS, *(_row(entry) for entry in found["versions"])]
    lines = [format_table(rows)]
    if len(rows) == 1:
        missing = "" if root.is_dir() else ", which does not exist"
        lines = [
            f"No version is published in {root}{missing}.",
            "If your service has another folder, name it with --models-dir or SIMILE_MODELS_DIR.",
            "`simile models import default` publishes the default model.",
        ]
    if found["schedule"] is not None:
        lines += ["", found["schedule"]["says"]]
    return "\n".join(lines)


def _row(entry: Mapping[str, Any]) -> tuple[str, ...]:
    when = "" if entry["published"] is None else _minutes(str(entry["published"]))
    score = "" if entry["score"] is None else f"{entry['score']['value']:.3f} {entry['score']['measure']}"
    verdict = str(entry["verdict"]).partition("\n")[0]
    if len(verdict) > REASON_CHARACTERS:
        verdict = verdict[: REASON_CHARACTERS - 1] + "…"
    state = f"{entry['state']} reranker" if entry["kind"] == "reranker" else str(entry["state"])
    return str(entry["version"]), when, state, score, verdict


def _minutes(created: str) -> str:
    try:
        return f"{datetime.fromisoformat(created).astimezone(UTC):%Y-%m-%d %H:%M} UTC"
    except ValueError:
        return created


if __name__ == "__main__":
    sys.exit(main())
