"""Opens model versions. Start reading at `active_generation` for a start, and at `ModelLoader` for a swap.

The service starts with the version that was active before. The very first start uses the version of the
settings. controller.py then activates the requested version. With SIMILE_PRECISION=auto, `fastest_form`
chooses the engine for this processor:

    fp32, bf16, int8 ─▶ supported by the processor and the version ─▶ within SIMILE_PRECISION_LOSS
                     ─▶ each computes the same texts ─▶ the fastest is kept in form.json

After a change of the engine, every document must be embedded again. Therefore the engine of the stored
vectors stays in use, unless another engine is clearly faster. The choice is stored. It is made again only if
the version, the processor, the number of threads, the limit of the loss or the supported engines change.
"""

import asyncio
import json
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from models import cpus
from models.encoder import Encoder
from models.engines.form import FP32, Form, read_form
from models.engines.nvidia import require_cuda
from models.engines.opening import CPU_FORMS, INT8, form_for, require
from models.errors import (
    FULL_ERRORS,
    Damaged,
    DeviceUnavailable,
    FormUnavailable,
    ModelError,
    ProofFailed,
    UnknownVersion,
    Unreadable,
    Unsupported,
)
from models.files.bounded import read_json
from models.files.fsync import replace_text
from models.manifest import FUSION, Manifest, read_manifest
from models.publishing.proof import check_golden
from models.publishing.scores import check_golden_scores
from models.reranker import Reranker
from models.store import ModelStore
from models.tokens.texts import example_texts
from service.active import Generation, IndexesOf
from service.batching.workers import Layout
from service.errors import StartupError, machine_error, temporary_fault
from service.lifecycle import capacity
from service.settings import PREFIX, Settings
from service.store.protocol import DocumentStore
from service.store.values import Active

log = logging.getLogger(__name__)

T = TypeVar("T")
AWAY = (Unreadable, UnknownVersion, OSError)
RETRY_SECONDS, MAX_SECONDS = 2.0, 30.0

FORM_FILE = "form.json"
MIN_GAIN = 1.2  # A smaller gain is within the noise of a busy machine.
_TEXTS, _REPEATS = 64, 5  # about a second for a small encoder
_MEASURE_SECONDS = 5.0  # time limit for one engine, so a large encoder has fewer repeats
_FACTS = ("model name", "cpu family", "model", "CPU implementer", "CPU part")  # on x86 and Arm


def requested_form(settings: Settings) -> Form:
    """Returns the precision and the engine that the settings request.

    Raises:
        StartupError: This machine does not support them.

    """
    try:
        return form_for(settings.precision, settings.place)
    except FormUnavailable as error:
        raise StartupError(f"{PREFIX}PRECISION={settings.precision}: {error}") from error


def require_device(settings: Settings) -> str:
    """Checks the device that runs the model, and returns a description of it.

    Raises:
        StartupError: The requested GPU is not available.

    """
    place = settings.place
    if place.device == "cpu":
        return "cpu"
    try:
        return f"{place}: {require_cuda(place)}"
    except DeviceUnavailable as error:
        raise StartupError(str(error)) from error


def stored_form(form: Form, manifest: Manifest) -> str:
    """Returns a key for the kind of a version's vectors: precision, engine and the lengths of passages.

    Stored vectors can be used again only if this key and the fingerprint of the model are equal.
    """
    lengths = {
        collection: learned.passage_tokens
        for collection, learned in sorted(manifest.search.items())
        if learned.passage_tokens
    }
    return f"{form} {lengths}" if lengths else str(form)


def get_precision_loss(encoder: Encoder) -> float:
    """Returns how much precision an encoder loses: 1 minus a mean cosine.

    The mean is over the golden texts, whose fp32 vectors each version contains (proof.py). It compares the
    encoder's vectors with these. For a pair of encoders, the larger loss counts. The loss is 0 in fp32, and
    before the encoder has computed the golden texts.
    """
    own = 0.0 if encoder.turned is None else 1 - encoder.turned.mean
    return own if encoder.queries is None else max(own, get_precision_loss(encoder.queries))


