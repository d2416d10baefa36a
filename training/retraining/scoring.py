"""Score judged queries by cross-validated rankings, and describe versions and their scores for reports."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import Any

from models.manifest import ANCHOR, Manifest, Mode, SearchDefaults
from models.search.ranking import FOLDER, Ranking, get_default, read_ranking
from models.store import ModelStore
from training.evaluation.retrieval import Collection
from training.evaluation.scorable import Scorable
from training.ranking.cross_validation import COMING, NEW, Comparison, Fit, cross_validate, keep_order
from training.ranking.examples import Example
from training.ranking.fitting import Procedure, Weights, fit
from training.retraining import searches as own
from training.retraining.gate.verdict import GROUPS, KEYS
from training.retraining.judgements import Judged


def score_judged(
    searched: Collection,
    model: Scorable,
    learned: Mapping[str, SearchDefaults],
    mode: Mode | None,
    found: Judged,
    rankings: Mapping[str, Ranking],
) -> tuple[dict[str, dict[str, Any]], dict[str, Ranking]]:
    """Scores the judged queries of all collections.

    Where the active version has a ranking, a ranking is fitted and cross-validated on top of the search.

    Returns:
        The figures of both kinds of questions (NEW, COMING); none if no query judges. And by collection, the
        rankings that are fitted to all judged queries, also to those that were clicked only.
    """
    fitted: dict[str, Ranking] = {}
    rows: dict[str, list[Comparison]] = {NEW: [], COMING: []}
    names: list[str] = []
    for name, part in searched.parts():
        setting = own.Setting.of(learned.get(name), mode)
        examples, fitting = find_examples(part, model, setting, found, rankings.get(name))
        if fitting is not keep_order:
            kept = {"fingerprint": model.fingerprint, "reranker": rankings[name].reranker}
            fitted[name] = fitting(examples).model_copy(update=kept)
        if judging := [query for query, each in zip(part.queries, examples, strict=True) if each.judges]:
            names += judging
            for row, compared in cross_validate(examples, fitting).items():
                rows[row].append(compared)
    if not names:
        return {}, fitted
    keys = [found.keys.get(searched.queries[name]) for name in names]
    return {row: _join(names, parts) | {KEYS: keys} for row, parts in rows.items()}, fitted


def _join(names: Sequence[str], parts: Sequence[Comparison]) -> dict[str, Any]:
    each = [float(score) for part in parts for score in part.after]
    groups = [f"{number} {group}" for number, part in enumerate(parts) for group in part.groups.tolist()]
    hits = [found[: own.TOP] for part in parts for found in part.hits]
    return own.figures(names, each, hits) | {GROUPS: groups}


def find_examples(
    part: Collection, model: Scorable, setting: own.Setting, found: Judged, ranking: Ranking | None
) -> tuple[list[Example], Fit]:
    """Searches the judged queries of a collection. Only those in `found.held` judge rankings.

    Returns:
        The queries, and a function that fits a ranking to them by the procedure of `ranking`. The function is
        `keep_order` if `ranking` is None or the mode is not hybrid.
    """
    fitting: Fit = keep_order
    if ranking is not None and setting.mode == "hybrid":
        fitting = refitting(ranking, get_default().weights)
    examples = [
        each._replace(
            wrong=frozenset(found.negatives.get(each.query, ())),
            judges=each.query in found.held,
            alike=found.alike.get(each.query, each.query),
        )
        for each in own.find(part, model, setting, ranked=fitting is not keep_order)
    ]
    return examples, fitting


def refitting(ranking: Ranking, prior: Weights) -> Fit:
    """Returns a function that fits a ranking by the procedure of `ranking`."""
    return partial(fit, prior=prior, procedure=Procedure.of(ranking))


def read_rankings(store: ModelStore, manifest: Manifest) -> dict[str, Ranking]:
    """Returns the rankings of a version, by collection. Leaves out invalid files, as the service does."""
    found = {}
    for path in manifest.files:
        if path.startswith(f"{FOLDER}/"):
            name = path.removeprefix(f"{FOLDER}/").removesuffix(".json")
            with contextlib.suppress(ValueError):  # The service does not use the ranking either.
                found[name] = read_ranking(store.folder(manifest.version), name, manifest)
    return found


def build_meta(candidate: Manifest, served: Manifest, recipe: str, base: str, texts: int) -> dict[str, Any]:
    """Returns the fields of a report that say which versions it compares.

    Args:
        candidate: The candidate.
        served: The active version.
        recipe: Name of the recipe.
        base: Version that the candidate was made from.
        texts: Number of texts or judged queries that the candidate learned from.
    """
    uses = {"version", "fingerprint", "dimension", "max_length", "pooling"}
    uses |= {"search_prompt", "document_prompt"}
    return {
        "candidate": candidate.model_dump(include=uses),
        "active": served.model_dump(include=uses),
        "anchor": candidate.lineage.get(ANCHOR),
        "base": base,
        "recipe": recipe,
        "texts": texts,
        "gate": "on",
        "require": "better",
        "looks": 1,
        "learned": [],  # digests of the judged queries that the encoder learned, if there are any
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def short(scores: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a summary of scores for the manifest and `GET /models`. The report has all scores."""
    sts = {key: figures["spearman_all"] for key, figures in scores.get("sts", {}).items()}
    found = {name: figures["ndcg10"] for name, figures in scores.get("own", {}).items()}
    geometry = {key: scores["geometry"][key] for key in ("alignment", "uniformity") if "geometry" in scores}
    return {"sts": sts} | ({"own": found} if found else {}) | geometry
