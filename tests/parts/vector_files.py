"""Writes folders of vectors as `python -m models embed` does, with any vectors."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from models.bulk.vector_files import DEFAULT, DONE, METADATA, Description, build_schema
from models.encoder import Encoder
from models.search.content import Content
from models.search.passages import split
from models.store import ModelStore


def write_folder(
    folder: Path, models: Path, version: str, documents: Sequence[dict[str, Any]], **how: Any
) -> Path:
    """Embeds documents with a version, and writes them as a complete job.

    Args:
        folder: The new folder.
        models: The models folder.
        version: The version.
        documents: Documents as in `POST /documents`.
        how: `parts`, the number of parts; `half`: in fp16; and fields of `Description` to replace.
    """
    parts, half = how.pop("parts", 1), how.pop("half", False)
    encoder = ModelStore(models).open(version)
    known: dict[Content, dict[str, Any]] = {}  # Tests of many documents repeat texts.
    rows = [_build_row(encoder, document, known) for document in documents]
    description = Description.of(encoder.manifest, "fp32/onnxruntime", "default")
    encoder.close()
    assert description.passages == DEFAULT
    others = [pa.field(METADATA, pa.string())]
    schema = build_schema(replace(description, **how), half=half, others=others)
    folder.mkdir()
    size = -(-len(rows) // parts)
    for part in range(parts):
        some = rows[part * size : (part + 1) * size]
        if half:
            some = [_halve(row) for row in some]
        pq.write_table(
            pa.Table.from_pylist(some, schema),
            folder / f"part-{part:05}-00000.parquet",
            write_page_checksum=True,
        )
    (folder / DONE).write_text(json.dumps({"parts": parts, "documents": len(rows)}))
    return folder


def _build_row(
    encoder: Encoder, document: dict[str, Any], known: dict[Content, dict[str, Any]]
) -> dict[str, Any]:
    content = Content(document["text"], document.get("title", ""))
    if content not in known:
        known[content] = _embed(encoder, content)
    json_text = json.dumps(document["metadata"]) if "metadata" in document else None
    return {"id": document["id"], **known[content], METADATA: json_text}


def _embed(encoder: Encoder, content: Content) -> dict[str, Any]:
    prompt = encoder.manifest.document_prompt
    encoded = encoder.encode([prompt + content.whole])
    found = split(content, encoder, prompt)
    others = []
    if found is not None:
        texts = [prompt + found.lead + content.text[slice(*span)] for span in found.others]
        vectors = encoder.encode(texts).vectors
        others = [
            {"start": span.start, "end": span.end, "vector": vector}
            for span, vector in zip(found.others, vectors, strict=True)
        ]
    return {
        "title": content.title,
        "text": content.text,
        "vector": encoded.vectors[0],
        "vector_end": None if found is None else found.head.end,
        "truncated": bool(encoded.truncated[0]) if found is None else not found.complete,
        "passages": others,
    }


def _halve(row: dict[str, Any]) -> dict[str, Any]:
    passages = [each | {"vector": each["vector"].astype(np.float16)} for each in row["passages"]]
    return row | {"vector": row["vector"].astype(np.float16), "passages": passages}
