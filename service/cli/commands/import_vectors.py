"""`simile import OUT --vectors`: loads documents with vectors of `simile embed`.

    parts ─▶ every vector is checked ─▶ which version? ─▶ active: documents with their vectors
                                                       └▶ another: vectors of documents that are stored

Start reading at `run`. Nothing is stored before all parts are checked. A vector is added only to a document
with the same title and text. Each transaction is complete and durable, so a load that was stopped continues
if the same command runs again.
"""

import argparse
import contextlib
from array import array
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from models.engines.form import FP32, Form, read_form
from models.errors import ModelError, install_command
from models.manifest import Manifest
from models.messages import amount
from models.progress import Progress, to_stderr
from models.store import ModelStore, activate_command
from service.errors import CommandError, ServiceError, StartupError, Stopped, Validation
from service.files.columns import merge_metadata
from service.files.metadata import check_metadata
from service.files.parquet import parse_metadata, plain, read_rows
from service.files.values import BadRow
from service.lifecycle.model_loader import requested_form, stored_form
from service.runtime.data_lock import InUse, locked
from service.settings import Settings, get_models_dir, own_url
from service.store.filters.grammar import indexed_fields
from service.store.values import (
    COLLECTION_NAME,
    DEFAULT_COLLECTION,
    MAX_ID_CHARACTERS,
    NAME_RULE,
    Active,
    Batch,
    Document,
    Embedding,
    Loaded,
    Passage,
)

if TYPE_CHECKING:
    from models.bulk.vector_files import Rows, VectorFile

BATCH_ROWS = 1024  # Documents of one transaction.
SHARED_ROWS = 128  # If a service uses the data directory: its writes wait for one transaction, some 10 ms.
MAX_TOLD = 100  # Rejected documents that are printed.
# Options of `import` that say how other files are read.
_OF_OTHERS = (
    "format",
    "id",
    "title",
    "metadata",
    "metadata_all",
    "encoding",
    "delimiter",
    "types",
    "html",
    "per_file",
    "key_file",
    "all_collections",
)


class Loader(Protocol):
    """What sqlite/loading.py and postgres/loading.py have in common."""

    def close(self) -> None: ...
    def active(self) -> Active | None: ...
    def unfinished_copy(self) -> str | None: ...
    def has_collection(self, name: str, /) -> bool: ...
    def activate(self, manifest: Manifest, form: str, /) -> int: ...
    def prepare(self, generation: int, documents: int, /) -> None: ...
    def begin(self, manifest: Manifest, form: str, /) -> int: ...
    def put(
        self, generation: int, batches: Iterator[Batch], collection: str, most: int, /
    ) -> Generator[Loaded]: ...
    def add(self, generation: int, batches: Iterator[Batch], collection: str, /) -> Generator[Loaded]: ...
    def finish(self, generation: int, /) -> None: ...
    def count_lacking(self, generation: int, /) -> int: ...


def run(arguments: argparse.Namespace, settings: Settings) -> str:
    """Loads the vectors. Returns the text to print.

    Raises:
        CommandError: Nothing was stored, or the load ended early, or some documents were rejected.

    """
    defaults = {"text": "text", "url": own_url()}
    for name in (*_OF_OTHERS, *defaults):
        if (given := getattr(arguments, name)) and given != defaults.get(name):
            raise CommandError(
                f"--{name.replace('_', '-')} is not for --vectors, which opens the store itself and takes "
                "columns as `embed` chose them."
            )
    collection: str = arguments.collection or DEFAULT_COLLECTION
    if not COLLECTION_NAME.fullmatch(collection):
        raise CommandError(f"--collection {collection!r} cannot be a collection. {NAME_RULE}")
    if arguments.data_dir is not None:
        settings = settings.model_copy(
            update={
                "database": None,
                "data_dir": arguments.data_dir,
                "models_dir": get_models_dir(settings, arguments.data_dir),
            }
        )
    parts = _open_parts(arguments.files)
    try:
        with _opened(settings) as (loader, rows):
            return _Load(settings, loader, parts, collection, rows).run()
    except (StartupError, ModelError, ServiceError) as error:
        raise CommandError(str(error)) from error


