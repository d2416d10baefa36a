"""Training rows made of documents, and runs that are resumed if their rows are the same."""

from __future__ import annotations

import itertools
import json
import random
import shutil
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from models.encoder import Encoder
from models.engines.form import FP32, Form
from models.engines.opening import form_for
from models.search.content import Content
from models.store import ModelStore
from models.tokens.pairs import Pair
from tests.service.process import Service
from tests.tiny import tiny_source as make_tiny_source
from tests.training.conftest import WORDS
from tests.training.recipe_cases import triples
from tests.training.run_cases import events, stop_after
from training.errors import Interrupted, NothingToLearn, TrainingError
from training.evaluation.encoding import Encode
from training.evaluation.modes import whole
from training.evaluation.scorable import Scorable, build_scorable
from training.methods.recipe import load_recipe
from training.mining.negatives import PASSAGE_TOKENS
from training.retraining import rows
from training.retraining.config import Config, CorpusTable, TrainTable
from training.retraining.documents import Document
from training.retraining.gather import gather
from training.retraining.one import Job, retrain
from training.retraining.plan import build_job, prepare
from training.retraining.rows import build_corpus
from training.retraining.split import digest, plain
from training.text.corpus import LISTS, PAIRS, RELATIONS, TEXTS, TRIPLES, Corpus, Kind

DOCUMENTS = [
    Document("a", "Alpha", "first  text"),
    Document("b", "", "second text"),
    Document("c", "Gamma", "third text"),
]
JUDGED = {"which is second?": ["b", "held out"], "first text": ["a"]}


def never() -> Scorable:
    raise AssertionError("no model is needed")


def model(queries: Encode, documents: Encode, fingerprint: str = "one") -> Scorable:
    return Scorable(None, fingerprint, None, queries, queries, documents, whole, 64)


def drawn() -> Encode:
    """Returns a function that encodes texts as random vectors, different at each call."""
    rng = np.random.default_rng(1)

    def encode(texts: Sequence[str]) -> np.ndarray:
        return rng.normal(size=(len(texts), 8)).astype(np.float32)

    return encode


def test_texts_are_the_documents() -> None:
    corpus = build_corpus(TEXTS, DOCUMENTS, JUDGED, never, 1)
    assert corpus.texts == ("first  text", "second text", "third text")


def rows_of(corpus: Corpus) -> list[tuple[str, ...]]:
    return [corpus.texts[at : at + corpus.columns] for at in range(0, len(corpus.texts), corpus.columns)]


def placed(vectors: Mapping[str, Sequence[float]], other: Sequence[float]) -> Scorable:
    """Returns a model that encodes texts as `vectors` says, and all other texts as `other`."""

    def of(texts: list[str]) -> np.ndarray:
        return np.array([vectors.get(text, other) for text in texts], np.float32)

    return model(of, of)


def test_pairs_are_judged_queries_and_titles_with_their_text() -> None:
    """A judged document includes its title. The answer to a title is the text without the title."""
    judged = JUDGED | {"which is third?": ["c"]}
    corpus = build_corpus(PAIRS, DOCUMENTS, judged, lambda: placed({}, [1.0, 0.0]), 1)
    assert rows_of(corpus) == [
        ("which is second?", "second text"),
        ("which is third?", "Gamma third text"),
        ("Alpha", "first text"),
        ("Gamma", "third text"),
    ]
    assert corpus.first == 2


