"""A retraining of the search alone: the model stays; each collection gets a mode, a weight and passages.

    dev searches ─▶ tuning.py ─▶ settings of each collection ─▶ the active version with these ─▶ gate

The gate looks for a gain in search as it is served where a query names no mode: the active version by its
own settings, dense unless it has any, and the candidate by the new ones. Dense and hybrid search that a query
asks for must not fall. The model is the same, so the swap embeds nothing, unless passages get another length.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from statistics import fmean
from typing import Any, Literal

from models import cpus
from models.manifest import ANCHOR, Gate, Manifest, SearchDefaults, version_name
from models.search.fusion import weight_of
from models.search.passages import length_of
from models.store import Store
from models.words.progress import Say
from training.errors import NothingToLearn
from training.evaluation.retrieval import Collection
from training.evaluation.scorable import Scorable, scorable_of
from training.methods.names import SEARCH
from training.retraining import searches as own
from training.retraining.anchor import anchor_of
from training.retraining.config import Config
from training.retraining.gate import rules as gate
from training.retraining.gate.verdict import EACH, HYBRID, JUDGED, SERVED
from training.retraining.gate.words import report
from training.retraining.gathered import Gathered, counts
from training.retraining.looks import count_looks
from training.retraining.publication import Outcome, publish, want
from training.retraining.scoring import about_of, short
from training.retraining.tuning import OF_TEXT_ALONE, Setting, by_collection, tune

_MODES = ("dense", HYBRID, SERVED)
USUAL = Setting(weight=1.0)  # of a collection for which nothing was learned


def retune(gathered: Gathered, config: Config, store: Store, say: Say) -> Outcome:
    """Raise NothingToLearn where no other setting is better, or nothing can choose or judge one."""
    split, found, active = gathered.split, gathered.found, gathered.active
    dev, searches = sides(gathered, config)
    if not dev or not searches:
        raise NothingToLearn("there are too few held-out queries to choose a search by, and to judge it")
    served = store.verify(active)
    encoder = store.open(active, threads=config.schedule.threads or cpus.available())
    try:
        model = scorable_of(encoder)
        say("weighing words against vectors, and trying shorter passages")
        judged = [dev[JUDGED]] if JUDGED in dev else []
        tuned = tune(judged, model) if judged else tune([*dev.values()], model, OF_TEXT_ALONE)
        chosen = {name: each.chosen for name, each in tuned.items()}
        usual = {
            name for name, each in chosen.items() if setting_of(each) == USUAL and name not in served.search
        }
        learned = served.search | {name: each for name, each in chosen.items() if name not in usual}
        if learned == served.search:
            raise NothingToLearn(
                "no other weight of words against vectors, and no other length of passages, is better"
            )
        before, after = _figures(searches, model, served.search, learned)
    finally:
        encoder.close()
    if JUDGED in searches:
        evidence = own.evidence(searches[JUDGED], found.groups, found.keys)
        before[JUDGED] |= evidence
        after[JUDGED] |= evidence
    looks = count_looks(store, searches)
    limits = config.gate.thresholds()
    verdict = gate.compare({"own": after}, {"own": before}, limits, config.gate.require, looks.number)
    manifest = _manifest(store, served, learned)
    before_it = store.find(manifest)
    if before_it is not None and verdict.accepted:  # refused once, for too few queries; there are more now
        return want(store, active, before_it.version, verdict)
    about = {
        "candidate": about_of(manifest),
        "active": about_of(served),
        "anchor": manifest.lineage[ANCHOR],
        "base": active,
        "recipe": SEARCH,
        "search": {name: each.model_dump() for name, each in learned.items()},
        "tuned": {name: each.ndcg10 for name, each in tuned.items()},
        "texts": len(split.train),
        "gate": config.gate.mode,
        "require": config.gate.require,
        "looks": round(looks.number, 2),
        "asked": looks.asked,
        "learned": sorted(gathered.learned),
        "documents": counts(gathered.documents, split, found),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
    }
    content = report(verdict, {"own": after}, {"own": before}, about)
    word: Literal["accepted", "refused"] = "accepted" if verdict.accepted else "refused"
    said = Gate(mode="on", verdict=word, reason=" ".join(verdict.reasons))
    scores = short({"own": after})
    published = manifest.model_copy(update={"scores": scores})
    publish(store, active, store.folder(active), published, said, content)
    if not verdict.accepted:
        return Outcome(manifest.version, False, said.reason, verdict)
    return want(store, active, manifest.version, verdict)


def sides(gathered: Gathered, config: Config) -> tuple[dict[str, Collection], dict[str, Collection]]:
    """The searches that choose, and those that judge. Without both, nothing can be learned.

    Queries to train on choose as well, unless the active version was trained on judgements: those that a
    model has learned show vectors in too good a light.
    """
    split, found, candidates = gathered.split, gathered.found, config.corpus.candidates
    choosing = found.dev if gathered.learned else found.train | found.dev
    dev = own.dev_collections(split, choosing, candidates)
    judging = own.collections(split, found.held, candidates)
    # Nobody types a sentence to find the one behind it. On MLQA these searches ask for vectors alone (70
    # against 57 with words), where people's questions ask for both (89 against 78).
    for searches in (dev, judging):
        searches.pop("neighbours", None)
    return dev, judging


def _figures(
    searches: Mapping[str, Collection],
    model: Scorable,
    was: Mapping[str, SearchDefaults],
    now: Mapping[str, SearchDefaults],
) -> tuple[dict[str, Any], dict[str, Any]]:
    """nDCG@10 of each search by the settings of before and by the new ones: dense, hybrid, and as served."""
    both: tuple[dict[str, Any], dict[str, Any]] = ({}, {})

    def settings(collection: str) -> list[Setting]:
        return [*modes(was.get(collection)), *modes(now.get(collection))]

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


def modes(learned: SearchDefaults | None) -> tuple[Setting, ...]:
    """The settings of each of _MODES."""
    tokens = length_of(learned)
    return Setting(1.0, tokens), Setting(weight_of(learned), tokens), setting_of(learned)


def setting_of(learned: SearchDefaults | None) -> Setting:
    """The setting of a search that names no mode."""
    if learned is None:
        return USUAL
    weights = {"dense": 1.0, "hybrid": learned.weight, "lexical": 0.0}
    return Setting(weights[learned.mode], learned.passage_tokens)


def _manifest(store: Store, served: Manifest, learned: Mapping[str, SearchDefaults]) -> Manifest:
    """The active version's under another name, with the new settings."""
    now = datetime.now(UTC)
    return served.model_copy(
        update={
            "version": version_name(now, f"{served.origin}-{SEARCH}", served.fingerprint),
            "created": now.isoformat(timespec="seconds"),
            "parent": served.version,
            "lineage": served.lineage | {ANCHOR: anchor_of(store, served.version)},
            "search": dict(learned),
            "gate": None,
        }
    )
