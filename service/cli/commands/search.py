"""`simile search QUERY`: searches a running service and prints the hits.

Start reading at `run`. On a terminal, the terms of the query are bold. The option --json prints the answer of
`GET /search`.
"""

import argparse
import contextlib
import json
import os
import re
import sys
from collections.abc import Iterable
from typing import Any, get_args
from urllib.parse import urlencode

from models.manifest import Mode
from models.messages import positive
from service.cli.commands.client import Remote, build_path, connect_to_collection, named_collection, sent_text
from service.errors import CommandError

BOLD, PLAIN = "\x1b[1m", "\x1b[0m"
MAX_BEGINNING = 240  # characters of a text without a snippet
# Line ends, and characters with which a document could control the terminal.
_CONTROLS = re.compile("[\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]")


def describe(parser: argparse.ArgumentParser) -> None:
    """Declares the arguments of `search`."""
    parser.add_argument(
        "query", nargs="+", type=sent_text, metavar="QUERY", help="several words are one query"
    )
    parser.add_argument("--top-k", type=positive, default=10, metavar="N", help="hits to print (%(default)s)")
    parser.add_argument("--mode", choices=get_args(Mode), help="default: the service's")
    parser.add_argument(
        "--filter", type=sent_text, metavar="JSON", help="only matching documents, as in GET /search"
    )
    parser.add_argument("--json", action="store_true", help="print the whole answer for programs")
    connect_to_collection(parser, "read", every=False)


def run(arguments: argparse.Namespace) -> str:
    """Searches, and returns the text to print.

    Raises:
        CommandError: The service does not answer, or rejects the search.

    """
    remote = Remote(arguments.url, arguments.key_file)
    parameters = {"q": " ".join(arguments.query), "k": arguments.top_k, "highlight": "true"}
    parameters |= {
        name: value for name in ("mode", "filter") if (value := getattr(arguments, name)) is not None
    }
    path = f"{build_path(named_collection(arguments, remote))}/search?{urlencode(parameters)}"
    with contextlib.closing(remote):
        answer = remote.get(path)
    if answer.status != 200:
        raise CommandError(f"{remote.url} refused: {answer.error}")
    hits, found = answer.field("hits"), answer.value
    if arguments.json:
        return json.dumps(found, indent=2)
    for warning in found.get("warnings", ()):
        print(f"Warning: {warning}", file=sys.stderr)  # noqa: T201
    bold = sys.stdout.isatty() and not os.environ.get("NO_COLOR")
    lines = [f"Searched for: {cleaned(found['corrected_query'])}"] if "corrected_query" in found else []
    lines += [show(rank, hit, bold=bold) for rank, hit in enumerate(hits, 1)]
    return "\n".join(lines if hits else [*lines, "No document was found."])


def show(rank: int, hit: dict[str, Any], *, bold: bool = False) -> str:
    """Formats a hit: rank, score, id and title, then the snippet or the beginning of the text."""
    places = hit.get("highlights", {}) if bold else {}
    title = mark(hit.get("title", ""), places.get("title", ()))
    head = f"{rank:3}  {hit['score']:.3f}  {cleaned(hit['id'])}  {title}".rstrip()
    snippet = hit.get("snippet") or {"start": 0, "text": hit["text"][:MAX_BEGINNING]}
    text = mark(snippet["text"], places.get("text", ()), snippet["start"])
    return f"{head}\n     {text}"


def mark(text: str, places: Iterable[Iterable[int]], start: int = 0) -> str:
    """Returns a text without control characters and with `places` in bold.

    Args:
        text: The text, or a part of it.
        places: Start and end of each term in the whole text, in order.
        start: Where `text` starts in the whole text.

    """
    parts, done = [], 0
    for first, last in places:
        begin, end = max(first - start, done), min(last - start, len(text))
        if begin < end:
            parts += [cleaned(text[done:begin]), BOLD, cleaned(text[begin:end]), PLAIN]
            done = end
    return "".join([*parts, cleaned(text[done:])])


def cleaned(text: str) -> str:
    """Returns a text on one line, without characters that control the terminal."""
    return _CONTROLS.sub(" ", text)
