"""Learn only the search settings of each collection: mode, weight and passage length. Keeps the model.

    dev searches ─▶ tuning.py ─▶ settings of each collection ─▶ the active version with these ─▶ gate

Judged queries on which no model was trained are cross-fitted: each half judges the settings that the other
half chose, and both halves together choose the published settings. So all of these queries can judge.

Clicks favor documents that were shown. On MLQA, dense search scores 0.95 by clicks on its own hits, but 0.78
by all answers. If all judgments come from clicks, they choose the settings and must not get worse, and only
titles and known items can show a gain.

The gate requires a gain for searches that name no mode. They use the settings of the version, or hybrid
search if it has none. Searches that name dense or hybrid mode must not get worse. Activating the new version
embeds no document again, unless the length of passages changes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing
from datetime import UTC, datetime
from statistics import fmean
from typing import Any, NamedTuple

from models import cpus
from models.errors import ModelError
from models.manifest import ANCHOR, Manifest, Mode, SearchDefaults
from models.progress import Say
from models.search.passages import learned_tokens
from models.store import ModelStore
from models.tokens.tokenizer import FILE_NAME as TOKENIZER
from training.errors import NothingToLearn
from training.evaluation.encoding import remembering
from training.evaluation.retrieval import Collection
from training.evaluation.scorable import Scorable, build_scorable
from training.methods.recipe_files import SEARCH
from training.retraining import searches as own
from training.retraining.config import Config
from training.retraining.crossfit import merged, pooled
from training.retraining.gate import rules as gate
from training.retraining.gate.gains import count_looks
from training.retraining.gate.verdict import CLICKED, EACH, HYBRID, JUDGED, LABELLED, SERVED
from training.retraining.gate.words import report
from training.retraining.gathered import Gathered, counts, of_keys
from training.retraining.judgements import Judged
from training.retraining.publication import Outcome, derive_manifest, known, left, publish, request
from training.retraining.readability import unread_collections
from training.retraining.scoring import describe_model, short
from training.retraining.sides import unlearned
from training.retraining.tuning import (
    MIN_QUERIES,
    USUAL,
    Setting,
    Tuned,
    by_collection,
    get_setting,
    modes,
    tune,
    tune_by_text,
)

_MODES = ("dense", HYBRID, SERVED)


def retune(gathered: Gathered, config: Config, store: ModelStore, say: Say) -> Outcome:
    """Learns new search settings, and publishes them as a candidate with a verdict.

    Raises:
        NothingToLearn: No other settings are better, or there are no queries to choose or to judge settings.

    """
    split, found, active = gathered.split, gathered.found, gathered.active
    dev, searches = sides(gathered, config)
    if not dev or not searches:
        raise NothingToLearn("there are too few held-out queries to choose a search by, and to judge it")
    searches |= own.guarding(split, found.held, found.groups, config.corpus.candidates)
    warnings = [*gathered.used.warnings, *of_keys(found)]
    for warning in warnings:
        say(f"! {warning}")
    served = store.verify(active)
    with closing(store.open(active, threads=config.schedule.threads or cpus.available())) as encoder:
        mode, passages = gathered.served
        model = build_scorable(encoder, passages=passages)
        model = model._replace(encode_documents=remembering(model.encode_documents))
        say(f"weighing words against vectors{', and trying other lengths of passages' if passages else ''}")
        halves = _halves(gathered, config, dev, searches)
        tuned = _chosen(halves, dev, model)
        if not tuned:  # too few of them in each collection
            queried = {name for search in dev.values() for name, _ in search.parts()}
            unread = unread_collections(split.train, queried, store.folder(active) / TOKENIZER, say)
            halves, tuned = [], tune_by_text(dev, model, unread)
        learned = _with(served.search, tuned, passages=passages)
        if _settings(learned) == _settings(served.search):
            raise NothingToLearn(
                "no other weight of words against vectors, and no other length of passages, is better"
            )
        before, after = _figures(searches, model, served.search, learned, mode)
        if halves:
            before[JUDGED], after[JUDGED] = crossed(halves, model, served.search, mode)
            searches[JUDGED] = merged([half.judging for half in halves])
    _tell_whose(found, before, after, searches)
    looks = count_looks(store, searches)
    # A search with other settings is no faster.
    require = "better" if config.gate.require == "faster" else config.gate.require
    verdict = gate.compare({"own": after}, {"own": before}, config.gate, require, looks.number)
    manifest = derive_manifest(store, served, SEARCH, search=learned)
    before_it = store.find(manifest)
    if before_it is not None:
        _require_unjudged(store, before_it)
        if verdict.accepted and not _refused(before_it):
            return request(store, active, before_it.version, verdict)
    about = {
        "candidate": describe_model(manifest),
        "active": describe_model(served),
        "anchor": manifest.lineage[ANCHOR],
        "base": active,
        "recipe": SEARCH,
        "search": {name: each.model_dump() for name, each in learned.items()},
        "tuned": {name: each.ndcg10 for name, each in tuned.items()},
        "texts": len(split.train),
        "gate": config.gate.mode,
        "require": require,
        "looks": round(looks.number, 2),
        "asked": looks.queried,
        "learned": sorted(gathered.learned),
        "documents": counts(gathered.documents, split, found, gathered.used),
        "corpus_report": {"warnings": warnings},
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
    }
    content = report(verdict, {"own": after}, {"own": before}, about)
    scored = manifest.model_copy(update={"scores": short({"own": after})})
    if before_it is not None and _refused(before_it):
        _make_room(store, before_it)
    return publish(store, active, store.folder(active), scored, verdict, content)


def _tell_whose(
    found: Judged, before: dict[str, Any], after: dict[str, Any], searches: dict[str, Collection]
) -> None:
    """Adds groups and keys to the scores of judged queries. Renames them if all answers are from clicks."""
    evidence = own.evidence(searches, found.groups, found.keys)
    for name in searches.keys() & {*LABELLED}:
        before[name] |= evidence
        after[name] |= evidence
    if JUDGED in searches and found.of_use.issuperset(searches[JUDGED].queries.values()):
        for side in (before, after, searches):
            side[CLICKED] = side.pop(JUDGED)


def sides(gathered: Gathered, config: Config) -> tuple[dict[str, Collection], dict[str, Collection]]:
    """Returns the searches that choose settings, and the searches that judge the chosen settings.

    Dev queries that depend on a single API key do not choose. Training queries that may judge also choose,
    unless a model was trained on them, because such queries favor dense search.
    """
    split, found, candidates = gathered.split, gathered.found, config.corpus.candidates
    choosing = {query: ids for query, ids in found.dev.items() if query not in found.keys}
    choosing |= _unlearned(gathered)
    dev = own.dev_collections(split, choosing, candidates)
    judging = own.collections(split, found.held, candidates)
    # Nobody types a sentence to find the one behind it. On MLQA these searches ask for vectors alone (70
    # against 57 with words), where people's questions ask for both (89 against 78).
    for searches in (dev, judging):
        searches.pop("neighbours", None)
    return dev, judging


def _unlearned(gathered: Gathered) -> dict[str, list[str]]:
    """Returns the training queries that may judge, except those on which a model was trained."""
    return unlearned(gathered.found.crossed, gathered.learned, gathered.found.crossed)


class Half(NamedTuple):
    choosing: Collection
    judging: Collection  # queries of the other half, that share no answer with them


def _halves(
    gathered: Gathered, config: Config, dev: Mapping[str, Collection], searches: Mapping[str, Collection]
) -> list[Half]:
    """Returns the two halves for cross-fitting: each has queries that choose and queries that judge.

    The list is empty if one of the parts has too few judged queries. Queries on which a model was trained do
    not count.
    """
    candidates = config.corpus.candidates
    others = own.dev_collections(gathered.split, _unlearned(gathered), candidates)
    if not all(JUDGED in each for each in (dev, searches, others)):
        return []
    return [Half(dev[JUDGED], searches[JUDGED]), Half(searches[JUDGED], others[JUDGED])]


def _chosen(halves: Sequence[Half], dev: Mapping[str, Collection], model: Scorable) -> Mapping[str, Tuned]:
    """Returns the settings that judged queries choose, by collection. Empty if there are too few queries."""
    if not halves:
        return tune([dev[JUDGED]], model) if JUDGED in dev else {}
    tuned = tune([half.choosing for half in halves], model)
    return {name: tuned[name] for name in tuned if name in judged_by_halves(halves)}


def judged_by_halves(halves: Sequence[Half]) -> set[str]:
    """Returns the collections for which one half has enough queries to choose, and the other has any."""
    return {
        name
        for half in halves
        for name in {name for name, _ in half.judging.parts()}
        & {name for name, part in half.choosing.parts() if len(part.queries) >= MIN_QUERIES}
    }


def crossed(
    halves: Sequence[Half], model: Scorable, was: Mapping[str, SearchDefaults], mode: Mode | None = None
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Scores all judged queries with old and new settings. No query is scored with settings it chose.

    Args:
        halves: The halves of the judged queries.
        model: The active model.
        was: Search settings of the active version, by collection.
        mode: Mode that the service uses for searches without a mode. None means the learned mode.

    Returns:
        The scores with the old settings, and the scores with the new settings.

    """
    sides: tuple[list[dict[str, Any]], list[dict[str, Any]]] = [], []
    for half in halves:
        chosen = _with(was, tune([half.choosing], model))
        for side, found in zip(
            sides, _figures({JUDGED: half.judging}, model, was, chosen, mode), strict=True
        ):
            side.append(found[JUDGED])
    return pooled(sides[0]), pooled(sides[1])


