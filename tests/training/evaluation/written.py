"""Builds contents of `evaluate --json` files, and parses the tables of a report."""

import json
from pathlib import Path
from typing import Any


def similar(spearman: float | None, **changed: Any) -> dict[str, Any]:
    figures = {"spearman_all": spearman, "spearman_mean": 0.5, "spearman_wmean": 0.25, "pearson_all": 0.125}
    return figures | {"pairs": 1379, "unscored": 0, "undefined": 0} | changed


def shape(**changed: Any) -> dict[str, Any]:
    return {
        "alignment": 0.25,
        "uniformity": -2.0,
        "mean_cosine": 0.125,
        "top_energy": 0.5,
        "effective_rank": 2.5,
        "directions": 4,
        "pairs": 7,
        "sentences": 40,
        "splits": ["train", "dev", "test"],
    } | changed


def searched(ndcg: float, **changed: Any) -> dict[str, Any]:
    figures = {"ndcg10": ndcg, "recall1": 0.1, "recall10": 0.2, "recall100": 0.3, "mrr10": 0.4, "map100": 0.5}
    return figures | {"queries": 3, "documents": 20, "empty": 0, "undefined": 0} | changed


def transferred(accuracy: float, **changed: Any) -> dict[str, Any]:
    figures = {"accuracy": accuracy, "f1": None, "examples": 100, "dev": 0.75, "l2": [1.0], "undefined": 0}
    return figures | {"protocol": "l2 by dev, scored on test", "remarks": []} | changed


def scores(sts: dict[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    """Returns scores as `evaluate --json` writes them. `sts`: by set, all figures or only Spearman."""
    body: dict[str, Any] = {
        "model": "default",
        "version": None,
        "fingerprint": None,
        "date": "2026-11-21T09:42:27+00:00",
        "data": "sets",
        "absent": [],
        "sentences": 40,
        "seconds": 1.5,
    }
    if sts is not None:
        english = [key for key in sts if key != "korsts"]
        known = {key: value if isinstance(value, dict) else similar(value) for key, value in sts.items()}
        each = [known[key]["spearman_all"] for key in english]
        mean = None if None in each else sum(each) / len(each)
        body |= {"sts": known, "mean": {"spearman_all": mean, "sets": english}}
    return body | more


def save(file: Path, content: dict[str, Any]) -> str:
    file.write_text(json.dumps(content))
    return str(file)


def tables(report: Path) -> dict[str, dict[str, list[str]]]:
    """Returns tables as {heading: {first cell of a row: its other cells}}. A header's first cell is empty."""
    found: dict[str, dict[str, list[str]]] = {}
    heading = ""
    for line in report.read_text().splitlines():
        if line.startswith("#"):
            heading = line.lstrip("# ")
        elif line.startswith("| ") and "--" not in line.split("|")[1]:
            first, *cells = [cell.strip() for cell in line.removeprefix("|").removesuffix("|").split(" | ")]
            found.setdefault(heading, {}).setdefault(first, cells)
    return found
