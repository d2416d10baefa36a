"""The manifest of a published version: the file `manifest.json`. Start at `Manifest` and `check`.

A manifest has the identity, settings, origin and scores of a version, and the SHA-256 of every other file in
the folder. `check` rejects a folder with a missing, extra or changed file, a pickle, a link, or a path that
leads outside. It also rejects a damaged manifest, and one that contradicts the ONNX file. proof.py checks
the vectors.
"""

from __future__ import annotations

import errno
import hashlib
import os
import re
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path, PurePosixPath
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from models.errors import Damaged, ModelError, Unreadable, WrongKind
from models.files.bounded import parse_json, read_bytes
from models.files.fsync import sync_tree
from models.graph.file import FINGERPRINT, SPACE, read_metadata

FILE_NAME = "manifest.json"
REPORT_PAGE = "report"  # Folder with the gate's report as report.md, and its pictures.
ANSWERS = "answers.jsonl"  # In that folder: the answers of both versions to each judged query.
GOLDEN = "golden.json"  # Vectors of fixed texts (publishing/proof.py).
REPORT = "report.json"  # The gate's measurements, for GET /models/{version}/report.
QUERIES = "queries"  # Folder of a pair with the version that encodes its queries.
TEACHER = "teacher"  # Key in the lineage of a student: the fingerprint whose vectors it learned.
ANCHOR = "anchor"  # Key in the lineage: the imported version before the first retraining.
ENGLISH, MANY = "English", "many languages"  # Results of `get_language`.
_VERSION = re.compile(r"\d{8}T\d{6}-[a-z0-9][a-z0-9.-]{0,63}-[0-9a-f]{8}")

Mode = Literal["dense", "lexical", "hybrid"]
# Formula of hybrid search (search/fusion.py). A learned weight fits only the formula it was learned for.
Fusion = Literal["min-max"]
FUSION: Fusion = "min-max"
ModelKind = Literal["encoder", "reranker"]
Activation = Literal["sigmoid", "softmax", "identity"]
Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


