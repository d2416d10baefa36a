"""Publish a candidate with the verdict of the gate, and request its activation if it was accepted."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

from models.errors import ModelError
from models.files.bounded import read_json
from models.files.folders import copy_tree
from models.files.retrainings import write_refused
from models.manifest import (
    ANCHOR,
    ANSWERS,
    FILE_NAME,
    ONNX,
    REPORT,
    REPORT_PAGE,
    Gate,
    Manifest,
    SearchDefaults,
    version_name,
)
from models.messages import amount
from models.progress import Say
from models.publishing.layout import write_card
from models.search.ranking import FOLDER, Ranking
from models.store import REQUESTED, ModelStore
from training.errors import NothingToLearn
from training.ranking.cross_validation import CERTAIN, COMING, Rows
from training.retraining import ledger
from training.retraining.changes import reordered
from training.retraining.gate.gains import build_gain
from training.retraining.gate.page import describe_verdict, list_figures, write_page
from training.retraining.gate.verdict import Verdict
from training.retraining.gate.verdict import report as build_report
from training.retraining.lineage import active_version, find_anchor
from training.retraining.scoring import build_meta


class Outcome(NamedTuple):
    version: str | None  # None if nothing was stored
    published: bool  # True if the version was also requested; otherwise it was refused
    reason: str  # why it was refused; empty otherwise
    verdict: Verdict | None  # None without a gate


def publish(
    store: ModelStore,
    active: str,
    source: Path,
    candidate: Manifest,
    verdict: Verdict | None,
    report: Mapping[str, Any],
    answers: Sequence[Mapping[str, Any]] = (),
    rankings: Mapping[str, Ranking] = MappingProxyType({}),
) -> Outcome:
    """Publishes a candidate, and requests it unless the gate rejected it.

    Args:
        store: Store of model versions.
        active: The active version.
        source: Folder with the files of the candidate.
        candidate: Manifest of the candidate.
        verdict: Verdict of the gate, or None if the gate was off.
        report: The report of the gate.
        answers: Hits of both versions for the queries that judged, from changes.find_answers.
        rankings: Rankings by collection. They replace files of `source`.

    Raises:
        NothingToLearn: The same model is already published. Its earlier verdict stays.
        ModelError: The files of the candidate changed meanwhile.

    """
    said = Gate(mode="off", verdict="not asked")
    if verdict is not None:
        word: Literal["accepted", "refused"] = "accepted" if verdict.accepted else "refused"
        said = Gate(mode="on", verdict=word, reason=" ".join(verdict.reasons))
    sealed = candidate.model_copy(update={"gate": said, "files": {}})

    def copy(folder: Path) -> Manifest:
        copy_tree(source, folder, {FILE_NAME, REPORT, REPORT_PAGE})
        for name, ranking in rankings.items():
            (folder / FOLDER).mkdir(exist_ok=True)
            (folder / FOLDER / f"{name}.json").write_text(ranking.model_dump_json(), encoding="utf-8")
        (folder / REPORT).write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
        if "rows" in report:  # False if the gate is off
            write_page(folder / REPORT_PAGE, report)
        if answers:
            lines = "".join(f"{json.dumps(one, ensure_ascii=False)}\n" for one in answers)
            (folder / REPORT_PAGE / ANSWERS).write_text(lines, encoding="utf-8")
        write_card(folder, sealed, _measured(report), _held_out(report))
        return sealed

    published = store.publish(copy)
    if published.version != candidate.version:
        same = "is the very same model" + (", and active" if published.version == active else "")
        raise known(published, same)
    if published.files[ONNX] != candidate.files[ONNX]:
        raise ModelError(f"{candidate.version} changed while it was published.")
    if said.verdict == "refused":
        return Outcome(candidate.version, False, said.reason, verdict)
    return request(store, active, candidate.version, verdict)


def _measured(report: Mapping[str, Any]) -> Iterator[str]:
    """Yields lines for the model card with the verdict and the figures of the gate."""
    if "rows" not in report:
        yield "The gate was off: this version was compared with no other."
        return
    yield from describe_verdict(report)
    if report["rows"]:
        yield list_figures(report, ("that version", "this version"))


def _held_out(report: Mapping[str, Any]) -> Iterator[str]:
    """Yields sentences that count the documents and queries that were held out, and judged the candidate."""
    if counts := report["meta"].get("documents"):
        learned = amount(counts["trained_on"], "document was", "documents were")
        others = f"{counts['held_out']:,} others were held out and judged it"
        yield f"Of the corpus, {learned} there to learn from, and {others}."
        held = amount(counts["queries_held_out"], "judged query was", "judged queries were")
        yield f"{held} held out and judged it."


class Learned(NamedTuple):
    """A new ranking or new search settings of a collection.

    Attributes:
        rows: Cross-validated comparisons with the hybrid order or the present settings, by kind of questions.
        reasons: Reasons to refuse it. Empty if it is accepted.
        told: Sentences about it, for the report.
        digest: Digest of the data that it was learned from.
        result: The ranking or the search settings.
    """

    rows: Rows
    reasons: Sequence[str]
    told: Sequence[str]
    digest: str
    result: Ranking | SearchDefaults


def publish_learned(
    store: ModelStore,
    served: Manifest,
    recipe: str,
    learned: Mapping[str, Learned],
    say: Say,
    fetch: Callable[[str, Sequence[str]], Mapping[str, str]] | None = None,
    *,
    publishing: bool = True,
) -> Outcome:
    """Publishes the rankings or search settings that are accepted, with the encoder of the active version.

    If all are refused, their gains are stored, because there is no version with a report.

    Args:
        store: Store of model versions.
        served: Manifest of the active version.
        recipe: RANKING or SEARCH.
        learned: The rankings or settings, by collection.
        say: Called with the report.
        fetch: Returns the texts of documents by id, given a collection and ids, so that the report has the
            queries that changed most. None: the report has no such queries.
        publishing: False: report only.
    """
    for name, each in learned.items():
        verb = "refused" if each.reasons else "accepted"
        for line in (f"Collection {name}: {verb}.", *each.told, *each.reasons):
            say(line)
    accepted = {name: each for name, each in learned.items() if not each.reasons}
    judged = (accepted or learned).items()
    verdict = Verdict(
        tuple(f"{name}: {reason}" for name, each in judged for reason in each.reasons),
        gains=tuple(
            build_gain(f"own {row} of {name}", found.before, found.after, found.groups, (1 - CERTAIN) / 2)
            for name, each in judged
            for row, found in each.rows.items()
        ),
    )
    if not publishing:
        return Outcome(None, False, "This was a dry run.", verdict)
    ledger.remember(store, recipe, {name: each.digest for name, each in learned.items()})
    if not accepted:
        write_refused(store.root, build_report(verdict, {}, {}, {})["gains"])
        return Outcome(None, False, " ".join(verdict.reasons), verdict)
    results = [(name, each.result) for name, each in accepted.items()]
    rankings = {name: each for name, each in results if isinstance(each, Ranking)}
    search = {name: each for name, each in results if isinstance(each, SearchDefaults)}
    origin = f"{served.origin}-{recipe}"
    now = store.new_time(origin, served.fingerprint)
    changed = {
        "version": version_name(now, origin, served.fingerprint),
        "created": now.isoformat(timespec="seconds"),
        "parent": served.version,
        "lineage": served.lineage | {ANCHOR: find_anchor(store, served.version)},
        "search": served.search | search,
    }
    manifest = served.model_copy(update=changed)
    queries = sum(len(each.rows[COMING].after) for each in accepted.values())
    meta = build_meta(manifest, served, recipe, served.version, queries)
    meta["learned"] = sorted(get_learned(store, served.version))
    meta["learned_for"] = {name: each.told for name, each in accepted.items()}
    content = build_report(verdict, {}, {}, meta)
    prefix = "" if len(accepted) == 1 else "{}: "
    content["summary"] = [
        f"{prefix.format(name)}{line}" for name, each in accepted.items() for line in each.told
    ]
    if fetch is not None:
        content["changed"] = reordered({name: each.rows[COMING] for name, each in accepted.items()}, fetch)
    source = store.folder(served.version)
    return publish(store, served.version, source, manifest, verdict, content, rankings=rankings)


def get_learned(store: ModelStore, active: str) -> set[str]:
    """Returns digests of the queries and document ids that the active version or an ancestor learned."""
    try:
        content = read_json(store.folder(active) / REPORT)
        return {*map(str, content["meta"]["learned"])}
    except (OSError, ValueError, KeyError, TypeError):  # It has no report, or an older one.
        return set()


def request(store: ModelStore, active: str, candidate: str, verdict: Verdict | None) -> Outcome:
    """Requests the candidate, unless an operator has changed the active version since the comparison.

    `active` may also be a version that this retraining has just requested.
    """
    now, by_hand, reason = active_version(store), activated_by_hand(store), ""
    if by_hand not in {None, active}:
        reason = f"{by_hand} is about to be activated, by hand; the candidate was compared with {active}."
    elif active not in {now, store.requested()}:
        reason = f"{now} became active while it was trained; it was compared with {active}."
    else:
        store.request(candidate)
    return Outcome(candidate, not reason, reason, verdict)


def activated_by_hand(store: ModelStore) -> str | None:
    """Returns the version that an operator has requested and that is not active yet, or None.

    Returns None as well if the service has tried the version and given it up.
    """
    queried = store.read_request()
    if queried is None or queried.kind == "want" or queried.version == active_version(store):
        return None
    known = store.read_state().get(REQUESTED) == queried.id  # Otherwise the state may be older.
    return None if known and left(store, queried.version) else queried.version


def left(store: ModelStore, version: str) -> str:
    """Returns the reason why the service gave up a version, such as a failure, or an empty string."""
    said = store.read_state().get("versions", {}).get(version, {})
    return str(said.get("reason") or "") if said.get("state") in {"retired", "failed"} else ""


def known(manifest: Manifest, how: str) -> NothingToLearn:
    """Returns the error for a version that already exists, with advice for the user."""
    verdict = "not asked" if manifest.gate is None else manifest.gate.verdict
    queried = f"`simile models activate {manifest.version}` serves it"
    there = {"refused": f" It was refused; {queried} anyway.", "accepted": f" It was accepted; {queried}."}
    return NothingToLearn(
        f"{manifest.version} {how}.{there.get(verdict, '')} Add text, or change the recipe or its seed."
    )
