"""Encoder: a published folder, opened. Text in, vectors out: tokenizer.json and ONNX Runtime, nothing else.

    texts ─▶ tokenize ─▶ ids ─▶ forward (one padded batch) ─▶ float32 (n, dimension)

`encode` does both for offline use. Not here: whether the folder is whole and unchanged (store.py), batching
of concurrent callers, prompts, cutting to fewer dimensions.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import onnxruntime
from numpy.typing import NDArray

from .errors import BadInput, BadText, BadTokens, Damaged, TooLong
from .manifest import Manifest
from .tokenizer import FILE_NAME as TOKENIZER
from .tokenizer import Piece, Tokenizer, Tokens

__all__ = ["BadInput", "BadText", "BadTokens", "Encoded", "Encoder", "Piece", "Tokens", "TooLong"]

ONNX = "onnx/model.onnx"
_GROUP_TOKENS = 2048  # padded tokens of one forward: larger batches fall out of the second-level cache
_NORMALISED, _POOLED = "sentence_embedding", "pooled_embedding"


class Encoded(NamedTuple):
    vectors: NDArray[np.float32]  # (n, dimension), of length 1 when normalised
    tokens: list[int]  # of each text, special ones included
    truncated: list[bool]


class Encoder:
    """Thread safe: with threads=1 each call computes on the thread that makes it."""

    def __init__(self, folder: Path, manifest: Manifest, *, threads: int = 1) -> None:
        self.manifest = manifest
        self.threads = threads
        self.dimension = manifest.dimension
        self.max_length = manifest.max_length
        self.fingerprint = manifest.fingerprint
        self.prompts = manifest.prompts
        config = json.loads((folder / "config.json").read_bytes())
        self._pad_id = int(config.get("pad_token_id") or 0)
        self._tokenizer = Tokenizer(folder / TOKENIZER, manifest.max_length, config.get("vocab_size"))
        self._session = _open_session(folder / ONNX, threads)
        self._inputs = [given.name for given in self._session.get_inputs()]
        self.providers: list[str] = self._session.get_providers()
        claimed = self._session.get_modelmeta().custom_metadata_map.get("simile.fingerprint")
        if claimed != manifest.fingerprint:
            raise Damaged(manifest.version, "its ONNX file carries another fingerprint than its manifest")

    @classmethod
    def open(cls, folder: Path, *, threads: int = 1) -> Encoder:
        """Open a published folder as it is; `Store.open` checks it first."""
        return cls(folder, Manifest.read(folder), threads=threads)

    def tokenize(self, texts: Sequence[str], *, truncate: bool = True, left: bool = False) -> list[Tokens]:
        """Raise BadText, or TooLong when `truncate` is false and a text has more than `max_length` tokens.

        left: drop tokens from the start of a long text rather than from its end.
        """
        return self._tokenizer.tokenize(texts, truncate, left)

    def check_ids(self, ids: Sequence[int], *, truncate: bool = True, left: bool = False) -> Tokens:
        """A row that the caller tokenised. Raise BadTokens or TooLong."""
        return self._tokenizer.check_ids(ids, truncate, left)

    def pieces(self, text: str, *, add_special_tokens: bool = True) -> Iterator[Piece]:
        """Every token of `text`, uncut. Raise BadText."""
        return self._tokenizer.pieces(text, add_special_tokens=add_special_tokens)

    @property
    def room(self) -> int:
        """Tokens of a text beside the special ones."""
        return self._tokenizer.room

    def spans(self, text: str) -> NDArray[np.int64]:
        """Where the tokens of `text` stand, uncut: (n, 2) positions of characters. Raise BadText."""
        return self._tokenizer.spans(text)

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """The text of ids of the vocabulary. Raise BadTokens."""
        return self._tokenizer.decode(ids, skip_special_tokens=skip_special_tokens)

    def forward(self, ids: Sequence[Sequence[int]], *, normalize: bool = True) -> NDArray[np.float32]:
        """One batch, padded to its longest row -> (n, dimension)."""
        if not ids:
            return np.empty((0, self.dimension), dtype=np.float32)
        shape = (len(ids), max(len(row) for row in ids))
        padded = np.full(shape, self._pad_id, dtype=np.int64)
        mask = np.zeros(shape, dtype=np.int64)
        for row, row_ids in enumerate(ids):
            padded[row, : len(row_ids)] = row_ids
            mask[row, : len(row_ids)] = 1
        feed = {"input_ids": padded, "attention_mask": mask}
        if "token_type_ids" in self._inputs:
            feed["token_type_ids"] = np.zeros(shape, dtype=np.int64)
        output = _NORMALISED if normalize else _POOLED
        vectors: NDArray[np.float32] = self._session.run([output], feed)[0]
        return vectors

    def encode(self, texts: Sequence[str], *, truncate: bool = True) -> Encoded:
        """Vectors in the order of `texts`; computed in groups of similar length, so little is padding."""
        rows = self.tokenize(texts, truncate=truncate)
        vectors = np.empty((len(rows), self.dimension), dtype=np.float32)
        for group in _groups([len(row.ids) for row in rows]):
            vectors[group] = self.forward([rows[i].ids for i in group])
        return Encoded(vectors, [len(row.ids) for row in rows], [row.truncated for row in rows])

    def close(self) -> None:
        """Free the session's memory; the encoder cannot be used afterwards."""
        del self._session


def _open_session(file: Path, threads: int) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.execution_mode = onnxruntime.ExecutionMode.ORT_SEQUENTIAL
    options.enable_mem_pattern = False  # it keeps a plan for every shape it ever saw, and was not faster
    options.log_severity_level = 3  # errors; its warnings are about fusions that it could not do
    # Spinning threads take a core from their neighbours while they wait, and were not faster.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    return onnxruntime.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])


def _groups(lengths: Sequence[int]) -> Iterator[list[int]]:
    """Indices sorted by length, in groups whose padded size stays within the budget."""
    group: list[int] = []
    for index in sorted(range(len(lengths)), key=lengths.__getitem__):
        if group and (len(group) + 1) * lengths[index] > _GROUP_TOKENS:
            yield group
            group = []
        group.append(index)
    if group:
        yield group