def test_title_pairs_are_at_most_as_many_as_judged_pairs() -> None:
    documents = [Document(f"d{at}", f"Title {at}", f"text {at}") for at in range(40)]
    judged = {f"query {at}": [f"d{at}", f"d{at + 1}"] for at in range(3)}
    by = placed({}, [1.0, 0.0])

    def pairs(documents: list[Document], judged: dict[str, list[str]]) -> list[tuple[str, ...]]:
        return rows_of(build_corpus(PAIRS, documents, judged, lambda: by, 1))

    found = pairs(documents, judged)
    assert [row[0].split()[0] for row in found] == ["query"] * 6 + ["Title"] * 6
    assert pairs(documents[::-1], judged) == found
    more = {"query 7": ["d7"]}
    assert {*found[6:]} < {*pairs(documents, judged | more)}, "the same titles, and one more"
    assert len(pairs(documents, {})) == 40, "where nothing is judged, all titles train"
    unread = build_corpus(PAIRS, documents, judged, None, 1)
    assert (len(unread), unread.first) == (46, 6), "a model that cannot read learns from all titles"


def test_triples_have_the_negative_that_the_model_finds_nearest_below_the_margin() -> None:
    vectors = {"first": [1.0, 0.0], "second": [0.6, 0.8], "third": [0.8, 0.6]}

    def queries(texts: list[str]) -> np.ndarray:
        return np.eye(2, dtype=np.float32)[[int(text.startswith("which")) for text in texts]]

    def documents(texts: list[str]) -> np.ndarray:
        return np.array([vectors[text.split()[-2]] for text in texts], np.float32)

    judged = JUDGED | {"which is third?": ["c"]}
    corpus = build_corpus(TRIPLES, DOCUMENTS, judged, lambda: model(queries, documents), 1)
    assert rows_of(corpus) == [
        ("which is second?", "second text", "Gamma third text"),  # 0.6 of 0.8
        ("which is third?", "Gamma third text", "Alpha first text"),  # 0.8 is above the positive
        ("Alpha", "first text", "third text"),  # 0.8 of 1.0
        ("Gamma", "third text", "second text"),  # 0.6 of 0.8; 1.0 is above the positive
    ]


def test_where_all_documents_are_nearer_than_the_answer_the_least_near_is_the_negative() -> None:
    vectors = {"second text": [-1.0, 0.0], "Gamma third text": [0.6, 0.8]}
    by = placed(vectors, [1.0, 0.0])
    corpus = build_corpus(TRIPLES, DOCUMENTS, JUDGED, lambda: by, 1)
    assert rows_of(corpus)[0] == ("which is second?", "second text", "Gamma third text")


def test_a_document_is_trained_as_its_best_passage_with_its_title() -> None:
    """If the model reads more tokens than the training, rows have only passages, shortened if needed."""
    lengths: list[int | None] = []
    documents = [
        Document("a", "Alpha", "far. near. other"),
        Document("b", "Beta", "middle. elsewhere"),
        Document("c", "Gamma", "short"),
    ]

    def split(content: Content, tokens: int | None) -> list[str]:
        lengths.append(tokens)
        parts = content.text.split(". ")
        return [content.whole, *(content.lead + part for part in parts if len(parts) > 1)]

    vectors = {"near": [1.0, 0.0], "middle": [0.8, 0.6], "far. near. other": [1.0, 0.0]}

    def encode(texts: list[str]) -> np.ndarray:
        ends = [text.removeprefix("Alpha ").removeprefix("Beta ") for text in texts]
        others = [[1.0, 0.0] if text in ("who?", "Alpha", "Beta") else [0.0, 1.0] for text in texts]
        return np.array(
            [vectors.get(end, other) for end, other in zip(ends, others, strict=True)], np.float32
        )

    by = Scorable(None, "one", None, encode, encode, encode, split, 256)
    corpus = build_corpus(TRIPLES, documents, {"who?": ["a"], "what?": ["c"]}, lambda: by, 1)
    found = {row[0]: row[1:] for row in rows_of(corpus)}
    assert found["who?"] == ("Alpha near", "Beta middle")
    assert found["what?"] == ("Gamma short", "Beta elsewhere")
    assert {*lengths} == {None}
    by = by._replace(reads=512)
    assert ("Alpha", "near", "middle") in rows_of(build_corpus(TRIPLES, documents, {}, lambda: by, 1))
    assert {*lengths} == {None, PASSAGE_TOKENS}


