"""`simile collections`: lists the collections of a running service, as `GET /collections` does."""

import argparse
import contextlib
import json

from models.messages import format_table
from service.cli.commands.client import Remote, connect_to
from service.errors import CommandError

_HEADS = ("collection", "documents", "mode", "learned ranking")
_RANKED = {True: "yes", False: "no", None: "?"}  # A service before 1.0 does not say it.


def describe(parser: argparse.ArgumentParser) -> None:
    """Declares the arguments of `collections`."""
    parser.add_argument("--json", action="store_true", help="print the whole answer for programs")
    connect_to(parser, "read")


def run(arguments: argparse.Namespace) -> str:
    """Returns the list as text.

    Raises:
        CommandError: The service does not answer, or rejects the request.

    """
    remote = Remote(arguments.url, arguments.key_file)
    with contextlib.closing(remote):
        answer = remote.get("/collections", whole=True)
    if answer.status != 200:
        raise CommandError(f"{remote.url} refused: {answer.error}")
    found = answer.field("collections")
    if arguments.json:
        return json.dumps(answer.value, indent=2)
    rows = [
        (each["name"], f"{each['documents']:,}", each.get("mode", "?"), _RANKED[each.get("ranked")])
        for each in found
    ]
    return format_table([_HEADS, *rows]) if rows else "There is no collection."
