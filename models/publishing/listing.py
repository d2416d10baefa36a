"""Lists the versions of a models folder, as JSON and as a table."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from models.files.retrainings import schedule_state
from models.manifest import Manifest
from models.store import Store

REASON_CHARACTERS = 60  # Limit of a reason in the table; `--json` and `show` print all of it.
_HEADS = ("VERSION", "PUBLISHED", "STATE", "SCORE", "VERDICT")


def listed(store: Store, now: datetime) -> dict[str, Any]:
    """Lists every version, oldest first, and the schedule of retrainings.

    A version's `state` is live, previous, wanted, building, ready, failed, refused, retired, candidate or
    damaged.
    """
    known = store.read_state()
    roles = {"live": known.get("live"), "wanted": store.wanted(), "previous": known.get("previous")}
    versions = [_entry(manifest, roles, known.get("versions", {})) for manifest in store.versions()]
    versions += [
        {"version": name, "published": None, "state": "damaged", "score": None, "verdict": reason}
        for name, reason in store.problems().items()
    ]
    return {"versions": versions, "schedule": schedule_state(store.root, now)}


def _entry(manifest: Manifest, roles: Mapping[str, Any], states: Mapping[str, Any]) -> dict[str, Any]:
    state = states.get(manifest.version, {})
    label, gate = state.get("state", "candidate"), manifest.gate
    verdict = "no gate" if gate is None else ": ".join(filter(None, (gate.verdict, gate.reason)))
    if label in {"building", "ready"}:
        label = f"{label} {state.get('done')}/{state.get('total')}"
    elif label == "failed":
        verdict = f"failed: {state.get('reason')}"
    elif label == "candidate" and gate is not None and gate.verdict == "refused":
        label = "refused"
    role = next((role for role, version in roles.items() if version == manifest.version), None)
    if role is not None and not label.startswith(("building", "ready")):
        label = role
    return {
        "version": manifest.version,
        "published": manifest.created,
        "state": label,
        "score": _score(manifest.scores),
        "verdict": verdict,
    }


def _score(scores: Mapping[str, Any]) -> dict[str, Any] | None:
    """Returns the first score of search on the team's own text, else of similarity on a public set."""
    for kind, measure in (("own", "nDCG@10"), ("sts", "Spearman")):
        for name, value in (scores.get(kind) or {}).items():
            return {"measure": f"{name} {measure}", "value": value}
    return None


def table(found: Mapping[str, Any]) -> str:
    """Formats the result of `listed` as a table, followed by the schedule."""
    rows = [_HEADS, *(_row(entry) for entry in found["versions"])]
    widths = [max(len(row[column]) for row in rows) for column in range(len(_HEADS))]
    cells = ((cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows)
    lines = ["  ".join(row).rstrip() for row in cells]
    if len(rows) == 1:
        lines = [
            "No version is published here yet. `python -m models import default` publishes the default model."
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
    return str(entry["version"]), when, str(entry["state"]), score, verdict


def _minutes(created: str) -> str:
    try:
        return f"{datetime.fromisoformat(created).astimezone(UTC):%Y-%m-%d %H:%M} UTC"
    except ValueError:
        return created