def _open_parts(places: Sequence[str]) -> list["VectorFile"]:
    """Opens all parts, and checks their vectors.

    Raises:
        CommandError: A part is damaged, incomplete, or of another version than the others.

    """
    try:  # The extra is optional.
        from models.bulk.vector_files import open_folder, shown  # noqa: PLC0415
    except ModuleNotFoundError as error:
        raise CommandError(f"--vectors needs the extra bulk: {install_command('bulk')}") from error
    try:
        parts = [part for place in places for part in open_folder(place)]
        for part in parts[1:]:
            if part.description != parts[0].description:
                raise CommandError(f"{part.path} has vectors of another model than {parts[0].path}.")
        with Progress("documents", sum(part.rows for part in parts), "checking vectors") as progress:
            for part in parts:
                if not part.has_text:
                    raise CommandError(
                        f"{part.path} has no texts, so its vectors cannot be compared with documents. Embed "
                        "again without --no-text."
                    )
                part.check()
                progress.add(part.rows)
    except (ModelError, OSError) as error:  # Arrow reports some damage as an OSError.
        named = ", ".join(map(shown, places))
        said = str(error) if isinstance(error, ModelError) else f"{named} cannot be read ({error})."
        raise CommandError(f"{said} Nothing was stored.") from error
    if not parts:
        raise CommandError(f"{', '.join(map(shown, places))}: no documents.")
    return parts


@contextlib.contextmanager
def _opened(settings: Settings) -> Iterator[tuple[Loader, int]]:
    """Opens the store of the settings. Also yields the number of documents of one transaction.

    Raises:
        CommandError, StartupError: The store cannot be used.

    """
    with contextlib.ExitStack() as opened:
        loader: Loader
        if settings.database is not None:
            try:  # The extra is optional.
                from service.store.postgres.loading import Loader as PostgresLoader  # noqa: PLC0415
            except ModuleNotFoundError as error:
                needed = f"A database needs the extra postgres: {install_command('postgres')}"
                raise CommandError(needed) from error
            url = settings.database.get_secret_value()
            loader, rows = PostgresLoader(url, indexed_fields(settings.indexed_fields)), BATCH_ROWS
        else:
            from service.store.sqlite.loading import Loader as SqliteLoader  # noqa: PLC0415

            shared = False
            try:
                opened.enter_context(locked(settings.data_dir))
            except InUse:
                shared = True
            loader = SqliteLoader(settings.data_dir, settings.indexed_fields, shared=shared)
            rows = SHARED_ROWS if shared else BATCH_ROWS
        opened.callback(loader.close)
        if (problem := loader.unfinished_copy()) is not None:
            raise CommandError(problem)
        yield loader, rows