class ModelLoader:
    """Opens versions from the models folder, and verifies every byte.

    If `max_loss` is set, fp32 replaces `form` for versions that do not support `form`, and for versions whose
    loss of precision in `form` exceeds `max_loss`.

    Args:
        store: The models folder.
        settings: The settings, which name the precision, the engine and the device.
        layout: The workers, and the threads of each worker.

    Raises:
        StartupError: This machine does not support the precision.

    """

    def __init__(self, store: ModelStore, settings: Settings, layout: Layout) -> None:
        self.store = store
        self.form = requested_form(settings)  # Precision and engine, unless a caller names another.
        self.max_loss: float | None = None
        self.layout = layout
        self._in_fp32 = set[str]()  # versions that are opened in fp32 instead of `form`
        self._settings = settings

    @property
    def opens_single_text(self) -> bool:
        """True if versions can have a second session for single texts (single_text.py)."""
        return self.form.runtime == "onnxruntime" and not self._settings.deterministic

    def get_form(self, version: str) -> Form:
        """Returns the precision and the engine in which a version is opened."""
        return FP32 if version in self._in_fp32 else self.form

    def open(self, version: str, form: Form | None = None) -> Encoder:
        """Opens a version that was active before.

        Args:
            version: The version.
            form: Precision and engine. None means those of the settings.

        Raises:
            ModelError: The version cannot be opened, or not in this form.

        """
        return self._opened(version, form) if form else self._by_loss(version, self._opened)

    def open_verified(self, version: str) -> Encoder:
        """Opens a version for a swap. Compares its vectors of the golden texts with the published vectors.

        Raises:
            ModelError: The version cannot be opened, or the vectors differ.

        """
        return self._by_loss(version, partial(self._opened, verified=True))

    def open_reranker(self, version: str) -> Reranker:
        """Opens a reranker in `form`, or in fp32 if the version or this machine does not support that.

        Raises:
            ModelError: The version cannot be opened, or is no reranker.

        """
        opened = partial(
            self.store.open_reranker,
            version,
            self.layout.threads,
            callers=self.layout.workers,
            deterministic=self._settings.deterministic,
            place=self._settings.place,
        )
        try:
            reranker = opened(form=self.form)
        except FormUnavailable as error:
            log.warning("The reranker %s is served in fp32, not in %s: %s", version, self.form, error)
            return opened(form=FP32)
        if reranker.form != FP32:  # As in `_opened`.
            check_golden_scores(reranker, self.store.folder(version))
        return reranker

    def _by_loss(self, version: str, opened: Callable[[str, Form], Encoder]) -> Encoder:
        form = self.get_form(version)
        if self.max_loss is None or form == FP32:
            return opened(version, form)
        try:
            encoder = opened(version, form)
            if (loss := get_precision_loss(encoder)) <= self.max_loss:
                return encoder
            encoder.close()
            why = f"it loses {loss:.5f}, above {self.max_loss:g}"
        except (FormUnavailable, ProofFailed) as error:
            why = str(error)
        encoder = opened(version, FP32)
        log.warning("SIMILE_PRECISION=auto serves %s in fp32, not in %s: %s", version, form, why)
        self._in_fp32.add(version)
        return encoder

    def _opened(self, version: str, form: Form, *, verified: bool = False) -> Encoder:
        encoder = self.store.open(
            version,
            self.layout.threads,
            form=form,
            callers=self.layout.workers,
            deterministic=self._settings.deterministic,
            place=self._settings.place,
        )
        if any(each.mode == "hybrid" and each.fusion != FUSION for each in encoder.manifest.search.values()):
            log.warning(
                "%s learned a weight of hybrid search for another formula. The default replaces it until a "
                "retraining tunes the search again",
                version,
            )
        # The checksums are enough in fp32. The vectors of other engines depend on the machine.
        if verified or encoder.form != FP32:
            check_golden(encoder, self.store.folder(version))
        return encoder


async def read_when_there(
    store: ModelStore, version: str, work: Callable[[], T], wait: Callable[[str, float], Awaitable[None]]
) -> T:
    """Returns the result of `work`. While the folder of the version cannot be read, waits and tries again.

    A network mount that is missing, or missing permissions, do not mean that the version is damaged.

    Args:
        store: The models folder.
        version: The version that `work` reads.
        work: Function to run on another thread.
        wait: Function that waits. It receives the reason and the seconds.

    Raises:
        Exception: `work` failed although the folder can be read.

    """
    pause = RETRY_SECONDS
    while True:
        try:
            return await asyncio.to_thread(work)
        except AWAY as error:
            fault = machine_error(error)
            reason = str(error) if fault is None else fault.message
        except Damaged:
            raise
        except Exception:  # ONNX Runtime has its own error for a missing file.
            away = await asyncio.to_thread(_away, store, version)
            if away is None:
                raise
            reason = str(away)
        await wait(f"{reason.rstrip('.')}; it is tried again", pause)
        pause = min(2 * pause, MAX_SECONDS)


def _away(store: ModelStore, version: str) -> Exception | None:
    """Returns the error if the folder of a version cannot be read now, or None if it can be read."""
    try:
        with suppress(Damaged):
            read_manifest(store.folder(version))
    except AWAY as error:
        return error
    return None


