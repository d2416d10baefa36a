"""A running service, as its commands talk to it: one connection, waits where it asks to, errors in words."""

import http.client
import json
import time
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from service.errors import CommandError

DEFAULT_URL = "http://127.0.0.1:8000"
TIMEOUT_SECONDS = 120.0  # without a byte of an answer
PATIENCE = 10  # times that one request is sent again after a 429 or 503
WAIT_SECONDS, LONGEST_WAIT_SECONDS = 1.0, 30.0  # before that, where the service does not say
BUSY = frozenset({429, 503})

pause = time.sleep


class NoAnswer(CommandError):
    """The service cannot be reached, or said nothing in time.

    sent: the request may have arrived, and may have been carried out. late: the time was up.
    """

    def __init__(self, url: str, error: Exception, *, sent: bool) -> None:
        self.sent, self.late = sent, isinstance(error, TimeoutError)
        why = f"no answer for {TIMEOUT_SECONDS:g} s" if self.late else error or type(error).__name__
        super().__init__(f"{url} does not answer ({why}). Start the service, or name its address with --url.")


class Answer(NamedTuple):
    status: int
    value: Any  # its JSON
    wait_seconds: float  # before a request that was refused is sent again

    @property
    def error(self) -> str:
        found = self.value.get("error") if isinstance(self.value, dict) else None
        return str(found or f"it answered {self.status}")


class Remote:
    """The service at `url`; `key_file` holds a key, alone in it.

    `scoped`: the address names a collection, as in http://127.0.0.1:8000/collections/tickets.
    """

    def __init__(self, url: str, key_file: Path | None = None) -> None:
        try:
            parts = urlsplit(url)
            port = parts.port
        except ValueError:
            raise CommandError(f"--url {url!r} is no address. Write it as {DEFAULT_URL}.") from None
        if parts.scheme not in {"http", "https"} or not parts.hostname:
            raise CommandError(f"--url {url!r} is no address. Write it as {DEFAULT_URL}.")
        kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
        self._connection = kind(parts.hostname, port, timeout=TIMEOUT_SECONDS)
        self._base = parts.path.rstrip("/")
        self._root, scope, _ = self._base.partition("/collections/")
        self.scoped = bool(scope)
        self.url = url
        self._headers = {} if key_file is None else {"Authorization": f"Bearer {_key(key_file)}"}

    def close(self) -> None:
        self._connection.close()

    def get(self, path: str) -> Answer:
        """The answer, whatever its status; a 429 or 503 is waited out for a while.

        Raises:
            CommandError: there is no answer, or what answers is no Simile.

        """
        answer = self.send("GET", path)
        for _ in range(PATIENCE):
            if answer.status not in BUSY:
                break
            pause(answer.wait_seconds)
            answer = self.send("GET", path)
        return answer

    def send(
        self, method: str, path: str, body: bytes | None = None, kind: str = "", *, whole: bool = False
    ) -> Answer:
        """The answer, whatever its status.

        whole: of the whole service, also where the address names a collection.

        Raises:
            NoAnswer: there is none.
            CommandError: what answers is no Simile.

        """
        headers = self._headers | ({"Content-Type": kind} if kind else {})
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
            return Answer(response.status, json.loads(content), seconds)  # as deep as a document may be
        except ValueError as error:
            raise CommandError(f"What answers at {self.url} is not Simile (it sent no JSON).") from error
        except RecursionError as error:
            raise CommandError(f"What {self.url} sent is nested too deeply to be read.") from error


def path_of(collection: str | None) -> str:
    """Prefix of the routes of a collection; None: of the one that the address names."""
    return "" if collection is None else f"/collections/{collection}"


def _key(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise CommandError(f"The key file {file} cannot be read ({error}).") from error
