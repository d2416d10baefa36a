"""Measure `import --vectors`: `python -m benchmarks.bulk_load --corpus FILE --model VERSION`.

    texts ─▶ vectors in Parquet ─▶ SQLite: a new data directory ─▶ the same, killed at half and continued
                                └▶ PostgreSQL: a new database, with the vector index

Documents are texts of FILE with `--words` words each, and ids in random order. VERSION of SIMILE_MODELS_DIR
embeds them first, which is not measured. The seconds of a load are those of the whole command: its start, the
check of all vectors, the load with the keyword index, and durable commits. The two stores of SQLite must then
have equal rows.
"""

import argparse
import hashlib
import json
import os
import random
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from typing import Any

from benchmarks.command import (
    PROJECT,
    BenchError,
    Verdict,
    build_parser,
    format_table,
    progress,
    report,
    scratch_folder,
)
from benchmarks.documents import draw_texts
from benchmarks.processes import postgres
from models.store import ModelStore, models_dir

DATABASE = "simile.db"
PROMISED = 8000  # documents a second, into SQLite
LOOK_SECONDS = 0.2
_ROWS = ("documents", "vectors", "operations", "lexical_1_docsize")  # tables that both stores must share
_COLUMNS = ["load", "s", "documents/s", "processor s", "MiB of the store"]


def main() -> None:
    options = _parse_options()
    published = ModelStore(models_dir(os.environ))
    with scratch_folder(OSError, subprocess.CalledProcessError) as folder, ExitStack() as stack:
        texts = draw_texts(options.corpus, options.documents, options.words)
        shutil.copytree(published.folder(options.model), folder / "models" / options.model)
        ModelStore(folder / "models").request(options.model)
        progress(f"embedding {len(texts):,} texts")
        _embed(folder, options.model, texts)
        bench = _Bench(folder, len(texts))
        if "sqlite" in options.store:
            bench.load("SQLite, empty", "whole")
            bench.kill("killed", len(texts) // 2)
            bench.load("SQLite, the rest after a kill", "killed")
            bench.load("SQLite, all stored before", "killed")
        equal = "sqlite" not in options.store or _digest(folder / "whole") == _digest(folder / "killed")
        if "postgres" in options.store:
            url = stack.enter_context(postgres(folder))
            bench.load("PostgreSQL, empty, with the vector index", "none", SIMILE_DATABASE=url)
    rates = {row[0]: row[2] for row in bench.rows}
    verdicts = [Verdict("rows of the killed load equal the whole one's", equal, 1, at_least=True)]
    if "SQLite, empty" in rates:
        verdicts.append(Verdict("documents/s into SQLite", rates["SQLite, empty"], PROMISED, at_least=True))
    title = f"## {len(texts):,} documents of {options.words} words with vectors"
    report("bulk_load", {"loads": bench.rows}, [title, format_table(_COLUMNS, bench.rows)], verdicts)


def _parse_options() -> argparse.Namespace:
    parser = build_parser("bulk_load", __doc__, corpus=True)
    parser.add_argument("--model", required=True, metavar="VERSION", help="a version in SIMILE_MODELS_DIR")
    parser.add_argument("--documents", type=int, default=1_000_000)
    parser.add_argument("--words", type=int, default=20, metavar="N", help="of each document")
    stores = ["sqlite", "postgres"]
    parser.add_argument("--store", nargs="+", choices=stores, default=stores, help="default: both")
    return parser.parse_args()


def _embed(folder: Path, version: str, texts: Sequence[str]) -> None:
    """Write the vectors of the texts into `folder`/out."""
    ids = random.Random(1).sample(range(10 * len(texts)), len(texts))
    file = folder / "documents.jsonl"
    with file.open("w", encoding="utf-8") as stream:
        stream.writelines(
            json.dumps({"id": f"document-{id}", "text": text}) + "\n"
            for id, text in zip(ids, texts, strict=True)
        )
    command = [sys.executable, "-m", "models", "--models-dir", str(folder / "models"), "embed"]
    subprocess.run([*command, str(file), str(folder / "out"), "--model", version], cwd=PROJECT, check=True)


class _Bench:
    """Loads of one folder of vectors, and the rows of the report's table."""

    def __init__(self, folder: Path, documents: int) -> None:
        self._folder, self._documents = folder, documents
        self.rows: list[list[Any]] = []

    def load(self, name: str, store: str, **settings: str) -> None:
        """Run the command to its end, and add a row to the table."""
        progress(name)
        began, before = time.monotonic(), os.times()
        with self._command(store, **settings) as process:
            if process.wait():
                raise BenchError(f"{name}: the command failed")
        seconds, after = time.monotonic() - began, os.times()
        used = after.children_user + after.children_system - before.children_user - before.children_system
        size = sum(file.stat().st_size for file in (self._folder / store).glob(f"{DATABASE}*")) / (1 << 20)
        self.rows.append([name, seconds, self._documents / seconds, used, size])

    def kill(self, store: str, documents: int) -> None:
        """Kill a load after about `documents` documents."""
        progress(f"a load that is killed after about {documents:,} documents")
        with self._command(store) as process:
            while process.poll() is None and _count(self._folder / store) < documents:
                time.sleep(LOOK_SECONDS)
            process.send_signal(signal.SIGKILL)
        if _count(self._folder / store) >= self._documents:
            raise BenchError("The load ended before the kill. Choose more documents")

    def _command(self, store: str, **settings: str) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "service", "import", str(self._folder / "out"), "--vectors"]
        places = {
            "SIMILE_DATA_DIR": str(self._folder / store),
            "SIMILE_MODELS_DIR": str(self._folder / "models"),
        }
        others = {name: value for name, value in os.environ.items() if not name.startswith("SIMILE_")}
        return subprocess.Popen(command, cwd=PROJECT, env=others | places | settings)


def _count(folder: Path) -> int:
    with suppress(sqlite3.Error), closing(sqlite3.connect(folder / DATABASE)) as connection:
        return int(connection.execute("SELECT max(revision) FROM documents").fetchone()[0] or 0)
    return 0


def _digest(folder: Path) -> str:
    """Return the SHA-256 of the rows of all tables that a load writes."""
    digest = hashlib.sha256()
    with closing(sqlite3.connect(folder / DATABASE)) as connection:
        for table in _ROWS:
            for row in connection.execute(f"SELECT * FROM {table} ORDER BY 1, 2"):
                digest.update(repr(row).encode())
    return digest.hexdigest()


if __name__ == "__main__":
    main()
