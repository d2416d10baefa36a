"""Parse arguments that several commands share: numbers, changes of a recipe, and paths."""

from __future__ import annotations

import argparse
import math
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from models.files.bounded import parse_toml
from models.messages import positive
from training.errors import TrainingError

DEVICE = re.compile(r"cpu|cuda(:[0-9]{1,3})?")  # torch has others, such as meta, that cannot train
_SHOWN = 100  # characters of an option, in a message
SEEDS = 1 << 63  # seeds are below, as in a recipe
LOADING = "loading torch: seconds, on a busy machine half a minute"


def batch(text: str) -> int:
    """Parses the batch size. It is at least two, because a contrastive loss compares texts."""
    return _whole(text, 2)


def device(text: str) -> str:
    if text != "auto" and not DEVICE.fullmatch(text):
        raise argparse.ArgumentTypeError(f"{text!r} is none of auto, cpu, cuda and cuda:N")
    return text


def seed(text: str) -> int:
    return _whole(text, 0, SEEDS)


def add_run(command: argparse.ArgumentParser) -> None:
    """Adds the options that all training commands share."""
    command.add_argument(
        "--steps", type=positive, metavar="N", help="how many (default: each text is seen once)"
    )
    command.add_argument("--seed", type=seed, metavar="N", help="instead of the recipe's")
    command.add_argument(
        "--precision",
        choices=("auto", "bf16", "fp32"),
        default="auto",
        help="bf16 computes in bfloat16 by autocast; auto uses it if the processor is fast with it",
    )
    command.add_argument(
        "--threads", type=positive, metavar="N", help="of torch on the CPU (default: torch's choice)"
    )
    command.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="change the recipe, as --set dropout=0.05 or --set optim.lr=1e-5; the value is TOML",
    )
    add_data(command)


def add_data(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--data", metavar="DIR", help="evaluation sets: DIR/stsb/dev.tsv.gz … (default: SIMILE_EVAL_DATA)"
    )


def changes(given: Sequence[str]) -> dict[str, Any]:
    """Parses the options `--set KEY=VALUE`. Returns the TOML values by the key of the recipe.

    Raises:
        TrainingError: An option is not KEY=VALUE, or a value is not TOML.

    """
    found: dict[str, Any] = {}
    for each in given:
        key, equals, value = each.partition("=")
        try:
            found[key.strip()] = parse_toml(f"value = {value}")["value"] if equals else None
        except ValueError:
            equals = ""
        if not equals or not key.strip():
            raise TrainingError(
                f"--set {each[:_SHOWN]!r} is not KEY=VALUE with a TOML value; put a text in "
                "quotes: --set 'pool=\"mean\"'."
            )
    return found


def target(name: str, *read: Path) -> Path:
    """Returns the path of the file to write. Follows links, because writing replaces the file.

    Args:
        name: Path as the user typed it.
        read: Files that the command reads.

    Raises:
        TrainingError: The folder does not exist, or the file is a device, a pipe, or one of `read`.

    """
    file = expanded(name).resolve()
    if not file.parent.is_dir() or (file.exists() and not file.is_file()):
        raise TrainingError(f"{name} cannot be written: name a file in a folder that exists.")
    if any(file == other.resolve() for other in read):
        raise TrainingError(f"{name} is also the file to read: name another file to write.")
    return file


def check_empty(folder: Path) -> None:
    """Raises TrainingError if `folder` exists and is not an empty folder."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise TrainingError(f"{folder} is not an empty folder.")


def expanded(name: str) -> Path:
    """Returns the path with ~ and ~user replaced by the home folder.

    Raises:
        TrainingError: The user after ~ does not exist.

    """
    try:
        return Path(name).expanduser()
    except RuntimeError:
        raise TrainingError(f"There is no home folder for {Path(name).parts[0]!r} in {name}.") from None


def _whole(text: str, least: int, below: float = math.inf) -> int:
    number = int(text) if text.isascii() and text.isdigit() else -1
    if not least <= number < below:
        allowed = f"from {least} on" if below == math.inf else f"from {least} to {int(below) - 1}"
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number {allowed}")
    return number
