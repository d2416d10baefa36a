"""The text to learn from: a file, or the documents of a running service, as distinct texts with one name.

    .jsonl      {"id": …, "text": …} on each line; the id is not looked at
    .tsv        a header row with a column `sentence` or `text`
    else        one text on each line

each also as .gz. Blank texts and repeated ones are dropped and counted. Not here: tokens, order, batches.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2

from training.errors import NothingToLearn, TrainingError

LARGEST_LINE = 1 << 20  # bytes; a longer line is a file of another kind, not a text to embed
_PAGE = 1000  # documents; the most that the service answers at once
_TIMEOUT = 60.0  # seconds


@dataclass(frozen=True)
class Corpus:
    """Distinct texts, none of them blank, sorted: the same texts found in another order are the same run."""

    texts: tuple[str, ...]
    digest: str  # SHA-256 over the texts
    blank: int = 0  # dropped: nothing but white space
    repeated: int = 0  # dropped: seen before

    @classmethod
    def of(cls, found: Iterable[str], name: str) -> Corpus:
        """name: where the texts come from, for the message. Raise NothingToLearn when none is left."""
        distinct: set[str] = set()
        blank = count = 0
        for text in found:
            count += 1
            if text.strip():
                distinct.add(str(text))  # a plain one: a _Line would keep its `at` in memory
            else:
                blank += 1
        if not distinct:
            raise NothingToLearn(f"{name} holds no text.")
        texts = tuple(sorted(distinct))
        return cls(texts, _digest(texts), blank, count - blank - len(texts))

    def __str__(self) -> str:
        dropped = f" ({self.blank:,} blank and {self.repeated:,} repeated ones dropped)"
        return f"{len(self.texts):,} texts{dropped if self.blank or self.repeated else ''}"


def read_corpus(file: Path) -> Corpus:
    """Raise TrainingError with the number of the line that cannot be read, counted from 1."""
    if not file.is_file():
        raise TrainingError(f"There is no file {file}.")
    names = file.name.lower().removesuffix(".gz")
    kind = _from_json if names.endswith(".jsonl") else _from_table if names.endswith(".tsv") else iter
    return Corpus.of(kind(_lines(file)), str(file))


def from_service(url: str) -> Corpus:
    """The documents of the service at `url`, over HTTP, page after page in the order of their ids."""
    documents = (document for page in _pages(url.rstrip("/") + "/documents") for document in page)
    return Corpus.of(
        (_valid(document["text"], f"{url}, document {document.get('id')!r}") for document in documents), url
    )


def _digest(texts: Iterable[str]) -> str:
    digest = hashlib.sha256()
    for text in texts:
        encoded = text.encode()
        digest.update(
            len(encoded).to_bytes(8, "big") + encoded
        )  # the length, so that no text runs into the next
    return digest.hexdigest()


class _Line(str):
    """A line that knows where it stands."""

    __slots__ = ("at",)
    at: str


def _lines(file: Path) -> Iterator[_Line]:
    packed = file.name.lower().endswith(".gz")
    with gzip.open(file) if packed else file.open("rb") as stream:
        try:
            number = 0
            while raw := stream.readline(LARGEST_LINE + 2):
                number += 1
                yield _line(raw, f"{file}, line {number}")
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            raise TrainingError(f"{file} is not a whole gzip file: {error}") from None


def _line(raw: bytes, at: str) -> _Line:
    raw = raw.rstrip(b"\r\n")
    if len(raw) > LARGEST_LINE:
        raise TrainingError(f"{at} is longer than 1 MiB. Put each text on a line of its own.")
    try:
        line = _Line(raw.decode("utf-8-sig" if at.endswith("line 1") else "utf-8"))
    except UnicodeDecodeError as error:
        raise TrainingError(f"{at} is not UTF-8 (byte {error.start + 1}). Save the file as UTF-8.") from None
    line.at = at
    return line


def _from_json(lines: Iterable[_Line]) -> Iterator[str]:
    for line in lines:
        if not line.strip():
            yield ""
            continue
        try:
            record = json.loads(line)
        except (ValueError, RecursionError):
            raise TrainingError(f"{line.at} is not JSON.") from None
        text = record.get("text") if isinstance(record, dict) else None
        if not isinstance(text, str):
            raise TrainingError(f'{line.at} has no text: expected {{"id": …, "text": "…"}}.')
        yield _valid(text, line.at)


def _from_table(lines: Iterable[_Line]) -> Iterator[str]:
    rows = iter(lines)
    header = next(rows, "").split("\t")
    column = next((header.index(name) for name in ("sentence", "text") if name in header), None)
    if column is None:
        raise TrainingError("The table has no column `sentence` or `text` in its first row.")
    for row in rows:
        fields = row.split("\t")
        if len(fields) != len(header):
            raise TrainingError(f"{row.at} has {len(fields)} fields; the first row has {len(header)}.")
        yield fields[column]


def _valid(text: str, at: str) -> str:
    """JSON can spell half of a surrogate pair, which no tokenizer takes."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise TrainingError(f"{at} holds half of a surrogate pair, which is not text.") from None
    return text


def _pages(url: str) -> Iterator[list[dict[str, Any]]]:
    after: str | None = None
    with httpx2.Client(timeout=_TIMEOUT, trust_env=False) as client:
        while True:
            parameters = {"limit": str(_PAGE)} | ({} if after is None else {"after": after})
            page = _get(client, url, parameters)
            yield page["documents"]
            following = page.get("next")
            if following is None:
                return
            if following == after:
                raise TrainingError(f"{url} answers the same page again and again.")
            after = following


def _get(client: httpx2.Client, url: str, parameters: dict[str, str]) -> dict[str, Any]:
    try:
        response = client.get(url, params=parameters)
    except (httpx2.HTTPError, httpx2.InvalidURL) as error:
        raise TrainingError(f"{url} cannot be reached: {error}") from None
    if response.status_code != 200:
        raise TrainingError(f"{url} answered {response.status_code}: {response.text[:200].strip()}")
    try:
        page = response.json()
        whole = all(isinstance(document["text"], str) for document in page["documents"])
    except (ValueError, KeyError, TypeError):
        whole = False
    if not whole:
        raise TrainingError(f"{url} does not answer as a Simile service does. Is the address right?")
    found: dict[str, Any] = page
    return found
