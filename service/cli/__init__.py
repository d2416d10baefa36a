"""Commands of the service: `simile COMMAND`, or `python -m service COMMAND`.

`COMMANDS` lists them. A command's module has `describe`, which declares the arguments, and `run`, which
returns the text to print. The module is imported only to run that command or to print its help.
"""

from typing import NamedTuple


class Command(NamedTuple):
    """A command of the service.

    Args:
        module: Name of the module with `describe` and `run`.
        about: What the command does, for the help.
        reads_settings: Whether `run` also needs the settings of the service.

    """

    module: str
    about: str
    reads_settings: bool = False


COMMANDS = {
    "import": Command(
        "service.cli.commands.import_files", "import documents from files into a running service"
    ),
    "export": Command("service.cli.commands.export", "export documents as JSON lines"),
    "search": Command("service.cli.commands.search", "search the documents of a running service"),
    "collections": Command("service.cli.commands.collections", "list the collections of a running service"),
    "check-search": Command(
        "service.cli.commands.check_search", "measure searches of a running service by a file of judgments"
    ),
    "backup": Command("service.cli.commands.backup", "back up the whole store; the service may run", True),
    "restore": Command(
        "service.cli.commands.restore", "restore a backup into an unused data directory", True
    ),
    "copy": Command(
        "service.cli.commands.copy", "copy the whole store from a data directory to PostgreSQL, or back", True
    ),
    "map": Command(
        "service.cli.commands.map_documents", "compute the documents' coordinates for the page's map", True
    ),
    "mcp": Command(
        "service.cli.commands.mcp", "answer an agent over stdin and stdout, from a running service"
    ),
    "keys": Command("service.cli.keys", "create, list and remove API keys"),
}
SERVE = "run the service"
CHECK = "print each setting and what would run, without starting"