def _with(
    was: Mapping[str, SearchDefaults], tuned: Mapping[str, Tuned], *, passages: bool = True
) -> dict[str, SearchDefaults]:
    """Merges new settings into the old settings. Drops collections whose settings equal the defaults.

    Args:
        was: Old settings by collection.
        tuned: New settings by collection.
        passages: False if the service does not split documents. Then old passage lengths are kept.

    """
    chosen = {name: each.chosen for name, each in tuned.items()}
    if not passages:
        for name, each in chosen.items():
            chosen[name] = each.model_copy(update={"passage_tokens": learned_tokens(was.get(name))})
    return {**was} | {
        name: each for name, each in chosen.items() if name in was or get_setting(each) != USUAL
    }


def _settings(learned: Mapping[str, SearchDefaults]) -> dict[str, Setting]:
    return {collection: get_setting(each) for collection, each in learned.items()}


def _figures(
    searches: Mapping[str, Collection],
    model: Scorable,
    was: Mapping[str, SearchDefaults],
    now: Mapping[str, SearchDefaults],
    mode: Mode | None,
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Returns the nDCG@10 of each search with old and with new settings: dense, hybrid, and as served."""
    both: tuple[dict[str, Any], dict[str, Any]] = ({}, {})

    def settings(collection: str) -> list[Setting]:
        return [*modes(was.get(collection), mode), *modes(now.get(collection), mode)]

    for name, search in searches.items():
        of_query = {query: figures for query, _, figures in by_collection(search, model, settings)}
        columns = [
            _mean([of_query[query][at] for query in search.queries]) for at in range(len(both) * len(_MODES))
        ]
        for side, (dense, *others) in zip(
            both, (columns[: len(_MODES)], columns[len(_MODES) :]), strict=True
        ):
            side[name] = dense | dict(zip(_MODES[1:], others, strict=True))
    return both


def _mean(each: list[float]) -> dict[str, Any]:
    return {"ndcg10": fmean(each), EACH: each, "queries": len(each)}


def _refused(version: Manifest) -> bool:
    return version.gate is not None and version.gate.verdict == "refused"


def _make_room(store: ModelStore, refused: Manifest) -> None:
    """Deletes a rejected version, so that a new version with another report can replace it.

    Raises:
        NothingToLearn: The version is in use, so it cannot be deleted.

    """
    try:
        store.prune(refused.version)
    except ModelError:  # somebody serves it all the same, or may roll back to it
        raise known(refused, "is the same search, and is in use") from None


def _require_unjudged(store: ModelStore, version: Manifest) -> None:
    """Raises NothingToLearn if the service has left the version. Only an operator may activate it again."""
    if reason := left(store, version.version):
        raise known(version, f"is the same search, and was left: {reason.rstrip('.')}")
