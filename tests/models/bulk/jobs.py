"""Texts, input files and jobs with the tiny model."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from models.bulk.inputs import Columns, Reading
from models.bulk.job import Engine, Job, embed_locally, plan, run
from models.bulk.vector_files import Rows, open_folder
from models.progress import silent
from models.store import ModelStore

WORDS = "the red river garden engine paper window market stone bridge letter cat dog sleeps runs open".split()


def documents(count: int, seed: int = 0, *, long_every: int = 10) -> list[dict[str, Any]]:
    """Documents of which every tenth is longer than a passage. Every third has a title."""
    generator = np.random.default_rng(seed)
    found = []
    for at in range(count):
        length = int(generator.integers(150, 300)) if at % long_every == 0 else int(generator.integers(1, 30))
        text = " ".join(str(word) for word in generator.choice(WORDS, length))
        title = f"Title {at}" if at % 3 == 0 else ""
        found.append({"id": f"d{at}", "title": title, "text": text, "year": 1900 + at % 100})
    return found


def write_parquet(file: Path, rows: list[dict[str, Any]], group: int) -> Path:
    pq.write_table(pa.Table.from_pylist(rows), file, row_group_size=group)
    return file


def write_jsonl(file: Path, rows: list[dict[str, Any]]) -> Path:
    file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return file


def write_csv(file: Path, rows: list[dict[str, Any]]) -> Path:
    with file.open("w", encoding="utf-8", newline="") as stream:
        writer = csv.DictWriter(stream, [*rows[0]])
        writer.writeheader()
        writer.writerows(rows)
    return file


def version(models_dir: Path) -> str:
    found = ModelStore(models_dir).requested()
    assert found is not None
    return found


def job(
    models_dir: Path,
    source: Path | str,
    out: Path | str,
    *,
    part_rows: int = 100_000,
    others: tuple[str, ...] | None = (),
    half: bool = False,
    with_text: bool = True,
    **embedder: Any,
) -> Job:
    given = {"version": version(models_dir), "models_dir": str(models_dir)} | embedder
    reading = Reading(Columns(others=others), part_rows)
    return plan(str(out), str(source), given, reading, half=half, with_text=with_text)


def embed(models_dir: Path, source: Path | str, out: Path | str, **options: Any) -> dict[str, int]:
    """Runs a job on this machine. Returns its counts."""
    engine: Engine = options.pop("engine", embed_locally)
    return run(job(models_dir, source, out, **options), engine, silent)


def read_all(out: Path | str) -> list[Rows]:
    return [rows for part in open_folder(str(out)) for rows in part.batches()]


def by_id(out: Path | str) -> dict[str, tuple[str, str, list[Any]]]:
    """Returns title, text and passages of each document: start, end, vector and whether it was truncated."""
    found: dict[str, tuple[str, str, list[Any]]] = {}
    for rows in read_all(out):
        for at, id in enumerate(rows.ids):
            passages: list[Any] = [(0, rows.ends[at], rows.vectors[at], rows.truncated[at])]
            for other in range(rows.offsets[at], rows.offsets[at + 1]):
                start, end = map(int, rows.spans[other])
                passages.append((start, end, rows.other_vectors[other], rows.truncated[at]))
            assert id not in found, "a document comes twice"
            found[id] = rows.titles[at], rows.texts[at], passages
    return found


def vectors(out: Path | str) -> NDArray[np.float32]:
    return np.concatenate([rows.vectors for rows in read_all(out)])


def rejects(out: Path) -> list[dict[str, Any]]:
    files = sorted(out.glob("part-*.rejects.jsonl"))
    return [json.loads(line) for file in files for line in file.read_text("ascii").splitlines()]
