"""Stands in for a tool in somebody else's environment: python -I foreign_probe.py WAY FOLDER EXCHANGE.

`transformers` is a real one, by torch; each of the others goes wrong in its own way.
"""

from __future__ import annotations

import importlib.metadata
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np


def transformers(folder: Path, texts: list[str]) -> Any:
    """Mean of the last layer, each text alone; cut where the tokenizer's own configuration says."""
    import torch
    from transformers import AutoModel, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModel.from_pretrained(folder, attn_implementation="eager").eval()
    vectors = []
    with torch.no_grad():
        for text in texts:
            row = tokenizer(text, truncation=True, return_tensors="pt")
            vector = model(**row).last_hidden_state[0].mean(0)
            vectors.append((vector / vector.norm()).numpy())
    return np.stack(vectors)


def noise(folder: Path, texts: list[str]) -> Any:
    return np.random.default_rng(0).normal(size=(len(texts), 32)).astype(np.float32)


def crash(folder: Path, texts: list[str]) -> Any:
    raise ValueError("the config\nhas no such key")


def known(folder: Path, texts: list[str]) -> Any:
    raise FileNotFoundError("Could not find any ONNX files with target file name /x/onnx/model.onnx, only …")


def hang(folder: Path, texts: list[str]) -> Any:
    child = subprocess.Popen([sys.executable, "-I", "-c", "import time; time.sleep(600)"])
    print(f"waiting for {child.pid}", flush=True)
    time.sleep(600)


def scribble(folder: Path, texts: list[str]) -> Any:
    (folder / "config.json").write_text("{}")
    (folder / "onnx" / "model.onnx").unlink()
    return noise(folder, texts)


class Opened:
    def __reduce__(self) -> Any:
        return Path.touch, (Path(sys.argv[3]).parent / "unpickled",)


def main() -> None:
    way, folder, exchange = sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3])
    groups = json.loads((exchange / "texts.json").read_bytes())
    texts = [group["prompt"] + text for group in groups for text in group["texts"]]
    versions = {"numpy": importlib.metadata.version("numpy")}
    (exchange / "versions.json").write_text(json.dumps(versions))
    if way == "pickle":
        np.save(exchange / "vectors.npy", np.array([Opened()], dtype=object), allow_pickle=True)
    elif way != "silent":
        np.save(exchange / "vectors.npy", globals()[way](folder, texts))


if __name__ == "__main__":
    main()
