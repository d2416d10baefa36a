"""Publishes a pair: a version with a small student that encodes search queries. Start at `pair`.

    VERSION ─▶ documents, /embed      the same files, so stored vectors stay valid
    STUDENT ─▶ queries                in queries/

The student must have been trained on the vectors of this VERSION.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

from models import cpus
from models.encoder import Encoder
from models.errors import Unsupported
from models.files.folders import copy_tree
from models.manifest import (
    FILE_NAME,
    QUERIES,
    REPORT_PAGE,
    TEACHER,
    Manifest,
    QueryEncoder,
    require_kind,
    version_name,
)
from models.progress import Progress, Say, silent
from models.publishing.int8 import encoded, nearness
from models.publishing.layout import write_card
from models.store import ModelStore
from models.tokens.texts import example_texts

_SHARED = ("dimension", "search_prompt", "document_prompt", "normalize")


def pair(store: ModelStore, version: str, student: str, say: Say = silent) -> Manifest:
    """Publishes a copy of `version` in which `student` encodes the queries.

    Raises:
        Unsupported: `student` was not trained on the vectors of `version`, or has other settings.
        Damaged: A file of either version was changed.
        UnknownVersion: A version is missing.
        WrongKind: A version is a reranker.
    """
    teacher, queries = (require_kind(store.verify(name), "encoder") for name in (version, student))
    _require_student(store, teacher, queries)
    now = datetime.now(UTC)
    # The student's fingerprint keeps names of pairs unique that are made within one second.
    origin = f"{teacher.origin[:48]}-pair-{queries.fingerprint[:8]}"
    manifest = teacher.model_copy(
        update={
            "version": version_name(now, origin, teacher.fingerprint),
            "created": now.isoformat(timespec="seconds"),
            "parent": version,
            "query_encoder": _compared(store, teacher, queries, say),
            "scores": {},  # The scores belong to the teacher's queries.
            "gate": None,
            "files": {},
        }
    )
    say("copying both")
    return store.publish(partial(_build, store=store, manifest=manifest, student=student))


def _require_student(store: ModelStore, teacher: Manifest, student: Manifest) -> None:
    if student.query_encoder is not None:
        raise Unsupported(
            f"{student.version} is a pair. Name its student instead: {student.query_encoder.version}."
        )
    learned = student.lineage.get(TEACHER)
    if learned != teacher.fingerprint:
        named = [known.version for known in store.versions() if known.fingerprint == learned]
        learned_from = f"its teacher is {named[0]}" if named else "its teacher is not a version here"
        raise Unsupported(
            f"{student.version} did not learn the vectors of {teacher.version}: {learned_from}. Train one: "
            f"simile train distil --base {teacher.version} --corpus FILE --out RUN, then "
            "simile training export RUN."
        )
    for field in _SHARED:
        one, other = getattr(teacher, field), getattr(student, field)
        if one != other:
            raise Unsupported(
                f"{student.version} has {field}={other!r}, but {teacher.version} has {one!r}. "
                f"Train the student from {teacher.version} without changing it."
            )


def _compared(store: ModelStore, teacher: Manifest, student: Manifest, say: Say) -> QueryEncoder:
    """Measures how much the two encoders differ, with the example texts as queries and documents."""
    texts = example_texts()
    threads = cpus.available()
    with (
        closing(Encoder(store.folder(teacher.version), teacher, threads=threads)) as large,
        closing(Encoder(store.folder(student.version), student, threads=threads)) as small,
        Progress("texts", 3 * len(texts), "comparing", say=say) as progress,
    ):
        queries = _prefixed(teacher.search_prompt, texts)
        documents = encoded(large, _prefixed(teacher.document_prompt, texts), progress)
        expected, found = (encoded(encoder, queries, progress) for encoder in (large, small))
    near = nearness(expected, found, documents, documents)
    who = {"version": student.version, "fingerprint": student.fingerprint}
    return QueryEncoder(**who, measured_on=len(texts), **near)


def _prefixed(prompt: str, texts: Sequence[str]) -> list[str]:
    return [prompt + text for text in texts]


def _build(folder: Path, *, store: ModelStore, manifest: Manifest, student: str) -> Manifest:
    of_teacher = store.folder(str(manifest.parent))
    # The copy keeps the report, which lists the judged queries that the teacher has learned.
    copy_tree(of_teacher, folder, {FILE_NAME, REPORT_PAGE, QUERIES})
    copy_tree(store.folder(student), folder / QUERIES)
    write_card(folder, manifest)
    return manifest