@pytest.mark.parametrize("name", ["pairs", "triples", "distil-hybrid"])
def test_a_training_reads_passages_of_the_length_that_rows_have(name: str) -> None:
    assert load_recipe(name).max_length == PASSAGE_TOKENS


def test_a_document_that_begins_with_its_title_is_no_negative_of_itself() -> None:
    documents = [Document("a", "Alpha", "Alpha: first text"), Document("b", "", "second text")]
    vectors = {"Alpha: first text": [0.5, 0.86], "first text": [1.0, 0.0], "second text": [0.4, 0.91]}
    corpus = build_corpus(TRIPLES, documents, {}, lambda: placed(vectors, [1.0, 0.0]), 2)
    assert corpus.texts == ("Alpha", "first text", "second text")


def test_the_negatives_of_a_pair_are_one_row() -> None:
    vectors = {"third text": [0.8, 0.6], "Gamma third text": [0.8, 0.6], "second text": [0.6, 0.8]}
    corpus = build_corpus(TRIPLES, DOCUMENTS, {}, lambda: placed(vectors, [1.0, 0.0]), 2)
    assert corpus.columns == 4
    assert corpus.texts == (
        *("Alpha", "first text", "third text", "second text"),
        *("Gamma", "third text", "second text", ""),  # the other is above 0.8 less the margin
    )


def test_without_titles_and_judgments_there_is_no_pair() -> None:
    with pytest.raises(NothingToLearn, match="documents need a title"):
        build_corpus(PAIRS, DOCUMENTS[1:2], {}, never, 1)
    with pytest.raises(TrainingError, match="pairs that people labelled"):
        build_corpus(RELATIONS, DOCUMENTS, JUDGED, never, 1)


def test_nothing_that_judges_is_trained_on_however_it_is_written() -> None:
    withheld = {"alpha", "third text"}  # a query that was held out is a title here, a held-out text a text
    texts = build_corpus(TEXTS, DOCUMENTS, JUDGED, never, 1, withheld).texts
    assert texts == ("first  text", "second text")
    by = placed({}, [1.0, 0.0])
    corpus = build_corpus(PAIRS, DOCUMENTS, JUDGED | {"Beta": ["a"]}, lambda: by, 1, withheld)
    assert rows_of(corpus) == [("Beta", "first text"), ("which is second?", "second text")], "without Alpha"
    corpus = build_corpus(TRIPLES, DOCUMENTS, JUDGED, lambda: by, 5, withheld)
    assert rows_of(corpus) == [("which is second?", "second text", "first text")]


def test_triples_are_named_by_their_pairs_whatever_is_mined_for_them() -> None:
    somehow = drawn()

    found = [build_corpus(TRIPLES, DOCUMENTS, JUDGED, lambda: model(somehow, somehow), 1) for _ in range(8)]
    assert len({corpus.digest for corpus in found}) == 1
    assert len({corpus.texts for corpus in found}) > 1


def test_lists_are_queries_of_the_text_with_documents_of_their_collection() -> None:
    words = "river stone market letter engine garden bridge paper window".split()
    documents = [
        Document(f"{part}{at}", word.title() if at == 1 else "", f"{part} is of a {word}. {word} again", part)
        for part in ("one", "two")
        for at, word in enumerate(words)
    ]
    few = [Document("x", "Few", "too few of them", "three")]
    somehow = drawn()

    def made(withheld: set[str], by: str = "one") -> Corpus:
        return build_corpus(LISTS, [*documents, *few], {}, lambda: model(somehow, somehow, by), 1, withheld)

    corpus = made({"two is of a garden.", "one is of a paper. paper again"})
    rows = [corpus.texts[at : at + 9] for at in range(0, len(corpus.texts), 9)]
    queries = [row[0] for row in rows]
    assert len(rows) == 9 + 9 + 2 - 2  # first sentences and titles, less what judges
    assert "Stone" in queries  # of either collection, with its own text
    assert not {"two is of a garden.", "one is of a paper.", "Few"} & set(queries)
    for row in rows:
        if row[0] != "Stone":
            word = row[0].split()[-1].strip(".")
            title = f"{word.title()} " if word == "stone" else ""
            assert row[1] == f"{title}{word} again"
            assert {text.removeprefix("Stone ").split()[0] for text in row[2:]} == {row[0].split()[0]}
        assert "one is of a paper. paper again" not in row
    again = made({"two is of a garden.", "one is of a paper. paper again"})
    assert again.labels != corpus.labels
    assert again.digest == corpus.digest
    assert corpus.digest != made({"two is of a garden.", "one is of a paper. paper again"}, "two").digest
    assert made(set()).digest != made(set(), "two").digest != corpus.digest


