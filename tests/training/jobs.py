"""Evaluation data, models and configuration files for tests of retraining."""

from __future__ import annotations

import gzip
import json
import shutil
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file, save_file

from tests.service.process import Service
from training.retraining.config import Config, CorpusTable, GateTable, JudgmentsTable


def gold(folder: Path, encode: Callable[[list[str]], np.ndarray], texts: tuple[str, ...]) -> Path:
    """Writes STS-B with gold scores from the cosines of `encode`, whose model therefore scores 1."""
    (folder / "stsb").mkdir(parents=True)
    vectors = encode(list(texts))
    for split, step in (("train", 1), ("dev", 2), ("test", 3)):
        rows = ["genre\tsource\tyear\tindex\tscore\tsentence1\tsentence2"]
        for at in range(len(texts) - step):
            cosine = float(vectors[at] @ vectors[at + step])
            rows.append(f"g\ts\t2020\t{at}\t{2.5 + 2.5 * cosine:.6f}\t{texts[at]}\t{texts[at + step]}")
        with gzip.open(folder / "stsb" / f"{split}.tsv.gz", "wt", encoding="utf-8") as file:
            file.write("\n".join(rows) + "\n")
    return folder


def noised(folder: Path, source: Path, scale: float) -> Path:
    """Copies the model `source` to `folder`, and adds noise with deviation `scale` to its matrices."""
    shutil.copytree(source, folder)
    weights = load_file(folder / "model.safetensors")
    rng = np.random.default_rng(1)
    for name, tensor in weights.items():
        noise = rng.normal(0, scale, tensor.shape).astype(np.float32)
        weights[name] = tensor + noise if tensor.ndim > 1 else tensor
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def write_documents(
    folder: Path, rows: Iterable[Mapping[str, Any]], judged: Iterable[tuple[str, str]] = ()
) -> None:
    """Writes `rows` to documents.jsonl, and pairs of a query and a document id to judged.tsv."""
    text = "".join(f"{json.dumps(row)}\n" for row in rows)
    (folder / "documents.jsonl").write_text(text, encoding="utf-8")
    lines = ["query\tid", *map("\t".join, judged)]
    (folder / "judged.tsv").write_text("\n".join(lines) + "\n", encoding="utf-8")


def configured(
    folder: Path,
    rows: Iterable[Mapping[str, Any]],
    judged: Iterable[tuple[str, str]] = (),
    gate: GateTable | None = None,
    **corpus: Any,
) -> Config:
    """Writes documents and judged queries, and returns a configuration that reads them."""
    write_documents(folder, rows, judged)
    return Config(
        corpus=CorpusTable(file=folder / "documents.jsonl", **corpus),
        judgements=JudgmentsTable(file=folder / "judged.tsv"),
        gate=gate or GateTable(),
    )


def tiny_config(
    corpus: str,
    base: str,
    *,
    models: Path,
    work: Path,
    sets: Path,
    steps: int,
    batch: int,
    schedule: str = "",
) -> str:
    """Returns a retrain.toml for the tiny model. Its gate accepts tiny changes and refuses noise.

    `corpus` and `schedule` are further lines of the tables with these names.
    """
    return f"""
        [corpus]
        {corpus}
        held_out = 0.3
        [train]
        recipe = "simcse-unsup"
        base = "{base}"
        steps = {steps}
        precision = "fp32"
        set = {{ "optim.lr" = 1e-6, "optim.batch" = {batch} }}
        [gate]
        require = "not worse"
        data = "{sets}"
        mean_fall = 0.1
        set_fall = 0.1
        own_fall = 0.2
        slower = 1.0
        [schedule]
        threads = 1
        {schedule}
        [folders]
        models = "{models}"
        work = "{work}"
    """


def as_if_served(models: Path, service: Service) -> Path:
    """Copies the id of the service's models folder, so that commands take `models` for this folder."""
    shutil.copy(service.folder / "models" / "id", models / "id")
    return models
