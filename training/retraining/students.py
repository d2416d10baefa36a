"""Retrain a service whose active version is a student, or a pair of a student and its teacher.

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
from models.manifest import FILE_NAME, QUERIES, REPORT, REPORT_PAGE, TEACHER, Manifest, read_manifest
from models.progress import Say
from models.publishing.pair import pair
from models.store import ModelStore
from training.errors import NothingToLearn
from training.retraining.anchor import find_anchor


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