def test_a_title_that_no_search_looks_into_asks_and_is_in_no_list() -> None:
    documents = [
        Document(f"{at}", word.title(), f"here is a {word}. {word} again", title_is_searched=False)
        for at, word in enumerate("river stone market letter engine garden bridge paper".split())
    ]
    somehow = drawn()
    corpus = build_corpus(LISTS, documents, {}, lambda: model(somehow, somehow), 1)
    rows = [corpus.texts[at : at + 9] for at in range(0, len(corpus.texts), 9)]
    assert {row[0] for row in rows} >= {document.title for document in documents}
    assert not {text for row in rows for text in row[1:] if text[0].isupper()}


def test_queries_that_people_asked_get_lists_of_their_collection_unless_they_judge() -> None:
    documents = [
        Document(f"{part}{at}", "", f"{part} {word}", part)
        for part in ("one", "two")
        for at, word in enumerate("river stone market letter engine garden bridge paper".split())
    ]
    somehow = drawn()

    queried = {"two": ["where is the bridge", "Held  out"], "gone": ["nobody"]}
    by = model(somehow, somehow)
    corpus = build_corpus(LISTS, documents, {}, lambda: by, 1, {"held out"}, queried=queried)
    assert corpus.texts[0] == "where is the bridge"
    assert len(corpus.texts) == 9
    assert {text.split()[0] for text in corpus.texts[1:]} == {"two"}
    with pytest.raises(NothingToLearn):
        build_corpus(LISTS, documents, {}, lambda: by, 1, {"held out"})


def test_a_reranker_scores_the_lists_of_users_alone() -> None:
    words = "river stone market letter engine garden bridge paper".split()
    documents = [Document(str(at), "", f"here is a {word}. {word} again") for at, word in enumerate(words)]
    scored: list[Pair] = []

    def score(pairs: Sequence[Pair]) -> np.ndarray:
        scored.extend(pairs)
        return np.array([len(pair.text) for pair in pairs], np.float32)

    somehow = drawn()
    by = model(somehow, somehow)
    queried = {"default": ["where is the bridge", "what is a letter"]}
    corpus = build_corpus(LISTS, documents, {}, lambda: by, 1, queried=queried, reranker=score)
    assert corpus.texts[::9] == ("what is a letter", "where is the bridge")
    rows = [corpus.texts[at : at + 9] for at in (0, 9)]
    assert corpus.labels == tuple(tuple(float(len(text)) for text in row[1:]) for row in rows)
    assert {*scored} == {Pair(row[0], text) for row in rows for text in row[1:]}
    with pytest.raises(NothingToLearn, match=r"set events\.queries = true"):
        build_corpus(LISTS, documents, {}, lambda: by, 1, reranker=score)


def test_of_more_queries_than_a_training_reads_the_same_few_are_listed_and_those_of_people_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(rows, "MAX_LISTS", 5)
    documents = [
        Document(f"{part}{at}", "", f"{part} is of a {word}. {word} again", part)
        for part in ("one", "two")
        for at, word in enumerate("river stone market letter engine garden bridge paper".split())
    ]
    somehow = drawn()

    def listed(given: list[Document], queried: dict[str, list[str]]) -> set[str]:
        corpus = build_corpus(LISTS, given, {}, lambda: model(somehow, somehow), 1, queried=queried)
        return set(corpus.texts[::9])

    queried = {"two": ["where is the bridge", "what is a letter"]}
    found = listed(documents, queried)
    assert len(found) == 5
    assert found > {"where is the bridge", "what is a letter"}
    assert listed(documents[::-1], queried) == found
    assert found - listed(documents, {}) == {"where is the bridge", "what is a letter"}


