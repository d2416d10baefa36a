"""A process that crashes while it builds a version, as C code may; test_limited.py starts it."""

import json
import os
import signal
import sys
from pathlib import Path

from models.manifest import Manifest
from models.store import ModelStore


def crash(folder: Path) -> Manifest:
    (folder / "model.safetensors").write_bytes(bytes(1000))
    os.kill(os.getpid(), signal.SIGSEGV)
    raise AssertionError("it lives")


if __name__ == "__main__":
    ModelStore(Path(json.loads(sys.stdin.readline())["store"])).publish(crash)
