"""The source of texts: the evaluation folder, or the project's examples."""

import re
from pathlib import Path

import pytest

from benchmarks.command import scratch_folder
from benchmarks.workloads import ABSTRACTS, WIKIPEDIA, corpus


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
