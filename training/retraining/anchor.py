"""Find the active version and its anchor, the first version of a series of retrainings.

    anchor ─▶ trained on all judgments and text of today ─▶ candidate
      └─ reference for the drift of the candidate (gate/drift.py)

Each retraining starts with the anchor and not with the active version, so small losses do not add up. A
version trained in stages (auto.py) becomes a new anchor, because it has tokens for text that the vocabulary
of its parent does not suit.
"""

from __future__ import annotations

from models.manifest import ANCHOR
from models.store import ModelStore
from training.errors import TrainingError

_STAGES = "stages"  # lineage key of a run with several recipes


def find_anchor(store: ModelStore, active: str) -> str:
    """Returns the anchor that the lineage of `active` names, or else the oldest ancestor in the store.

    A version that was trained in stages is an anchor, so the search for ancestors ends there. If `active` is
    such a version or has no ancestor, it is its own anchor.
    """
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
    """Returns the active version, or the requested version if the service has never run.

    Raises:
        TrainingError: The store has neither an active nor a requested version.

    """
    version = store.read_state().get("live") or store.requested()
    if not version:
        raise TrainingError(
            f"{store.root} has no active version to compare with. Start the service once, "
            "or name the folder with SIMILE_MODELS_DIR."
        )
    return str(version)
