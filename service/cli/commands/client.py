"""HTTP client for commands that talk to a running service. Start reading at `Remote`.

The client uses a single connection, waits while the service is busy, and reports errors as CommandError.
"""

import argparse
import http.client
import json
import time
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import SplitResult, urlsplit

from service.errors import CommandError
from service.settings import own_url
from service.store.values import COLLECTION_NAME, NAME_RULE

DEFAULT_URL = "http://127.0.0.1:8000"
TIMEOUT_SECONDS = 120.0  # time without any byte of an answer
PATIENCE = 10  # repetitions of a request after a 429 or 503
WAIT_SECONDS, LONGEST_WAIT_SECONDS = 1.0, 30.0  # Pause without Retry-After, and longest pause.
BUSY = frozenset({429, 503})

pause = time.sleep


class NoAnswer(CommandError):
    """Raised if the service cannot be reached, or does not answer in time.

    Args:
        url: Address of the service.
        error: The error of the connection.
        sent: Whether the service may have received and processed the request.

    """

    def __init__(self, url: str, error: Exception, *, sent: bool) -> None:
        self.sent, self.late = sent, isinstance(error, TimeoutError)
        why = f"no answer for {TIMEOUT_SECONDS:g} s" if self.late else error or type(error).__name__
        super().__init__(f"{url} does not answer ({why}). Start the service, or name its address with --url.")


class Answer(NamedTuple):
    """An HTTP answer with any status. `wait_seconds` is the pause before the request should be sent again."""

    status: int
    value: Any
    wait_seconds: float

    def field(self, name: str) -> Any:
        """Returns a field of the answer.

        Raises:
            CommandError: The answer has no such field, so the server is not Simile.

        """
        if not isinstance(self.value, dict) or name not in self.value:
            raise CommandError(f"The server is not Simile: its answer has no {name!r}. Check --url.")
        return self.value[name]

    @property
    def error(self) -> str:
        found = self.value.get("error") if isinstance(self.value, dict) else None
        return str(found or f"it answered {self.status}")


class Remote:
    """Client of the service at an address.

    Args:
        url: Address of the service, or of a collection, as in http://127.0.0.1:8000/collections/tickets.
        key_file: File that contains only an API key.

    Attributes:
        scoped: Whether the address names a collection.

    Raises:
        CommandError: The address is invalid, or the key file cannot be read.

    """

    def __init__(self, url: str, key_file: Path | None = None) -> None:
        parts = parse_address(url)
        kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
        self._connection = kind(parts.hostname or "", parts.port, timeout=TIMEOUT_SECONDS)
        self._base = parts.path.rstrip("/")
        self._root, scope, _ = self._base.partition("/collections/")
        self.scoped = bool(scope)
        self.url = url
        self._headers = {} if key_file is None else {"Authorization": f"Bearer {read_key(key_file)}"}

    def close(self) -> None:
        self._connection.close()

    def get(self, path: str, version: str = "", *, whole: bool = False) -> Answer:
        """Sends a GET request and returns the answer. Repeats the request after a 429 or 503.

        At most PATIENCE repetitions are sent, each after a pause. Then the last answer is returned.

        Args:
            path: Path below the address.
            version: The model version that must answer. Empty: the active one.
            whole: Whether `path` is relative to the service, even if the address names a collection.

        Raises:
            CommandError: The service does not answer, or the server is not Simile.

        """
        for _ in range(PATIENCE):
            answer = self.send("GET", path, whole=whole, version=version)
            if answer.status not in BUSY:
                return answer
            pause(answer.wait_seconds)
        return self.send("GET", path, whole=whole, version=version)

    def send(
        self,
        method: str,
        path: str,
        body: bytes | None = None,
        kind: str = "",
        *,
        whole: bool = False,
        version: str = "",
    ) -> Answer:
        """Sends a request once, and returns the answer, whatever the status is.

        Args:
            method: GET or POST.
            path: Path below the address.
            body: The body, if any.
            kind: Content type of the body.
            whole: Whether `path` is relative to the service, even if the address names a collection.
            version: The model version that must answer. Empty: the active one.

        Raises:
            NoAnswer: The service does not answer.
            CommandError: The answer is not JSON, so the server is not Simile, or is nested too deeply.

        """
        headers = self._headers | ({"Content-Type": kind} if kind else {})
        headers |= {"x-model-version": version} if version else {}
        try:
            if self._connection.sock is None:
                self._connection.connect()
        except OSError as error:
            raise NoAnswer(self.url, error, sent=False) from error
        try:
            self._connection.request(method, (self._root if whole else self._base) + path, body, headers)
            response = self._connection.getresponse()
            content = response.read()
        except (OSError, http.client.HTTPException) as error:
            self._connection.close()
            raise NoAnswer(self.url, error, sent=True) from error
        wait = response.headers.get("retry-after", "")
        seconds = min(float(wait) if wait.isdigit() else WAIT_SECONDS, LONGEST_WAIT_SECONDS)
        try:
            # json can read deeper nesting than orjson.
            return Answer(response.status, json.loads(content), seconds)
        except ValueError as error:
            raise CommandError(f"The server at {self.url} is not Simile (it sent no JSON).") from error
        except RecursionError as error:
            raise CommandError(f"The answer of {self.url} is nested too deeply to be read.") from error