def fastest_form(loader: ModelLoader, version: str, folder: Path, max_loss: float, now: Form = FP32) -> Form:
    """Returns the precision and the engine that are fastest on this processor.

    The form `now` stays unless another form is at least MIN_GAIN times as fast. An earlier choice in the data
    directory is used if it still applies. Otherwise all possible forms are measured, which takes a few
    seconds, and the choice is stored.

    Args:
        loader: Opens the version in each form.
        version: The version to measure.
        folder: The data directory.
        max_loss: Highest allowed loss of precision (`get_precision_loss`).
        now: The form of the stored vectors, or fp32.

    Raises:
        ModelError: The version cannot be opened in fp32.

    """
    requested = build_measurement_key(loader.store.folder(version), loader.layout, max_loss)
    if (kept := kept_form(folder, requested)) is not None:
        return kept
    log.info("SIMILE_PRECISION=auto measures %s", ", ".join(requested["forms"]))
    forms = map(read_form, requested["forms"])
    rates = {form: rate for form in forms if (rate := _rate(loader, version, form, max_loss))}
    best, stays = max(rates, key=lambda form: rates[form]), now if now in rates else FP32
    chosen = best if rates[best] >= MIN_GAIN * rates[stays] else stays
    said = ", ".join(f"{form} {rate:.0f}" for form, rate in rates.items())
    log.info("SIMILE_PRECISION=auto is %s: texts a second of one processor: %s", chosen, said)
    measured = {str(form): round(rate, 1) for form, rate in rates.items()}
    kept_now = requested | {"form": str(chosen), "texts_per_second": measured}
    try:
        replace_text(folder / FORM_FILE, json.dumps(kept_now, indent=2) + "\n")
    except OSError as error:
        log.warning("SIMILE_PRECISION=auto cannot keep its choice, so the next start measures: %s", error)
    return chosen


def build_measurement_key(version: Path, layout: Layout, max_loss: float) -> dict[str, Any]:
    """Returns everything that the choice of a form depends on: model, processor, threads and forms.

    A stored choice applies as long as these values stay the same.

    Args:
        version: The folder of the version.
        layout: The workers, and the threads of each worker.
        max_loss: Highest allowed loss of precision.

    Raises:
        ModelError: The version cannot be read.

    """
    manifest = read_manifest(version)
    forms = []
    for form in CPU_FORMS:
        with suppress(FormUnavailable):
            require(form)
            forms.append(form)
    return {
        "fingerprint": manifest.fingerprint,
        "processor": processor(),
        "threads": layout.threads,
        "most_loss": max_loss,
        "forms": [str(form) for form in forms if form != INT8 or manifest.quantised],
    }


def kept_form(folder: Path, requested: dict[str, Any]) -> Form | None:
    """Returns the form that was chosen before and stored in `folder`, or None.

    Args:
        folder: The data directory.
        requested: The result of `build_measurement_key`. If the stored values differ, the choice no longer
            applies.

    """
    try:
        kept = read_json(folder / FORM_FILE)
        same = {name: kept[name] for name in requested} == requested
        form = read_form(kept["form"])
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
    return form if same and str(form) in requested["forms"] else None


def processor(cpuinfo: Path = cpus.CPUINFO) -> str:
    """Returns the model and the family of the first processor in `/proc/cpuinfo`."""
    facts = cpus.facts(cpuinfo)
    return ", ".join(f"{name} {facts[name]}" for name in _FACTS if name in facts) or "unknown"


def _rate(loader: ModelLoader, version: str, form: Form, max_loss: float) -> float | None:
    """Measures texts per second of processor time.

    Returns None if the form fails or loses too much precision.

    Raises:
        ModelError: The version cannot be opened in fp32.

    """
    try:
        encoder = loader.open(version, form)
        try:
            if (loss := get_precision_loss(encoder)) > max_loss:
                log.info("SIMILE_PRECISION=auto leaves %s out: it loses %.5f, above %g", form, loss, max_loss)
                return None
            began, found = time.monotonic(), list[float]()
            while len(found) < _REPEATS and (not found or time.monotonic() - began < _MEASURE_SECONDS):
                found.append(_seconds(encoder, example_texts()[:_TEXTS]))
            return _TEXTS / min(found)
        finally:
            encoder.close()
    except Exception as error:  # Each runtime has its own errors.
        if form == FP32:
            raise
        log.warning("SIMILE_PRECISION=auto leaves %s out: %s", form, error)
        return None


def _seconds(encoder: Encoder, texts: Sequence[str]) -> float:
    """Returns the processor time that `encoder` needs for `texts`, in seconds.

    Elapsed time would also include the work of other processes.
    """
    began = time.process_time()
    encoder.encode(texts)
    return time.process_time() - began


