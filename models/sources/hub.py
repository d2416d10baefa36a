"""Fetches a model's folder from the Hugging Face hub, without pickles and code. Start at `fetch`.

Imports and trainings use this module if the model is a hub id. It needs the package huggingface_hub, and uses
the hub's cache.
"""

from __future__ import annotations

import re
import shlex
import sys
from pathlib import Path

from models.errors import ModelUnavailable, Unsupported
from models.sources.folder import read_source

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?")
# *.model are files of SentencePiece.
_ALLOWED = ("*.json", "*.safetensors", "vocab.txt", "merges.txt", "*.model", "README.md", "LICENSE*")
_GRAPH = ("onnx/model.onnx", "onnx/model.onnx_data")
_IGNORED = ("openvino/*", "onnx/*.json")
_REASONS = {
    "GatedRepoError": "it requires consent. Give it on the model's page, then log in: hf auth login",
    "RepositoryNotFoundError": "it has no public model of that name. Check the spelling, organisation "
    "included; for a private one log in: hf auth login",
    "EntryNotFoundError": "a file that it lists is missing there. Try again later, or tell its owner.",
    "LocalEntryNotFoundError": "it cannot be reached, or HF_HUB_OFFLINE is set, and the model was not "
    "fetched before. Copy the folder from another machine and import it by its path.",
    "IncompleteSnapshotError": "it cannot be reached, and only a part of the model was fetched before. Run "
    "the command again with a network: it continues where it stopped.",
    "TransportError": "the connection broke. Run the command again: it continues where it stopped.",
}


def is_hub_id(name: str) -> bool:
    """Returns True if `name` can be a hub id. Raises ModelUnavailable for a URL."""
    if "://" in name:
        model = "/".join(name.partition("://")[2].split("/")[1:3])
        raise ModelUnavailable(f"{name} is a URL. Name only the hub id: {model}.")
    return _HUB_ID.fullmatch(name) is not None


def fetch(hub_id: str) -> Path:
    """Fetches the newest revision of a model. ONNX files are fetched only if the weights are not enough.

    Raises:
        ModelUnavailable: The model cannot be fetched, or huggingface_hub is not installed.
    """
    folder = _snapshot(hub_id, _ALLOWED)
    return folder if _is_written_here(folder) else _snapshot(hub_id, (*_ALLOWED, *_GRAPH))


def _is_written_here(folder: Path) -> bool:
    try:
        source = read_source(folder)
        return bool(source.weights) and source.is_written_here
    except (Unsupported, ArithmeticError, AttributeError, LookupError, TypeError, ValueError):
        return False  # Publishing reports the invalid value.


def _snapshot(hub_id: str, allowed: tuple[str, ...]) -> Path:
    try:
        from huggingface_hub import snapshot_download  # noqa: PLC0415  slow to import, rarely needed
    except ImportError:
        fetcher = f"{shlex.quote(sys.executable)} -m pip install huggingface_hub"
        message = f"{hub_id} is not a folder. To fetch it from the hub: {fetcher}"
        raise ModelUnavailable(message) from None
    try:
        folder = snapshot_download(hub_id, allow_patterns=list(allowed), ignore_patterns=list(_IGNORED))
    except Exception as error:  # noqa: BLE001  its own errors, the HTTP client's and the system's
        message = (
            f"{hub_id} is not a folder on this machine, and could not be fetched from the hub: {_why(error)}"
        )
        raise ModelUnavailable(message) from None
    return Path(folder)


def _why(error: Exception) -> str:
    """Returns the reason of a failed download, with advice, in one line."""
    for kind in type(error).__mro__:  # Names of classes are stable; their modules differ between releases.
        if kind.__name__ in _REASONS:
            return _REASONS[kind.__name__]
    reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
    return (
        f"{reason.rstrip('.')}. Name a folder, `default`, or the id of a public model, such as "
        "BAAI/bge-small-en-v1.5."
    )
