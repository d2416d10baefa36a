"""`simile copy`: copies a store from a data directory to PostgreSQL (`--to`), or back (`--from`).

The command copies documents, vectors of the active version, judgments, events, and decisions about versions.
It does not copy the models folder. To continue an interrupted copy, run the command again. During the copy,
no service may use the data directory or write to the database. Services and `backup` reject a target with an
unfinished copy.
"""

import argparse
import asyncio
from pathlib import Path

from models.errors import install_command
from models.files.fsync import sync
from service.errors import CommandError, StartupError
from service.runtime.data_lock import locked
from service.settings import Settings, check_database, get_models_dir
from service.store.sql.connection import START_OVER


def describe(parser: argparse.ArgumentParser) -> None:
    """Declares the arguments of `copy`."""
    ways = parser.add_mutually_exclusive_group(required=True)
    ways.add_argument("--to", metavar="URL", help="a database that is empty, or has an unfinished copy")
    ways.add_argument("--from", dest="source", metavar="URL", help="a database, to a new data directory")
    parser.add_argument(START_OVER, action="store_true", help="delete an unfinished copy, and begin again")
    parser.add_argument("--data-dir", type=Path, help="the data directory (default: SIMILE_DATA_DIR)")


def run(arguments: argparse.Namespace, settings: Settings) -> str:
    """Copies the store. Returns the text to print.

    Raises:
        CommandError: The copy failed, or differs from its source.

    """
    try:  # The extra is optional.
        from service.store.postgres import copying  # noqa: PLC0415
    except ModuleNotFoundError as error:
        raise CommandError(f"`copy` needs the extra postgres: {install_command('postgres')}") from error
    url = arguments.to or arguments.source
    data_dir = arguments.data_dir or settings.data_dir
    try:
        check_database(url)
    except ValueError as error:
        option = "--to" if arguments.to else "--from"
        raise CommandError(str(error).replace("SIMILE_DATABASE", option)) from None
    if arguments.to and not data_dir.is_dir():
        raise CommandError(f"The data directory {data_dir} does not exist. Name the directory of a service.")
    with locked(data_dir):
        try:
            into, over = arguments.to is not None, arguments.start_over
            said = asyncio.run(copying.between(data_dir, url, into_database=into, start_over=over))
        except StartupError as error:
            raise CommandError(str(error).replace("SIMILE_DATABASE", "the copy")) from error
    sync(data_dir)
    if arguments.to:
        return f"{said} Start the service with SIMILE_DATABASE and the same models folder."
    models = get_models_dir(settings, arguments.data_dir)
    return f"{said} Start the service without SIMILE_DATABASE; it needs the versions in {models}."