def active_generation(
    store: DocumentStore, loader: ModelLoader, settings: Settings, indexes: IndexesOf
) -> Generation:
    """Opens and verifies the generation with which the service starts.

    Raises:
        StartupError: The model cannot be published or opened, the files of the version were changed, or the
            store contains an unfinished copy.

    """
    try:
        _refuse_copy(store)
        active = store.active()
        if active is None:
            with store.starting():  # Another process may do the same, or copy a store.
                _refuse_copy(store)
                active = store.active()
                if active is None:
                    return Generation(*_first(store, loader, settings), indexes)
        number, encoder = _again(store, loader, active, settings)
    except UnknownVersion as error:
        shared = " It is active: copy its folder from another replica, or let all share one models folder."
        raise StartupError(f"{error}{shared if settings.database else ''}") from error
    except ModelError as error:
        raise StartupError(str(error)) from error
    except OSError as error:
        if fault := temporary_fault():
            raise StartupError(fault) from error
        root = loader.store.root
        room = "Free some room there, or set" if error.errno in FULL_ERRORS else "Set"
        reason = error.strerror or error
        raise StartupError(f"{root} cannot be used: {reason}. {room} SIMILE_MODELS_DIR.") from error
    return Generation(number, encoder, indexes)


def _refuse_copy(store: DocumentStore) -> None:
    """Checks that the store is not an unfinished copy.

    Raises:
        StartupError: The store contains an unfinished copy.

    """
    if (problem := store.unfinished_copy()) is not None:
        raise StartupError(problem)


def _again(
    store: DocumentStore, loader: ModelLoader, active: Active, settings: Settings
) -> tuple[int, Encoder]:
    """Opens the active version in the form of its stored vectors.

    Returns the number of the generation and the encoder.

    Later, the controller builds the version in the requested form and swaps. If this machine does not support
    the old form, the stored vectors are not used any more, and `/ready` fails until all documents are
    embedded again.

    Raises:
        StartupError: The files of the version are not those that computed the stored vectors.

    """
    form, version = read_form(active.form), active.version
    _add_int8(loader.store, settings, loader.store.requested() or version)
    _prepare(loader, version, settings, form)
    try:
        encoder = loader.open(version, form)
    except FormUnavailable as error:
        log.warning("The documents of %s are embedded again in %s: %s", version, loader.form, error)
        encoder = loader.open(version)
    if encoder.manifest.fingerprint != active.fingerprint:
        raise StartupError(
            f"{version} is not the model that made the stored vectors: its fingerprint differs."
        )
    if encoder.form == form:
        return active.number, encoder
    return store.activate(encoder.manifest, stored_form(encoder.form, encoder.manifest)), encoder


def _first(store: DocumentStore, loader: ModelLoader, settings: Settings) -> tuple[int, Encoder]:
    """Publishes, requests and opens the first version. Also stores whether to add the example documents.

    Returns:
        The number of the generation, and the encoder.

    """
    models = loader.store
    version = models.requested() if settings.model == "default" else None
    if version is None:
        # Importing the onnx package takes a third of a second, which later starts do not need.
        from models.publishing.limited import publish_limited  # noqa: PLC0415

        source = Path(settings.model).expanduser()
        if settings.memory_check and source.is_dir() and (reason := capacity.no_publishing(source)):
            raise StartupError(reason)
        say = partial(log.info, "Publishing %s: %s", settings.model)
        published = publish_limited(
            models, settings.model, say=say, torch=False, int8=settings.calibrates_int8
        )
        version = published.version
        models.request(version)
    version = _add_int8(models, settings, version)
    _prepare(loader, version, settings)
    encoder = loader.open(version)
    return store.activate(
        encoder.manifest, stored_form(encoder.form, encoder.manifest), examples=settings.examples
    ), encoder


def _add_int8(models: ModelStore, settings: Settings, version: str) -> str:
    """Publishes and requests `version` again with an int8 graph if SIMILE_PRECISION=int8 needs one.

    Returns:
        The version with the graph, or `version` if it has one, needs none or cannot get one.

    """
    if settings.precision != "int8" or read_manifest(models.folder(version)).quantised:
        return version
    from models.publishing.publish import quantize  # noqa: PLC0415  it imports onnx

    try:
        again = quantize(models, version, partial(log.info, "Adding int8 to %s: %s", version)).version
    except (Unsupported, OSError) as error:  # or the models folder is read-only
        log.warning("%s gets no int8 graph: %s", version, error)
        return version
    models.request(again)
    return again


def _prepare(loader: ModelLoader, version: str, settings: Settings, now: Form = FP32) -> None:
    """Checks the memory for a version. With SIMILE_PRECISION=auto, also chooses the engine.

    Args:
        loader: The loader that will open the version.
        version: The version to open.
        settings: The settings.
        now: The form of the stored vectors.

    Raises:
        StartupError: The version does not fit into memory.
        UnknownVersion: The version is missing.

    """
    folder = loader.store.folder(version)
    if settings.memory_check and (reason := capacity.no_start(version, folder)):
        raise StartupError(reason)
    if settings.measures_form:
        loader.form = fastest_form(loader, version, settings.data_dir, settings.precision_loss, now)
        loader.max_loss = settings.precision_loss
