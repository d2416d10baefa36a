"""Tuning of search settings for a version."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import numpy as np
import pytest

from models.encoder import Encoded, Encoder
from models.manifest import FILE_NAME, FUSION, REPORT, REPORT_PAGE, Gate, SearchDefaults
from models.progress import Say, silent
from models.search.content import Content
from models.search.fusion import DENSE_WEIGHT
from tests.service.lifecycle.test_learned_search import with_search
from tests.service.process import Service
from tests.service.swapping import publish_pair
from tests.training.conftest import WORDS
from tests.training.jobs import configured
from tests.training.retraining.test_auto import KOREAN, documents
from training.errors import NothingToLearn
from training.evaluation.modes import whole
from training.evaluation.retrieval import Collection
from training.evaluation.scorable import Scorable
from training.retraining import tuning
from training.retraining.gathered import gather
from training.retraining.judgements import Judgment, judged
from training.retraining.one import Job
from training.retraining.publication import Outcome
from training.retraining.retune import Half, _halves, crossed, judged_by_halves, retune, sides
from training.retraining.searches import MIN_DEV_QUERIES
from training.retraining.sides import learned
from training.retraining.tuning import (
    MIN_QUERIES,
    OF_TEXT_ONLY,
    WEIGHTS,
    Setting,
    choose,
    get_setting,
    list_lengths,
    tune,
)
from training.text.service import DEFAULT, Searches

Retune = Callable[..., Outcome]
USUALLY = Searches()
DENSE_LEARNED = {DEFAULT: SearchDefaults(mode="dense", weight=1)}
OTHER = {"other": SearchDefaults(mode="hybrid", weight=0.4)}
NOTHING = "Nothing became better by more than luck explains."


@pytest.fixture
def tuned(job: Job, tmp_path: Path) -> Retune:
    """retune on documents whose titles are their first words, which the tiny model knows nothing of.

    The active version has learned dense search.
    """
    found = documents(WORDS, 420)
    job.store.request(with_search(job.store, str(job.store.requested()), DENSE_LEARNED))

    def run(
        count: int = 420,
        titled: bool = True,
        judged: int = 0,
        active: str = "",
        clicked: bool | None = None,
        key: str = "",
        say: Say = silent,
        served: Searches = USUALLY,
    ) -> Outcome:
        """Args:
        active: Version that is tuned, if it is not in service.
        clicked: The judged queries are those that dense search answers, by clicks or by feedback.
        key: Key of all judgments.
        """
        queried = []
        for at, each in enumerate(found[:judged]):
            words = f"{' '.join(each['text'].split()[4:7])} {at}"
            queried.append((words if clicked is None else f"{each['title']} {each['text']}", each["id"]))
        rows = [each if titled else {"id": each["id"], "text": each["text"]} for each in found[:count]]
        config = configured(tmp_path, rows, queried, held_out=0.3, least=20)
        gathered = gather(config, job.store, lambda _: None)
        every = frozenset((*gathered.found.train, *gathered.found.dev, *gathered.found.held))
        if clicked:
            gathered = gathered._replace(found=gathered.found._replace(of_use=every))
        if key:
            gathered = gathered._replace(found=gathered.found._replace(keys=dict.fromkeys(every, key)))
        gathered = gathered._replace(active=active or gathered.active, served=served)
        return retune(gathered, config, job.store, say)

    return run


@pytest.mark.long
def test_a_version_of_the_same_model_searches_by_words(job: Job, tuned: Retune, tmp_path: Path) -> None:
    active = str(job.store.requested())
    outcome = tuned()
    assert outcome.published, outcome.reason
    version = str(outcome.version)
    assert job.store.requested() == version
    served, made = job.store.verify(active), job.store.verify(version)
    assert made.fingerprint == served.fingerprint
    assert (made.parent, made.lineage["anchor"]) == (active, active)
    assert served.search == DENSE_LEARNED
    chosen = made.search["default"]
    report = json.loads((job.store.folder(version) / REPORT).read_bytes())
    means = report["meta"]["tuned"]["default"]
    assert means[str(get_setting(chosen))] > means[str(Setting(1.0))] + 0.1, "vectors alone are worse by far"
    assert chosen.mode == ("lexical" if chosen.weight == 0 else "hybrid")
    assert {row["name"] for row in report["rows"]} == {
        f"own {search}{mode}" for search in ("titles", "known") for mode in ("", " hybrid", " served")
    }
    [titles] = [gain for gain in report["gains"] if gain["name"] == "own titles"]
    assert titles["shown"]
    assert report["candidate"]["own"]["titles"]["served"]["ndcg10"] == pytest.approx(titles["candidate"])
    assert report["candidate"]["own"]["titles"]["ndcg10"] == report["active"]["own"]["titles"]["ndcg10"]
    page = job.store.folder(version) / REPORT_PAGE
    for file in ("report.md", "report.html"):
        told = (page / file).read_text(encoding="utf-8")
        assert "Search for a text by its title, where a query names no mode" in told
    with Service(tmp_path, job.store.root) as service:
        listed = service.client.get("/models").raise_for_status().json()
        [shown] = [each for each in listed["models"] if each["version"] == version]
        assert shown["gate"] == "on"
        page_of = service.client.get(f"/models/{version}/report/report.md").raise_for_status()
        assert "where a query names no mode" in page_of.text
        found = service.client.get(f"/models/{version}/report").raise_for_status().json()
        assert found["meta"]["search"]["default"]["mode"] == chosen.mode


@pytest.mark.long
def test_the_search_of_a_pair_is_tuned_as_it_is_served_and_stays_a_pair(
    job: Job, tuned: Retune, tiny_source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    teacher = job.store.verify(str(job.store.requested()))
    student, both = publish_pair(job.store, teacher, tiny_source)
    job.store.request(both.version)
    encode, by_student = Encoder.encode, set[str]()

    def noting(self: Encoder, texts: list[str], **options: bool) -> Encoded:
        if self.manifest.version == student.version:
            by_student.update(texts)
        return encode(self, texts, **options)

    monkeypatch.setattr(Encoder, "encode", noting)
    outcome = tuned()
    assert outcome.published, outcome.reason
    made = job.store.verify(str(outcome.version))
    assert made.search
    assert (made.fingerprint, made.query_encoder) == (teacher.fingerprint, both.query_encoder)
    assert {file for file in both.files if file.startswith("queries/")} <= made.files.keys()
    stored = documents(WORDS, 420)
    assert len(by_student & {each["title"] for each in stored}) > 50
    own = [text for text in by_student if any(each["text"] in text for each in stored)]
    assert own == [], "documents are not its own"


def test_a_search_that_is_as_good_already_is_left(job: Job, tuned: Retune) -> None:
    assert tuned().published
    before = [manifest.version for manifest in job.store.versions()]
    with pytest.raises(NothingToLearn, match="no other weight of words against vectors, and no other length"):
        tuned()
    assert [manifest.version for manifest in job.store.versions()] == before


@pytest.mark.long
@pytest.mark.parametrize("verdict", ["accepted", "refused"])
def test_a_search_that_was_rolled_back_from_is_not_wanted_again(
    job: Job, tuned: Retune, verdict: Literal["accepted", "refused"]
) -> None:
    active, left = gone_back(job, tuned, verdict)
    said = {left: {"state": "retired", "reason": f"rolled back from, to {active}"}}
    job.store.write_state({"live": active, "versions": said})
    with pytest.raises(NothingToLearn, match=f"was left: rolled back from, to {active}"):
        tuned()
    assert job.store.requested() == active
    assert left in job.store.names()


def gone_back(job: Job, tuned: Retune, verdict: Literal["accepted", "refused"]) -> tuple[str, str]:
    active, version = str(job.store.requested()), str(tuned().version)
    judged_so(job, version, verdict)
    job.store.request(active)
    return active, version


def judged_so(job: Job, version: str, verdict: Literal["accepted", "refused"]) -> None:
    said = job.store.verify(version).model_copy(update={"gate": Gate(mode="on", verdict=verdict)})
    (job.store.folder(version) / FILE_NAME).write_text(said.model_dump_json(), encoding="utf-8")


@pytest.mark.long
def test_a_refused_search_that_is_in_use_stays_and_its_verdict_stands(job: Job, tuned: Retune) -> None:
    """A person had activated it, and then another one: a rollback goes to it."""
    active, refused = gone_back(job, tuned, "refused")
    job.store.write_state({"live": active, "previous": refused})
    with pytest.raises(NothingToLearn, match=f"{refused} is the same search, and is in use"):
        tuned()
    assert job.store.requested() == active
    assert refused in job.store.names()


@pytest.mark.long
def test_a_search_that_is_refused_again_has_the_newer_report_and_counts_the_look(
    job: Job, tuned: Retune
) -> None:
    """Dense search answers all, so hybrid search gains nothing."""
    before, looks = job.store.names(), []
    for _ in range(2):
        outcome = tuned(judged=160, clicked=False)
        assert (outcome.published, outcome.reason) == (False, NOTHING)
        [version] = job.store.names() - before
        assert version == outcome.version
        looks.append(json.loads((job.store.folder(version) / REPORT).read_bytes())["meta"]["looks"])
    assert looks == [1, 2]


def test_a_search_is_judged_in_the_mode_that_the_service_was_told_to_use() -> None:
    queried, model = search("dense")
    halves = [Half(queried, queried)]
    was = {DEFAULT: SearchDefaults(mode="lexical", weight=0.0)}
    before, after = crossed(halves, model, was)
    assert after["served"]["ndcg10"] > before["served"]["ndcg10"] + 0.1
    before, after = crossed(halves, model, was, "lexical")
    assert before["served"] == after["served"] == crossed(halves, model, was)[0]["served"]


@pytest.mark.long
def test_a_search_that_was_refused_once_is_published_with_the_report_that_accepts_it(
    job: Job, tuned: Retune
) -> None:
    active = str(job.store.requested())
    first = str(tuned().version)
    judged_so(job, first, "refused")
    refused = job.store.verify(first)
    job.store.request(active)
    (job.store.root / first).rename(job.store.root / (earlier := first.replace("202", "201", 1)))
    named = refused.model_copy(update={"version": earlier})
    (job.store.folder(earlier) / FILE_NAME).write_text(named.model_dump_json(), encoding="utf-8")
    outcome = tuned()
    assert outcome.published, outcome.reason
    made = job.store.verify(str(outcome.version))
    assert made.gate is not None
    assert made.gate.verdict == "accepted"
    assert earlier not in job.store.names()


def test_too_few_judged_queries_leave_the_choice_to_the_text(job: Job, tuned: Retune) -> None:
    outcome = tuned(judged=24)
    assert outcome.published, outcome.reason
    report = json.loads((job.store.folder(str(outcome.version)) / REPORT).read_bytes())
    counts = report["meta"]["documents"]
    choosing = counts["queries_trained_on"] + counts["queries_held_out_for_dev"]
    assert MIN_DEV_QUERIES <= choosing < MIN_QUERIES
    assert {row["name"] for row in report["rows"]} >= {"own few", "own few hybrid", "own few served"}
    assert not any(gain["name"].startswith("own few") for gain in report["gains"])
    tried = {str(Setting(weight, tokens)) for weight in OF_TEXT_ONLY for tokens in list_lengths(64)}
    assert {*report["meta"]["tuned"]["default"]} == tried


def test_where_no_document_is_split_no_length_is_tried_and_none_is_forgotten(
    job: Job, tuned: Retune, monkeypatch: pytest.MonkeyPatch
) -> None:
    active = str(job.store.requested())
    search = SearchDefaults(mode="dense", weight=1, passage_tokens=32)
    learned = with_search(job.store, active, {DEFAULT: search})
    job.store.write_state({"live": active})
    job.store.request(learned)
    monkeypatch.setattr(tuning, "_LENGTHS", (32,))
    said: list[str] = []
    outcome = tuned(active=learned, say=said.append, served=Searches(passages=False))
    assert outcome.published, outcome.reason
    assert "weighing words against vectors" in said
    report = json.loads((job.store.folder(str(outcome.version)) / REPORT).read_bytes())
    assert {*report["meta"]["tuned"][DEFAULT]} == {str(Setting(weight)) for weight in OF_TEXT_ONLY}
    assert job.store.verify(str(outcome.version)).search[DEFAULT].passage_tokens == 32


def test_judgments_that_rest_on_one_key_are_warned_of(job: Job, tuned: Retune) -> None:
    """On the console, and in the report and its page."""
    said: list[str] = []
    outcome = tuned(judged=24, key="spam", say=said.append)
    [warning] = [line.removeprefix("! ") for line in said if line.startswith("! ")]
    assert "24 of 24 judged queries rest on the word of the key 'spam' alone" in warning
    folder = job.store.folder(str(outcome.version))
    assert json.loads((folder / REPORT).read_bytes())["meta"]["corpus_report"]["warnings"] == [warning]
    assert "24 of 24 judged queries rest on" in (folder / REPORT_PAGE / "report.md").read_text("utf-8")


@pytest.mark.long
def test_words_may_lead_in_a_collection_that_the_model_cannot_read(job: Job, tmp_path: Path) -> None:
    """Titles and known items choose among all weights there, and between two in the other collection."""
    korean = [each | {"id": f"k{each['id']}", "collection": "notes"} for each in documents(KOREAN, 420)]
    config = configured(tmp_path, [*documents(WORDS, 420), *korean], held_out=0.3, least=20)
    said: list[str] = []
    outcome = retune(gather(config, job.store, lambda _: None), config, job.store, said.append)
    assert outcome.published, outcome.reason
    assert "the model cannot read half of the documents of notes: words may lead there" in said
    report = json.loads((job.store.folder(str(outcome.version)) / REPORT).read_bytes())
    tried = {name: {*means} for name, means in report["meta"]["tuned"].items()}
    assert tried == {
        "default": {str(Setting(weight, tokens)) for weight in OF_TEXT_ONLY for tokens in list_lengths(64)},
        "notes": {str(Setting(weight, tokens)) for weight in WEIGHTS for tokens in list_lengths(64)},
    }


def test_without_held_out_queries_nothing_can_be_chosen(tuned: Retune) -> None:
    with pytest.raises(NothingToLearn, match="too few held-out queries"):
        tuned(60, titled=False)


@pytest.mark.long
def test_judged_queries_choose_and_judge_in_two_halves(job: Job, tuned: Retune) -> None:
    """All of them judge but those kept to choose by, each under settings that it did not choose."""
    outcome = tuned(judged=160)
    assert outcome.published, outcome.reason
    report = json.loads((job.store.folder(str(outcome.version)) / REPORT).read_bytes())
    counts = report["meta"]["documents"]
    judged = report["candidate"]["own"]["judged"]
    half, other = counts["queries_held_out"], counts["queries_trained_on"]
    assert judged["queries"] == half + other
    assert min(half, other) > 40
    [gain] = [gain for gain in report["gains"] if gain["name"] == "own judged"]
    assert gain["queries"] == half + other
    assert gain["shown"]


def test_each_half_is_judged_by_what_the_other_chose() -> None:
    (near, model), (worded, _) = search("dense"), search("lexical")
    _, wrong = crossed([Half(near, worded), Half(worded, near)], model, {})
    _, right = crossed([Half(near, near), Half(worded, worded)], model, {})
    count = len(near.queries) + len(worded.queries)
    assert wrong["served"]["queries"] == len(wrong["served"]["each"]) == count
    assert right["served"]["ndcg10"] == 1.0
    assert wrong["served"]["ndcg10"] < 0.9
    assert wrong["ndcg10"] == right["ndcg10"], "dense search has no weight"


def test_the_search_of_a_version_that_the_service_still_builds_is_wanted(job: Job, tuned: Retune) -> None:
    active = str(job.store.requested())
    built = with_search(job.store, active, DENSE_LEARNED | OTHER)
    job.store.write_state({"live": active})
    job.store.request(built)
    outcome = tuned(active=built)
    assert outcome.published, outcome.reason
    assert job.store.requested() == outcome.version
    assert job.store.verify(str(outcome.version)).parent == built


def test_a_rollback_meanwhile_is_newer_than_the_search(job: Job, tuned: Retune) -> None:
    active = str(job.store.requested())
    left = with_search(job.store, active, DENSE_LEARNED | OTHER)
    job.store.write_state({"live": active})
    job.store.request(active, "rollback")
    outcome = tuned(active=left)
    assert not outcome.published
    assert f"{active} became active" in outcome.reason
    assert job.store.requested() == active


def test_one_key_whose_word_does_not_judge_chooses_no_search(job: Job, tmp_path: Path) -> None:
    rows = documents(WORDS, 420)
    config = configured(tmp_path, rows, held_out=0.3, least=20)
    gathered = gather(config, job.store, lambda _: None)

    def choosing(*keys: str | None) -> set[str]:
        said = [
            Judgment(f"{each['text']} {at}", each["id"], True, keys[at % len(keys)])
            for at, each in enumerate(rows[:300])
        ]
        known = {document.id: document.id for document in gathered.documents.kept}
        found = judged(said, known, 0.5)
        dev, _ = sides(gathered._replace(found=found, split=gathered.split.moved(found.parts)), config)
        return set(dev)

    assert "judged" not in choosing("spam")
    assert "judged" in choosing(None)
    assert "judged" in choosing("spam", None)


def test_queries_that_a_model_has_learned_choose_no_search_and_the_others_do(
    job: Job, tmp_path: Path
) -> None:
    rows = documents(WORDS, 420)
    config = configured(tmp_path, rows, held_out=0.3, least=20)
    gathered = gather(config, job.store, lambda _: None)
    said = [Judgment(f"{each['text']} {at}", each["id"], True) for at, each in enumerate(rows[:200])]
    found = judged(said, {document.id: document.id for document in gathered.documents.kept}, 0.5)
    gathered = gathered._replace(found=found, split=gathered.split.moved(found.parts))

    def choosing(known: set[str]) -> tuple[set[str], int]:
        trained = gathered._replace(learned=frozenset(known))
        dev, searches = sides(trained, config)
        return {*dev["judged"].queries.values()}, len(_halves(trained, config, dev, searches))

    assert choosing(set()) == ({*found.dev, *found.crossed}, 2)
    assert choosing({"of a query that nobody judged"}) == choosing(set())
    assert choosing(learned(found.train)) == ({*found.dev}, 0)


def test_a_collection_whose_halves_cannot_choose_is_not_judged_by_another() -> None:
    def half(**queries: int) -> Collection:
        within = {f"{name}{at}": name for name, count in queries.items() for at in range(count)}
        return Collection({}, within, {name: {} for name in within}, 0, within)

    enough, few = MIN_QUERIES, MIN_QUERIES - 1
    one, other = half(both=enough, one=enough, few=few, alone=enough), half(both=enough, one=1, few=few)
    assert judged_by_halves([Half(one, other), Half(other, one)]) == {"both", "one"}


@pytest.mark.long
def test_clicks_guard_and_do_not_hide_what_was_never_shown(job: Job, tuned: Retune) -> None:
    """All answers are what dense search found already: another search can gain nothing there, or lose."""
    refused = tuned(judged=160, clicked=False)
    assert (refused.published, refused.reason) == (False, NOTHING)
    outcome = tuned(judged=160, clicked=True)
    assert outcome.published, outcome.reason
    report = json.loads((job.store.folder(str(outcome.version)) / REPORT).read_bytes())
    assert {gain["name"] for gain in report["gains"]} == {"own clicked", "own titles", "own known"}
    assert "own clicked served" in {row["name"] for row in report["rows"]}


LENGTHS = list_lengths(256)  # of the default model
rng = np.random.default_rng(5)


def _scores(means: dict[float, float], spread: float, queries: int, shorter: float = -0.2) -> np.ndarray:
    """(q, lengths, weights): each query has its own level, and noise of `spread` of its own at each setting.

    shorter: what passages of another length than the usual add.
    """
    of_settings = [[means[weight] + (shorter if tokens else 0.0) for weight in WEIGHTS] for tokens in LENGTHS]
    noise = rng.normal(0, spread, (queries, len(LENGTHS), len(WEIGHTS)))
    return np.array([of_settings]) + rng.uniform(0.2, 0.4, (queries, 1, 1)) + noise


@pytest.mark.parametrize(
    ("reads", "lengths"),
    [(0, ()), (64, ()), (128, (128,)), (256, (64, 256)), (512, (64, 128, 512)), (8192, (64, 128, 512, 8192))],
)
def test_lengths_are_those_that_the_model_reads_and_no_two_are_the_same(
    reads: int, lengths: tuple[int, ...]
) -> None:
    assert list_lengths(reads) == (None, *lengths)


USUAL_CHOICE = SearchDefaults(mode="hybrid", weight=DENSE_WEIGHT, fusion=FUSION)


def test_a_difference_that_may_be_luck_leaves_the_usual_weight() -> None:
    means = dict.fromkeys(WEIGHTS, 0.30) | {0.3: 0.301}
    chosen = [choose(_scores(means, 0.2, 40), LENGTHS).chosen.weight for _ in range(100)]
    assert sum(abs(weight - DENSE_WEIGHT) < 0.21 for weight in chosen) > 60
    same = np.tile(rng.uniform(0, 1, (30, 1, 1)), (1, len(LENGTHS), len(WEIGHTS)))
    assert choose(same, LENGTHS).chosen == USUAL_CHOICE
    one = choose(_scores(means, 0.2, 1), LENGTHS).chosen
    assert one == USUAL_CHOICE, "one query has no spread"


@pytest.mark.parametrize(("best", "mode"), [(0.0, "lexical"), (0.4, "hybrid"), (1.0, "dense")])
def test_a_clear_difference_is_followed(best: float, mode: str) -> None:
    means = {weight: 0.5 - 0.4 * abs(weight - best) for weight in WEIGHTS}
    found = choose(_scores(means, 0.01, 200), LENGTHS)
    assert found.chosen.mode == mode
    assert found.chosen.weight == best
    assert found.queries == 200
    assert max(found.ndcg10, key=lambda setting: found.ndcg10[setting]) == str(Setting(best))


def test_shorter_passages_are_taken_where_they_clearly_find_more() -> None:
    means = dict.fromkeys(WEIGHTS, 0.3)
    clear = [choose(_scores(means, 0.1, 200, shorter=0.1), LENGTHS).chosen.passage_tokens for _ in range(50)]
    assert clear.count(None) < 10, "words alone, by luck"
    longer = _scores(means, 0.05, 200, shorter=0.1)
    longer[:, LENGTHS.index(256)] += 0.02
    assert choose(longer, LENGTHS).chosen.passage_tokens == 256, "the better of both"
    luck = [choose(_scores(means, 0.3, 40, shorter=0.01), LENGTHS).chosen.passage_tokens for _ in range(50)]
    assert luck.count(None) > 35


def test_a_length_counts_for_dense_and_hybrid_search_although_another_weight_is_served() -> None:
    scores = np.full((100, len(LENGTHS), len(WEIGHTS)), 0.5) + rng.normal(0, 0.05, (100, 1, 1))
    scores[:, :, WEIGHTS.index(0.2)] = 0.9
    scores[:, LENGTHS.index(64), WEIGHTS.index(1.0)] += 0.1
    chosen = choose(scores, LENGTHS).chosen
    assert chosen == SearchDefaults(mode="hybrid", weight=0.2, fusion=FUSION, passage_tokens=64)


# Documents n are on a circle; a query's vector points at `near`, its words are those of `worded`.


def _model(vectors: dict[str, np.ndarray]) -> Scorable:
    def encode(texts: list[str]) -> np.ndarray:
        return np.array([vectors[text] for text in texts], np.float32)

    return Scorable(None, None, None, encode, encode, encode, whole, 256)


def _angle(at: int) -> np.ndarray:
    return np.array([np.cos(at / 20), np.sin(at / 20)])


def search(answer: str) -> tuple[Collection, Scorable]:
    """Each query's vector is that of document n, and its word that of document n + 30, of 60."""
    documents = {f"d{at}": Content(f"word{at} other") for at in range(60)}
    queries = {f"q{at}": f"word{(at + 30) % 60}" for at in range(MIN_QUERIES)}
    right = {f"q{at}": {f"d{at if answer == 'dense' else (at + 30) % 60}": 1.0} for at in range(MIN_QUERIES)}
    vectors = {content.text: _angle(int(id[1:])) for id, content in documents.items()}
    vectors |= {text: _angle(int(id[1:])) for id, text in queries.items()} | {"word1": _angle(31)}
    return Collection(documents, queries, right, 0), _model(vectors)


