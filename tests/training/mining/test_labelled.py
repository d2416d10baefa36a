"""Pairs and folders in BEIR's layout: what is read, what is dropped, and the line that an error names."""

import gzip
import json
from pathlib import Path

import pytest

from training.errors import NothingToLearn, TrainingError
from training.mining.pairs import Labelled, read_beir, read_labelled_pairs


def beir(folder: Path, qrels: str = "qrels.train.tsv", suffix: str = "") -> Path:
    corpus = [
        {"_id": "d1", "title": "Cats", "text": "They sleep."},
        {"_id": "d2", "title": "", "text": "Dogs run."},
        {"_id": "d3", "text": "  "},
        {"_id": "d4", "text": "Stones lie."},
    ]
    queries = [{"_id": "q1", "text": "what sleeps"}, {"_id": "q2", "text": "what runs"}]
    judged = "query-id\tcorpus-id\tscore\nq1\td1\t2\nq1\td2\t0\nq2\td2\t1\nq2\td3\t1\n"
    contents = {
        "corpus.jsonl": "\n".join(map(json.dumps, corpus)),
        "queries.jsonl": "\n".join(map(json.dumps, queries)),
        qrels: judged,
    }
    for name, content in contents.items():
        file = folder / (name + suffix)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(gzip.compress(content.encode()) if suffix else content.encode())
    return folder


@pytest.mark.parametrize("suffix", ["", ".gz"])
@pytest.mark.parametrize("qrels", ["qrels.train.tsv", "qrels/train.tsv"])
def test_a_folder_gives_queries_with_their_relevant_documents(
    tmp_path: Path, qrels: str, suffix: str
) -> None:
    assert read_beir(beir(tmp_path, qrels, suffix), "train") == Labelled(
        {"what sleeps": ["Cats They sleep."], "what runs": ["Dogs run."]},
        ["Cats They sleep.", "Dogs run.", "Stones lie."],
        blank=1,  # d3 has no text
        repeated=0,
    )


def test_what_a_folder_lacks_is_named(tmp_path: Path) -> None:
    beir(tmp_path)
    with pytest.raises(TrainingError, match=r"has no qrels\.dev\.tsv or qrels/dev\.tsv, plain or as \.gz"):
        read_beir(tmp_path, "dev")
    file = tmp_path / "qrels.train.tsv"
    file.write_text(file.read_text() + "q1\td9\t1\n")
    with pytest.raises(TrainingError, match=r"qrels\.train\.tsv, line 6: there is no document 'd9' in"):
        read_beir(tmp_path, "train")
    file.write_text("query-id\tcorpus-id\tscore\nq1\td1\thigh\n")
    with pytest.raises(TrainingError, match=r"line 2: the score 'high' is not a number"):
        read_beir(tmp_path, "train")


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("p.tsv", "n\tsent0\tsent1\n1\ta  b\tx\n2\ta b\ty\n3\ta b \tx\n4\tc\tc\n5\td\t \n6\te\tx\n"),
        ("p.tsv", "anchor\tpositive\na b\tx\na b\ty\na b\tx\nc\t c\n\td\ne\tx\n"),
        (
            "p.jsonl",
            (
                '{"anchor": "a\\nb", "positive": "x"}\n{"query": "a b", "sent1": "y"}\n\n'
                '{"anchor": "a b", "positive": "x"}\n{"anchor": "c", "positive": "c"}\n'
                '{"anchor": "", "positive": "d"}\n{"anchor": "e", "positive": "x", "score": 1}\n'
            ),
        ),
    ],
)
def test_pairs_of_one_anchor_are_brought_together(tmp_path: Path, name: str, content: str) -> None:
    (tmp_path / name).write_text(content)
    expected = Labelled({"a b": ["x", "y"], "e": ["x"]}, ["x", "y"], blank=1, repeated=2)
    assert read_labelled_pairs(tmp_path / name) == expected
    given = read_labelled_pairs(tmp_path / name, ["m", " y", "m ", " "])
    assert given == expected._replace(candidates=["m", "y"])


def test_what_is_no_pair_is_refused_with_its_line(tmp_path: Path) -> None:
    file = tmp_path / "p.jsonl"
    file.write_text('{"anchor": "a", "positive": "b"}\n{"anchor": "a"}\n')
    with pytest.raises(TrainingError, match=r"p\.jsonl, line 2 has no text under the name positive or sent1"):
        read_labelled_pairs(file)
    file.write_text('{"anchor": "a", "positive": "\\udc00"}\n')
    with pytest.raises(TrainingError, match="line 1 holds half of a surrogate pair"):
        read_labelled_pairs(file)
    file.write_text('{"anchor": "a", "positive": "a "}\n')
    with pytest.raises(NothingToLearn, match="holds no pair of two different texts"):
        read_labelled_pairs(file)
    (tmp_path / "p.txt").write_text("a\tb\n")
    with pytest.raises(TrainingError, match=r"holds no pairs: name a \.jsonl or \.tsv"):
        read_labelled_pairs(tmp_path / "p.txt")
