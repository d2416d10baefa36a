"""infinity's server, started as its own command starts it, with one function corrected.

    PEER/bin/python -P benchmarks/peers/serve_infinity.py v2 --model-id FOLDER …

For a folder on disk infinity 0.0.78 lists absolute paths where it lists relative ones for a repository of the
hub, and optimum does not find the ONNX file by those. Here both lists are relative. Nothing is written into
the peer's environment.
"""

from pathlib import Path
from typing import Any

from infinity_emb.cli import cli
from infinity_emb.transformer import utils_optimum

_listed = utils_optimum._list_all_repo_files  # noqa: SLF001  the function to correct


def _relative(model_name_or_path: str, **options: Any) -> list[Path]:
    """The files of a folder or of a repository, by their paths within it."""
    folder = Path(model_name_or_path)
    found = _listed(model_name_or_path=model_name_or_path, **options)
    return [file.relative_to(folder) if file.is_absolute() else file for file in found]


utils_optimum._list_all_repo_files = _relative  # noqa: SLF001

if __name__ == "__main__":
    cli()
