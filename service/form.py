"""How vectors are computed here: beside the fingerprint, part of what names a space."""

from models.manifest import Manifest

RUNTIME = "onnxruntime"


def form(manifest: Manifest) -> str:
    """Precision and runtime of a version."""
    return f"{manifest.precision}/{RUNTIME}"
