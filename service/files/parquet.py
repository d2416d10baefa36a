"""Reads documents from Parquet files. Start at `ParquetReader.rows`. Needs pyarrow, of the extra `bulk`."""

import contextlib
import math
from collections.abc import Iterator
from datetime import date, datetime, time
from decimal import Decimal
from pathlib import PurePath
from typing import Any, BinaryIO

import orjson

from models.errors import install_command
from models.files.exact_json import MAX_INTEGER, MIN_INTEGER
from service.files.reader import Options, build_fields
from service.files.values import BadFile, BadRow, Row

ENDINGS = (".parquet", ".pq")
BATCH_ROWS = 256
_FORMAT = b"simile.format"  # Metadata of files that `simile embed` wrote.
_METADATA = "metadata"  # In such files, a string with a JSON object.
_BAD_TIME = "a time has nanoseconds, or a year that is not 1 to 9999. Write it as text"
_OF_VECTORS = ("vector", "vector_end", "truncated", "passages")


def is_parquet(name: str) -> bool:
    return PurePath(name).suffix.lower() in ENDINGS


class ParquetReader:
    """Reads the rows of a file. The vectors of `simile embed` are left out.

    Args:
        file: The file.
        name: Name of the file, for messages.
        options: The columns, and how to convert them.
    """

    def __init__(self, file: BinaryIO, name: str, options: Options) -> None:
        self._file, self._name, self._options = file, name, options
        self.share = 0.0  # Of the rows that were read.

    def rows(self) -> Iterator[Row]:
        """Yields the rows, counted from 1.

        Raises:
            BadFile: The file cannot be read, a column is missing, or pyarrow is not installed.
        """
        try:
            import pyarrow as pa  # noqa: PLC0415  the service does not need it
            from pyarrow import parquet  # noqa: PLC0415
        except ModuleNotFoundError as error:
            raise BadFile(f"Parquet files need the extra bulk: {install_command('bulk')}.") from error
        number = 0
        try:
            opened = parquet.ParquetFile(self._file)
            schema = opened.schema_arrow
            left_out = _OF_VECTORS if _FORMAT in (schema.metadata or {}) else ()
            names = [column for column in schema.names if column not in left_out]
            self._options.columns.check(names)
            for batch in opened.iter_batches(BATCH_ROWS, columns=names):
                for values in read_rows(batch):
                    number += 1
                    yield Row(self._name, number, _build(values, self._options, own=bool(left_out)))
                self.share = number / opened.metadata.num_rows
        except (pa.ArrowException, OSError) as error:
            reason = str(error).split("\n", 1)[0].rstrip(".")
            raise BadFile(f"it cannot be read as Parquet ({reason}).", number or None) from error
        if not number:
            yield Row(self._name, 1, None, note="the file has no rows.")


def read_rows(batch: Any) -> list[dict[str, Any] | BadRow]:
    """Returns the rows of an Arrow batch as dictionaries. A row that Python cannot represent is a BadRow."""
    try:
        return list(_cast_times(batch).to_pylist())
    except (ValueError, OverflowError) as error:
        if batch.num_rows > 1:
            return [row for at in range(batch.num_rows) for row in read_rows(batch.slice(at, 1))]
        if isinstance(error, UnicodeDecodeError):
            return [BadRow("a value is bytes that are not UTF-8. Leave its column out")]
        return [BadRow(_BAD_TIME)]


def _cast_times(batch: Any) -> Any:
    """Casts times of day with nanoseconds, which Arrow truncates if it finds pandas.

    Raises:
        ValueError: One is not a whole number of microseconds.
    """
    for at, field in enumerate(batch.schema):
        if str(field.type) == "time64[ns]":
            batch = batch.set_column(at, field.name, batch.column(at).cast("time64[us]"))
    return batch


def _build(values: dict[str, Any] | BadRow, options: Options, *, own: bool) -> dict[str, Any] | BadRow:
    if isinstance(values, BadRow):
        return values
    try:
        if own:
            parse_metadata(values)
        return build_fields({name: plain(value) for name, value in values.items()}, options)
    except BadRow as error:
        return error


def parse_metadata(values: dict[str, Any]) -> None:
    """Replaces the column `metadata` of a file that `simile embed` wrote by the object in it.

    A table may have a column of this name with other values, which stay.
    """
    given = values.get(_METADATA)
    if given is None:
        values.pop(_METADATA, None)
    elif isinstance(given, str):
        with contextlib.suppress(orjson.JSONDecodeError):
            parsed = orjson.loads(given)
            if isinstance(parsed, dict):
                values[_METADATA] = parsed


def plain(value: Any) -> Any:
    """Converts a value of Arrow to a value of JSON: times to ISO 8601, decimals to numbers.

    Raises:
        BadRow: Another type, such as bytes that are not UTF-8, or a number that JSON does not have.
    """
    if value is None or isinstance(value, str | bool):
        return value
    if isinstance(value, int | float | Decimal):
        return _check_number(value)
    if isinstance(value, datetime | date | time):
        if getattr(value, "nanosecond", 0):  # a Timestamp, which Arrow gives if it finds pandas
            raise BadRow(_BAD_TIME)
        return value.isoformat()
    if isinstance(value, list | tuple):
        return [plain(one) for one in value]
    if isinstance(value, dict):
        return {str(name): plain(one) for name, one in value.items()}
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError as error:
            raise BadRow("a value is bytes that are not UTF-8. Leave its column out") from error
    raise BadRow(f"a value has the type {type(value).__name__}, which JSON does not have")


def _check_number(value: float | Decimal) -> int | float:
    if isinstance(value, Decimal):
        value = int(value) if value == value.to_integral_value() else float(value)
    if isinstance(value, int) and not MIN_INTEGER <= value <= MAX_INTEGER:
        raise BadRow(f"{value} is not from {MIN_INTEGER} to {MAX_INTEGER}. Write it as text")
    if not math.isfinite(value):
        raise BadRow(f"a value is {value}, which JSON does not have. Write null or a text")
    return value
