"""`simile check`: shows the settings and what would run, or checks the stored data.

Start reading at `report` and `check_data`. `check --data` can run while a service runs, and changes nothing.
The output has problems, with advice, and notes, which need no action. In a PostgreSQL database it checks the
documents' checksums and the names in their metadata.
"""

import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from models import cpus
from models.engines.form import CPU
from models.errors import ModelError, install_command
from models.messages import amount
from models.store import ModelStore
from service.auth.keys import Role, read_keys
from service.batching.workers import layout_for
from service.errors import CommandError, StartupError, temporary_fault
from service.http.connections import check_certificate
from service.index import gpu
from service.index.ivf_snapshots import damage
from service.lifecycle.canary import canary_lines
from service.lifecycle.model_loader import build_measurement_key, kept_form, requested_form, require_device
from service.settings import PREFIX, Settings, otlp_endpoints
from service.store.filters.grammar import indexed_fields
from service.store.filters.names import NameFaults, shown
from service.store.sqlite.offline import (
    ACTIVE,
    DATABASE,
    SHOWN_IDS,
    GenerationRow,
    OfflineStore,
    named,
    reading,
)

MAX_LISTED = 1000  # documents that a user has to send again
_RESTORE = "Restore a backup, or export what can be read and import it into a new directory."
_EXPORT = "Export the documents and import them into a new directory; please report it."


def require_usable(settings: Settings) -> None:
    """Checks the files and the fields that the settings name.

    Raises:
        StartupError: The keys file, the canary file, the TLS certificate or an indexed field cannot be used.

    """
    files = (
        ("API_KEYS_FILE", settings.api_keys_file, read_keys),
        ("CANARY_FILE", settings.canary_file, canary_lines),
    )
    for name, file, read in files:
        try:
            if file is not None:
                read(file)
        except ValueError as error:
            raise StartupError(f"{PREFIX}{name}={file}: {error}") from error
    try:
        indexed_fields(settings.indexed_fields)
        check_certificate(settings.tls_cert_file, settings.tls_key_file)
    except ValueError as error:
        raise StartupError(str(error)) from error


def report(settings: Settings, *, as_json: bool = False) -> str:
    """Lists each setting with its value and its source, and describes what would run.

    Starts nothing and writes nothing.

    Raises:
        StartupError: The requested GPU is not available.

    """
    sources = {}
    for name in Settings.model_fields:
        source = "environment" if PREFIX + name.upper() in os.environ else "default"
        if name == "otel" and source == "default" and settings.otel:
            source = otlp_endpoints()[0]
        sources[name] = source
    number = gpu.find(settings.index_device)
    facts = {
        "processors": f"{cpus.available()} (affinity and cgroup quota)",
        "workers x threads": str(layout_for(settings)),
        "device": require_device(settings),
        "form": _form(settings),
        "provider": "CPUExecutionProvider" if settings.place == CPU else "CUDAExecutionProvider",
        "model": _model(settings),
        "index": "searched on the CPU" if number is None else f"large ones searched on GPU {number}",
        "documents": _documents(settings),
        "disk": _disk(settings.data_dir),
        "temporary files": temporary_fault() or _disk(Path(tempfile.gettempdir())),
        "keys": _keys(settings),
    }
    if as_json:
        values = settings.model_dump(mode="json")
        listed = [
            {"name": PREFIX + name.upper(), "value": values[name], "source": source}
            for name, source in sources.items()
        ]
        return json.dumps({"settings": listed, "would_run": facts}, indent=2)
    width = max(map(len, sources)) + len(PREFIX)
    lines = [
        f"{PREFIX + name.upper():<{width}}  {getattr(settings, name)!s:<24}  {source}"
        for name, source in sources.items()
    ]
    return "\n".join([*lines, "", *(f"{name:<{width}}  {value}" for name, value in facts.items())])


