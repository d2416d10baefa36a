"""Run commands on full and read-only disks: `unshare -m python -m tests.service.cli.on_small_disks FOLDER`.

FOLDER/place/data is a data directory with a store of a megabyte and its models, FOLDER/source a model. Prints
one JSON object: for each case, the message of the command and the files in its target afterwards.
"""

import contextlib
import io
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from models.__main__ import main as models_main
from service.__main__ import parser, run
from service.errors import CommandError

SIZES = (64, 1536, 8192)  # KiB: full at the first byte, full at a later step, enough


@contextlib.contextmanager
def disk(at: Path, options: str) -> Iterator[Path]:
    """Mounts a tmpfs with `options` at the folder `at`, until the block ends."""
    at.mkdir(exist_ok=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(at)], check=True)
    try:
        yield at
    finally:
        subprocess.run(["umount", "-l", str(at)], check=True)


def command(*words: object) -> str:
    """Runs a command. Returns its output, or "refused: " and the CommandError. Other errors are raised."""
    try:
        return run(parser().parse_args([str(word) for word in words]))
    except CommandError as error:
        return f"refused: {error}"


def models_command(*words: object) -> str:
    said = io.StringIO()
    with contextlib.redirect_stderr(said), contextlib.redirect_stdout(said):
        status = models_main([str(word) for word in words])
    return f"{'refused: ' if status else ''}{said.getvalue().strip().splitlines()[-1]}"


def main(folder: Path) -> None:
    place, small, other = folder / "place", folder / "small", folder / "other"
    found: dict[str, tuple[str, list[str]]] = {}

    def told(case: str, act: Callable[[], str], target: Path = small) -> None:
        found[case] = act(), sorted(str(path.relative_to(target)) for path in target.rglob("*"))

    stores = ("--data-dir", place / "data")
    command("backup", folder / "whole", "--models", *stores)
    models = folder / "restored-models"
    for size in SIZES:
        backup = ["backup", small / "b", "--models", *stores]
        restore = ["restore", folder / "whole", "--data-dir", small, "--models-dir", models]
        to_models = ["restore", folder / "whole", "--data-dir", other / f"{size}", "--models-dir", small]
        steps = {
            "backup": backup,
            "export": ["export", small / "all.jsonl", *stores],
            "restore": restore,
            "models of a restore": to_models,
        }
        for name, words in steps.items():
            with disk(small, f"size={size}k"):
                told(f"{name} {size}", partial(command, *words))
    for size in (64, 256):
        with disk(small, f"size={size}k"):
            told(f"import {size}", lambda: models_command("--models-dir", small, "import", folder / "source"))
    with disk(small, "ro"):
        told("backup, read only", lambda: command("backup", small / "b", *stores))
        told("export, read only", lambda: command("export", small / "all.jsonl.gz", *stores))
        told("import, read only", lambda: models_command("--models-dir", small, "import", folder / "source"))
    (folder / "file").write_text("")
    told("backup, there", lambda: command("backup", folder / "file", *stores))
    told("backup, below a file", lambda: command("backup", folder / "file" / "b", *stores))
    told("backup, a long name", lambda: command("backup", folder / ("b" * 300), *stores))
    told("export, no folder", lambda: command("export", folder / "none" / "all.jsonl", *stores))
    told("export, a folder", lambda: command("export", small, *stores))
    sys.stdout.write(json.dumps(found))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
