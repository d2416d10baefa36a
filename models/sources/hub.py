"""Fetch a model's folder from the Hugging Face hub: JSON, safetensors and ONNX, never a pickle, never code.

Needs huggingface_hub, which comes with the tokenizers package. Serving never comes here: only an import
that names a hub id does, and what was fetched once is found in the hub's own cache afterwards.
"""

from __future__ import annotations

import re
from pathlib import Path

from models.errors import ModelUnavailable, Unsupported
from models.graph.families import knows
from models.sources.folder import read_source

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?")
_WANTED = (
    "*.json",
    "*.safetensors",
    "vocab.txt",
    "merges.txt",
    "*.model",  # of SentencePiece, to be converted
    "README.md",
    "LICENSE*",
)
_GRAPH = ("onnx/model.onnx", "onnx/model.onnx_data")
_UNWANTED = ("openvino/*", "onnx/*.json")
_REASONS = {
    "GatedRepoError": "it asks for consent. Give it on the model's page, then log in: hf auth login",
    "RepositoryNotFoundError": "it has no public model of that name. Check the spelling, organisation "
    "included; for a private one log in: hf auth login",
    "EntryNotFoundError": "a file that it lists is missing there. Try again later, or tell its owner.",
    "LocalEntryNotFoundError": "it cannot be reached, or HF_HUB_OFFLINE is set, and the model was not "
    "fetched before. Copy the folder from another machine and import it by its path.",
    "IncompleteSnapshotError": "it cannot be reached, and only a part of the model was fetched before. Run "
    "the command again with a network: it goes on where it stopped.",
    "TransportError": "the connection broke. Run the command again: it goes on where it stopped.",
}


def is_hub_id(name: str) -> bool:
    """Raise ModelUnavailable for the address of a model's page."""
    if "://" in name:
        model = "/".join(name.partition("://")[2].split("/")[1:3])
        raise ModelUnavailable(f"{name} is an address. Name the hub id alone: {model}.")
    return _HUB_ID.fullmatch(name) is not None


def fetch(hub_id: str) -> Path:
    """The folder of the model's newest revision. Raise ModelUnavailable without network or package.

    An ONNX file, as large as the weights, comes only where the graph is not written from those (publish.py).
    """
    folder = _snapshot(hub_id, _WANTED)
    return folder if _is_written_here(folder) else _snapshot(hub_id, (*_WANTED, *_GRAPH))


def _is_written_here(folder: Path) -> bool:
    try:
        source = read_source(folder)
        return bool(source.weights) and knows(source.config)
    except (Unsupported, ArithmeticError, AttributeError, LookupError, TypeError, ValueError):
        return False  # publishing names the value of a wrong kind


def _snapshot(hub_id: str, wanted: tuple[str, ...]) -> Path:
    try:
        from huggingface_hub import snapshot_download  # noqa: PLC0415  slow to import, rarely needed
    except ImportError:
        message = f"{hub_id} is no folder, and fetching it from the hub needs: pip install huggingface_hub"
        raise ModelUnavailable(message) from None
    try:
        folder = snapshot_download(hub_id, allow_patterns=list(wanted), ignore_patterns=list(_UNWANTED))
    except Exception as error:  # noqa: BLE001  its own errors, the HTTP client's and the system's
        message = (
            f"{hub_id} is no folder on this machine and could not be fetched from the hub: {_why(error)}"
        )
        raise ModelUnavailable(message) from None
    return Path(folder)


def _why(error: Exception) -> str:
    """The reason in one line, and what to do where the hub says what it is."""
    for kind in type(error).__mro__:  # its classes have moved between its releases, and keep their names
        if kind.__name__ in _REASONS:
            return _REASONS[kind.__name__]
    reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
    return (
        f"{reason.rstrip('.')}. Name a folder, `default`, or the id of a public model, such as "
        "BAAI/bge-small-en-v1.5."
    )