@dataclass
class _Load:
    """One load of parts into a store.

    Attributes:
        rows: Number of documents of one transaction.
        found: Counts so far.
        failed: Number of rejected documents.
        ids: Hashes of the ids so far. About one in 300,000 loads of 10 million ids has a collision.

    """

    settings: Settings
    loader: Loader
    parts: Sequence["VectorFile"]
    collection: str
    rows: int
    found: Loaded = field(default_factory=lambda: Loaded(0, 0))
    failed: int = 0
    ids: "array[int]" = field(default_factory=lambda: array("q"))

    def run(self) -> str:
        """Loads everything. Returns a summary for people.

        Raises:
            CommandError: The vectors are not those of the version, the load ended early, or some documents
                were rejected.

        """
        models = ModelStore(self.settings.models_dir)
        active = self.loader.active()
        manifest = self._choose_version(models, active)
        form = self._check_description(manifest, active)
        total = sum(part.rows for part in self.parts)
        is_active = active is None or active.fingerprint == manifest.fingerprint
        if active is None:
            requested = models.requested()
            if requested not in {None, manifest.version}:
                raise CommandError(
                    f"No service has used this store yet, and it would start with {requested}. Request the "
                    f"version of the vectors first: {activate_command(models.root, manifest.version)}"
                )
            number = self.loader.activate(manifest, stored_form(form, manifest))
        elif is_active:
            number = active.number
        elif self.loader.has_collection(self.collection):
            number = self.loader.begin(manifest, stored_form(form, manifest))
        else:
            raise CommandError(f"There is no collection {self.collection!r}. Import its documents first.")
        if is_active:
            self.loader.prepare(number, total)
            most = self.settings.max_collections
            steps = self.loader.put(number, self._batches(), self.collection, most)
        else:
            steps = self.loader.add(number, self._batches(), self.collection)
        try:
            with contextlib.closing(steps), Progress("documents", total, "loading") as progress:
                for step in steps:
                    self.found = Loaded(*(one + other for one, other in zip(self.found, step, strict=True)))
                    progress.add(sum(step))
            self.loader.finish(number)
        except KeyboardInterrupt:
            raise Stopped(f"Stopped. {self._so_far()}") from None
        except (ServiceError, CommandError, ModelError) as error:
            raise CommandError(f"{getattr(error, 'message', error)} {self._so_far()}") from error
        said = self._sum_up(number, manifest, is_active=is_active, root=models.root)
        if self.failed:
            raise CommandError(f"{amount(self.failed, 'document was', 'documents were')} rejected. {said}")
        return said

    def _choose_version(self, models: ModelStore, active: Active | None) -> Manifest:
        """Returns the manifest of the version that the vectors belong to.

        Raises:
            CommandError: No published version has this fingerprint.

        """
        description = self.parts[0].description
        alike = {
            each.version: each for each in models.versions() if each.fingerprint == description.fingerprint
        }
        preferred = [active.version if active else None, models.requested(), description.version]
        found = next((alike[name] for name in preferred if name in alike), None)
        if found is None:
            raise CommandError(
                f"The vectors are of {description.version} (fingerprint {description.fingerprint[:12]}), and "
                f"no version in {models.root} has this fingerprint. Publish the version there, or embed "
                "with a version of that folder. Nothing was stored."
            )
        return found

    def _check_description(self, manifest: Manifest, active: Active | None) -> Form:
        """Checks that the service would compute the same vectors. Returns its precision and engine.

        Raises:
            CommandError: The precision, the dimension, the prompt or the passages differ.

        """
        from models.bulk.vector_files import Description  # noqa: PLC0415

        given = self.parts[0].description
        form = read_form(given.precision)
        split = self.collection if self.settings.passages else None
        expected = replace(Description.of(manifest, given.precision, split), version=given.version)
        if given != expected:
            differing = [
                name
                for name in ("dimension", "prompt", "passages")
                if getattr(given, name) != getattr(expected, name)
            ]
            said = "; ".join(
                f"{name} {getattr(given, name)!r}, not {getattr(expected, name)!r}" for name in differing
            )
            raise CommandError(
                f"The service would compute other vectors for the collection {self.collection!r}: the files "
                f"have {said}. Embed again as this service does, and for this collection. Nothing was stored."
            )
        automatic = self.settings.precision == "auto"
        if active is None:
            served = form if automatic else requested_form(self.settings)
        elif automatic and active.version != manifest.version and form.precision == FP32.precision:
            served = FP32  # A version that loses too much precision is served in fp32.
        else:
            served = read_form(active.form)
        if form.precision == served.precision == FP32.precision:
            return served  # Processors and GPUs compute the same vectors in fp32, within 1e-5.
        if form != served:
            raise CommandError(
                f"The vectors were computed in {form}, and the service computes in {served}. Embed again in "
                f"{served.precision}, or change SIMILE_PRECISION. Nothing was stored."
            )
        return form

    def _batches(self) -> Iterator[Batch]:
        """Yields documents with distinct ids, and their embeddings. The last of equal ids wins."""
        for part in self.parts:
            for rows in part.batches(self.rows):
                others = read_rows(rows.others) if rows.others.num_columns else [{}] * len(rows.ids)
                embeddings = _build_embeddings(rows, normalize=part.half)
                batch: dict[str, tuple[Document, Embedding]] = {}
                for at, id in enumerate(rows.ids):
                    try:
                        json = self._check(rows, at, others[at])
                    except (BadRow, Validation) as error:
                        self._reject(f"{part.path}: document {id[:80]!r}: {error}")
                        continue
                    self.ids.append(hash(id))
                    batch[id] = Document(id, rows.texts[at], json, rows.titles[at]), embeddings[at]
                if batch:
                    documents, chosen = zip(*batch.values(), strict=True)
                    yield documents, chosen

    def _check(self, rows: "Rows", at: int, others: dict[str, Any] | BadRow) -> str:
        """Checks that a document could be stored through the service. Returns its metadata as JSON.

        Raises:
            BadRow, Validation: The document cannot be stored.

        """
        id, title, text = rows.ids[at], rows.titles[at], rows.texts[at]
        if not 0 < len(id) <= MAX_ID_CHARACTERS:
            raise BadRow(f"its id has {len(id)} characters; 1 to {MAX_ID_CHARACTERS} are possible")
        if "\0" in id or "\0" in title or "\0" in text:
            raise BadRow("it has the character U+0000, which cannot be stored")
        if not text or text.isspace() or title.isspace():
            raise BadRow("its text or its title is empty, or white space only")
        if isinstance(others, BadRow):
            raise others
        if not others:
            return "{}"
        parse_metadata(others)
        found = {name: plain(value) for name, value in merge_metadata(others).items()}
        return check_metadata(found, "metadata", self.settings.max_metadata_kb)

    def _reject(self, reason: str) -> None:
        self.failed += 1
        if self.failed <= MAX_TOLD:
            to_stderr(reason)

    def _so_far(self) -> str:
        done = self.found.new + self.found.kept
        return f"{amount(done, 'document is', 'documents are')} loaded so far; the same command goes on."

    def _sum_up(self, number: int, manifest: Manifest, *, is_active: bool, root: Path) -> str:
        new, kept, absent, different = self.found
        if is_active:
            distinct = len(np.unique(np.array(self.ids, np.int64)))
            count = amount(distinct, "document is", "documents are")
            said = [f"{count} stored with vectors of {manifest.version}"]
            if distinct > new:
                said.append(f"{distinct - new:,} of them had been stored before")
            if repeated := len(self.ids) - distinct:
                said.append(
                    f"{amount(repeated, 'row was', 'rows were')} replaced by a later one with the same id"
                )
            return f"{'; '.join(said)}."
        said = [
            f"{amount(new + kept, 'document has', 'documents have')} imported vectors of {manifest.version}"
        ]
        if kept:
            said.append(f"{kept:,} of them had been imported before")
        if different:
            said.append(f"{amount(different, 'document has', 'documents have')} another text now")
        if absent:
            said.append(f"{amount(absent, 'document is', 'documents are')} not stored")
        lacking = self.loader.count_lacking(number)
        rest = f" The service will embed {amount(lacking, 'other document')}." if lacking else ""
        return f"{'; '.join(said)}.{rest} Now activate it: {activate_command(root, manifest.version)}"


def _build_embeddings(rows: "Rows", *, normalize: bool) -> list[Embedding]:
    """Returns the embedding of each document. Numbers of fp16 are scaled to unit length again."""
    heads, others = rows.vectors, rows.other_vectors
    if normalize:
        heads, others = (each / np.linalg.norm(each, axis=1, keepdims=True) for each in (heads, others))
    spans, offsets = rows.spans.tolist(), rows.offsets.tolist()
    return [
        Embedding(
            heads[at],
            rows.truncated[at],
            end=rows.ends[at],
            others=tuple(Passage(others[one], *spans[one]) for one in range(offsets[at], offsets[at + 1])),
        )
        for at in range(len(rows.ids))
    ]
