"""Opens the version that a start serves. Start reading at `active_generation`.

A start serves the version that was active before, and a first start serves the version of the settings.
controller.py then activates the requested version.
"""

import logging
from functools import partial
from pathlib import Path

from models.encoder import Encoder
from models.engines.form import FP32, Form, read_form
from models.errors import FULL_ERRORS, FormUnavailable, ModelError, UnknownVersion
from service.errors import StartupError
from service.lifecycle import capacity
from service.lifecycle.model_loader import ModelLoader, fastest_form, stored_form
from service.live import Generation, IndexesOf
from service.settings import Settings
from service.store.protocol import Store
from service.store.values import Active

log = logging.getLogger(__name__)


def active_generation(
    store: Store, loader: ModelLoader, settings: Settings, indexes: IndexesOf
) -> Generation:
    """Opens and verifies the generation to serve.

    Raises:
        StartupError: The model cannot be published or opened, its folder was changed, or the store contains
            an unfinished copy.

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
        shared = (
            " It is in service: copy its folder from another replica, or let all share one models folder."
        )
        raise StartupError(f"{error}{shared if settings.database else ''}") from error
    except ModelError as error:
        raise StartupError(str(error)) from error
    except OSError as error:
        root = loader.store.root
        room = "Free some room there, or set" if error.errno in FULL_ERRORS else "Set"
        reason = error.strerror or error
        raise StartupError(f"{root} cannot be used: {reason}. {room} SIMILE_MODELS_DIR.") from error
    return Generation(number, encoder, indexes)


def _refuse_copy(store: Store) -> None:
    """Raises StartupError if the store contains an unfinished copy."""
    if (problem := store.unfinished_copy()) is not None:
        raise StartupError(problem)


def _again(store: Store, loader: ModelLoader, active: Active, settings: Settings) -> tuple[int, Encoder]:
    """Opens the active version in the form of its stored vectors.

    The controller then builds it in the requested form and swaps. If this machine does not support the old
    form, the stored vectors are dropped, and `/ready` is red until all documents are embedded again.
    """
    form, version = read_form(active.form), active.version
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
    return store.activate(encoder.manifest, stored_form(encoder)), encoder


def _first(store: Store, loader: ModelLoader, settings: Settings) -> tuple[int, Encoder]:
    """Publishes, requests and opens a first version, and stores whether to add the examples."""
    models = loader.store
    version = models.wanted() if settings.model == "default" else None
    if version is None:
        # Importing the onnx package takes a third of a second, which later starts do not need.
        from models.publishing.limited import publish_limited  # noqa: PLC0415

        source = Path(settings.model).expanduser()
        if settings.memory_check and source.is_dir() and (reason := capacity.no_publishing(source)):
            raise StartupError(reason)
        say = partial(log.info, "Publishing %s: %s", settings.model)
        version = publish_limited(models, settings.model, say=say, torch=False).version
        models.want(version)
    _prepare(loader, version, settings)
    encoder = loader.open(version)
    return store.activate(encoder.manifest, stored_form(encoder), examples=settings.examples), encoder


def _prepare(loader: ModelLoader, version: str, settings: Settings, now: Form = FP32) -> None:
    """Checks the memory for a version, and chooses the engine for SIMILE_PRECISION=auto.

    Args:
        loader: Opens the version.
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
        loader.most_loss = settings.precision_loss
