"""The active version, and its anchor: the imported model that a line of retrainings began with.

    anchor ─▶ trained on all judgements and text of today ─▶ candidate
      └─ compared with by `drift` (gate/drift.py)

A retraining begins with it, and not with the result of the one before: small losses do not add up.
A version made in stages begins a line of its own: it reads text that its parent could not (adapt.py).
"""

from __future__ import annotations

from models.manifest import ANCHOR
from models.store import ModelStore
from training.errors import TrainingError

_STAGES = "stages"  # in the lineage of a run of several recipes


def find_anchor(store: ModelStore, active: str) -> str:
    """The version that `active` names as its anchor; else its oldest parent that is still here."""
    known = {manifest.version: manifest for manifest in store.versions()}
    manifest = known.pop(active, None)
    named = manifest.lineage.get(ANCHOR) if manifest else None
    if isinstance(named, str) and named in known:
        return named
    oldest = active
    while manifest and _STAGES not in manifest.lineage:
        manifest = known.pop(manifest.parent or "", None)
        if manifest is None:
            break
        oldest = manifest.version
    return oldest


def active_version(store: ModelStore) -> str:
    """The version in service, or that it would start with when none has run yet. Raise TrainingError."""
    version = store.read_state().get("live") or store.requested()
    if not version:
        raise TrainingError(
            f"{store.root} has no active version to compare with. Start the service once, "
            "or name the folder with SIMILE_MODELS_DIR."
        )
    return str(version)
