"""Start infinity's server as its own command does, with one function corrected.

    PEER/bin/python -P benchmarks/peers/serve_infinity.py v2 --model-id FOLDER …

For a repository of the hub infinity 0.0.78 lists relative paths, but for a folder on disk absolute ones.
Optimum does not find the ONNX file by those. Here both lists are relative. The peer's environment is not
changed.
"""

from pathlib import Path
from typing import Any

from infinity_emb.cli import cli
from infinity_emb.transformer import utils_optimum

_listed = utils_optimum._list_all_repo_files  # noqa: SLF001  the function to correct


def _relative(model_name_or_path: str, **options: Any) -> list[Path]:
    """Return the files of a folder or a repository, by their relative paths."""
    folder = Path(model_name_or_path)
    found = _listed(model_name_or_path=model_name_or_path, **options)
    return [file.relative_to(folder) if file.is_absolute() else file for file in found]


utils_optimum._list_all_repo_files = _relative  # noqa: SLF001

if __name__ == "__main__":
    cli()
