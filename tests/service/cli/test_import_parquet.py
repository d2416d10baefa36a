"""`import FILE.parquet`: rows of a Parquet file become documents, like those of a table."""

from datetime import UTC, date, datetime, time
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from models.store import ModelStore
from service.files.parquet import plain, read_rows
from service.files.values import BadRow
from tests.parts.vector_files import write_folder
from tests.service.cli.test_commands import imported
from tests.service.process import Service

pytestmark = pytest.mark.usefixtures("_emptied")

ROWS: list[dict[str, Any]] = [
    {
        "number": at,
        "subject": f"subject {at}",
        "body": f"red river {at}",
        "price": Decimal("1.50"),
        "day": date(2026, 1, 31),
        "seen": datetime(2026, 1, 31, 14, 30, tzinfo=UTC),
        "tags": ["a", None],
        "deep": {"x": 1},
        "code": b"utf-8",
    }
    for at in range(600)
]


def write(folder: Path, rows: list[dict[str, Any]], name: str = "rows.parquet") -> Path:
    file = folder / name
    pq.write_table(pa.Table.from_pylist(rows), file, row_group_size=100)
    return file


def test_columns_of_all_types_become_documents(service: Service, tmp_path: Path) -> None:
    file = write(tmp_path, ROWS)
    columns = ("--id", "number", "--title", "subject", "--text", "body", "--metadata-all")
    assert imported(service, file, *columns) == "600 documents are stored."
    assert service.client.get("/documents/7").json() == {
        "id": "7",
        "title": "subject 7",
        "text": "red river 7",
        "metadata": {
            "price": 1.5,
            "day": "2026-01-31",
            "seen": "2026-01-31T14:30:00+00:00",
            "tags": ["a", None],
            "deep": {"x": 1},
            "code": "utf-8",
        },
    }
    other = file.rename(tmp_path / "rows")
    assert imported(service, other, *columns, "--format", "parquet").endswith(
        "600 of them had been stored before."
    )


def test_rows_that_cannot_be_stored_are_named(
    service: Service, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows: list[dict[str, Any]] = [
        {"id": "a", "text": "a"},
        {"id": "b", "text": None},
        {"id": "c", "text": "c", "raw": b"\xff"},
    ]
    said = imported(
        service, write(tmp_path, [row | {"raw": row.get("raw")} for row in rows]), "--metadata", "raw"
    )
    assert said == "Error: 2 lines failed; 1 document is stored."
    told = capsys.readouterr().err
    assert "rows.parquet:2: " in told
    assert "rows.parquet:3: a value is bytes that are not UTF-8" in told


def test_values_that_json_does_not_have_fail_their_rows_only(
    service: Service, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = {
        "number": pa.array([1.5, float("nan"), float("inf"), 0.5, 0.5, 0.5]),
        "time": pa.array([1000, 0, 0, 1, 0, 0], pa.timestamp("ns")),
        "size": pa.array(
            [Decimal(2**64 - 1), *[Decimal(0)] * 3, Decimal(2**64), Decimal(0)], pa.decimal128(30, 0)
        ),
        "name": pa.array([b"a"] * 5 + [b"\xff"]).cast(pa.string(), safe=False),
    }
    file = tmp_path / "rows.parquet"
    pq.write_table(pa.table({"id": [*"abcdef"], "text": ["red"] * 6, **rows}), file)
    said = imported(service, file, "--metadata-all")
    assert said == "Error: 5 lines failed; 1 document is stored."
    told = capsys.readouterr().err
    for row, reason in enumerate(("is nan", "is inf", "nanoseconds", f"{2**64} is not from", "not UTF-8"), 2):
        assert f"rows.parquet:{row}: " in told
        assert reason in told
    assert service.client.get("/documents/a").json()["metadata"] == {
        "number": 1.5,
        "time": "1970-01-01T00:00:00.000001",
        "size": 2**64 - 1,
        "name": "a",
    }


def test_nanoseconds_are_refused_with_and_without_pandas() -> None:
    """Where pandas is installed, Arrow gives its Timestamp, and truncates a time of day."""

    class Timestamp(datetime):
        nanosecond = 1

    with pytest.raises(BadRow, match="nanoseconds"):
        plain([Timestamp(2026, 1, 31)])
    good, bad = read_rows(pa.record_batch({"day": pa.array([1000, 1], pa.time64("ns"))}))
    assert good == {"day": time(0, 0, 0, 1)}
    assert isinstance(bad, BadRow)


def test_files_that_cannot_be_read_are_refused(service: Service, tmp_path: Path) -> None:
    file = write(tmp_path, ROWS[:3])
    assert "the column 'text' is missing" in imported(service, file)
    file.write_bytes(file.read_bytes()[:-20])
    assert "it cannot be read as Parquet" in imported(service, file, "--text", "body")
    assert "Parquet cannot be read from stdin" in imported(service, "-", "--format", "parquet")
    assert "--data-dir is for --vectors" in imported(service, file, "--data-dir", "x")


def test_files_with_vectors_are_imported_without_the_vectors(service: Service, tmp_path: Path) -> None:
    models = service.folder / "models"
    documents: list[dict[str, Any]] = [
        {"id": "a", "title": "é", "text": "red river"},
        {"id": "b", "text": "green", "metadata": {"n": 1}},
    ]
    version = ModelStore(models).requested()
    assert version is not None
    out = write_folder(tmp_path / "out", models, version, documents)
    [part] = out.glob("part-*")
    assert imported(service, part) == "2 documents are stored."
    assert service.client.get("/documents/b").json() == documents[1]
    assert service.client.get("/documents/a").json() == documents[0] | {"metadata": {}}
