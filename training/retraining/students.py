"""Students in service, alone or beside their teacher: what a retraining begins with, makes, and would undo.

active          recipe distil begins with     another recipe
a version       it                            as ever: the anchor
a pair          its teacher                   refused: the result would have no student
a student       its teacher                   refused, unless it trains the student itself (base = "active")
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from models.files.folders import copy_tree
from models.manifest import FILE_NAME, QUERIES, REPORT, REPORT_PAGE, TEACHER, Manifest, read_manifest
from models.progress import Say
from models.publishing.pair import pair
from models.store import ModelStore
from training.errors import NothingToLearn
from training.retraining.anchor import find_anchor

if TYPE_CHECKING:
    from training.methods.recipe import Recipe


def find_start(store: ModelStore, active: str, base: str, *, distils: bool) -> str:
    """The model that a retraining begins with, for `base` as the configuration names it.

    distils: it makes a student, of what is served and not of the anchor. Raise NothingToLearn where the
    teacher of the active student is gone.
    """
    if distils and base in {"active", "anchor"}:
        return find_teacher(store, active)
    return {"active": active, "anchor": find_anchor(store, active)}.get(base, base)


def find_teacher(store: ModelStore, active: str) -> str:
    """The newest version whose vectors the student `active` learned; any other version is its own teacher."""
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
    """Pair `student`, which is in `artifacts`, with a version of `store`: the pair's name in `artifacts`."""
    manifest = store.verify(teacher)

    def build(folder: Path) -> Manifest:
        copy_tree(store.folder(teacher), folder, {FILE_NAME, REPORT, REPORT_PAGE})
        return manifest.model_copy(update={"files": {}})

    return pair(artifacts, artifacts.publish(build).version, student, say).version


def build_lineage(store: ModelStore, manifest: Manifest) -> Mapping[str, Any]:
    """The lineage of the training that made a version: of a pair its student's."""
    if manifest.query_encoder is None:
        return manifest.lineage
    return Manifest.read(store.folder(manifest.version) / QUERIES).lineage


def require_pace(store: ModelStore, active: str, base: str, recipe: Recipe) -> None:
    """Raise NothingToLearn where what would be trained must be slower than the active version."""
    if recipe.student is None and (why := why_slower(store, active, base, recipe.name)):
        raise NothingToLearn(why)


def why_slower(store: ModelStore, active: str, base: str, recipes: str) -> str:
    """Why the gate would refuse what these recipes train, none of them a student, as slower; else nothing."""
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
