"""Documents of an import on their way into the service: chunks of a second or two, sent until stored.

    rows ─▶ chunk, as large as the last one's speed allows ─▶ POST /documents ─▶ Tally
                                    ▲      no answer in time: its halves      │
                                    └──── busy, restarting: again, later ◀────┘

To send a chunk twice is safe: documents are stored by id, and what is stored unchanged is not embedded again.
"""

import re
import sys
import time
from dataclasses import dataclass

from models.progress import Progress
from service.cli.commands import client
from service.cli.commands.client import BUSY, PATIENCE, Answer, NoAnswer, Remote, path_of
from service.errors import CommandError
from service.files.columns import Seen, derived_id
from service.files.values import Row
from service.http.bodies import NDJSON

TARGET_SECONDS = 1.5  # of a chunk
FIRST_LINES, MOST_LINES = 16, 4096
FIRST_BYTES, LEAST_BYTES, MOST_BYTES = 1 << 16, 1 << 14, 8 << 20
FACTOR = 4.0  # by which a chunk grows or shrinks at most
MAX_TOLD = 100  # lines that failed; the others are counted
DEADLINE_PASSED = 504
AGAIN = BUSY | {DEADLINE_PASSED}
# The service's words for what it stored of a chunk, whose lines have other numbers than the file's.
_STORED = re.compile(
    r" (?:Nothing of the import was stored\.|Before that (\d+) rows were stored\b.*)", re.DOTALL
)

clock = time.monotonic

Sent = list[tuple[Row, bytes]]  # rows of a file, each with the line that is sent


class Tally:
    """Counts of the lines.

    unsettled: lines that were sent, and of which it is not known yet which are stored.
    """

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self.stored = self.failed = self.truncated = 0  # rows, lines, rows
        self.unsettled: Sent = []
        self._told = self._noted = 0
        self._seen = Seen()
        # None after an answer that leaves it open: how many ids were new, and which rows are stored.
        self._created: int | None = 0
        self._ids_known = True

    @property
    def untouched(self) -> bool:
        """True while nothing was sent and nothing failed."""
        return not (self.stored or self.failed or self.unsettled)

    def add(self, chunk: Sent, answer: Answer, *, again: bool = False) -> None:
        """Count what the service did with the first lines that were unsettled.

        Args:
            again: They were sent before, and may have been stored then.

        """
        self.unsettled = self.unsettled[len(chunk) :]
        self.stored += answer.value["upserted"]
        self.truncated += answer.value["truncated"]
        created = None if again else answer.value.get("created")
        self._created = None if self._created is None or created is None else self._created + created
        told = answer.value["errors"]
        failed = set()
        for problem in told:
            row = chunk[problem["line"] - 1][0]
            failed.add(problem["line"] - 1)
            self.fail(row, problem["error"])
        self.failed += answer.value["failed"] - len(told)
        self._ids_known = self._ids_known and answer.value["failed"] == len(told)
        for at, (row, _) in enumerate(chunk):
            if at not in failed:
                self._see(row)

    def _see(self, row: Row) -> None:
        content = row.content if isinstance(row.content, dict) else {}
        title, text = content.get("title"), str(content.get("text"))
        title = title if isinstance(title, str) else ""
        id = content.get("id") or derived_id(title, text)
        self._seen.add(str(id), title, text, str(content.get("collection", "")))

    def add_some(self, stored: int) -> None:
        """Count rows that were stored, where it is not known which."""
        self.stored += stored
        self._ids_known = False

    def fail(self, row: Row, reason: str) -> None:
        """Count the lines of a row that is not stored."""
        self.failed += row.lines
        self._told += 1
        if self._told <= MAX_TOLD:
            self._say(row, reason)

    def note(self, row: Row) -> None:
        """Say what is odd about a row that is stored."""
        self._noted += 1
        if self._noted <= MAX_TOLD:
            self._say(row, row.note)

    def _say(self, row: Row, what: str) -> None:
        self._progress.end()
        print(f"{row.file}:{row.line}: {what}", file=sys.stderr)  # noqa: T201  for whoever called

    def __str__(self) -> str:
        """The sentence at the end."""
        if not self.failed:
            return f"{self._stored()}."
        hidden = f" (the first {MAX_TOLD} are told above)" if self._told > MAX_TOLD else ""
        return f"{self.failed} lines failed{hidden}; {self._stored()}."

    def _stored(self) -> str:
        cut = f", {self.truncated} of them longer than the model sees" if self.truncated else ""
        documents = self._seen.distinct if self._ids_known else self.stored
        replaced = 0 if self._created is None or not self._ids_known else documents - self._created
        earlier = f"; {replaced} of them had been stored before" if replaced > 0 else ""
        if documents == self.stored:
            return f"{self.stored} documents are stored{cut}{earlier}"
        return (
            f"{self.stored} rows are stored as {documents} documents ({self._seen.sentence()}){cut}{earlier}"
        )

    def so_far(self) -> str:
        """The sentence where an import ends early: what is known, and how to go on."""
        doubt = f" Of {_lines(self.unsettled)} it is not known which are stored." if self.unsettled else ""
        return (
            f"{self}{doubt}\nRun the same command again to go on: documents that are stored unchanged are "
            "passed over without being embedded again, and the sentence at its end counts them all."
        )


