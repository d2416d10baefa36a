"""The source of texts: the evaluation folder, or the project's examples."""

import re
from pathlib import Path

import pytest

from benchmarks.command import scratch_folder
from benchmarks.workloads import ABSTRACTS, EXAMPLES, TAB, WIKIPEDIA, Corpus, corpus, pairs, read_texts
from models.publishing.default import default_source, wheel_path
from models.tokens.pairs import Pair, PairTokenizer
from models.tokens.tokenizer import FILE_NAME, PairIds


def test_without_the_evaluation_folder_words_come_from_the_project_s_examples(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SIMILE_EVAL_DATA", str(tmp_path))
    found = corpus()
    assert "example corpus" in found.source
    assert len(found.passages) > 100


@pytest.mark.parametrize("damage", ["missing", "a file", "no gzip"])
def test_an_unreadable_evaluation_folder_ends_a_benchmark_with_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damage: str
) -> None:
    folder, expected = tmp_path / "sets", "is not a folder. Name its folder"
    if damage == "a file":
        folder.write_text("")
    elif damage == "no gzip":
        for name in (WIKIPEDIA, *ABSTRACTS):
            (folder / name).parent.mkdir(parents=True)
            (folder / name).write_bytes(b"no gzip")
        expected = "wiki_sentences.tsv.gz"
    monkeypatch.setenv("SIMILE_EVAL_DATA", str(folder))
    with pytest.raises(SystemExit, match=f"{re.escape(str(folder))}.*{expected}") as ended, scratch_folder():
        corpus()
    assert "\n" not in str(ended.value)


@pytest.mark.skipif(not wheel_path().is_file(), reason="needs the default model (`make test` downloads it)")
def test_any_query_with_any_text_of_the_pairs_has_128_tokens() -> None:
    with default_source() as folder:
        tokenizer = PairTokenizer(folder / FILE_NAME, 512)
    made = pairs(tokenizer, Corpus("examples", [*read_texts(EXAMPLES)]), 16, of_query=4)
    assert made.lengths() == [128] * 16
    assert all(isinstance(row, PairIds) for row in made.ids), "the token types are known"
    queries, texts = zip(*(line.split(TAB) for line in made.texts), strict=True)
    assert [queries[at] for at in range(0, 16, 4) for _ in range(4)] == [*queries]
    assert (len(set(queries)), len(set(texts))) == (4, 16)
    assert {len(query.split()) for query in queries} == {8}
    crossed = tokenizer.tokenize_pairs([Pair(query, text) for query in queries for text in texts])
    assert {len(row.ids) for row in crossed} == {128}
