"""Which model version a start serves: the one that was live, or on the very first start the one asked for.

What is wanted meanwhile is worked towards afterwards (watch.py).
"""

import logging
import sqlite3
from functools import partial

from models.encoder import Encoder
from models.errors import ModelError
from models.store import Store
from service.device import Owner
from service.examples import FACT, WANTED
from service.generations import ACTIVE, insert
from service.live import Generation
from service.settings import Settings, StartupError
from service.writer import Transaction

log = logging.getLogger(__name__)


def active_generation(
    connection: sqlite3.Connection,
    store: Store,
    settings: Settings,
    owner: Owner | None = None,
    threads: int = 1,
) -> Generation:
    """The generation to serve, opened and verified; each of its forward passes runs on so many threads.

    Raises:
        StartupError: the model cannot be published or opened, or its folder is not what it was.

    """
    try:
        row = connection.execute(
            "SELECT number, version, fingerprint FROM generations WHERE state = ?", (ACTIVE,)
        ).fetchone()
        if row is None:
            number, encoder = _first(connection, store, settings, threads)
        else:
            number, encoder = _again(store, threads, *row)
    except ModelError as error:
        raise StartupError(str(error)) from error
    except OSError as error:
        raise StartupError(f"{store.root} cannot be used: {error}. Set SIMILE_MODELS_DIR.") from error
    return Generation(number, encoder, settings.snapshots_dir, owner)


def _again(store: Store, threads: int, number: int, version: str, fingerprint: str) -> tuple[int, Encoder]:
    """What was live when the service stopped."""
    encoder = store.open(version, threads)
    if encoder.manifest.fingerprint != fingerprint:
        raise StartupError(
            f"{version} is not the model that made the stored vectors: its fingerprint differs."
        )
    return number, encoder


def _first(
    connection: sqlite3.Connection, store: Store, settings: Settings, threads: int
) -> tuple[int, Encoder]:
    """Publish, want and serve a first version; remember it, and whether the examples are asked for."""
    version = store.wanted() if settings.model == "default" else None
    if version is None:
        # Publishing loads the onnx package, a third of a second that no later start should pay.
        from models.builtin import publish_named  # noqa: PLC0415

        say = partial(log.info, "Publishing %s: %s", settings.model)
        version = publish_named(store, settings.model, say=say).version
        store.want(version)
    encoder = store.open(version, threads)
    connection.execute("BEGIN IMMEDIATE")
    number = insert(Transaction(connection), encoder.manifest, str(encoder.form), ACTIVE)
    if settings.examples:
        connection.execute("INSERT INTO facts (name, value) VALUES (?, ?)", (FACT, WANTED))
    connection.execute("COMMIT")
    return number, encoder