@pytest.mark.parametrize("answer", ["dense", "lexical"])
def test_the_ranking_that_answers_is_found(answer: str) -> None:
    queried, model = search(answer)
    found = tune([queried], model)["default"]
    good, bad = (1.0, 0.0) if answer == "dense" else (0.0, 1.0)
    assert found.ndcg10[str(Setting(good))] == found.ndcg10[str(Setting(found.chosen.weight))] == 1.0
    assert found.ndcg10[str(Setting(bad))] < 0.7
    assert (found.chosen.weight == DENSE_WEIGHT) == (answer == "lexical"), (
        "the nearest of those that are right"
    )
    assert found.queries == MIN_QUERIES


def test_an_answer_that_stands_first_gains_nothing_where_nothing_tells_documents_apart() -> None:
    """Equal vectors, and no word in common: words alone find nothing, and vectors no answer but by luck."""
    texts = [f"a{at:02}" for at in range(MIN_QUERIES)] + [f"z{at:02}" for at in range(MIN_QUERIES)]
    documents = {text: Content(text) for text in texts}  # the answers first, as searches.py has them
    queries = {f"q{at}": f"ask{at}" for at in range(MIN_QUERIES)}
    right = {f"q{at}": {f"a{at:02}": 1.0} for at in range(MIN_QUERIES)}
    model = _model(dict.fromkeys([*texts, *queries.values()], _angle(0)))
    found = tune([Collection(documents, queries, right, 0)], model)["default"]
    assert set(found.ndcg10.values()) == {0.0}


