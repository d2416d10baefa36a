"""`python -m service copy --to URL`: a data directory's store into PostgreSQL; `--from URL`: back again.

Documents, vectors of the version in service, judgements, events and decisions; what was stopped goes on. The
models folder is no part of it. No service may use the data directory meanwhile, and none should write to the
database. A target is marked until its copy has ended: no service starts on it, and no backup is made of it.
"""

import argparse
import asyncio
from pathlib import Path

from models.files.fsync import sync
from service.errors import CommandError, StartupError
from service.runtime.data_lock import DataDirLock
from service.settings import Settings, check_database, models_dir_of
from service.store.sql.connection import START_OVER


def describe(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `copy`."""
    ways = parser.add_mutually_exclusive_group(required=True)
    ways.add_argument("--to", metavar="URL", help="of an empty database, or of one with a copy to go on with")
    ways.add_argument("--from", dest="source", metavar="URL", help="of a database, into a new data directory")
    parser.add_argument(
        START_OVER, action="store_true", help="empty a target that holds an unfinished copy, and begin again"
    )
    parser.add_argument("--data-dir", type=Path, help="the data directory; SIMILE_DATA_DIR unless named")


def run(arguments: argparse.Namespace, settings: Settings) -> str:
    """Do it; what to print.

    Raises:
        CommandError: it cannot be done, or what was copied differs.

    """
    try:
        # An extra, which only those have who need it.
        from service.store.postgres import copying  # noqa: PLC0415
    except ModuleNotFoundError as error:
        raise CommandError("`copy` needs the extra postgres: pip install 'simile[cpu,postgres]'.") from error
    url = arguments.to or arguments.source
    data_dir = arguments.data_dir or settings.data_dir
    try:
        check_database(url)
    except ValueError as error:
        option = "--to" if arguments.to else "--from"
        raise CommandError(str(error).replace("SIMILE_DATABASE", option)) from None
    if arguments.to and not data_dir.is_dir():
        raise CommandError(f"There is no data directory {data_dir}. Name the one that a service has used.")
    lock = DataDirLock(data_dir)
    try:
        said = asyncio.run(
            copying.between(
                data_dir, url, into_database=arguments.to is not None, start_over=arguments.start_over
            )
        )
    except StartupError as error:
        raise CommandError(str(error).replace("SIMILE_DATABASE", "the copy")) from error
    finally:
        lock.release()
    sync(data_dir)
    if arguments.to:
        return f"{said} Start the service with SIMILE_DATABASE and the same models folder."
    models = models_dir_of(settings, arguments.data_dir)
    return f"{said} Start the service without SIMILE_DATABASE; it needs the versions in {models}."
