"""Start the server of infinity as its own command does, but with one function corrected.

    PEER/bin/python -P benchmarks/peers/serve_infinity.py v2 --model-id FOLDER …

infinity 0.0.78 lists the files of a model. The paths are relative for a repository of the hub, but absolute
for a folder on disk. Optimum does not find the ONNX file by an absolute path. This script makes the paths
relative in both cases. It does not change the installed package.
"""

from pathlib import Path
from typing import Any

from infinity_emb.cli import cli
from infinity_emb.transformer import utils_optimum

_listed = utils_optimum._list_all_repo_files  # noqa: SLF001  the function to correct


def _relative(model_name_or_path: str, **options: Any) -> list[Path]:
    """Return the relative paths of the files in a folder or a repository."""
    folder = Path(model_name_or_path)
    found = _listed(model_name_or_path=model_name_or_path, **options)
    return [file.relative_to(folder) if file.is_absolute() else file for file in found]


utils_optimum._list_all_repo_files = _relative  # noqa: SLF001

if __name__ == "__main__":
    cli()
