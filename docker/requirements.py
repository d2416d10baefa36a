"""Print the dependencies in pyproject.toml, and those of the named extras: python requirements.py cpu,otel

So an image installs them in a separate layer, which stays in the cache when only the program changes.
"""

import sys
import tomllib
from pathlib import Path

project = tomllib.loads(Path("pyproject.toml").read_text(encoding="utf-8"))["project"]
extras = project["optional-dependencies"]
for extra in sys.argv[1].split(","):
    if extra not in extras:
        sys.exit(f"pyproject.toml has no extra {extra!r}; there are {', '.join(extras)}.")
print("\n".join(sum((extras[extra] for extra in sys.argv[1].split(",")), project["dependencies"])))
