"""Runs inside another tool's environment: opens a published folder there and writes that tool's vectors.

    python -I probe.py TOOL FOLDER EXCHANGE

EXCHANGE/texts.json holds groups: {"prompt_name": NAME or null, "prompt": its text, "texts": [...]}. Written
there are versions.json (package: version) and vectors.npy, float32 (texts of all groups in order, dimension).
What goes wrong is the last line of stderr, in one line, and exit status 1.

Nothing of Simile is imported, since it is not installed there; and of the tools only what is asked for.
"""

# ruff: noqa: PLC0415  each tool is there in its own environment only

from __future__ import annotations

import asyncio
import importlib.metadata
import json
import sys
import traceback
from pathlib import Path
from typing import Any

import numpy as np

Groups = list[dict[str, Any]]
_PACKAGES = (
    "sentence-transformers",
    "fastembed",
    "infinity-emb",
    "transformers",
    "optimum",
    "optimum-onnx",
    "tokenizers",
    "torch",
    "onnxruntime",
    "numpy",
)


def main() -> None:
    tool, folder, exchange = sys.argv[1], sys.argv[2], Path(sys.argv[3])
    groups: Groups = json.loads((exchange / "texts.json").read_bytes())
    (exchange / "versions.json").write_text(json.dumps(_versions()), encoding="utf-8")
    try:
        vectors = np.asarray(_TOOLS[tool](folder, groups), dtype=np.float32)
    except Exception as error:  # noqa: BLE001  whatever the tool raises is the answer
        traceback.print_exc()
        sys.exit(f"{type(error).__name__}: {' '.join(str(error).split())}")
    np.save(exchange / "vectors.npy", vectors, allow_pickle=False)


def _versions() -> dict[str, str]:
    found = {"python": sys.version.split()[0]}
    for package in _PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def _sentence_transformers(folder: str, groups: Groups, **how: Any) -> Any:
    from sentence_transformers import SentenceTransformer  # type: ignore[import-not-found,unused-ignore]

    model = SentenceTransformer(folder, device="cpu", trust_remote_code=False, local_files_only=True, **how)
    vectors = []
    for group in groups:
        name = group["prompt_name"]
        # An empty prompt, because a folder may name one that encode() takes when it is given none.
        prompt = {"prompt_name": name} if name else {"prompt": ""}
        vectors.append(model.encode(group["texts"], show_progress_bar=False, **prompt))
    return np.concatenate(vectors)


def _sentence_transformers_onnx(folder: str, groups: Groups) -> Any:
    how = {"provider": "CPUExecutionProvider", "file_name": "onnx/model.onnx"}
    return _sentence_transformers(folder, groups, backend="onnx", model_kwargs=how)


def _fastembed(folder: str, groups: Groups) -> Any:
    from fastembed import TextEmbedding  # type: ignore[import-not-found,unused-ignore]
    from fastembed.common.model_description import (  # type: ignore[import-not-found,unused-ignore]
        ModelSource,
        PoolingType,
    )

    manifest = json.loads((Path(folder) / "manifest.json").read_bytes())
    # The graph pools and normalises, so fastembed has nothing left to do.
    TextEmbedding.add_custom_model(
        model="simile/published",
        pooling=PoolingType.DISABLED,
        normalization=False,
        output_name="sentence_embedding",
        sources=ModelSource(hf="simile/published"),
        dim=manifest["dimension"],
        model_file="onnx/model.onnx",
    )
    model = TextEmbedding("simile/published", specific_model_path=folder, cuda=False)
    return np.stack(list(model.embed(_prompted(groups), batch_size=16)))


def _infinity(folder: str, groups: Groups, engine: str = "torch", pooling: str = "auto") -> Any:
    from infinity_emb import (  # type: ignore[import-not-found,unused-ignore]
        AsyncEmbeddingEngine,
        EngineArgs,
    )

    arguments = EngineArgs(
        model_name_or_path=folder,
        engine=engine,
        pooling_method=pooling,
        device="cpu",
        dtype="float32",
        batch_size=16,
        trust_remote_code=False,
        model_warmup=False,
        compile=False,
        bettertransformer=False,
    )

    async def embed() -> Any:
        opened = AsyncEmbeddingEngine.from_args(arguments)
        async with opened:
            vectors, _ = await opened.embed(sentences=_prompted(groups))
        return np.stack(vectors)

    return asyncio.run(embed())


def _infinity_optimum(folder: str, groups: Groups) -> Any:
    manifest = json.loads((Path(folder) / "manifest.json").read_bytes())
    return _infinity(folder, groups, "optimum", manifest["pooling"])


def _prompted(groups: Groups) -> list[str]:
    """For tools that know no prompts by name: they are put before the texts."""
    return [group["prompt"] + text for group in groups for text in group["texts"]]


_TOOLS = {
    "sentence-transformers": _sentence_transformers,
    "sentence-transformers-onnx": _sentence_transformers_onnx,
    "fastembed": _fastembed,
    "infinity": _infinity,
    "infinity-optimum": _infinity_optimum,
}

if __name__ == "__main__":
    main()
