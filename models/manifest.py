"""The manifest of a published version, `manifest.json` in its folder. Start at `Manifest`.

It has the identity, settings, origin and scores of the version, and the SHA-256 of every other file, which
seal.py checks.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from models.files.bounded import read_bytes

FILE_NAME = "manifest.json"
REPORT_PAGE = "report"  # Folder with the gate's report as report.md, and its pictures.
ANSWERS = "answers.jsonl"  # In that folder: the answers of both versions to each judged query.
REPORT = "report.json"  # The gate's measurements, for GET /models/{version}/report.
QUERIES = "queries"  # Folder of a pair with the version that encodes its queries.
TEACHER = "teacher"  # Key in the lineage of a student: the fingerprint whose vectors it learned.
ANCHOR = "anchor"  # Key in the lineage: the imported version before the first retraining.
_VERSION = re.compile(r"\d{8}T\d{6}-[a-z0-9][a-z0-9.-]{0,63}-[0-9a-f]{8}")

Mode = Literal["dense", "lexical", "hybrid"]
Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


class Gate(BaseModel):
    """The verdict of the promotion gate. report.json has the numbers."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    mode: Literal["on", "off"]
    verdict: Literal["accepted", "refused", "not asked"]
    reason: str = ""


class Int8(BaseModel):
    """8-bit integers span the range -limit..limit of a vector's components."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    limit: Annotated[float, Field(gt=0, le=1)]  # For unit vectors of the full dimension.
    texts: Annotated[int, Field(gt=0)]  # Number of measured texts.


class Quantised(BaseModel):
    """The loss of accuracy of a version's int8 graph (publishing/int8.py)."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    calibrated_on: Annotated[int, Field(gt=0)]  # Number of texts that set the ranges.
    measured_on: Annotated[int, Field(gt=0)]  # Number of other texts.
    cosine_mean: Annotated[float, Field(ge=-1, le=1)]
    cosine_least: Annotated[float, Field(ge=-1, le=1)]
    same_neighbours: Annotated[float, Field(ge=0, le=1)]  # Share of the ten nearest texts.


class QueryEncoder(BaseModel):
    """The student that encodes a pair's queries, compared with its teacher (publishing/pair.py)."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    version: str  # The student's own version.
    fingerprint: Sha256
    measured_on: Annotated[int, Field(gt=0)]  # Number of texts.
    cosine_mean: Annotated[float, Field(ge=-1, le=1)]
    cosine_least: Annotated[float, Field(ge=-1, le=1)]
    same_neighbours: Annotated[float, Field(ge=0, le=1)]  # Share of the ten nearest texts.


class Calibration(BaseModel):
    """The scales of quantized vectors (publishing/calibration.py)."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    int8: Int8 | None = None  # None in versions of old releases.


class SearchDefaults(BaseModel):
    """Learned settings of a collection's search, the defaults of requests."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    mode: Mode
    weight: Annotated[float, Field(ge=0, le=1)]  # Weight of the vectors in hybrid search (search/fusion.py).
    # Tokens of a passage; None for the default (search/passages.py).
    passage_tokens: Annotated[int, Field(ge=16)] | None = None


class Manifest(BaseModel):
    """A manifest. Unknown fields are rejected, because a newer release may depend on them."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    format: Literal[1] = 1
    version: Annotated[str, Field(pattern=rf"^{_VERSION.pattern}$")]
    fingerprint: Sha256
    created: str  # ISO 8601, UTC
    origin: str  # The model or recipe.
    parent: str | None = None  # The version that it was trained from.
    lineage: dict[str, Any] = Field(default_factory=dict)  # corpus hash, recipe, seed, code version
    dimension: Annotated[int, Field(gt=0)]
    max_length: Annotated[int, Field(gt=0)]  # Tokens, with special tokens.
    pooling: str  # Names of graph/head.py, joined by "+".
    normalize: bool = True
    prompts: dict[str, str] = Field(default_factory=dict)
    default_prompt: str = ""  # For requests without a named prompt.
    search_prompt: str = ""
    document_prompt: str = ""
    precision: str = "fp32"
    packed: bool = False  # True if only attention computes padding (graph/packing.py).
    quantised: Quantised | None = None  # None without an int8 graph.
    query_encoder: QueryEncoder | None = None  # None if one model encodes queries and documents.
    portable: Literal["sentence-transformers", "simile"] = "sentence-transformers"
    scores: dict[str, Any] = Field(default_factory=dict)
    gate: Gate | None = None  # None if it was published without a gate.
    calibration: Calibration = Calibration()
    search: dict[str, SearchDefaults] = Field(default_factory=dict)  # Keyed by collection.
    files: dict[str, Sha256] = Field(default_factory=dict)  # Keyed by the POSIX path in the folder.

    @classmethod
    def read(cls, folder: Path) -> Manifest:
        """Reads the manifest of a folder.

        Raises:
            OSError: The file cannot be read.
            ValueError: It is malformed or too large. Includes pydantic.ValidationError.
        """
        return cls.model_validate_json(read_bytes(folder / FILE_NAME))

    def text(self) -> str:
        # Empty fields are left out, so that old releases can read the file.
        absent: dict[str, Any] = {
            name: True for name in ("search", "default_prompt", "query_encoder") if not getattr(self, name)
        }
        if usual := {name: {"passage_tokens"} for name, use in self.search.items() if not use.passage_tokens}:
            absent["search"] = usual
        return self.model_dump_json(indent=2, exclude=absent) + "\n"


def is_version(name: str) -> bool:
    """Returns True if `name` can be a version's name, and is therefore safe in a path."""
    return _VERSION.fullmatch(name) is not None


def version_name(created: datetime, origin: str, fingerprint: str) -> str:
    return f"{created.astimezone(UTC):%Y%m%dT%H%M%S}-{tidy_origin(origin)}-{fingerprint[:8]}"


def tidy_origin(origin: str) -> str:
    """Converts `origin` to a part of a folder's name: `sentence-transformers/All_MiniLM` to `all-minilm`."""
    last = origin.rstrip("/").rsplit("/", 1)[-1].lower()
    tidy = re.sub(r"[^a-z0-9.]+", "-", last).strip("-.")[:64].rstrip("-.")
    return tidy or "model"
