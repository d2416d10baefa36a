"""Compute the scores of a version that the gate compares, with the files that the service would open."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any

from models import cpus
from models.manifest import ANCHOR, Manifest, SearchDefaults
from models.progress import Say
from models.search.ranking import FOLDER, Ranking, get_default, read_ranking
from models.store import ModelStore
from training.errors import TrainingError
from training.evaluation.retrieval import Collection
from training.evaluation.scorable import Scorable, build_scorable
from training.evaluation.suites import score
from training.ranking.cross_validation import COMING, NEW, Comparison, Fit, compare, draw_folds
from training.ranking.examples import Example
from training.ranking.fitting import Procedure, fit
from training.retraining import searches as own
from training.retraining.gate.verdict import GROUPS, JUDGED, KEYS, RANKINGS
from training.retraining.judgements import Judged

if TYPE_CHECKING:
    from training.retraining.one import Job


def compute_scores(
    job: Job, store: ModelStore, version: str, learned: Mapping[str, SearchDefaults], say: Say
) -> dict[str, Any]:
    """Scores a version on the evaluation sets and the searches of a job. Returns nothing if the gate is off.

    Where the active version has rankings, the scores are those with rankings that are fitted in the same way
    to this version. They are returned under RANKINGS.

    Args:
        job: The retraining.
        store: Store with the version.
        version: Version to score.
        learned: Search settings of the version, by collection.
        say: Called with progress messages.

    Raises:
        TrainingError: The gate is on, without searches and evaluation sets.

    """
    data, searches, found, served = job.data, job.searches, job.found, job.served
    if job.mode == "off":
        return {}
    if data is None and not searches:
        raise TrainingError("The gate needs evaluation sets: --data, SIMILE_EVAL_DATA, or --gate off.")
    rankings = read_rankings(job.store, Manifest.read(job.store.folder(str(job.active))))
    threads = job.options.threads or cpus.available()
    say(f"scoring {version}")
    with closing(store.open(version, threads=threads)) as encoder:
        model = own.caching(build_scorable(encoder, passages=served.passages))
        scores = score(model.encode, data, samples=True) if data is not None else {}
        if searches:
            say(f"searching the held-out text: {', '.join(searches)}")
            made = {name: searched for name, searched in searches.items() if name != JUDGED}
            scores["own"] = own.score(made, model, learned, served.mode)
            if found is not None and JUDGED in searches:
                settings = {
                    name: own.Setting.of(learned.get(name), served.mode)
                    for name, _ in searches[JUDGED].parts()
                }
                rows, fitted = _score_judged(searches[JUDGED], model, settings, found, rankings)
                scores["own"] |= rows
                scores[RANKINGS] = {
                    name: each.model_copy(update={"fingerprint": encoder.manifest.fingerprint})
                    for name, each in fitted.items()
                }
        return scores


def _score_judged(
    searched: Collection,
    model: Scorable,
    settings: Mapping[str, own.Setting],
    found: Judged,
    rankings: Mapping[str, Ranking],
) -> tuple[dict[str, dict[str, Any]], dict[str, Ranking]]:
    """Cross-validates a ranking on top of the search, where the active version serves one.

    Returns:
        The figures of both kinds of questions, and the rankings that are fitted to all judged queries.
    """
    fitted: dict[str, Ranking] = {}
    rows: dict[str, list[Comparison]] = {NEW: [], COMING: []}
    names: list[str] = []
    for name, part in searched.parts():
        examples, fitting = find_examples(part, model, settings[name], found, rankings.get(name))
        if fitting is not None:
            fitted[name] = fitting(examples)
        judging = [query for query, each in zip(part.queries, examples, strict=True) if each.judges]
        names += judging
        for row, parts in rows.items():
            if judging:
                parts.append(compare(examples, draw_folds(examples, row), fitting))
    keys = [found.keys.get(searched.queries[name]) for name in names]
    return {row: _join(names, parts) | {KEYS: keys} for row, parts in rows.items()}, fitted


def _join(names: Sequence[str], parts: Sequence[Comparison]) -> dict[str, Any]:
    each = [float(score) for part in parts for score in part.after]
    groups = [f"{number} {group}" for number, part in enumerate(parts) for group in part.groups.tolist()]
    hits = [found[: own.TOP] for part in parts for found in part.hits]
    return own.figures(names, each, hits) | {GROUPS: groups}


def find_examples(
    part: Collection, model: Scorable, setting: own.Setting, found: Judged, ranking: Ranking | None
) -> tuple[list[Example], Fit | None]:
    """Searches the judged queries of a collection. Those in `found.held` judge.

    Returns:
        The queries, and a function that fits a ranking to them like `ranking`. None if the search has none.
    """
    fitting = refitting(ranking) if ranking is not None and setting.mode == "hybrid" else None
    examples = [
        each._replace(
            wrong=frozenset(found.negatives.get(each.query, ())),
            judges=each.query in found.held,
            alike=found.alike.get(each.query, each.query),
        )
        for each in own.find(part, model, setting, ranked=fitting is not None)
    ]
    return examples, fitting


def refitting(ranking: Ranking) -> Fit:
    """Returns a function that fits a ranking by the procedure of `ranking`."""
    return partial(fit, prior=get_default().weights, procedure=Procedure.of(ranking))


def read_rankings(store: ModelStore, manifest: Manifest) -> dict[str, Ranking]:
    """Returns the rankings that a version serves, by collection."""
    found = {}
    for path in manifest.files:
        if path.startswith(f"{FOLDER}/"):
            name = path.removeprefix(f"{FOLDER}/").removesuffix(".json")
            with contextlib.suppress(ValueError):  # Nor does the service use it.
                found[name] = read_ranking(store.folder(manifest.version), name, manifest)
    return found


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


def build_meta(
    candidate: Manifest, served: Manifest, recipe: str, base: str, texts: int, learned: Iterable[str]
) -> dict[str, Any]:
    """Returns the fields of a report that say which versions it compares.

    Args:
        candidate: The candidate.
        served: The active version.
        recipe: Name of the recipe.
        base: Version that the candidate was made from.
        texts: Number of texts or judged queries that it learned from.
        learned: Digests of the judged queries that its encoder learned.
    """
    return {
        "candidate": describe_model(candidate),
        "active": describe_model(served),
        "anchor": candidate.lineage.get(ANCHOR),
        "base": base,
        "recipe": recipe,
        "texts": texts,
        "gate": "on",
        "require": "better",
        "looks": 1,
        "learned": sorted(learned),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def short(scores: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a summary of scores for the manifest and `GET /models`. The report has all scores."""
    sts = {key: figures["spearman_all"] for key, figures in scores.get("sts", {}).items()}
    geometry = scores.get("geometry", {})
    found = {name: figures["ndcg10"] for name, figures in scores.get("own", {}).items()}
    own_scores = {"own": found} if found else {}
    return (
        {"sts": sts}
        | own_scores
        | {key: geometry[key] for key in ("alignment", "uniformity") if key in geometry}
    )
