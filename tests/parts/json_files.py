"""Changes of JSON files, such as the config of a source folder."""

import json
from pathlib import Path


def edit_json(file: Path, **changed: object) -> None:
    """Sets values of the object in a file, which is created if it is missing."""
    content = json.loads(file.read_bytes()) if file.is_file() else {}
    file.write_text(json.dumps(content | changed))