class _Strict(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Gate(_Strict):
    """The verdict of the gate. The file report.json has the measurements."""

    mode: Literal["on", "off"]
    verdict: Literal["accepted", "refused", "not asked"]
    reason: str = ""


class Int8(_Strict):
    """The range of quantized vectors: 8-bit integers represent components from -limit to limit."""

    limit: Annotated[float, Field(gt=0, le=1)]  # For unit vectors of the full dimension.
    texts: Annotated[int, Field(gt=0)]  # Number of measured texts.


class Quantized(_Strict):
    """The loss of accuracy of a version's int8 graph (publishing/int8.py)."""

    calibrated_on: Annotated[int, Field(gt=0)]  # Number of texts that set the ranges.
    measured_on: Annotated[int, Field(gt=0)]  # Number of other texts.
    cosine_mean: Annotated[float, Field(ge=-1, le=1)]
    cosine_least: Annotated[float, Field(ge=-1, le=1)]
    same_neighbours: Annotated[float, Field(ge=0, le=1)]  # Share of the ten nearest texts.


class QuantizedScores(_Strict):
    """The loss of accuracy of a reranker's int8 graph (publishing/scores.py)."""

    calibrated_on: Annotated[int, Field(gt=0)]  # Number of pairs that set the ranges.
    measured_on: Annotated[int, Field(gt=0)]  # Number of other pairs.
    score_mean: Annotated[float, Field(ge=0)]  # Mean difference of the scores, after the activation.
    score_most: Annotated[float, Field(ge=0)]  # Largest difference.
    correlation: Annotated[float, Field(ge=-1, le=1)]  # Of the logits.


class QueryEncoder(_Strict):
    """The student that encodes a pair's queries, and its difference from the teacher (publishing/pair.py)."""

    version: str  # The student's own version.
    fingerprint: Sha256
    measured_on: Annotated[int, Field(gt=0)]  # Number of texts.
    cosine_mean: Annotated[float, Field(ge=-1, le=1)]
    cosine_least: Annotated[float, Field(ge=-1, le=1)]
    same_neighbours: Annotated[float, Field(ge=0, le=1)]  # Share of the ten nearest texts.


class Calibration(_Strict):
    """The ranges of quantized vectors (publishing/calibration.py)."""

    int8: Int8 | None = None  # None in versions of old releases.


class SearchDefaults(_Strict):
    """Learned settings of a collection's search. They apply unless a request sets its own."""

    mode: Mode
    weight: Annotated[float, Field(ge=0, le=1)]  # Weight of the vectors in hybrid search (search/fusion.py).
    fusion: Fusion | None = None  # None: the formula of older releases, so `weight` is ignored.
    # Tokens of a passage; None for the default (search/passages.py).
    passage_tokens: Annotated[int, Field(ge=16)] | None = None


# Origins of English models. Names such as bge-small-en-v1.5 and multilingual-e5-small tell by themselves.
_ENGLISH = {"all-minilm-l6-v2", "all-minilm-l12-v2", "all-mpnet-base-v2", "gte-modernbert-base"}


class Manifest(_Strict):
    """The content of manifest.json.

    Unknown fields are rejected, because a newer release may depend on them.
    """

    format: Literal[1] = 1
    kind: ModelKind = "encoder"  # A reranker scores pairs of texts (reranker.py).
    version: Annotated[str, Field(pattern=rf"^{_VERSION.pattern}$")]
    fingerprint: Sha256
    created: str  # ISO 8601, UTC
    origin: str  # The model or recipe.
    parent: str | None = None  # The version that it was trained from.
    lineage: dict[str, Any] = Field(default_factory=dict)  # corpus hash, recipe, seed, code version
    dimension: Annotated[int, Field(gt=0)]  # Numbers in a vector; outputs of a reranker.
    labels: list[str] = Field(default_factory=list)  # Names of a reranker's outputs, if it has several.
    activation: Activation = "identity"  # Function from a reranker's logits to its scores.
    max_length: Annotated[int, Field(gt=0)]  # Tokens of a text or a pair, with special tokens.
    pooling: str  # Names of graph/head.py, joined by "+".
    normalize: bool = True
    prompts: dict[str, str] = Field(default_factory=dict)
    default_prompt: str = ""  # For requests without a named prompt.
    search_prompt: str = ""
    document_prompt: str = ""
    precision: str = "fp32"
    packed: bool = False  # True if only attention computes padding (graph/blocks.py).
    quantised: Quantized | QuantizedScores | None = None  # None without an int8 graph.
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
            ValueError: The file is malformed (pydantic.ValidationError) or too large.
        """
        return cls.model_validate_json(read_bytes(folder / FILE_NAME))

    def text(self) -> str:
        # Empty fields are left out, so that old releases can read the file.
        absent: dict[str, Any] = {name: True for name in _OPTIONAL if getattr(self, name) == _OPTIONAL[name]}
        if self.search:
            absent["search"] = {
                name: {field for field in ("fusion", "passage_tokens") if not getattr(use, field)}
                for name, use in self.search.items()
            }
        return self.model_dump_json(indent=2, exclude=absent) + "\n"


# Fields that are left out of manifest.json if they have these values.
_OPTIONAL: dict[str, object] = {
    "kind": "encoder",
    "labels": [],
    "activation": "identity",
    "search": {},
    "default_prompt": "",
    "query_encoder": None,
}


def require_kind(manifest: Manifest, kind: ModelKind) -> Manifest:
    """Returns the manifest if the version is of this kind. Raises WrongKind."""
    if manifest.kind != kind:
        raise WrongKind(manifest.version, manifest.kind)
    return manifest


def is_version(name: str) -> bool:
    """Returns True if `name` can be the name of a version. Such a name is safe in a path."""
    return _VERSION.fullmatch(name) is not None


def version_name(created: datetime, origin: str, fingerprint: str) -> str:
    return f"{created.astimezone(UTC):%Y%m%dT%H%M%S}-{tidy_origin(origin)}-{fingerprint[:8]}"


def tidy_origin(origin: str) -> str:
    """Shortens an origin for a folder's name: `sentence-transformers/All_MiniLM` becomes `all-minilm`."""
    last = origin.rstrip("/").rsplit("/", 1)[-1].lower()
    tidy = re.sub(r"[^a-z0-9.]+", "-", last).strip("-.")[:64].rstrip("-.")
    return tidy or "model"


def get_language(origin: str) -> str | None:
    """Returns what a model with a well-known origin reads, such as ENGLISH, or None if this is not known."""
    name = tidy_origin(origin)
    if "multilingual" in name:
        return MANY
    return ENGLISH if name in _ENGLISH or "-en-" in f"{name}-" else None


ONNX = "onnx/model.onnx"
PICKLES = frozenset(
    {".bin", ".pt", ".pth", ".pkl", ".pickle", ".ckpt", ".joblib", ".npy", ".npz", ".h5", ".msgpack"}
)


def seal(folder: Path, manifest: Manifest) -> Manifest:
    """Writes the manifest with the checksums of all files, and flushes the whole folder to the disk.

    Returns the manifest with the checksums. Raises ModelError for a pickle, a link or a device.
    """
    files = {}
    for file in sorted(_walk(folder)):
        if file.suffix in PICKLES:
            raise ModelError(f"{file.name} may hold a pickle and cannot be part of a version.")
        files[file.relative_to(folder).as_posix()] = checksum(file)
    sealed = manifest.model_copy(update={"files": files})
    (folder / FILE_NAME).write_text(sealed.text(), encoding="utf-8")
    sync_tree(folder)
    return sealed


def check(folder: Path) -> Manifest:
    """Checks every file of a folder, and returns its manifest.

    Raises:
        Damaged: The folder must not be served.
        Unreadable: The folder cannot be read now.
    """
    manifest = read_manifest(folder)
    _check_paths(folder, manifest)
    for path, expected in manifest.files.items():
        try:
            found = checksum(folder / path)
        except OSError as error:
            raise _trouble(folder, path, error) from None
        if found != expected:
            raise Damaged(folder.name, f"{path} was changed after it was published")
    _check_space(folder, manifest)
    if manifest.query_encoder is not None:
        _check_space(folder, _get_queries(folder, manifest), f"{QUERIES}/")
    return manifest


def read_manifest(folder: Path) -> Manifest:
    """Reads the manifest of a folder. Raises the errors of `check`."""
    if folder.is_symlink():
        raise Damaged(folder.name, "its folder is a link")
    manifest = _read(folder)
    if manifest.version != folder.name:
        raise Damaged(folder.name, f"its manifest belongs to {manifest.version}")
    return manifest


def _read(folder: Path, within: str = "") -> Manifest:
    """Reads the manifest in `folder`, or in its subfolder `within`, which ends with a slash."""
    name = within + FILE_NAME
    try:
        return Manifest.read(folder / within)
    except OSError as error:
        raise _trouble(folder, name, error) from None
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(str(part) for part in first["loc"])
        raise Damaged(folder.name, f"{name} is malformed ({field}: {first['msg']})") from None
    except ValueError as error:
        raise Damaged(folder.name, f"{name} is malformed ({error})") from None


def _get_queries(folder: Path, manifest: Manifest) -> Manifest:
    """Reads the manifest of a pair's query encoder. Raises Damaged if the encoder does not fit the pair."""
    queries = _read(folder, f"{QUERIES}/")
    if manifest.query_encoder is None or queries.fingerprint != manifest.query_encoder.fingerprint:
        raise Damaged(folder.name, f"{QUERIES}/ holds another query encoder than its manifest names")
    for field in ("dimension", "search_prompt"):
        claimed, own = getattr(manifest, field), getattr(queries, field)
        if claimed != own:
            raise Damaged(folder.name, f"its manifest says {field}={claimed!r} and its query encoder {own!r}")
    return queries


def _trouble(folder: Path, path: str, error: OSError) -> Exception:
    """Converts an OSError to the exception to raise.

    A missing file means Damaged, unless the whole folder is missing. Any other error may be temporary, and
    means Unreadable. Without free file descriptors, the result is `error` itself.
    """
    if error.errno in {errno.EMFILE, errno.ENFILE}:  # The process has no file descriptors left.
        return error
    reason = f"{path} cannot be read ({error.strerror or error})"
    if not isinstance(error, FileNotFoundError | NotADirectoryError):
        return Unreadable(folder.name, reason)
    try:
        folder.stat()
    except OSError:
        return Unreadable(folder.name, reason)
    return Damaged(folder.name, reason)


def _check_paths(folder: Path, manifest: Manifest) -> None:
    for path in manifest.files:
        pure = PurePosixPath(path)
        if pure.is_absolute() or ".." in pure.parts or "\\" in path or str(pure) != path:
            raise Damaged(folder.name, f"its manifest has a path that leads out of the folder: {path!r}")
    try:
        present = {file.relative_to(folder).as_posix() for file in _walk(folder)} - {FILE_NAME}
    except ModelError as error:
        raise Damaged(folder.name, str(error)) from None
    except OSError as error:
        raise _trouble(folder, "a folder of it", error) from None
    for path in sorted(present):
        if Path(path).suffix in PICKLES:
            raise Damaged(folder.name, f"{path} may hold a pickle")
    for path in sorted(present ^ manifest.files.keys()):
        reason = "is not listed in the manifest" if path in present else "is missing"
        raise Damaged(folder.name, f"{path} {reason}")
    if ONNX not in present:
        raise Damaged(folder.name, f"{ONNX} is missing")


_IN_SPACE = ("pooling", "search_prompt", "document_prompt", "max_length", "dimension")


def _check_space(folder: Path, manifest: Manifest, within: str = "") -> None:
    """Raises Damaged if the manifest contradicts the fingerprint or the space in the ONNX file.

    The space has everything that determines a vector (publishing/fingerprint.py).

    Args:
        within: Empty, or a subfolder as in `_read`.
    """
    name = within + ONNX
    try:
        metadata = read_metadata(folder / name)
        space = parse_json(metadata.get(SPACE, "{}"))
    except ValueError as error:
        raise Damaged(folder.name, f"{name} is not an ONNX file ({error})") from None
    except OSError as error:
        raise _trouble(folder, name, error) from None
    computed = hashlib.sha256(metadata.get(SPACE, "").encode()).hexdigest()
    stated = {manifest.fingerprint, metadata.get(FINGERPRINT), computed}
    if len(stated) != 1 or not manifest.version.endswith(manifest.fingerprint[:8]):
        raise Damaged(folder.name, f"its manifest claims another fingerprint than {name}")
    claims = {field: getattr(manifest, field) for field in _IN_SPACE}
    claims["activation"] = manifest.activation if manifest.kind == "reranker" else None
    for field, claimed in claims.items():
        stored = space.get(field)
        if claimed != stored:
            raise Damaged(folder.name, f"its manifest says {field}={claimed!r} and {name} {stored!r}")


def _walk(folder: Path) -> Iterator[Path]:
    """Yields every regular file. Raises ModelError for a link or a device."""

    def fail(error: OSError) -> None:
        raise error

    for at, folders, files in os.walk(folder, onerror=fail):
        for name in (*folders, *files):
            path = Path(at, name)
            if path.is_symlink() or not (path.is_dir() or path.is_file()):
                raise ModelError(f"{path.relative_to(folder).as_posix()} is a link or a device")
        yield from (Path(at, name) for name in files)


def checksum(file: Path) -> str:
    """Returns the SHA-256 of a file, in hex."""
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
