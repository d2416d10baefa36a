"""The collections of a running service: which of them to read, and how a document of one is named.

The default collection is read unless others are named; ("*",) names all of them. A document's name here holds
its collection, so that equal ids of two collections are two documents.
"""

from __future__ import annotations

import argparse
import re

from training.errors import TrainingError

DEFAULT = "default"
ONLY_DEFAULT = (DEFAULT,)
ALL = ("*",)
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}")
_MARK = "collection:"


def is_name(name: str) -> bool:
    """True if a collection of a service can have this name."""
    return _NAME.fullmatch(name) is not None


def qualified(collection: str, id: str) -> str:
    """A name for the document that no other document of any collection has.

    An id in the default collection stays as it is, so that the same documents are held out as ever.
    """
    plain = collection == DEFAULT and not id.startswith(_MARK)
    return id if plain else f"{_MARK}{collection}/{id}"


def add_options(command: argparse.ArgumentParser) -> None:
    """`--collection` and `--all-collections`, which go with `--from-service`."""
    which = command.add_mutually_exclusive_group()
    which.add_argument(
        "--collection",
        action="append",
        metavar="NAME",
        help="of the service, may come several times (default: the collection `default`)",
    )
    which.add_argument("--all-collections", action="store_true", help="of the service")


def chosen(options: argparse.Namespace) -> tuple[str, ...]:
    """The collections that the options name. Raise TrainingError where they go with no service."""
    names: list[str] | None = options.collection
    if (names or options.all_collections) and not options.from_service:
        raise TrainingError("--collection and --all-collections go with --from-service alone.")
    for name in names or ():
        if not is_name(name):
            raise TrainingError(f"--collection {name!r}: no collection can have this name.")
    return ALL if options.all_collections else tuple(names or ONLY_DEFAULT)
