"""A process to be killed: publishes one tiny model after another.

Arguments: models folder, scratch folder, first seed.
"""

from __future__ import annotations

import itertools
import sys
from pathlib import Path

from models.publishing.publish import publish
from models.store import ModelStore
from tests.tiny import tiny_source


def main() -> None:
    models_dir, scratch, first = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
    for seed in itertools.count(first):
        manifest = publish(ModelStore(models_dir), tiny_source(scratch / str(seed), seed))
        print(manifest.version, flush=True)


if __name__ == "__main__":
    main()