def _form(settings: Settings) -> str:
    try:
        form = requested_form(settings)
    except StartupError as error:
        return f"none: {error}"
    if settings.measures_form:
        kept, store = None, ModelStore(settings.models_dir)
        try:
            if (version := store.requested()) is not None:
                measurement = build_measurement_key(
                    store.folder(version), layout_for(settings), settings.precision_loss
                )
                kept = kept_form(settings.data_dir, measurement)
        except ModelError:  # The start reports it.
            pass
        if kept is None:
            return "the fastest, measured at the next start"
        form = kept
    return f"{form}, deterministic" if settings.deterministic else str(form)


def _keys(settings: Settings) -> str:
    if settings.api_keys_file is None:
        return "none, and SIMILE_INSECURE=1" if settings.insecure else "none: loopback only"
    keys = read_keys(settings.api_keys_file)
    counts = (f"{[key.role for key in keys].count(role)} {role}" for role in Role)
    return f"{', '.join(counts)}: {', '.join(key.name for key in keys)}"


def _model(settings: Settings) -> str:
    try:
        requested = ModelStore(settings.models_dir).requested()
    except ModelError as error:
        return str(error)
    return requested or f"none published yet; the first start publishes {settings.model!r}"


def _documents(settings: Settings) -> str:
    """Returns the number of stored documents, or why there are none, or why no service can use the store."""
    if settings.database is not None:
        try:  # The extra is optional.
            from service.store.postgres.offline import look  # noqa: PLC0415
        except ModuleNotFoundError:
            return "none: SIMILE_DATABASE needs the extra postgres"
        return look(settings.database.get_secret_value())
    if not (settings.data_dir / DATABASE).is_file():
        return "none yet"
    try:
        with reading(settings.data_dir) as store:
            return amount(store.facts().documents, "document")
    except CommandError as error:
        return str(error)


def _disk(folder: Path) -> str:
    folder = next(each for each in (folder, *folder.parents) if each.exists())
    free = shutil.disk_usage(folder).free
    writable = "writable" if os.access(folder, os.W_OK) else "NOT writable"
    return f"{free / 2**30:.1f} GiB free at {folder.resolve()}, {writable}"


class Found(NamedTuple):
    """A finding of the check: a problem, or a note that needs no action."""

    text: str
    problem: bool = True


def check_data(settings: Settings) -> str:
    """Checks the data directory or the database. Returns the text to print.

    Raises:
        CommandError: Problems were found. The message lists all of them.

    """
    if settings.database is None:
        lines, found = _check_directory(settings)
    else:
        lines, found = _check_database(settings.database.get_secret_value())
    lines += [f"{'problem' if one.problem else 'note'}: {one.text}" for one in found]
    if problems := sum(one.problem for one in found):
        raise CommandError("\n".join([*lines, f"{amount(problems, 'problem')}."]))
    return "\n".join([*lines, "All is sound."])


def _check_directory(settings: Settings) -> tuple[list[str], list[Found]]:
    """Checks the data directory. Returns lines that describe the contents, and the findings."""
    with reading(settings.data_dir) as store:
        found = list(_check_store(store, ModelStore(settings.models_dir)))
        found += [
            Found(f"the index snapshot {one}. It is not used and will be replaced; check the disk.")
            for one in damage(settings.snapshots_dir)
        ]
        facts, vectors, counts = store.facts(), store.vectors(), store.counts()
        judged, events = store.said("feedback"), store.said("events")
    holds = {"document": facts.documents, "vector": vectors}
    holds |= {"judgment": sum(judged.values()), "event": sum(events.values())}
    lines = [f"{settings.data_dir / DATABASE}: {_amounts(holds)}, operation {facts.sequence}"]
    if len(counts) > 1:
        lines += [
            f"{name}: "
            + _amounts({"document": documents, "judgment": judged.get(name, 0), "event": events.get(name, 0)})
            for name, documents in counts
        ]
    return lines, found


