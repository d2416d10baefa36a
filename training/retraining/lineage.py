"""Find the model that a retraining starts with, from the lineage of the active version.

    anchor ─▶ trained on all judgments and text of today ─▶ candidate
      └─ reference for the drift of the candidate (gate/drift.py)

The anchor is the first version of a series of retrainings. Each retraining starts with it and not with the
active version, so small losses do not add up. A version trained in stages (auto.py) becomes a new anchor,
because it has tokens for text that the vocabulary of its parent does not suit.

A student is a small model that learned the vectors of its teacher. In a pair, the student encodes queries and
the teacher encodes documents. With the default base, a retraining starts with this model:

active version      recipe distil         other recipes
neither             the active version    the anchor
a pair              the teacher           rejected, because the result would have no student
a student           the teacher           rejected, unless base = "active" trains the student itself
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from models.files.folders import copy_tree
from models.manifest import ANCHOR, FILE_NAME, QUERIES, REPORT, REPORT_PAGE, TEACHER, Manifest, read_manifest
from models.progress import Say
from models.publishing.pair import pair
from models.store import ModelStore
from training.errors import NothingToLearn, TrainingError

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
    while manifest and manifest.parent in known and _STAGES not in manifest.lineage:
        manifest = known.pop(manifest.parent)
    return manifest.version if manifest else active


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


def find_start(store: ModelStore, active: str, base: str, *, distils: bool) -> str:
    """Returns the model that a retraining starts with.

    Args:
        store: Store of model versions.
        active: The active version.
        base: Base in the configuration, such as "anchor".
        distils: True if the recipe trains a student. Then `active` and `anchor` mean the active version, or
            its teacher if it is a student.

    Raises:
        NothingToLearn: The teacher of the active student no longer exists.

    """
    if distils and base in {"active", "anchor"}:
        return find_teacher(store, active)
    return {"active": active, "anchor": find_anchor(store, active)}.get(base, base)


def find_teacher(store: ModelStore, active: str) -> str:
    """Returns the teacher of the student `active`. If `active` is not a student, returns `active`.

    Raises NothingToLearn if the store does not have the teacher.
    """
    learned = read_manifest(store.folder(active)).lineage.get(TEACHER)
    if learned is None:
        return active
    teachers = [known.version for known in store.versions() if known.fingerprint == learned]
    if not teachers:
        raise NothingToLearn(
            f"{active} is a student, and its teacher (fingerprint {str(learned)[:8]}) is not published here. "
            "Import the teacher again, or set train.base to the version to distil."
        )
    return teachers[-1]


def beside(store: ModelStore, teacher: str, artifacts: ModelStore, student: str, say: Say) -> str:
    """Publishes a pair of a student and its teacher in `artifacts`. Returns the name of the pair.

    Args:
        store: Store with the teacher.
        teacher: Version of the teacher.
        artifacts: Store with the student.
        student: Version of the student.
        say: Called with progress messages.

    """
    manifest = store.verify(teacher)

    def build(folder: Path) -> Manifest:
        copy_tree(store.folder(teacher), folder, {FILE_NAME, REPORT, REPORT_PAGE})
        return manifest.model_copy(update={"files": {}})

    return pair(artifacts, artifacts.publish(build).version, student, say).version


def build_lineage(store: ModelStore, manifest: Manifest) -> Mapping[str, Any]:
    """Returns the lineage of the training that made a version. For a pair, it is that of the student."""
    if manifest.query_encoder is None:
        return manifest.lineage
    return Manifest.read(store.folder(manifest.version) / QUERIES).lineage


def why_slower(store: ModelStore, active: str, base: str, recipes: str) -> str:
    """Returns the reason why the gate would reject the trained model as slower, or an empty string.

    Args:
        store: Store of model versions.
        active: The active version.
        base: Base in the configuration.
        recipes: Names of recipes for the message. None of them trains a student.

    """
    manifest = read_manifest(store.folder(active))
    if manifest.query_encoder is not None:
        what = f"{active} is a pair, and what {recipes} trains has no student for its queries"
    elif TEACHER in manifest.lineage and base == "anchor":
        what = f"{active} is a student, and {recipes} would train a model as large as its teacher"
    else:
        return ""
    return (
        f"{what}: the gate would refuse it as slower. Activate the teacher ({find_teacher(store, active)}), "
        "retrain that, and distil the result again; or set gate.slower = 1, and it may be slower."
    )