@pytest.mark.parametrize("kind", [TRIPLES, LISTS])
def test_the_service_finds_what_the_documents_would_give_without_embedding_them(
    kind: Kind, job: Job, tmp_path: Path
) -> None:
    """Long documents are split into passages. Held-out documents are in the service, but in no row."""
    draw = random.Random(1)
    documents = [
        Document(f"d{at}", f"Title {at}", f"{' '.join(draw.choices(WORDS, k=90 if at % 3 else 9))}. end {at}")
        for at in range(60)
    ]
    judged = {f"{' '.join(draw.choices(WORDS, k=3))} {at}": [f"d{at}"] for at in range(12)}
    held, others = documents[:6], documents[6:]
    withheld = {plain(text) for document in held for text in (document.title, document.text)}
    embedded: list[str] = []
    folder, active = tmp_path / "service", str(job.store.requested())
    folder.mkdir()
    with Service(folder, job.store.root) as service, closing(job.store.open(active)) as encoder:
        body = [{"id": each.id, "title": each.title, "text": each.text} for each in documents]
        service.client.post("/documents", json={"documents": body}).raise_for_status()
        opened = build_scorable(encoder)

        def encode(texts: list[str]) -> np.ndarray:
            embedded.extend(texts)
            return opened.encode_documents(texts)

        by = opened._replace(encode_documents=encode)
        alone = build_corpus(kind, others, judged, lambda: by, 2, withheld)
        count = len(embedded)
        url = f"http://127.0.0.1:{service.port}"
        served = build_corpus(kind, others, judged, lambda: by, 2, withheld, service=url)
        again = len(embedded) - count
        old = by._replace(version="20200101-000000-old-12345678")
        with pytest.raises(TrainingError, match="answered 409: These vectors are of 2020"):
            build_corpus(kind, others, judged, lambda: old, 2, withheld, service=url)
    assert served.digest == alone.digest
    for one, other in zip(alone.texts, served.texts, strict=True):
        assert one.startswith(other), "the service ends a head where the model does"
    if served.labels is not None and alone.labels is not None:
        assert np.allclose(served.labels, alone.labels, atol=1e-4)
    assert again <= count - len(others), "no document but answers and rests is embedded"
    assert len(rows_of(served)) > 10
    assert not {plain(text) for text in served.texts} & withheld
    assert not [text for text in served.texts if text.split(" ")[-1] in {"0", "1", "2"}]


def test_without_a_query_or_documents_enough_there_is_no_list() -> None:
    with pytest.raises(NothingToLearn, match="a collection needs 8 documents, and some of them a title"):
        build_corpus(LISTS, DOCUMENTS, {}, never, 1)


def test_what_people_called_not_relevant_is_a_negative_before_those_that_are_mined() -> None:
    documents = [*DOCUMENTS, Document("d", "", "fourth text"), Document("e", "", "second  text")]
    near = dict.fromkeys(("second text", "Alpha first text"), (0.6, 0.8))
    by = placed(near | {"Gamma third text": (0.8, 0.6), "third text": (0.8, 0.6)}, [0.0, 1.0])
    said = {"which is second?": ["d", "e", "held out"], "Alpha": ["c"], "nobody asked": ["a"]}

    def row(negatives: int) -> tuple[str, ...]:
        found = build_corpus(TRIPLES, documents, JUDGED, lambda: by, negatives, not_relevant=said)
        rows = [found.texts[at : at + found.columns] for at in range(0, len(found.texts), found.columns)]
        [of_query] = [row for row in rows if row[0] == "which is second?"]
        return of_query[1:]

    assert row(1) == ("second text", "fourth text"), "its cosine of 1.0 is above the positive's"
    assert row(2) == ("second text", "fourth text", "Gamma third text")


