"""The command line of the service: `simile COMMAND`, or `python -m service [COMMAND]`. Start at `run`.

Without a command, the service runs in this process in the foreground. Ctrl-C and SIGTERM stop the service
cleanly: `/ready` answers 503, accepted requests are answered, and the exit status is 0. A second signal ends
the process at once.

Other exit statuses are 70 or 1 if the process hung (runtime/watchdog.py), 78 if the service could not start,
1 if another command failed, and 130 if Ctrl-C stopped one.

docs/DOCUMENTS.md describes `import`, `export`, `backup`, `restore` and `check --data`. docs/PAGE.md describes
`map`. docs/AGENTS.md describes `mcp`.
"""

import argparse
import os
import shlex
import sys
from collections.abc import Iterable, Sequence
from importlib import import_module
from importlib.metadata import distributions
from typing import NoReturn

# Set before the import of numpy and FAISS. Each would use every processor and slow the encoder's threads.
for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ.setdefault(_name, "1")

from models.errors import install_command, not_installed
from models.messages import Parser, add_version, discard_output
from service.cli import CHECK, COMMANDS, SERVE

try:
    from service.auth.keys import KeysError
    from service.errors import CommandError, StartupError, Stopped
    from service.settings import PREFIX, Settings, read
except ModuleNotFoundError as missing:
    print(not_installed(missing), file=sys.stderr)
    sys.exit(os.EX_CONFIG)


PROG = "python -m service"
STOPPED = 130  # exit status of a command that Ctrl-C stopped, as in a shell

# Distributions that install the same import folder. pip does not notice that two of them break each other.
FAMILIES = {
    "onnxruntime": {"onnxruntime", "onnxruntime-gpu", "onnxruntime-openvino", "onnxruntime-directml"},
    "faiss": {"faiss-cpu", "faiss-gpu", "faiss-gpu-cuvs", "faiss-gpu-cu11", "faiss-gpu-cu12"},
}

# Commands that need a data directory, with advice for a database.
OFFLINE = {
    "backup": "back it up with pg_dump, or copy it into a data directory with `copy --from`",
    "restore": "restore it with pg_restore, or restore a data directory (--data-dir) and `copy --to` it",
    "map": "copy it into a data directory with `copy --from`, and name that with --data-dir",
}


def main(arguments: Sequence[str] | None = None, prog: str = PROG) -> None:
    """Runs a command.

    Args:
        arguments: The command line. None means that of this process.
        prog: The program as the user typed it.

    """
    line = sys.argv[1:] if arguments is None else arguments
    command = next((each for each in line if not each.startswith("-")), None)
    serves = command in {None, "serve"}
    try:
        if text := run(parser(prog, command).parse_args(line)):
            print(text, flush=True)
    except ModuleNotFoundError as missing:
        _refuse(not_installed(missing), serves=serves)
    except StartupError as error:
        _refuse(f"Simile cannot start: {error}", serves=serves)
    except Stopped as stopped:
        print(stopped, file=sys.stderr)
        sys.exit(STOPPED)
    except CommandError as error:
        print(error, file=sys.stderr)
        sys.exit(error.exit_status)
    except KeysError as error:
        _refuse(str(error), serves=serves)
    except BrokenPipeError:  # For example with `| head`. The rest of the output is dropped.
        discard_output()
        sys.exit(1)
    except KeyboardInterrupt:
        if not serves:
            print("Stopped. Answered requests and finished files are kept.", file=sys.stderr)
            sys.exit(STOPPED)
        # The next start repeats an interrupted start-up step.
        sys.exit("Stopped before the service had started.")


def _refuse(message: str, *, serves: bool) -> NoReturn:
    """Prints an error message and ends the process.

    If the service cannot start, the status is 78, which tells a process manager that another attempt does not
    help. For other commands it is 1.
    """
    print(message, file=sys.stderr)
    sys.exit(os.EX_CONFIG if serves else 1)


class ServiceParser(Parser):
    def hint(self, message: str) -> str:
        """Returns advice for an error message.

        If an option on the command line has the name of a setting, the advice names the environment variable.
        """
        names = (word.partition("=")[0].removeprefix("--").replace("-", "_") for word in sys.argv[1:])
        setting = next((name for name in names if name in Settings.model_fields), None)
        return super().hint(message) if setting is None else f" Set {PREFIX}{setting.upper()} instead."


def parser(prog: str = PROG, only: str | None = "") -> argparse.ArgumentParser:
    """Builds the parser.

    Args:
        prog: The program as the user typed it.
        only: The command whose arguments are declared, so that no other module is imported. Empty: all.

    """
    described = ServiceParser(
        prog=prog,
        description="Serve embeddings, documents and search. Settings come from SIMILE_ variables.",
    )
    add_version(described)
    commands = described.add_subparsers(dest="command")
    commands.add_parser("serve", help=f"{SERVE} (the default)")
    check = commands.add_parser("check", help=CHECK)
    what = check.add_mutually_exclusive_group()
    what.add_argument(
        "--data", action="store_true", help="check the data directory instead; exit status 1 if it is damaged"
    )
    what.add_argument("--json", action="store_true", help="for programs")
    for name, command in COMMANDS.items():
        declared = commands.add_parser(name, help=command.about)
        if only in {"", name}:
            import_module(command.module).describe(declared)
    return described


def run(arguments: argparse.Namespace) -> str:
    """Runs the command and returns the text to print."""
    command: str | None = arguments.command
    if command == "keys":
        from service.observability import logs  # noqa: PLC0415

        logs.install("info", "text")
    if command == "import" and arguments.vectors:
        from service.cli.commands import import_vectors  # noqa: PLC0415

        return import_vectors.run(arguments, read())
    if command in COMMANDS and not COMMANDS[command].reads_settings:
        return str(import_module(COMMANDS[command].module).run(arguments))
    refuse_clashes()
    settings = read()
    if command in OFFLINE and settings.database is not None and getattr(arguments, "data_dir", None) is None:
        raise CommandError(f"The documents are in the database of SIMILE_DATABASE: {OFFLINE[command]}.")
    if command in COMMANDS:
        return str(import_module(COMMANDS[command].module).run(arguments, settings))
    # Importing the application and its runtimes takes half a second, and no other command needs them.
    from service import server  # noqa: PLC0415
    from service.cli import check  # noqa: PLC0415

    if command == "check" and arguments.data:
        return check.check_data(settings)
    check.require_usable(settings)
    if command == "check":
        return check.report(settings, as_json=arguments.json)
    server.serve(settings)
    return ""


def refuse_clashes(installed: Iterable[str] | None = None) -> None:
    """Checks that each required import package comes from exactly one installed distribution.

    Args:
        installed: Names of distributions. None means those of this environment.

    Raises:
        StartupError: No distribution provides a package, or several do.

    """
    if installed is None:
        installed = (found.metadata["Name"] or "" for found in distributions())
    pip = f"{shlex.quote(sys.executable)} -m pip"
    names = {name.lower().replace("_", "-") for name in installed}
    for module, family in FAMILIES.items():
        found = sorted(family & names)
        if not found:
            raise StartupError(f"No {module} is installed: {install_command('cpu')}")
        if len(found) > 1:
            raise StartupError(
                f"{' and '.join(found)} are installed together and overwrite each other's files. Make a new "
                "virtual environment with one of the extras cpu, gpu and gpu-cuvs, or run: "
                f"{pip} uninstall -y {' '.join(found)} && {pip} install {found[-1]}"
            )


if __name__ == "__main__":
    main()
