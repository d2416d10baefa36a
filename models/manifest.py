"""Manifest: what a published version says about itself, as `manifest.json` in its folder.

Identity (version, fingerprint, form), how it turns text into a vector, where it came from, how it scored,
and the SHA-256 of every other file of the folder. It does not read or check those files: that is the
store's work.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from models.files.bounded import read_bytes

FILE_NAME = "manifest.json"
REPORT_PAGE = "report"  # a folder: the same as report.md, with its pictures
ANSWERS = "answers.jsonl"  # in that folder: both answers to each query that judged
REPORT = "report.json"  # what a promotion gate measured, for people and for GET /models/{version}/report
QUERIES = "queries"  # a folder of a pair: the version that encodes its queries, whole
TEACHER = "teacher"  # in the lineage of a student: the fingerprint whose vectors it learned
ANCHOR = "anchor"  # in the lineage: the version that its line of retrainings began with
_VERSION = re.compile(r"\d{8}T\d{6}-[a-z0-9][a-z0-9.-]{0,63}-[0-9a-f]{8}")

Mode = Literal["dense", "lexical", "hybrid"]  # of a search: by vectors, by words, by both
Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


class Gate(BaseModel):
    """The verdict of a promotion gate when the version was published; the numbers are in report.json."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    mode: Literal["on", "off"]
    verdict: Literal["accepted", "refused", "not asked"]
    reason: str = ""


class Int8(BaseModel):
    """The range of a vector's components: 8-bit integers span -limit..limit."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    limit: Annotated[float, Field(gt=0, le=1)]  # of unit vectors at their full dimension
    texts: Annotated[int, Field(gt=0)]  # from how many it was found


class Quantised(BaseModel):
    """The cost of a version's int8 graph against its float32 one (int8.py)."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    calibrated_on: Annotated[int, Field(gt=0)]  # texts that its ranges come from
    measured_on: Annotated[int, Field(gt=0)]  # other texts
    cosine_mean: Annotated[float, Field(ge=-1, le=1)]
    cosine_least: Annotated[float, Field(ge=-1, le=1)]
    same_neighbours: Annotated[float, Field(ge=0, le=1)]  # of the ten nearest of each of those texts


class QueryEncoder(BaseModel):
    """The student that encodes a pair's queries, beside its teacher's vectors of the same texts (pair.py)."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    version: str  # as it was published alone
    fingerprint: Sha256
    measured_on: Annotated[int, Field(gt=0)]  # texts
    cosine_mean: Annotated[float, Field(ge=-1, le=1)]
    cosine_least: Annotated[float, Field(ge=-1, le=1)]
    same_neighbours: Annotated[float, Field(ge=0, le=1)]  # of the ten of those texts nearest to each


class Calibration(BaseModel):
    """The scales of vectors in other numbers than floats (calibration.py)."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    int8: Int8 | None = None  # None: published before there was any


class SearchDefaults(BaseModel):
    """Learned settings of a collection's search, for requests that name none."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    mode: Mode
    weight: Annotated[float, Field(ge=0, le=1)]  # of the vectors in hybrid search (models/search/fusion.py)
    # Tokens of a passage; None: as many as is usual (models/search/passages.py).
    passage_tokens: Annotated[int, Field(ge=16)] | None = None


class Manifest(BaseModel):
    """Unknown fields are refused: a manifest written by a newer program is not half understood."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    format: Literal[1] = 1
    version: Annotated[str, Field(pattern=rf"^{_VERSION.pattern}$")]
    fingerprint: Sha256
    created: str  # ISO 8601, UTC
    origin: str  # the model or recipe it came from
    parent: str | None = None  # the version it was trained from
    lineage: dict[str, Any] = Field(default_factory=dict)  # corpus hash, recipe, seed, code version
    dimension: Annotated[int, Field(gt=0)]
    max_length: Annotated[int, Field(gt=0)]  # tokens, special ones included
    pooling: str  # as head.py names it, and sentence-transformers where it can; several joined by "+"
    normalize: bool = True
    prompts: dict[str, str] = Field(default_factory=dict)
    default_prompt: str = ""  # of a text whose request names no prompt
    search_prompt: str = ""
    document_prompt: str = ""
    precision: str = "fp32"
    packed: bool = False  # whether padding costs attention only (packing.py)
    quantised: Quantised | None = None  # None: it has no int8 graph
    query_encoder: QueryEncoder | None = None  # None: one model encodes queries and documents
    portable: Literal["sentence-transformers", "simile"] = "sentence-transformers"
    scores: dict[str, Any] = Field(default_factory=dict)
    gate: Gate | None = None  # None: it came here without one
    calibration: Calibration = Calibration()
    search: dict[str, SearchDefaults] = Field(default_factory=dict)  # by collection
    files: dict[str, Sha256] = Field(default_factory=dict)  # path inside the folder, "/" between its parts

    @classmethod
    def read(cls, folder: Path) -> Manifest:
        """Raise OSError, or ValueError (pydantic.ValidationError is one): too large, too deep, malformed."""
        return cls.model_validate_json(read_bytes(folder / FILE_NAME))

    def text(self) -> str:
        # Left out where empty, so that a program from before there were any reads the file.
        absent: dict[str, Any] = {
            name: True for name in ("search", "default_prompt", "query_encoder") if not getattr(self, name)
        }
        if usual := {name: {"passage_tokens"} for name, use in self.search.items() if not use.passage_tokens}:
            absent["search"] = usual
        return self.model_dump_json(indent=2, exclude=absent) + "\n"


def is_version(name: str) -> bool:
    """True if `name` can be a version's name; only then may a path be made of it."""
    return _VERSION.fullmatch(name) is not None


def version_name(created: datetime, origin: str, fingerprint: str) -> str:
    return f"{created.astimezone(UTC):%Y%m%dT%H%M%S}-{tidy_origin(origin)}-{fingerprint[:8]}"


def tidy_origin(origin: str) -> str:
    """`origin` as a part of a folder's name: `sentence-transformers/All_MiniLM` -> `all-minilm`."""
    last = origin.rstrip("/").rsplit("/", 1)[-1].lower()
    tidy = re.sub(r"[^a-z0-9.]+", "-", last).strip("-.")[:64].rstrip("-.")
    return tidy or "model"
