"""Runs made up for the tests: measurements whose medians and ratios are known."""

from typing import Any

from benchmarks.contestant import Measured
from benchmarks.results import Results, cells
from benchmarks.turns import Cell

CLEAN, BUSY = 0.01, 0.5  # foreign shares


def rates(*values: float, foreign: float = CLEAN, **more: float) -> list[Measured | None]:
    return [Measured(value, foreign, **more) for value in values]


def results(found: dict[Cell, list[Measured | None]], **more: Any) -> Results:
    """A whole run with these measurements, and little else."""
    quantiles = {f"{name}_ms": {"p50": 2.0, "p99": 4.0} for name in ("embed", "add", "difference")}
    pairs = {"pairs": 10, "foreign": CLEAN, "contended": False} | quantiles
    workloads = [
        {
            "name": name,
            "texts": 100,
            "tokens": {"mean": mean, "p50": 9.0, "p90": 20.0, "least": 8, "most": 40},
        }
        for name, mean in (("sentences", 17.0), ("mixture", 29.0))
    ]
    machine = {"cpu": "a processor", "processors": 2, "memory_gb": 8, "system": "Linux", "python": "3.11"}
    kept = {
        "date": "2026-01-02T03:04:05+00:00",
        "quick": False,
        "machine": machine | {"packages": {"onnxruntime": "1.31"}, "sync_ms": 0.2},
        "model": "20260102T030405-all-minilm-l6-v2-c81e5503",
        "texts": "made up",
        "workloads": workloads,
        "about": {"Simile fp32": {"memory_mb": {"now": 300.0, "peak": 320.0}, "first_ready_seconds": 3.0}},
        "missing": {},
        "cells": cells(found),
        "cosines": {
            "reference": "sentence-transformers, torch",
            "texts": 500,
            "rows": {"Simile fp32": {"mean": 1.0, "least": 0.9999999}},
        },
        "memory": {},
        "starts": {"second": [1.0], "second_median": 1.0, "foreign": CLEAN, "contended": False},
        "documents": {
            "stored": 50_000,
            "fill_seconds": 1.0,
            "ready_seconds": 1.5,
            "alone": pairs,
            "while_searching": pairs,
        },
    }
    return Results(kept | more)
