"""`simile mcp`: tools for an agent that starts this command and talks to it over stdin and stdout.

The tools send requests to a running service (service/agents/tools.py).
"""

import argparse
import asyncio
import os
import signal
from pathlib import Path

from models.errors import install_command
from service.cli.commands.client import TIMEOUT_SECONDS, parse_address, parse_key, read_key
from service.errors import CommandError
from service.settings import own_url


def describe(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--url",
        default=os.environ.get("SIMILE_URL") or own_url(),
        help="address of the running service (%(default)s; or SIMILE_URL)",
    )
    parser.add_argument(
        "--key-file", type=Path, metavar="FILE", help="contains an API key (or SIMILE_API_KEY)"
    )


def run(arguments: argparse.Namespace) -> str:
    """Serves an agent until its end of the pipe closes.

    Raises:
        CommandError: The extra `mcp` is not installed, or the address or the key cannot be used.

    """
    try:
        from service.agents.server import answer_stdio  # noqa: PLC0415  an extra, which takes a second to import
    except ModuleNotFoundError as error:
        raise CommandError(f"{error.name} is not installed: {install_command('mcp')}") from error
    parse_address(arguments.url)
    file = arguments.key_file
    key = os.environ.get("SIMILE_API_KEY", "") if file is None else read_key(file)
    key = parse_key(key, "SIMILE_API_KEY") if key else ""
    # Ctrl-C ends the process at once. Otherwise it would wait for the thread that reads stdin.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    asyncio.run(answer_stdio(arguments.url, key, TIMEOUT_SECONDS))
    return ""
