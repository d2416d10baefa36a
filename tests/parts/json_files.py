"""Changes of JSON files, such as the config of a source folder."""

import json
from pathlib import Path


def edit_json(file: Path, **changed: object) -> None:
    """Sets members of the JSON object in a file. Creates a missing file."""
    content = json.loads(file.read_bytes()) if file.is_file() else {}
    file.write_text(json.dumps(content | changed))
