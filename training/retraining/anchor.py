"""The anchor: the imported model that a line of retrainings began with.

    anchor ─▶ trained on all judgements and text of today ─▶ candidate
      └─ compared with by `drift` (gate/drift.py)

A retraining begins with it, and not with the result of the one before: small losses do not add up.
"""

from __future__ import annotations

from models.manifest import ANCHOR
from models.store import Store


def anchor_of(store: Store, active: str) -> str:
    """The version that `active` names as its anchor; else its oldest parent that is still here."""
    known = {manifest.version: manifest for manifest in store.versions()}
    manifest = known.pop(active, None)
    named = manifest.lineage.get(ANCHOR) if manifest else None
    if isinstance(named, str) and named in known:
        return named
    oldest = active
    while manifest and (manifest := known.pop(manifest.parent or "", None)):
        oldest = manifest.version
    return oldest
