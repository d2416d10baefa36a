"""Documents of a file in their order, written back as they were; and output that appears whole or not at all.

Not here: how a line is read (lines.py), and the corpus of a training, which is sorted and distinct
(corpus.py).
"""

from __future__ import annotations

import gzip
import io
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import NamedTuple

from models.files.fsync import replaced
from training.errors import NothingToLearn
from training.text.corpus import TEXTS
from training.text.lines import Record, read_records, text_of


class FileTexts(NamedTuple):
    records: list[Record]  # those with a text
    texts: list[str]  # of each
    blank: int  # lines dropped: nothing but white space


def read_documents(file: Path) -> FileTexts:
    """Every text of a corpus, repeated ones too. Raise TrainingError with the line."""
    records = list(read_records(file, TEXTS.columns))
    texts = [text_of(record, TEXTS.columns[0]) if record.fields else "" for record in records]
    there = [place for place, text in enumerate(texts) if text.strip()]
    if not there:
        raise NothingToLearn(f"{file} holds no text.")
    return FileTexts([records[at] for at in there], [texts[at] for at in there], len(texts) - len(there))


def lines(records: Sequence[Record], layout: str) -> Iterator[str]:
    """Lines of a file of that layout that reads as these records."""
    if layout == ".tsv":
        yield "\t".join(records[0].fields)
        yield from ("\t".join(record.fields.values()) for record in records)
    elif layout == ".jsonl":
        yield from (json.dumps(dict(record.fields), ensure_ascii=False) for record in records)
    else:
        yield from (record.fields["text"] for record in records)


@contextmanager
def writing(file: Path) -> Iterator[Callable[[str], object]]:
    """Give a function that writes one line. Without an error the file is replaced, with one nothing changes.

    The same lines make the same bytes, as .gz too.
    """
    packed = file.name.lower().endswith(".gz")
    with (
        replaced(file) as raw,
        gzip.GzipFile("", "wb", fileobj=raw, mtime=0) if packed else nullcontext(raw) as stream,
    ):
        text = io.TextIOWrapper(stream, encoding="utf-8", newline="\n")
        yield lambda line: text.write(f"{line}\n")
        text.detach()  # or it would close the stream
