"""Encode texts with a peer's library. Orders are JSON lines on stdin; see peer_engines.py.

    PEER/bin/python -P benchmarks/peers/encode.py ENGINE FOLDER        ENGINE: a key of WAYS

    {"packages": …} ─▶ order {"texts": […]} ─▶ encoded once ─▶ {"seconds": …} ─▶ next order …

The library gets all texts of an order in one call, as its users would do. An order also
names the batch size, because the best batch size differs between libraries.
"""

import base64
import json
import os
import sys
import time
from collections.abc import Callable
from functools import partial
from importlib.metadata import version
from typing import Any

import numpy as np

Encode = Callable[[list[str], int], Any]


def _sentence_transformers(folder: str) -> Encode:
    from sentence_transformers import SentenceTransformer  # noqa: PLC0415

    model = SentenceTransformer(folder, device="cpu")
    return lambda texts, size: model.encode(texts, batch_size=size, show_progress_bar=False)


def _cuda_fp16(folder: str) -> Encode:
    from sentence_transformers import SentenceTransformer  # noqa: PLC0415

    model = SentenceTransformer(folder, device="cuda").half()
    return lambda texts, size: model.encode(
        texts, batch_size=size, normalize_embeddings=True, show_progress_bar=False
    )


def _cross_encoder(folder: str, backend: Any = "torch") -> Encode:
    from sentence_transformers import CrossEncoder  # noqa: PLC0415

    model = CrossEncoder(folder, device="cpu", backend=backend)
    return lambda lines, size: model.predict(
        [line.partition("\t")[::2] for line in lines], batch_size=size, show_progress_bar=False
    )


def _fastembed(folder: str) -> Encode:
    from fastembed import TextEmbedding  # noqa: PLC0415
    from fastembed.common.model_description import ModelSource, PoolingType  # noqa: PLC0415

    TextEmbedding.add_custom_model(
        model="local",
        pooling=PoolingType.MEAN,
        normalization=True,
        sources=ModelSource(hf="local"),
        dim=384,
        model_file="model.onnx",
    )
    model = TextEmbedding("local", specific_model_path=folder, threads=len(os.sched_getaffinity(0)))
    return lambda texts, size: np.array(list(model.embed(texts, batch_size=size)))


WAYS: dict[str, tuple[Callable[[str], Encode], tuple[str, ...]]] = {
    "torch": (_sentence_transformers, ("sentence-transformers", "transformers", "torch")),
    "cuda-fp16": (_cuda_fp16, ("sentence-transformers", "transformers", "torch")),
    "fastembed": (_fastembed, ("fastembed", "onnxruntime")),
    "cross-encoder": (_cross_encoder, ("sentence-transformers", "transformers", "torch")),
    "cross-encoder-onnx": (
        partial(_cross_encoder, backend="onnx"),
        ("sentence-transformers", "optimum", "onnxruntime"),
    ),
}


def main() -> None:
    channel = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # output of the libraries must not mix with the answers
    make, packages = WAYS[sys.argv[1]]
    encode = make(sys.argv[2])
    encode(["a text to warm up with"], 1)
    answer: dict[str, Any] = {"packages": {name: version(name) for name in packages}}
    while True:
        print(json.dumps(answer), file=channel, flush=True)
        line = sys.stdin.readline()
        if not line:  # the benchmark has ended
            return
        answer = _execute(json.loads(line), encode)


def _execute(order: dict[str, Any], encode: Encode) -> dict[str, Any]:
    started = time.perf_counter()
    vectors = encode(order["texts"], order["size"])
    seconds = time.perf_counter() - started
    if not order["vectors"]:
        return {"seconds": seconds}
    found = np.ascontiguousarray(vectors, np.float32)
    return {"seconds": seconds, "vectors": base64.b64encode(found.tobytes()).decode()}


if __name__ == "__main__":
    main()
