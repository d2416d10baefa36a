"""Make the reference vectors of the default model with sentence-transformers. Run once; see README.md
beside this file.

    python tests/golden/make.py SOURCE_FOLDER models/publishing/golden/all-minilm-l6-v2.safetensors

Needs torch and sentence-transformers, which the project itself does not need.
"""

from __future__ import annotations

import importlib.metadata
import sys
from pathlib import Path

import numpy as np
from safetensors.numpy import save
from sentence_transformers import SentenceTransformer

sys.path.insert(0, str(Path(__file__).parents[2]))

from models.tokens.texts import PROOF_TEXTS

_PACKAGES = ("sentence-transformers", "transformers", "torch", "tokenizers", "numpy")


def main() -> None:
    source, target = Path(sys.argv[1]), Path(sys.argv[2])
    model = SentenceTransformer(str(source), device="cpu")
    counts = [int(model.tokenize([text])["attention_mask"].sum()) for text in PROOF_TEXTS]
    if model.max_seq_length != 256 or max(counts) != 256:
        sys.exit(f"the reference must use 256 tokens, not {model.max_seq_length}; longest text {max(counts)}")
    # One text at a time, so that no vector of the reference depends on padding.
    vectors = np.concatenate([model.encode([text], normalize_embeddings=True) for text in PROOF_TEXTS])
    versions = {package: importlib.metadata.version(package) for package in _PACKAGES}
    versions["python"] = sys.version.split()[0]
    target.write_bytes(save({"vectors": vectors.astype(np.float32)}, metadata=versions))
    print(f"{vectors.shape} to {target}; tokens per text: {counts}; {versions}")


if __name__ == "__main__":
    main()
