"""The verdict on one tool and one version: its vectors beside Simile's own, text by text.

same        every text: cosine of at least 0.9999, and of length 1 as Simile's are
differs     it computes something else, and the worst text is named
cannot      it cannot open or compute the version, and why
not tried   it could not be installed here, and why
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from models.encoder import Encoder
from models.files.bounded import parse_json
from models.publishing.portability.environments import Failed, run
from models.publishing.portability.tools import Tool
from models.publishing.proof import Vectors
from models.sources.folder import Source, read_source
from models.tokens.texts import PROOF_TEXTS, long_text

REQUIRED = 0.9999
_LENGTH = 1e-3  # how far from 1 a vector's length may be
# What the proof leaves out: next to nothing, blanks that some tools strip, characters that normalisers drop.
_ODD_TEXTS = (
    *("", " ", "\n\t ", "\u200b", ".", "🎉", "🏳️‍🌈🏴‍☠️ 1️⃣", "  blanks around the text  "),
    *("สวัสดีชาวโลก", "नमस्ते दुनिया", "שלום עולם", "Բարեւ աշխարհ", "გამარჯობა", "[CLS] [MASK] </s> <pad>"),
)
TEXTS = (*PROOF_TEXTS, *_ODD_TEXTS, "end " + long_text(900))
_PROMPTED = PROOF_TEXTS[:8]

Verdict = Literal["same", "differs", "cannot", "not tried"]


@dataclass(frozen=True)
class Row:
    tool: str
    verdict: Verdict
    reason: str = ""
    foreseen: bool = True  # of a tool that cannot: the reason was known beforehand
    lowest: float | None = None  # cosine
    compared: int = 0  # texts
    remarks: tuple[str, ...] = ()
    versions: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Expected:
    """The vectors of a version, by Simile's own encoder."""

    folder: Path
    source: Source
    groups: list[dict[str, Any]]  # as probe.py reads them
    texts: list[str]  # of all groups, with their prompts
    vectors: Vectors  # (texts, dimension)
    truncated: list[bool]

    @classmethod
    def of(cls, folder: Path, encoder: Encoder) -> Expected:
        source = read_source(folder)
        groups: list[dict[str, Any]] = [{"prompt_name": None, "prompt": "", "texts": TEXTS}]
        groups += [
            {"prompt_name": name, "prompt": prompt, "texts": _PROMPTED}
            for name, prompt in source.prompts.items()
            if prompt
        ]
        texts = [group["prompt"] + text for group in groups for text in group["texts"]]
        found = encoder.encode(texts)
        return cls(folder, source, groups, texts, found.vectors, found.truncated)


def check(tool: Tool, python: Path, expected: Expected, at: Path) -> Row:
    """Run `tool` by its interpreter `python`; `at`: a folder for its log and for what it works on."""
    limits = tool.limits(expected.source)
    if limits.cannot:
        return Row(tool.name, "cannot", limits.cannot)
    with tempfile.TemporaryDirectory(dir=at, prefix="try-") as temporary:
        exchange = Path(temporary)
        failure = _run_probe(tool, python, expected, exchange, at / "probe.log")
        versions = _versions(exchange / "versions.json")
        if failure:
            known = next((meaning for part, meaning in tool.failures if part in failure), "")
            return Row(tool.name, "cannot", known or failure, foreseen=bool(known), versions=versions)
        try:
            found = np.load(exchange / "vectors.npy", allow_pickle=False)
        except (OSError, ValueError, EOFError) as error:
            reason = f"it left no vectors that can be read: {error}"
            return Row(tool.name, "cannot", reason, foreseen=False, versions=versions)
    kept = [not cut or limits.cut_alike for cut in expected.truncated]
    reason, lowest = compare(found, expected, kept)
    return Row(
        tool.name,
        "differs" if reason else "same",
        reason,
        lowest=lowest,
        compared=sum(kept),
        remarks=limits.remarks,
        versions=versions,
    )


def compare(found: NDArray[Any], expected: Expected, kept: Sequence[bool]) -> tuple[str, float | None]:
    """Why `found` is not what is expected of the texts `kept`, or nothing; and the lowest cosine."""
    if found.shape != expected.vectors.shape or found.dtype.kind != "f":
        return f"it gives {found.dtype} {found.shape} instead of float32 {expected.vectors.shape}", None
    at = np.flatnonzero(kept)
    a, b = found[at].astype(np.float64), expected.vectors[at].astype(np.float64)
    lengths = np.linalg.norm(a, axis=1)
    with np.errstate(invalid="ignore", divide="ignore"):
        cosines = np.sum(a * b, axis=1) / (lengths * np.linalg.norm(b, axis=1))
    if not np.isfinite(cosines).all():
        worst = at[np.argmin(np.isfinite(cosines))]
        return f"it gives no direction for {_short(expected.texts[worst])}", None
    worst, lowest = at[np.argmin(cosines)], float(cosines.min())
    if lowest < REQUIRED:
        wrong = at[cosines < REQUIRED]
        long = all(expected.truncated[index] for index in wrong)
        where = f", all beyond the {expected.source.max_length} tokens that the version takes" if long else ""
        return f"{len(wrong)} of {len(at)} texts{where}; the worst: {_short(expected.texts[worst])}", lowest
    if abs(lengths - 1).max() > _LENGTH:
        return f"its vectors are {lengths.min():.3g} to {lengths.max():.3g} long instead of 1", lowest
    return "", lowest


def _run_probe(tool: Tool, python: Path, expected: Expected, exchange: Path, log: Path) -> str:
    """Why it failed, or nothing. The tool gets a copy, since some write into the folder that they open."""
    folder = exchange / expected.folder.name
    shutil.copytree(expected.folder, folder)
    (exchange / "texts.json").write_text(json.dumps(expected.groups), encoding="utf-8")
    alone = {
        "HF_HUB_OFFLINE": "1",
        "TRANSFORMERS_OFFLINE": "1",
        "HF_HOME": str(exchange / "hub"),
        "DO_NOT_TRACK": "1",  # infinity counts its users
        "CUDA_VISIBLE_DEVICES": "",  # the versions are fp32 on a CPU, and so are Simile's vectors here
        "TOKENIZERS_PARALLELISM": "false",
    }
    command = [python, "-I", "-X", "utf8", tool.probe, tool.name, folder, exchange]
    try:
        run(command, log, tool.seconds, os.environ | alone)
    except Failed as failed:
        return str(failed)
    return ""


def _versions(file: Path) -> dict[str, str]:
    """The versions that the probe found; none where it did not come so far."""
    try:
        found = parse_json(file.read_bytes())
    except (OSError, ValueError):
        return {}
    return {str(name): str(version) for name, version in found.items()} if isinstance(found, dict) else {}


def _short(text: str) -> str:
    shown = ascii(text)
    return shown if len(shown) <= 60 else f"{shown[:60]}…"
