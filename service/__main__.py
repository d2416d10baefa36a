"""`python -m service`: settings in, the service up. `check`: say what would run. `keys`: who may call it.
`import`, `export`, `backup`, `restore`, `check --data`: docs/DOCUMENTS.md. `map`: docs/PAGE.md.

One process, in the foreground. Ctrl-C and SIGTERM stop it cleanly: `/ready` turns red, what was accepted is
answered, and the exit status is 0. A second one ends it at once. Status 70 or 1: the service hung
(watchdog.py). Status 78: it refused to start. Status 1 of another command: it failed.
"""

import argparse
import os
import sys
from collections.abc import Callable
from typing import NoReturn

# Before numpy and FAISS are imported: each would take every processor, and throttle the encoder's threads.
for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ.setdefault(_name, "1")

from models.errors import not_installed
from models.words.commands import Parser, add_version

try:
    from service.auth.keys import KeysError
    from service.cli import installed, keys
    from service.cli.commands import backup, check_data, copy, export, import_files, map_documents, restore
    from service.errors import CommandError, StartupError
    from service.observability import logs
    from service.settings import PREFIX, Settings, read
except ModuleNotFoundError as missing:
    print(not_installed("service", missing), file=sys.stderr)
    sys.exit(os.EX_CONFIG)


def main() -> None:
    arguments = parser().parse_args()
    try:
        if said := run(arguments):
            print(said, flush=True)
    except StartupError as error:
        _refuse(arguments.command, f"Simile cannot start: {error}")
    except (KeysError, CommandError) as error:
        _refuse(arguments.command, str(error))
    except BrokenPipeError:  # as `| head` leaves the pipe; what is not printed yet goes nowhere
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except KeyboardInterrupt:
        if arguments.command not in {None, "serve"}:
            sys.exit("Stopped. What was answered or renamed into place stays.")
        # Before the service was up; what was begun is begun again by the next start.
        sys.exit("Stopped before it had started.")


def _refuse(command: str | None, message: str) -> NoReturn:
    """Prints why the command cannot be done and ends the process.

    A refused start has a status of its own: starting again does not help. A hang may end with status 1.
    """
    print(message, file=sys.stderr)
    sys.exit(os.EX_CONFIG if command in {None, "serve"} else 1)


class ServiceParser(Parser):
    def hint(self, message: str) -> str:
        """A setting that was given as an option is named by its variable."""
        names = (word.partition("=")[0].removeprefix("--").replace("-", "_") for word in sys.argv[1:])
        setting = next((name for name in names if name in Settings.model_fields), None)
        return super().hint(message) if setting is None else f" Set {PREFIX}{setting.upper()} instead."


def parser() -> argparse.ArgumentParser:
    described = ServiceParser(
        prog="python -m service",
        description="Serve embeddings, documents and search. Settings come from SIMILE_ variables.",
    )
    add_version(described)
    commands = described.add_subparsers(dest="command")
    commands.add_parser("serve", help="serve; also what happens without a command")
    check = commands.add_parser("check", help="print each setting and what would run, and start nothing")
    check.add_argument(
        "--data", action="store_true", help="check what the data directory holds instead; status 1: not sound"
    )
    import_files.describe(
        commands.add_parser("import", help="documents out of files, into a running service")
    )
    export.describe(commands.add_parser("export", help="documents as JSON lines"))
    backup.describe(commands.add_parser("backup", help="the whole store, while the service runs"))
    restore.describe(commands.add_parser("restore", help="a backup into a data directory that nobody uses"))
    copy.describe(
        commands.add_parser("copy", help="the whole store, from a data directory to PostgreSQL, or back")
    )
    map_documents.describe(
        commands.add_parser("map", help="places of the documents in the plane, for the page's map")
    )
    keys.describe(commands.add_parser("keys", help="make, list and remove the keys of callers"))
    return described


def run(arguments: argparse.Namespace) -> str:
    """Do what is asked for; what to print then."""
    command: str | None = arguments.command
    if command == "keys":
        logs.install("info", "text")
    alone: dict[str | None, Callable[[argparse.Namespace], str]] = {
        "keys": keys.run,
        "import": import_files.run,
        "export": export.run,
    }
    if command in alone:
        return alone[command](arguments)
    installed.refuse_clashes()
    settings = read()
    offline: dict[str | None, Callable[[argparse.Namespace, Settings], str]]
    offline = {"backup": backup.run, "restore": restore.run, "map": map_documents.run}
    checks_data = command == "check" and arguments.data
    if checks_data:
        return check_data.run(settings)
    if command in offline:
        _refuse_database(command, arguments, settings)
        return offline[command](arguments, settings)
    if command == "copy":
        return copy.run(arguments, settings)
    # The application and its runtimes take half a second to import, which no other command needs.
    from service import server  # noqa: PLC0415
    from service.cli import check  # noqa: PLC0415
    from service.runtime import settings_check  # noqa: PLC0415

    settings_check.check(settings)

    if command == "check":
        return check.report(settings)
    server.serve(settings)
    return ""


def _refuse_database(command: str | None, arguments: argparse.Namespace, settings: Settings) -> None:
    """Refuse what reads a data directory's files where the documents are in a database."""
    instead: dict[str | None, str] = {
        "backup": "back it up with pg_dump, or copy it into a data directory with `copy --from`",
        "restore": "restore it with pg_restore, or restore a data directory (--data-dir) and `copy --to` it",
        "map": "copy it into a data directory with `copy --from`, and name that with --data-dir",
    }
    if settings.database is not None and getattr(arguments, "data_dir", None) is None:
        raise CommandError(f"The documents are in the database of SIMILE_DATABASE: {instead[command]}.")


if __name__ == "__main__":
    main()
