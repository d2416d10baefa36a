"""Embeds with kills: python -m tests.models.bulk.killed MODELS_DIR FOLDER KILLS

Forks a process for each run of the job, so that imports are paid once. Compares the folder with the results
of an undisturbed run after each kill.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import sys
import time
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from models.bulk import inputs, job
from models.bulk.vector_files import DONE, VectorFile, open_folder
from tests.models.bulk import jobs

PART_ROWS = 250
# Small chunks, so that a part is open for most of the time.
vars(inputs)["CHUNK"] = job.GROUP_ROWS = 50


def main(models_dir: Path, folder: Path, kills: int) -> None:
    chance, source = random.Random(3), folder / "in.jsonl"
    started = time.monotonic()
    assert wait(fork(models_dir, source, folder / "right")) == 0
    seconds = time.monotonic() - started
    right = {Path(part.path).name: read(part) for part in open_folder(str(folder / "right"))}
    right_rejects = rejects(folder / "right")
    counts = json.loads((folder / "right" / DONE).read_text("ascii"))
    assert (counts["documents"], counts["rejected"]) == (5000, 1)
    found = {"kills": 0, "kept": 0, "torn": 0}
    out, complete = folder / "out", dict[str, int]()
    while found["kills"] < kills:
        child = fork(models_dir, source, out)
        time.sleep(chance.uniform(0, seconds))
        os.kill(child, signal.SIGKILL)
        killed = wait(child) == -signal.SIGKILL
        found["kills"] += killed
        found["torn"] += len([*out.glob(".part-*")])
        before, complete = complete, {file.name: file.stat().st_ino for file in out.glob("part-*.parquet")}
        assert before.items() <= complete.items(), "a complete part was lost or written again"
        found["kept"] += len(complete)
        for name in complete.keys() - before.keys():
            same(read(VectorFile(str(out / name))), right[name])
        if not killed:
            assert complete.keys() == right.keys()
            assert rejects(out) == right_rejects
            assert json.loads((out / DONE).read_text("ascii")) == counts
            open_folder(str(out))
            shutil.rmtree(out)
            complete = {}
    print(json.dumps(found))


def fork(models_dir: Path, source: Path, out: Path) -> int:
    child = os.fork()
    if child == 0:
        code = 1
        try:
            jobs.embed(models_dir, source, out, part_rows=PART_ROWS)
            code = 0
        finally:
            os._exit(code)
    return child


def wait(child: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def read(part: VectorFile) -> tuple[list[str], list[str], NDArray[np.float32], NDArray[np.float32]]:
    batches = [*part.batches()]
    ids = [id for rows in batches for id in rows.ids]
    texts = [text for rows in batches for text in rows.texts]
    vectors, others = ([np.empty((0, part.description.dimension), np.float32)] for _ in range(2))
    for rows in batches:  # None in a part whose rows were all rejected.
        vectors.append(rows.vectors)
        others.append(rows.other_vectors)
    return ids, texts, np.concatenate(vectors), np.concatenate(others)


def same(mine: tuple[object, ...], right: tuple[object, ...]) -> None:
    assert mine[:2] == right[:2]
    for one, other in zip(mine[2:], right[2:], strict=True):
        assert np.allclose(one, other, rtol=0, atol=1e-5)  # type: ignore[arg-type]


def rejects(out: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in out.glob("part-*.rejects.jsonl")}


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]))