def test_other_negatives_from_people_are_another_text_to_learn_from() -> None:
    said: list[dict[str, list[str]]] = [{}, {}, {"which is second?": ["c"]}, {"which is second?": ["c", "a"]}]
    by, always = placed({}, [1.0, 1.0]), {"Alpha": ["c"]}
    digests = [
        build_corpus(TRIPLES, DOCUMENTS, JUDGED, lambda: by, 1, not_relevant=always | each).digest
        for each in said
    ]
    assert digests[0] == digests[1]
    assert len(set(digests)) == 3


@pytest.mark.parametrize(("precision", "form"), [("auto", form_for("auto")), ("fp32", FP32)])
def test_lists_are_mined_in_the_quickest_nearly_exact_form_unless_all_is_fp32(
    job: Job, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, precision: str, form: Form
) -> None:
    """`auto` gives bf16 if the processor has it and OpenVINO is installed."""
    draw = random.Random(1)
    texts = [" ".join(draw.choices(WORDS, k=12)) for _ in range(200)]
    lines = [
        {"id": str(at), "title": f"{text[:14]} {at}", "text": f"{text}. {text[::-1]}"}
        for at, text in enumerate(texts)
    ]
    (tmp_path / "documents.jsonl").write_text("\n".join(map(json.dumps, lines)))
    opened: list[Form] = []
    real = ModelStore.open

    def open_and_note(self: ModelStore, *given: Any, **how: Any) -> Encoder:
        encoder = real(self, *given, **how)
        opened.append(encoder.form)
        return encoder

    monkeypatch.setattr(ModelStore, "open", open_and_note)
    tables: dict[str, Any] = {"corpus": {"file": tmp_path / "documents.jsonl"}, "gate": {"data": job.data}}
    tables["train"] = {"recipe": "distil-hybrid", "precision": precision}
    config = Config.model_validate(tables)
    prepare(config, load_recipe("distil-hybrid", {}), job.store, job.work, lambda line: None)
    assert {*opened} == {form}


MADE_OF = "0" * 64


def mined(rows: Sequence[tuple[str, ...]]) -> Corpus:
    return replace(Corpus.of_rows(((row, None) for row in rows), "mined"), digest=MADE_OF)


def of_triples(job: Job, rows: Sequence[tuple[str, ...]]) -> Job:
    recipe = load_recipe("triples", {"optim.batch": 8})
    return replace(job, recipe=recipe, corpus=mined(rows), mode="off", data=None, steps=6)


