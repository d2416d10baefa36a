"""Compute the scores of a version that the gate compares, with the files that the service would open."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

from models.manifest import Manifest, SearchDefaults
from models.progress import Say
from models.store import ModelStore
from training.evaluation.retrieval import Collection
from training.evaluation.scorable import build_scorable
from training.evaluation.suites import score
from training.retraining import searches as own
from training.retraining.gate.verdict import LABELLED, measures


def compute_scores(
    store: ModelStore,
    version: str,
    threads: int,
    data: Path | None,
    searches: Mapping[str, Collection],
    evidence: Mapping[str, Any],
    learned: Mapping[str, SearchDefaults],
    passages: bool = True,
    *,
    say: Say,
) -> dict[str, Any]:
    """Scores a version on the evaluation sets in `data` and on `searches`.

    Args:
        store: Store with the version.
        version: Version to score.
        threads: Number of threads.
        data: Folder with evaluation sets, or None.
        searches: Searches over the user's own text, by name.
        evidence: Groups and keys of the judged queries, from searches.evidence.
        learned: Search settings of the version, by collection.
        passages: False if the service does not split documents.
        say: Called with progress messages.

    """
    say(f"scoring {version}")
    with closing(store.open(version, threads=threads)) as encoder:
        model = build_scorable(encoder, passages=passages)
        scores = score(model.encode, data, samples=True) if data is not None else {}
        if searches:
            say(f"searching the held-out text: {', '.join(searches)}")
            encoders = model.encode_queries, model.encode_documents
            scores["own"] = own.score(searches, *encoders, model.split, learned, model.unrelated)
            for name in searches.keys() & {*LABELLED}:
                scores["own"][name] |= evidence
        return scores


class KnownScores:
    """A cache of the active version's scores, for several recipes that are judged with the same data."""

    def __init__(self) -> None:
        self._queried: tuple[Any, ...] = ()
        self._found: dict[str, Any] = {}

    def of(self, store: ModelStore, version: str, *data: Any, say: Say) -> dict[str, Any]:
        """Returns the result of `compute_scores`. Repeats the last result if the arguments are equal.

        Raises:
            Damaged: A file of the version is missing or changed.

        """
        if self._queried == (store.root, version, *data):
            store.verify(version)  # as opening it would
        else:
            self._found = compute_scores(store, version, *data, say=say)
            self._queried = store.root, version, *data
        return dict(self._found)


def describe_model(manifest: Manifest) -> dict[str, Any]:
    """Describes a model for the report: its name, and how it is used."""
    kept = {
        "version",
        "fingerprint",
        "dimension",
        "max_length",
        "pooling",
        "search_prompt",
        "document_prompt",
    }
    return manifest.model_dump(include=kept)


def short(scores: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a summary of scores for the manifest and `GET /models`. The report has all scores."""
    sts = {key: figures["spearman_all"] for key, figures in scores.get("sts", {}).items()}
    geometry = scores.get("geometry", {})
    found = {name: figures["ndcg10"] for name, figures in measures(scores.get("own", {})).items()}
    own_scores = {"own": found} if found else {}
    return (
        {"sts": sts}
        | own_scores
        | {key: geometry[key] for key in ("alignment", "uniformity") if key in geometry}
    )
