"""Text files of evaluation data, line by line: plain or gzip, and the wanted columns of a TSV with a header.

What the columns mean is not here: layouts.py and retrieval.py know.
"""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterator
from pathlib import Path

from training.errors import TrainingError


def numbered(file: Path) -> Iterator[tuple[int, str]]:
    """(number from 1, line) of a UTF-8 file, unpacked when its name ends in .gz. Raise TrainingError.

    Only a newline ends a line, since sentences may hold Unicode's other separators.
    """
    try:
        with gzip.open(file, "rb") if file.suffix == ".gz" else file.open("rb") as stream:
            for number, line in enumerate(stream, 1):
                yield number, line.decode().rstrip("\r\n")
    except UnicodeDecodeError:
        raise TrainingError(f"{file}, line {number}: it is not UTF-8.") from None
    except FileNotFoundError:
        raise TrainingError(f"{file} is missing.") from None
    except (OSError, EOFError, zlib.error) as error:
        raise TrainingError(f"{file} cannot be read: {error}") from None


def columns(file: Path, wanted: tuple[str, ...]) -> Iterator[tuple[int, list[str]]]:
    """(line number, the wanted fields) of each row below a TSV's header; nothing is quoted.

    Raise TrainingError for a column that is not there, or a row with another number of fields.
    """
    lines = numbered(file)
    _, first = next(lines, (1, ""))
    header = first.split("\t")
    missing = [name for name in wanted if name not in header]
    if missing:
        raise TrainingError(f"{file}, line 1: there is no column {', '.join(missing)}.")
    places = [header.index(name) for name in wanted]
    for number, line in lines:
        fields = line.split("\t")
        if len(fields) != len(header):
            raise TrainingError(
                f"{file}, line {number}: {len(fields)} fields where the header has {len(header)}."
            )
        yield number, [fields[place] for place in places]
