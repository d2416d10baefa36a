"""Print what pyproject.toml asks for, base and the extras named: python requirements.py cpu,otel

So an image installs the dependencies in a layer that a change of the program leaves as it is.
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
