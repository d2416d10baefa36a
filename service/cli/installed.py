"""Two distributions that own one import folder break each other silently: find them before they do.

pip installs both without a word, `pip check` finds nothing, and uninstalling one takes files of the other.
"""

from collections.abc import Iterable
from importlib.metadata import distributions

from service.errors import StartupError

FAMILIES = {
    "onnxruntime": {"onnxruntime", "onnxruntime-gpu", "onnxruntime-openvino", "onnxruntime-directml"},
    "faiss": {"faiss-cpu", "faiss-gpu", "faiss-gpu-cuvs", "faiss-gpu-cu11", "faiss-gpu-cu12"},
}


def installed_names() -> set[str]:
    names = (distribution.metadata["Name"] for distribution in distributions())
    return {name.lower().replace("_", "-") for name in names if name}


def refuse_clashes(installed: Iterable[str] | None = None) -> None:
    """Raise StartupError when an import has two distributions, or none."""
    names = installed_names() if installed is None else set(installed)
    for module, family in FAMILIES.items():
        found = sorted(family & names)
        if not found:
            raise StartupError(
                f"No {module} is installed. In the project's folder: pip install -c constraints.txt '.[cpu]'."
            )
        if len(found) > 1:
            raise StartupError(
                f"{' and '.join(found)} are installed together and overwrite each other's files. Make a new "
                "virtual environment with one of the extras cpu, gpu and gpu-cuvs, or run: pip uninstall -y "
                f"{' '.join(found)} && pip install {found[-1]}"
            )
