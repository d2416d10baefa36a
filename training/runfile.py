"""Read and write run.json, which identifies the training run in a folder.

A resumed training compares run.json with its own settings, so it never continues another run.

OUT/
├── run.json                 recipe, corpus, seed, base …, and `finished` after the end
├── record.jsonl             one event per line (runs/record.py)
├── checkpoint.safetensors   removed when the run is finished (runs/checkpoint.py)
├── best/  last/             sentence-transformers folders
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from models.files.bounded import parse_json
from models.files.fsync import replace_text
from training.errors import TrainingError

FILE_NAME = "run.json"
Identity = dict[str, Any]
_WORDS = {
    "recipe": "another recipe",
    "corpus": "another corpus",
    "rows": "other rows, mined again from the same text",
    "base": "another base model",
    "seed": "another seed",
    "steps": "another number of steps",
    "precision": "another precision",
}


_SINCE = {"rows"}  # keys that runs of earlier releases do not have
# Keys that export has to know.
_KEYS = ("method", *(_WORDS.keys() - _SINCE), "texts", "base_name", "parent", "code")


class OtherRun(TrainingError):
    """The run in a folder differs from the requested run, or cannot continue.

    `why` is the reason without advice.
    """

    def __init__(self, why: str, advice: str = "") -> None:
        super().__init__(f"{why} {advice}".rstrip())
        self.why = why


def claim(out: Path, identity: Identity, *, resume: bool) -> None:
    """Writes run.json, which makes `out` the folder of this run.

    Raises:
        TrainingError: The folder contains another run.

    """
    check(out, identity, resume=resume)
    if not resume:
        out.mkdir(parents=True, exist_ok=True)
        write_run(out, identity)


def check(out: Path, identity: Identity, *, resume: bool) -> dict[str, Any]:
    """Returns the content of run.json: the existing file, or what `claim` would write.

    Raises:
        TrainingError: `out` cannot be the folder of this run.

    """
    if not resume:
        if (out / FILE_NAME).exists():
            raise TrainingError(
                f"{out} holds a run already. Continue it with --resume, or name another --out."
            )
        if out.exists() and (not out.is_dir() or any(out.iterdir())):
            raise TrainingError(f"{out} is not an empty folder. Name another --out.")
        return identity
    found = read_run(out)
    for key, name in _WORDS.items():
        if (key in found or key not in _SINCE) and found.get(key) != identity[key]:
            raise OtherRun(
                f"{out} holds a run with {name} ({found.get(key)}, not {identity[key]}).",
                "Give the same to resume it, or name another --out without --resume.",
            )
    return found


def read_run(out: Path) -> dict[str, Any]:
    """Reads run.json.

    Raises:
        TrainingError: `out` contains no training run, or a damaged run.json.

    """
    try:
        found = parse_json((out / FILE_NAME).read_bytes())
    except (FileNotFoundError, NotADirectoryError):
        raise TrainingError(f"{out} holds no run of `simile train`.") from None
    except ValueError as error:
        raise OtherRun(f"{out / FILE_NAME} is not JSON: {error}") from None
    if not isinstance(found, dict):
        raise OtherRun(f"{out / FILE_NAME} holds no JSON object.")
    missing = [key for key in _KEYS if key not in found]
    finished = found.get("finished", {"done": 0, "loss": 0.0, "dev": {}})
    if not isinstance(finished, dict) or not isinstance(finished.get("dev"), dict):
        missing.append("finished.dev")
    else:
        missing += [f"finished.{key}" for key in ("done", "loss") if key not in finished]
    if missing:
        raise OtherRun(f"{out / FILE_NAME} is not of a run of this release: it lacks {', '.join(missing)}.")
    return found


def find_best(folder: Path) -> Path | None:
    """Returns the folder with a run's best weights, or None if `folder` has no run or no weights yet."""
    best = folder / "best"
    return best if (folder / FILE_NAME).is_file() and best.is_dir() else None


def write_run(out: Path, content: dict[str, Any]) -> None:
    replace_text(out / FILE_NAME, json.dumps(content, ensure_ascii=False, allow_nan=False, indent=2) + "\n")


@dataclass(frozen=True)
class Result:
    out: Path
    steps: int  # done
    interrupted: bool  # received a request to stop; unless it is `finished`, the run can be resumed
    loss: float  # loss of the last step
    # Score by number of steps, None if it was not a number; empty without a dev set.
    dev: dict[int, float | None] = field(default_factory=dict)
    finished: bool = True  # `best` and `last` exist

    @property
    def best(self) -> Path:
        """The folder with the chosen weights: of the highest dev score, or of the best share (runs/mix.py).

        Without such a choice, they equal `last`.
        """
        return self.out / "best"

    @property
    def last(self) -> Path:
        return self.out / "last"
