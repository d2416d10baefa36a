"""`simile training word-vectors FILE FOLDER`: create a base model from word vectors such as GloVe.

    a word and its numbers on each line ─▶ tokenizer.json (whole words), a table ─▶ a static sentence model

The recipes static-average, sif, usif, static-max and power-means accept the folder as --base. A word without
a vector gets the mean of all vectors, because a text of zero vectors would have no direction. Binary files
are not supported.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np
import tokenizers
from numpy.typing import NDArray
from safetensors.numpy import save_file
from tokenizers.models import WordLevel
from tokenizers.normalizers import Lowercase
from tokenizers.pre_tokenizers import BertPreTokenizer

from models.progress import counted
from models.publishing.layout import write_modules
from models.tokens.tokenizer import FILE_NAME as TOKENIZER
from training.arguments import check_empty
from training.errors import TrainingError
from training.text.lines import Line, read_lines

_UNKNOWN = "[UNK]"
_MODULES = (("StaticEmbedding", ""), ("Normalize", "1_Normalize"))


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    command = commands.add_parser(
        "word-vectors",
        help="word vectors of your own as a base",
        description="Turn word vectors into a base for static-average, sif, usif, static-max, power-means.",
    )
    command.add_argument(
        "file", type=Path, metavar="FILE", help="a word and its numbers on each line; also as .gz"
    )
    command.add_argument("folder", type=Path, metavar="FOLDER", help="where to write it: new, or empty")
    command.set_defaults(run=_run)


def word_vectors(file: Path, out: Path) -> int:
    """Writes the base model for the word vectors in `file` to the folder `out`.

    Returns:
        The number of words.

    Raises:
        TrainingError: The folder is not empty, or a line of the file is not a word and its numbers.

    """
    check_empty(out)
    words, table = _read(file)
    out.mkdir(parents=True, exist_ok=True)
    save_file({"embedding.weight": table}, out / "model.safetensors", metadata={"format": "pt"})
    content = json.loads(_tokenizer([_UNKNOWN, *words]).to_str())
    (out / TOKENIZER).write_text(json.dumps(content, ensure_ascii=False) + "\n", encoding="utf-8")
    write_modules(out, _MODULES)
    return len(words)


def _read(file: Path) -> tuple[list[str], NDArray[np.float32]]:
    """Reads words and vectors. If a word is repeated, the first vector counts.

    Returns:
        The words, and a matrix of shape (words + 1, D). Row 0 is the mean of all vectors, and the other rows
        are the vectors of the words.

    """
    rows: dict[str, NDArray[np.float32]] = {}
    width = 0
    for number, line in enumerate(counted(read_lines(file), "lines", 0, "reading")):
        word, *numbers = line.text.rstrip().split(" ")
        if number == 0 and len(numbers) == 1:
            continue  # fastText's first line has the number of words and their width
        row = _row(numbers, line)
        width = width or len(row)
        if len(row) != width:
            raise TrainingError(f"{line.at} has {len(row)} numbers, and the lines before it have {width}.")
        rows.setdefault(word, row)
    if not rows:
        raise TrainingError(f"{file} holds no word vectors: a word and its numbers, with spaces between.")
    rows.pop(_UNKNOWN, None)
    table = np.stack([*rows.values()])
    return list(rows), np.concatenate([table.mean(0, keepdims=True), table])


def _row(numbers: list[str], line: Line) -> NDArray[np.float32]:
    try:
        row = np.array(numbers, np.float32)
    except ValueError:
        row = np.array([np.nan], np.float32)
    if not len(row) or not np.isfinite(row).all():
        raise TrainingError(f"{line.at} is not a word and its numbers, with single spaces between them.")
    return row


def _tokenizer(words: list[str]) -> tokenizers.Tokenizer:
    """Returns a tokenizer for whole words and punctuation marks.

    It lower-cases texts if all words are lower-case.
    """
    tokenizer = tokenizers.Tokenizer(WordLevel({word: id for id, word in enumerate(words)}, _UNKNOWN))
    tokenizer.pre_tokenizer = BertPreTokenizer()
    if all(word == word.lower() for word in words[1:]):
        tokenizer.normalizer = Lowercase()
    return tokenizer


def _run(options: argparse.Namespace) -> int:
    count = word_vectors(options.file, options.folder)
    print(  # noqa: T201
        f"{options.folder}: {count:,} words; `simile train sif --base {options.folder} "
        "--corpus FILE --out RUN` makes a model of them"
    )
    return 0
