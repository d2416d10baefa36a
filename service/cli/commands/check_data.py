"""`python -m service check --data`: whether a data directory is sound, while a service runs or not.

Start reading at `run`. A problem names a fault and what to do about it. A note names a fault that repairs
itself, or data that an older version accepted. Nothing is changed. For a database, only the documents'
checksums and the names in their metadata are checked.
"""

from collections.abc import Iterator
from typing import NamedTuple

from models.errors import ModelError
from models.progress import Progress
from models.store import ModelStore
from service.errors import CommandError
from service.index.ivf_snapshots import damage
from service.settings import Settings
from service.store.filters.names import NameFaults, shown
from service.store.sqlite.offline import DATABASE, SHOWN_IDS, GenerationRow, OfflineStore, named, reading

MAX_LISTED = 1000  # Documents that a user has to send again.
_RESTORE = "Restore a backup, or export what can be read and import it into a new directory."
_EXPORT = "Export the documents and import them into a new directory; please report it."
_ANEW = "The next start embeds their documents again. Check the disk."


class Found(NamedTuple):
    """A finding of the check."""

    text: str
    problem: bool = True


def run(settings: Settings) -> str:
    """Checks the data directory or the database. Returns the text to print.

    Raises:
        CommandError: Some data are not sound. The message lists all problems.
    """
    if settings.database is not None:
        return _run_database(settings.database.get_secret_value())
    with reading(settings.data_dir) as store:
        found = list(_look(store, ModelStore(settings.models_dir)))
        found += [
            Found(f"the index snapshot {one}. It is not used, and another is made; check the disk.")
            for one in damage(settings.snapshots_dir)
        ]
        facts, vectors, counts = store.facts(), store.vectors(), store.counts()
        judged, events = store.said("feedback"), store.said("events")
    holds = f"{facts.documents} documents, {vectors} vectors, {sum(judged.values())} judgements, "
    holds += f"{sum(events.values())} events"
    lines = [f"{settings.data_dir / DATABASE}: {holds}, operation {facts.sequence}"]
    if len(counts) > 1:
        lines += [
            f"{name}: {documents} documents, {judged.get(name, 0)} judgements, {events.get(name, 0)} events"
            for name, documents in counts
        ]
    return _report(lines, found)


def _report(lines: list[str], found: list[Found]) -> str:
    lines += [f"{'problem' if one.problem else 'note'}: {one.text}" for one in found]
    problems = sum(one.problem for one in found)
    if problems:
        raise CommandError("\n".join([*lines, f"{problems} problems."]))
    return "\n".join([*lines, "All is sound."])


def _run_database(url: str) -> str:
    try:  # An optional dependency.
        from service.store.postgres import offline  # noqa: PLC0415
    except ModuleNotFoundError as error:
        raise CommandError(
            "A database needs the extra postgres: pip install 'simile[cpu,postgres]'."
        ) from error

    documents, unknown, damaged = offline.examine(url)
    found = [*_documents(damaged, unknown), *_names(offline.find_name_faults(url, SHOWN_IDS))]
    lines = [
        f"The database of SIMILE_DATABASE: {documents} documents",
        "PostgreSQL checks its pages itself; vectors are not compared here.",
    ]
    return _report(lines, found)


def _look(store: OfflineStore, models: ModelStore) -> Iterator[Found]:
    if wrong := store.damage(20):  # Other findings would not be reliable.
        yield Found(f"the file is damaged: {'; '.join(wrong[:SHOWN_IDS])}. {_RESTORE}")
        return
    with Progress("documents", store.facts().documents, "comparing checksums") as progress:
        damaged = store.damaged_documents(progress.tell)
    yield from _documents(damaged, store.without_checksums())
    if ids := store.without_object():
        yield Found(f"the metadata of {named(ids)} is no JSON object. Send these documents again.")
    else:
        yield from _names(store.name_faults(SHOWN_IDS))
    if ids := store.with_null_characters():
        yield Found(
            f"{len(ids)} documents have the character U+0000, which is refused today and which PostgreSQL "
            f"cannot store: {named(ids, MAX_LISTED)}. They can be read, exported and deleted. Send them "
            "again without it.",
            problem=False,
        )
    yield from _generations(store.generations(), models)
    yield from _vectors(store)
    for one in store.unequal():
        yield Found(f"{one}. {_EXPORT}")


def _names(faults: NameFaults) -> Iterator[Found]:
    if faults.documents:
        names = ", ".join(map(shown, faults.names))
        yield Found(
            f"{faults.documents} documents have names in their metadata that no filter could name, such as "
            f"{names}: {named(faults.ids, count=faults.documents)}. Send these documents again with other "
            "names.",
            problem=False,
        )


def _documents(damaged: list[str], unknown: int) -> Iterator[Found]:
    if damaged:
        yield Found(
            f"the documents {named(damaged)} are damaged: the checksum of an id, title, text or metadata is "
            "wrong. They are not answered. Send them again, delete them, or restore a backup. "
            "Check the disk."
        )
    if unknown:
        said = f"{unknown} documents have no checksum yet. The service computes them."
        yield Found(said, problem=False)


def _generations(rows: list[GenerationRow], models: ModelStore) -> Iterator[Found]:
    active = sum(row.is_active for row in rows)
    if active != 1:
        yield Found(f"not one generation is active, but {active}. {_RESTORE}")
    for row in rows:
        version = row.version
        try:
            manifest = models.verify(version)
        except ModelError as error:
            what = f"Put {version} back into {models.root}, or restore a backup made with --models."
            if row.is_active:
                yield Found(f"the model in service cannot be opened: {error} {what}")
            else:
                yield Found(f"generation {row.number} ({row.state}) cannot be opened: {error}", problem=False)
            continue
        if manifest.fingerprint != row.fingerprint:
            yield Found(f"{version} is not the model that made its vectors: its fingerprint differs.")


def _vectors(store: OfflineStore) -> Iterator[Found]:
    """Yields damaged vectors, vectors without a document, and documents without a vector."""
    progress = Progress("vectors", store.vectors())
    damaged, lost, lacking = store.vector_faults(progress.tell)
    progress.end()
    if damaged:
        yield Found(f"the vectors of {named(damaged)} are damaged. {_ANEW}")
    if lost:
        yield Found(f"{lost} vectors are of no document. They take room only; please report it.")
    if lacking:
        yield Found(f"{lacking} documents have no vector yet. The service embeds them.", problem=False)