def _amounts(numbers: dict[str, int]) -> str:
    return ", ".join(amount(number, noun) for noun, number in numbers.items())


def _check_database(url: str) -> tuple[list[str], list[Found]]:
    try:  # The extra is optional.
        from service.store.postgres import offline  # noqa: PLC0415
    except ModuleNotFoundError as error:
        raise CommandError(f"A database needs the extra postgres: {install_command('postgres')}") from error

    documents, unknown, damaged, faults = offline.examine(url, SHOWN_IDS)
    lines = [
        f"The database of SIMILE_DATABASE: {amount(documents, 'document')}",
        "PostgreSQL checks its pages itself. Vectors are not compared here.",
    ]
    return lines, [*_checksums(damaged, unknown), *_names(faults)]


def _check_store(store: OfflineStore, models: ModelStore) -> Iterator[Found]:
    if wrong := store.damage(20):  # Other checks of a damaged file would mislead.
        yield Found(f"the file is damaged: {'; '.join(wrong[:SHOWN_IDS])}. {_RESTORE}")
        return
    yield from _checksums(store.damaged_documents(), store.without_checksums())
    if ids := store.without_object():
        yield Found(f"the metadata of {named(ids)} is not a JSON object. Send these documents again.")
    else:
        yield from _names(store.name_faults(SHOWN_IDS))
    if ids := store.with_null_characters():
        yield Found(
            f"{amount(len(ids), 'document has', 'documents have')} the character U+0000, which is refused "
            "today and which PostgreSQL "
            f"cannot store: {named(ids, MAX_LISTED)}. They can be read, exported and deleted. Send them "
            "again without it.",
            problem=False,
        )
    yield from _generations(store.generations(), models)
    damaged, lost, missing = store.vector_faults()
    if damaged:
        yield Found(
            f"the vectors of {named(damaged)} are damaged. The next start embeds them again; check the disk."
        )
    if lost:
        stray = amount(lost, "vector is", "vectors are")
        yield Found(f"{stray} of no document. This only takes space; please report it.")
    if missing:
        without = amount(missing, "document has", "documents have")
        yield Found(f"{without} no vector yet. The service embeds what is missing.", problem=False)
    for one in store.unequal():
        yield Found(f"{one}. {_EXPORT}")


def _names(faults: NameFaults) -> Iterator[Found]:
    if faults.documents:
        names = ", ".join(map(shown, faults.names))
        having = amount(faults.documents, "document has", "documents have")
        yield Found(
            f"{having} names in their metadata that no filter could name, such as "
            f"{names}: {named(faults.ids, count=faults.documents)}. Send these documents again with other "
            "names.",
            problem=False,
        )


def _checksums(damaged: list[str], unknown: int) -> Iterator[Found]:
    if damaged:
        yield Found(
            f"the documents {named(damaged)} are damaged: the checksum of an id, title, text or metadata is "
            "wrong. They are not answered. Send them again, delete them, or restore a backup. "
            "Check the disk."
        )
    if unknown:
        said = (
            f"{amount(unknown, 'document has', 'documents have')} no checksum yet. The service computes it."
        )
        yield Found(said, problem=False)


def _generations(rows: list[GenerationRow], models: ModelStore) -> Iterator[Found]:
    active = sum(row.state == ACTIVE for row in rows)
    if active != 1:
        yield Found(f"not one generation is active, but {active}. {_RESTORE}")
    for row in rows:
        version = row.version
        try:
            manifest = models.verify(version)
        except ModelError as error:
            what = f"Put {version} back into {models.root}, or restore a backup made with --models."
            if row.state == ACTIVE:
                yield Found(f"the active model cannot be opened: {error} {what}")
            else:
                yield Found(f"generation {row.number} ({row.state}) cannot be opened: {error}", problem=False)
            continue
        if manifest.fingerprint != row.fingerprint:
            yield Found(f"{version} is not the model that made its vectors: its fingerprint differs.")
