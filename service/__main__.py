"""The command line: `python -m service [command]`. Start reading at `run`.

Without a command it serves, in one process in the foreground. Ctrl-C and SIGTERM stop it cleanly: `/ready`
turns red, accepted requests are answered, and the exit status is 0. A second signal ends it at once.

Other exit statuses: 70 or 1 for a process that hung (runtime/watchdog.py), 78 for a refused start, and 1 for
another command that failed.

docs/DOCUMENTS.md describes `import`, `export`, `backup`, `restore` and `check --data`; docs/PAGE.md `map`.
"""

import argparse
import os
import sys
from collections.abc import Callable
from typing import NoReturn

# Set before the import of numpy and FAISS. Each would use every processor and slow the encoder's threads.
for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ.setdefault(_name, "1")

from models.errors import not_installed
from models.messages import Parser, add_version

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
        if text := run(arguments):
            print(text, flush=True)
    except StartupError as error:
        _refuse(arguments.command, f"Simile cannot start: {error}")
    except (KeysError, CommandError) as error:
        _refuse(arguments.command, str(error))
    except BrokenPipeError:  # for example `| head`; the rest of the output is dropped
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except KeyboardInterrupt:
        if arguments.command not in {None, "serve"}:
            sys.exit("Stopped. Answered requests and finished files are kept.")
        # The next start repeats an interrupted start-up step.
        sys.exit("Stopped before the service had started.")


def _refuse(command: str | None, message: str) -> NoReturn:
    """Prints why the command cannot be done and ends the process.

    A refused start has a status of its own: starting again does not help. A hang may end with status 1.
    """
    print(message, file=sys.stderr)
    sys.exit(os.EX_CONFIG if command in {None, "serve"} else 1)


class ServiceParser(Parser):
    def hint(self, message: str) -> str:
        """Names the variable of a setting that was given as an option."""
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
    commands.add_parser("serve", help="run the service (the default)")
    check = commands.add_parser("check", help="print each setting and what would run, without starting")
    check.add_argument(
        "--data", action="store_true", help="check the data directory instead; exit status 1 if it is damaged"
    )
    import_files.describe(
        commands.add_parser("import", help="import documents from files into a running service")
    )
    export.describe(commands.add_parser("export", help="export documents as JSON lines"))
    backup.describe(commands.add_parser("backup", help="back up the whole store; the service may run"))
    restore.describe(commands.add_parser("restore", help="restore a backup into an unused data directory"))
    copy.describe(
        commands.add_parser("copy", help="copy the whole store from a data directory to PostgreSQL, or back")
    )
    map_documents.describe(
        commands.add_parser("map", help="compute the documents' coordinates for the page's map")
    )
    keys.describe(commands.add_parser("keys", help="create, list and remove API keys"))
    return described


def run(arguments: argparse.Namespace) -> str:
    """Runs the command and returns the text to print."""
    command: str | None = arguments.command
    if command == "keys":
        logs.install("info", "text")
    without_settings: dict[str | None, Callable[[argparse.Namespace], str]] = {
        "keys": keys.run,
        "import": import_files.run,
        "export": export.run,
    }
    if command in without_settings:
        return without_settings[command](arguments)
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
    # Importing the application and its runtimes takes half a second, and no other command needs them.
    from service import server  # noqa: PLC0415
    from service.cli import check  # noqa: PLC0415

    check.require_usable(settings)
    if command == "check":
        return check.report(settings)
    server.serve(settings)
    return ""


def _refuse_database(command: str | None, arguments: argparse.Namespace, settings: Settings) -> None:
    instead: dict[str | None, str] = {
        "backup": "back it up with pg_dump, or copy it into a data directory with `copy --from`",
        "restore": "restore it with pg_restore, or restore a data directory (--data-dir) and `copy --to` it",
        "map": "copy it into a data directory with `copy --from`, and name that with --data-dir",
    }
    if settings.database is not None and getattr(arguments, "data_dir", None) is None:
        raise CommandError(f"The documents are in the database of SIMILE_DATABASE: {instead[command]}.")


if __name__ == "__main__":
    main()