def stopped(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        stop_after(patch, 3)
        with pytest.raises(Interrupted):
            retrain(job)


def resumptions(job: Job) -> list[int]:
    [run] = job.work.glob(f"{job.recipe.name}-*/run")
    return [line["step"] for line in events(run, "resume")]


def test_a_stopped_run_of_mined_rows_goes_on_with_the_same_rows(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    queried = of_triples(job, triples())
    stopped(queried, monkeypatch)
    assert retrain(queried).published
    assert resumptions(queried) == [3]


@pytest.mark.parametrize("change", ["a negative", "fewer rows", "more negatives"])
def test_where_other_rows_were_mined_training_begins_anew_and_says_so(
    job: Job, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    rows: list[tuple[str, ...]] = triples()
    stopped(of_triples(job, rows), monkeypatch)
    other = {
        "a negative": [(*rows[0][:2], rows[1][2]), *rows[1:]],
        "fewer rows": rows[:40],
        "more negatives": [(*row, "another") for row in rows],
    }[change]
    again = replace(of_triples(job, other))
    said: list[str] = []
    assert retrain(again, said.append).published
    assert resumptions(again) == []
    assert len([words for words in said if "training begins anew" in words]) == 1, said


def test_a_stopped_run_is_kept_while_another_recipe_trains(
    job: Job, tiny_source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A resumed `auto` may train its first choice again. Then its second choice, once stopped, goes on."""
    queried = replace(of_triples(job, triples()), base=str(tiny_source))
    stopped(queried, monkeypatch)
    other = replace(job, mode="off", data=None, base=str(tiny_source))
    assert retrain(other).published
    assert retrain(queried).published
    assert resumptions(queried) == [3]


def test_a_damaged_run_or_one_of_another_release_is_begun_anew(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    queried = of_triples(job, triples())
    for damage in ("checkpoint", "release"):
        damaged = replace(queried, recipe=replace(queried.recipe, seed=len(damage)))
        stopped(damaged, monkeypatch)
        [run] = job.work.glob("*/run")
        if damage == "checkpoint":
            (run / "checkpoint.safetensors").write_bytes(b"nothing")
        else:
            known = json.loads((run / "run.json").read_text())
            del known["precision"]
            (run / "run.json").write_text(json.dumps(known))
        said: list[str] = []
        assert retrain(damaged, said.append).published
        [why] = [words for words in said if "training begins anew" in words]
        assert {"checkpoint": "is not a checkpoint", "release": "lacks precision"}[damage] in why
        shutil.rmtree(job.work)


def test_a_run_of_a_release_that_did_not_note_its_rows_goes_on(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    queried = of_triples(job, triples())
    stopped(queried, monkeypatch)
    [run] = job.work.glob("*/run")
    known = json.loads((run / "run.json").read_text())
    del known["rows"]
    (run / "run.json").write_text(json.dumps(known))
    assert retrain(queried).published
    assert resumptions(queried) == [3]


def config_of(job: Job, recipe: str) -> Config:
    file = job.store.root.parent / "documents.jsonl"
    found = itertools.islice(enumerate(itertools.permutations(WORDS, 3)), 0, 2000, 11)
    rows = [{"id": str(at), "title": f"{a} {at}", "text": f"{b} {c} {a} {at}."} for at, (a, b, c) in found]
    file.write_text("\n".join(map(json.dumps, rows)))
    return Config(corpus=CorpusTable(file=file, least=20), train=TrainTable(recipe=recipe, steps=2))


@pytest.mark.long
def test_another_active_model_mines_other_negatives_and_that_is_new(job: Job, tmp_path: Path) -> None:
    make_tiny_source(tmp_path / "base", seed=3)

    def queried(recipe: str) -> Job:
        loaded = load_recipe(recipe, {"optim.batch": 8})
        found = prepare(config_of(job, recipe), loaded, job.store, job.work, lambda _: None)
        return replace(found, mode="off", base=str(tmp_path / "base"), options=job.options)

    first = str(job.store.requested())
    one = queried("triples")
    assert queried("triples").corpus.digest == one.corpus.digest
    made = retrain(one).version
    assert job.store.requested() == made
    again = queried("triples")
    assert again.corpus.digest != one.corpus.digest
    assert retrain(again).version not in {made, None}
    job.store.request(first)  # whose negatives were learned from
    with pytest.raises(NothingToLearn, match="came of this very text"):
        retrain(queried("triples"))
    retrain(queried("pairs"))
    assert job.store.requested() != first
    with pytest.raises(NothingToLearn, match="came of this very text"):  # a pair is the same for any model
        retrain(queried("pairs"))


def test_queries_of_people_that_were_listed_are_learned_and_others_are_not(job: Job) -> None:
    config = config_of(job, "distil-hybrid")
    gathered = gather(config, job.store, lambda _: None)
    queried = {"default": ["Where is the  river", "a stone"], "gone": ["a letter"]}
    learned = gathered._replace(queried=queried, learned=frozenset({"before"}))
    found = build_job(learned, load_recipe("distil-hybrid"), job.work)
    assert {*found.about["learned"]} == {"before", digest("where is the river"), digest("a stone")}