def parse_address(url: str) -> SplitResult:
    """Parses the value of the option --url.

    Raises:
        CommandError: It is not the address of a host.

    """
    try:
        parts = urlsplit(url)
        is_valid = parts.hostname is not None and parts.scheme in {"http", "https"} and parts.port != 0
        is_valid &= is_header(parts.path)
    except ValueError:
        is_valid = False
    if not is_valid:
        raise CommandError(f"--url {url!r} is not an address. Write it as {DEFAULT_URL}.")
    return parts


def build_path(collection: str | None) -> str:
    """Returns the path of a collection's routes. None means the collection that the address names."""
    return "" if collection is None else f"/collections/{collection}"


def read_key(file: Path) -> str:
    """Returns the API key in a file.

    Raises:
        CommandError: The file cannot be read, or does not contain one key. The message never contains it.

    """
    try:
        return parse_key(file.read_text(encoding="utf-8"), f"The key file {file}")
    except OSError as error:
        raise CommandError(f"The key file {file} cannot be read ({error}).") from error
    except UnicodeDecodeError:
        raise CommandError(f"The key file {file} is not UTF-8 text.") from None


def parse_key(text: str, source: str) -> str:
    """Returns an API key without the white space around it.

    Args:
        text: The key.
        source: Where it comes from, for the message.

    Raises:
        CommandError: The text is not a key. The message never contains it.

    """
    key = text.strip()
    if not key or not is_header(key):
        raise CommandError(f"{source} must contain one line of printable ASCII: the key alone.")
    return key


def is_header(text: str) -> bool:
    """Returns whether a text can be sent in the first lines of a request."""
    return text.isascii() and text.isprintable()


def sent_text(text: str) -> str:
    """Parses an argument that is sent as UTF-8.

    Raises:
        argparse.ArgumentTypeError: The shell passed bytes that are not text in the encoding of the locale.

    """
    try:
        text.encode()
    except UnicodeEncodeError:
        raise argparse.ArgumentTypeError("it is not UTF-8 text") from None
    return text


def connect_to(parser: argparse.ArgumentParser, role: str) -> None:
    """Declares the options for the address and for an API key with a role."""
    parser.add_argument("--url", default=own_url(), help="address of the running service (%(default)s)")
    parser.add_argument("--key-file", type=Path, metavar="FILE", help=f"contains a key of role {role}")


def connect_to_collection(
    parser: argparse.ArgumentParser, role: str = "write", *, every: bool = True
) -> None:
    """Declares the options for the address, the API key and the collection.

    Args:
        parser: Parser of the command.
        role: The role that the key needs.
        every: Whether the command can work on all collections.

    """
    connect_to(parser, role)
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--collection", metavar="NAME", help="instead of `default`, or of the one in --url")
    if every:
        which.add_argument("--all-collections", action="store_true", help="each line has a `collection`")
    else:
        parser.set_defaults(all_collections=False)


def named_collection(arguments: argparse.Namespace, remote: Remote) -> str | None:
    """Returns the value of the option --collection, or None.

    Raises:
        CommandError: The name is invalid, or --url also names a collection.

    """
    name: str | None = arguments.collection
    if remote.scoped and (name is not None or arguments.all_collections):
        raise CommandError(f"--url {remote.url} names a collection already. Leave it out of one of the two.")
    if name is not None and not COLLECTION_NAME.fullmatch(name):
        raise CommandError(f"--collection {name!r} cannot be a collection. {NAME_RULE}")
    return name
