"""Reading a corpus, and errors that name the wrong line."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.parts.json_server import Answer, json_server
from tests.training.corpora import compute_digest, write
from training.errors import NothingToLearn, TrainingError
from training.text.corpus import (
    LISTS,
    PAIRS,
    RELATIONS,
    TRIPLES,
    Corpus,
    Kind,
    Row,
    from_service,
    read_corpus,
)
from training.text.lines import LARGEST_LINE


@pytest.mark.parametrize("name", ["corpus.txt", "corpus.txt.gz", "corpus"])
def test_text_lines_are_read_without_blank_and_repeated_ones(tmp_path: Path, name: str) -> None:
    corpus = read_corpus(write(tmp_path, name, "\ufeffb\r\na\n \t\n\nb\nä\x85ö\nb"))
    assert corpus.texts == ("a", "b", "ä\x85ö")
    assert {type(text) for text in corpus.texts} == {str}  # not a line with its place in the file
    assert (corpus.blank, corpus.repeated) == (2, 2)
    assert str(corpus) == "3 texts (2 blank and 2 repeated dropped)"


def test_json_lines_need_only_a_text(tmp_path: Path) -> None:
    content = '{"id": "1", "text": "one\\ntwo"}\n\n{"text": "three", "metadata": {}}\n'
    assert read_corpus(write(tmp_path, "c.jsonl.gz", content)).texts == ("one\ntwo", "three")


def test_a_table_gives_its_column_of_sentences(tmp_path: Path) -> None:
    assert read_corpus(write(tmp_path, "c.tsv.gz", "n\tsentence\n1\tone\n2\ttwo\n")).texts == ("one", "two")
    assert read_corpus(write(tmp_path, "d.tsv", 'text\n"quoted\n')).texts == ('"quoted',)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("c.txt", b"\n  \n", " holds no text"),
        ("c.jsonl", b'{"text": "a"}\n{"id": "x"}\n', ", line 2 has no text under the name sentence or text"),
        ("c.jsonl", b'{"text": 3}\n', ", line 1 has no text"),
        ("c.jsonl", b'{"text": "\\ud800"}\n', ", line 1 holds half of a surrogate pair"),
        ("c.txt.gz", b"a text\n" * 1000, " is not a whole gzip file"),
    ],
)
def test_what_cannot_be_read_is_named_with_its_line(
    tmp_path: Path, name: str, content: bytes, message: str
) -> None:
    file = write(tmp_path, name, content)
    if name.endswith(".gz"):
        file.write_bytes(file.read_bytes()[:-12])
    with pytest.raises(TrainingError) as refused:
        read_corpus(file)
    assert str(refused.value).startswith(f"{file}{message}")
    with pytest.raises(TrainingError, match="There is no file"):
        read_corpus(tmp_path / "none.txt")


def test_a_line_of_one_mebibyte_is_still_a_text(tmp_path: Path) -> None:
    assert len(read_corpus(write(tmp_path, "c.txt", b"x" * LARGEST_LINE + b"\r\n")).texts[0]) == LARGEST_LINE


def test_single_texts_have_the_digest_that_they_always_had() -> None:
    assert Corpus.of(["b", "", "ä b", "b"], "c").digest == compute_digest("b", "ä b")
    expected = "3b196fd4907bedf51c3090e9835f2f7cb61e7ee1b2299ea3b8fed9b4183a822a"
    assert Corpus.of(["a"], "c").digest == expected  # printf '\0\0\0\0\0\0\0\1a' | sha256sum


def paged(documents: dict[str, str], requests: list[str]) -> Answer:
    """Returns a handler that pages documents by id, as the service does, and adds paths to `requests`."""

    def answer(path: str, given: dict[str, str], _headers: Mapping[str, str]) -> tuple[int, object]:
        requests.append(path)
        if path != "/documents":
            return 404, {"error": "no such path"}
        limit, ids = int(given["limit"]), [id for id in sorted(documents) if id > given.get("after", "")]
        page = [{"id": id, "text": documents[id], "metadata": {}} for id in ids[:limit]]
        return 200, {"documents": page, "next": ids[limit - 1] if len(ids) > limit else None}

    return answer


def test_every_page_of_a_service_is_read_once() -> None:
    documents, requests = {f"d/{n:04} ä": f"text {n}" for n in range(2345)}, list[str]()
    with json_server(paged(documents, requests)) as url:
        assert from_service(url + "/").texts == tuple(sorted(documents.values()))
        assert len(requests) == 3
        with pytest.raises(TrainingError, match=r"/wrong/documents answered 404: .*no such path"):
            from_service(url + "/wrong")


def test_half_a_surrogate_pair_in_a_service_names_its_document() -> None:
    with (
        json_server(paged({"d/1": "fine", "d/2": "half \ud800"}, [])) as url,
        pytest.raises(TrainingError, match=rf"{url}, document 'd/2' holds half of a surrogate pair"),
    ):
        from_service(url)


def test_a_service_has_no_pairs() -> None:
    with pytest.raises(TrainingError, match="single texts; this recipe reads rows of anchor, positive"):
        from_service("no address", PAIRS)


ROWS: list[Row] = [(("a", "x"), None), (("b", "y"), None), (("a", "y"), None)]


def test_the_digest_of_rows_is_of_what_stands_together() -> None:
    corpus = Corpus.of_rows(ROWS, "c")
    assert corpus.texts == ("a", "x", "a", "y", "b", "y")
    assert corpus.digest == compute_digest("a", "x", "a", "y", "b", "y", before="2 None")
    assert Corpus.of_rows(reversed([*ROWS, ROWS[0]]), "c").digest == corpus.digest
    others: list[list[Row]] = [
        [(("a", "y"), None), (("b", "x"), None), (("a", "x"), None)],  # the same texts, other rows
        [((b, a), None) for (a, b), _ in ROWS],
        [(("a", "x", "a"), None), (("y", "b", "y"), None)],  # the same texts in the same order
        [((text,), None) for text in "axyb"],
        [(row, 0) for row, _ in ROWS],
        [(row, 1) for row, _ in ROWS],
        [(row, at) for at, (row, _) in enumerate(ROWS)],
    ]
    digests = {corpus.digest, *(Corpus.of_rows(rows, "c").digest for rows in others)}
    assert len(digests) == 1 + len(others)


def test_labels_stay_with_their_rows_in_any_order() -> None:
    labelled: list[Row] = [(row, at) for at, (row, _) in enumerate(ROWS)]
    corpus = Corpus.of_rows(labelled, "c")
    assert corpus.labels == (0, 2, 1)
    turned = Corpus.of_rows(labelled[::-1], "c")
    assert (turned.texts, turned.labels, turned.digest) == (corpus.texts, corpus.labels, corpus.digest)
    assert corpus.digest == compute_digest(*corpus.texts, before="2 (0, 2, 1)")


def test_rows_are_repeated_only_when_all_of_them_is() -> None:
    rows: list[Row] = [(("a", "x"), 0), (("a", "x"), 0), (("a", "x"), 1), (("x", "a"), 0), (("a", " "), 2)]
    corpus = Corpus.of_rows(rows, "c")
    assert (len(corpus), corpus.columns) == (3, 2)
    assert (corpus.blank, corpus.repeated) == (1, 1)
    assert corpus.labels == (0, 1, 0)  # two labels of one pair are two rows
    assert str(corpus) == "3 rows of 2 texts (1 blank and 1 repeated dropped)"
    with pytest.raises(NothingToLearn, match="c holds no text"):
        Corpus.of_rows([(("a", "\u3000"), None)], "c")


ANCHORS = ("anchor", "sent0", "query", "premise", "sentence1")
POSITIVES = ("positive", "sent1", "hypothesis", "sentence2")
NEGATIVES = ("negative", "hard_neg", "sent2")


@pytest.mark.parametrize("at", range(5))
@pytest.mark.parametrize("suffix", [".jsonl", ".tsv", ".TSV.gz"])
def test_a_column_goes_by_any_of_its_names(tmp_path: Path, at: int, suffix: str) -> None:
    names = [known[at % len(known)] for known in (ANCHORS, POSITIVES, NEGATIVES)]
    rows = [("a", "b", "c"), ("d", "e", "f"), ("g", " ", "i"), ("a", "b", "c")]
    content = "".join(json.dumps(dict(zip(names, row, strict=True)) | {"n": 1}) + "\n" for row in rows)
    if suffix != ".jsonl":
        content = "\n".join("\t".join(row) for row in [("n", *names), *(("1", *row) for row in rows)])
    file = write(tmp_path, f"c{suffix}", content)
    corpus = read_corpus(file, TRIPLES)
    assert corpus.texts == ("a", "b", "c", "d", "e", "f")
    assert (corpus.columns, corpus.blank, corpus.repeated, corpus.labels) == (3, 1, 1, None)
    assert read_corpus(file, PAIRS).texts == ("a", "b", "d", "e")


def test_a_row_may_have_several_negatives(tmp_path: Path) -> None:
    rows = [
        {"anchor": "a", "positive": "b", "negative": ["c", "d", " ", "e"]},
        {"anchor": "f", "positive": "g", "negative": "h"},
        {"anchor": "i", "positive": "j", "negative_1": "k", "negative_2": "l"},
    ]
    file = write(tmp_path, "c.jsonl", "\n".join(map(json.dumps, rows)))
    corpus = read_corpus(file, TRIPLES)
    assert corpus.columns == 5
    assert corpus.texts == (*"abcde", *"fgh", "", "", *"ijkl", "")
    assert read_corpus(file, TRIPLES, 2).texts == (*"abcd", *"fgh", "", *"ijkl")
    assert read_corpus(file, TRIPLES, 1).texts == (*"abc", *"fgh", *"ijk")
    table = "anchor\tpositive\tnegative_1\tnegative_2\na\tb\tc\td\nf\tg\th\t\ni\tj\t \tl\n"
    found = read_corpus(write(tmp_path, "c.tsv", table), TRIPLES)
    assert found.texts == (*"abcd", *"fgh", "")
    assert found.blank == 1
    for wrong in ([], ["c", 3], None):
        bad = write(tmp_path, "bad.jsonl", json.dumps({"anchor": "a", "positive": "b", "negative": wrong}))
        with pytest.raises(TrainingError, match="line 1 has no text under the name negative or"):
            read_corpus(bad, TRIPLES)


def test_labels_are_words_or_numbers(tmp_path: Path) -> None:
    words = ["entailment", "Neutral", "CONTRADICTION", 0, "1", 2, 1.0, "2"]
    rows = [{"premise": f"p{n}", "hypothesis": "h", "label": word} for n, word in enumerate(words)]
    corpus = read_corpus(write(tmp_path, "c.jsonl", "\n".join(map(json.dumps, rows)) + "\n\n"), RELATIONS)
    assert corpus.labels == (0, 1, 2, 0, 1, 2, 1, 2)
    assert corpus.blank == 1
    table = "sentence1\tsentence2\tentailment\na\tb\tneutral\nc\td\t0\n"
    assert read_corpus(write(tmp_path, "c.tsv", table), RELATIONS).labels == (1, 0)


DOCUMENTS = {f"doc_{number}": f"d{number}" for number in range(1, 9)}
EIGHT = "`scores` must be 8 numbers, one for each document."


def test_scores_stand_with_their_documents(tmp_path: Path) -> None:
    rows = [{"query": query, **DOCUMENTS, "scores": [n, *[0.5] * 7]} for n, query in enumerate("ba")]
    corpus = read_corpus(write(tmp_path, "c.jsonl", "\n".join(map(json.dumps, rows))), LISTS)
    assert (len(corpus), corpus.columns) == (2, 9)
    assert corpus.texts[:9] == ("a", *DOCUMENTS.values())
    assert corpus.labels == ((1.0, *[0.5] * 7), (0.0, *[0.5] * 7))
    lines = ["anchor", *DOCUMENTS, "scores"], ["a", *DOCUMENTS.values(), "1" + " .5" * 7]
    table = "\n".join(map("\t".join, lines))
    assert read_corpus(write(tmp_path, "c.tsv", table), LISTS).labels == ((1.0, *[0.5] * 7),)
    other = read_corpus(write(tmp_path, "d.jsonl", json.dumps(rows[0] | {"scores": [0.4] * 8})), LISTS)
    assert other.digest != read_corpus(write(tmp_path, "e.jsonl", json.dumps(rows[0])), LISTS).digest


@pytest.mark.parametrize("scores", [None, [1.0] * 7, [*[1.0] * 7, None], [*[1.0] * 7, math.nan], 3, "1 2 x"])
def test_scores_that_are_not_one_number_for_each_document_are_refused(tmp_path: Path, scores: object) -> None:
    file = write(tmp_path, "c.jsonl", json.dumps({"query": "a", **DOCUMENTS, "scores": scores}))
    with pytest.raises(TrainingError, match=EIGHT):
        read_corpus(file, LISTS)


PAIR = '{"anchor": "a", "positive": "b"'
KNOWN = "is none of entailment (0), neutral (1), contradiction (2)."
LONG = "x" * 99
TABLE = "anchor\tpositive\na\tb\n"


@pytest.mark.parametrize(
    ("label", "shown"),
    [
        *(
            ('"-"', "'-'"),
            ("3", "'3'"),
            ("-1", "'-1'"),
            ("true", "'True'"),
            ("0.5", "'0.5'"),
            ("NaN", "'nan'"),
        ),
        ('["neutral"]', "\"['neutral']\""),
        (f'"{LONG}"', f"'{LONG[:40]}'"),
    ],
)
def test_unknown_labels_are_named(tmp_path: Path, label: str, shown: str) -> None:
    with pytest.raises(TrainingError) as refused:
        read_corpus(write(tmp_path, "c.jsonl", f'{PAIR}, "label": {label}}}'), RELATIONS)
    assert str(refused.value).endswith(f"c.jsonl, line 1: the label {shown} {KNOWN}")


@pytest.mark.parametrize(
    ("kind", "name", "content", "message"),
    [
        (PAIRS, "c.jsonl", f'{PAIR}}}\n{{"anchor": "a"}}', ", line 2 has no text under the name positive or"),
        (PAIRS, "c.jsonl", '{"anchor": ["a"], "positive": "b"}', ", line 1 has no text under the name"),
        (PAIRS, "c.jsonl", f"{PAIR}}}\n\n{{}}", ", line 3 has no text under the name anchor or sent0"),
        (TRIPLES, "c.jsonl", f"{PAIR}}}", ", line 1 has no text under the name negative or hard_neg"),
        (TRIPLES, "c.tsv", TABLE, " has no column `negative` or `hard_neg` or `sent2` or `negative_1`"),
        (RELATIONS, "c.tsv", TABLE, " has no column `label` or `entailment` in its first row"),
        (RELATIONS, "c.jsonl", f"{PAIR}}}", ", line 1 has no label under the name label or entailment."),
        (RELATIONS, "c.jsonl", f'{PAIR}, "label": null}}', ", line 1 has no label under the name label or"),
        (PAIRS, "c.txt", "a\n", ": this recipe reads rows of anchor, positive: give a .jsonl or a .tsv"),
        (RELATIONS, "c.txt.gz", "a\n", ": this recipe reads rows of anchor, positive, label: give a .jsonl"),
    ],
)
def test_rows_that_are_not_what_the_recipe_reads_are_named(
    tmp_path: Path, kind: Kind, name: str, content: str, message: str
) -> None:
    file = write(tmp_path, name, content)
    with pytest.raises(TrainingError) as refused:
        read_corpus(file, kind)
    assert str(refused.value).startswith(f"{file}{message}")