def test_each_collection_learns_its_own_and_one_with_few_queries_learns_nothing() -> None:
    dense, model = search("dense")
    within = dict.fromkeys((*dense.documents, *dense.queries), "a")
    few = {f"few{at}": "word1" for at in range(MIN_QUERIES - 1)}
    both = dense._replace(
        documents=dense.documents | {"x": Content("word1 other")},
        queries=dense.queries | few,
        relevant=dense.relevant | {name: {"x": 1.0} for name in few},
        within=within | {"x": "b"} | dict.fromkeys(few, "b"),
    )
    assert [name for name, _ in both.parts()] == ["a", "b"]
    assert {name: [*part.documents] for name, part in both.parts()}["b"] == ["x"]
    assert set(tune([both], model)) == {"a"}


def test_passages_of_a_length_are_asked_for_and_searched() -> None:
    """An answer in the middle of a text that only short passages show; words find nothing."""
    documents = {f"d{at}": Content(f"start{at} {at}") for at in range(60)}
    queries = {f"q{at}": f"ask{at}" for at in range(MIN_QUERIES)}
    right = {f"q{at}": {f"d{at}": 1.0} for at in range(MIN_QUERIES)}
    vectors = {content.text: _angle(at + 31) for at, content in enumerate(documents.values())}
    vectors |= {str(at): _angle(at) for at in range(60)}
    vectors |= {query: _angle(int(id[1:])) for id, query in queries.items()}

    def split(content: Content, passage_tokens: int | None) -> list[str]:
        return content.text.split()[1:] if passage_tokens == LENGTHS[-1] else [content.text]

    found = tune([Collection(documents, queries, right, 0)], _model(vectors)._replace(split=split))["default"]
    assert found.chosen.passage_tokens == LENGTHS[-1]
    assert found.ndcg10[str(Setting(DENSE_WEIGHT, LENGTHS[-1]))] == 1.0
    assert found.ndcg10[str(Setting(DENSE_WEIGHT))] < 0.5