@dataclass(slots=True)
class Pace:
    """The size of the next chunk, so that it takes about TARGET_SECONDS."""

    lines: int = FIRST_LINES
    bytes: int = FIRST_BYTES

    def took(self, lines: int, size: int, seconds: float) -> None:
        factor = min(max(TARGET_SECONDS / max(seconds, 1e-3), 1 / FACTOR), FACTOR)
        self.lines = min(max(round(lines * factor), 1), MOST_LINES)
        self.bytes = min(max(round(size * factor), LEAST_BYTES), MOST_BYTES)


class Delivery:
    """Sends chunks to one service."""

    def __init__(self, remote: Remote, tally: Tally, progress: Progress) -> None:
        self._remote, self._tally, self._progress = remote, tally, progress
        self._met = False  # the service has answered
        self.pace = Pace()

    def send(self, collection: str | None, chunk: Sent) -> None:
        """Return once every line of the chunk is stored, or failed and told.

        Raises:
            CommandError: the service refuses it, or does not answer however often it is asked.

        """
        began = clock()
        self._deliver(f"{path_of(collection)}/documents", chunk)
        self.pace.took(len(chunk), sum(len(line) for _, line in chunk), clock() - began)

    def _deliver(self, path: str, chunk: Sent, *, again: bool = False) -> None:
        body = b"".join(line for _, line in chunk)
        for attempt in range(PATIENCE + 1):
            before = self._tally.unsettled
            self._tally.unsettled = before or chunk
            try:
                answer = self._remote.send("POST", path, body, NDJSON)
            except NoAnswer as error:
                if not error.sent:
                    self._tally.unsettled = before
                if not (self._met or error.sent) or attempt == PATIENCE:
                    raise
                again = again or error.sent
                late, why, wait = error.late, str(error), min(2.0**attempt, client.LONGEST_WAIT_SECONDS)
            else:
                self._met = True
                if answer.status == 200:
                    return self._tally.add(chunk, answer, again=again)
                if answer.status not in AGAIN or attempt == PATIENCE:
                    raise self._refused(chunk, answer, before)
                stored = _STORED.search(answer.error)
                again = again or bool(stored and stored[1])
                late, why, wait = answer.status == DEADLINE_PASSED, answer.error, answer.wait_seconds
            if late and len(chunk) > 1:
                middle = len(chunk) // 2
                self._deliver(path, chunk[:middle], again=True)
                return self._deliver(path, chunk[middle:], again=True)
            self._progress.note(f"Waiting {wait:g} s to send {_lines(chunk)} again. {why}")
            client.pause(wait)
        raise AssertionError("the last attempt returns or raises")

    def _refused(self, chunk: Sent, answer: Answer, before: Sent) -> CommandError:
        """The refusal in the service's words, without the numbers of its own lines.

        before: lines that were unsettled before they were sent this time.
        """
        stored = _STORED.search(answer.error)
        if stored and stored[1]:
            self._tally.add_some(int(stored[1]))
        self._tally.unsettled = before or (chunk if stored and stored[1] else [])
        return CommandError(f"{_lines(chunk)} were refused: {_STORED.sub('', answer.error)}")


def _lines(chunk: Sent) -> str:
    first, last = chunk[0][0], chunk[-1][0]
    if first.file != last.file:
        return f"{first.file}, line {first.line} to {last.file}, line {last.line}"
    if first.line == last.line:
        return f"{first.file}, line {first.line}"
    return f"{first.file}, lines {first.line} to {last.line}"
