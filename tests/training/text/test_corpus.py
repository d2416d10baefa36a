"""What is read as a corpus, and what is refused with the line that is wrong."""

from __future__ import annotations

import gzip
import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import ClassVar
from urllib.parse import parse_qs, urlsplit

import pytest

from tests.training.corpora import digest_of, write
from training.errors import TrainingError
from training.text.corpus import PAIRS, Corpus, from_service, read_corpus
from training.text.lines import LARGEST_LINE


@pytest.mark.parametrize("name", ["corpus.txt", "corpus.txt.gz", "corpus"])
def test_text_lines_are_read_without_blank_and_repeated_ones(tmp_path: Path, name: str) -> None:
    corpus = read_corpus(write(tmp_path, name, "\ufeffb\r\na\n \t\n\nb\nä\x85ö\nb"))
    assert corpus.texts == ("a", "b", "ä\x85ö")
    assert {type(text) for text in corpus.texts} == {str}  # not a line with its place in the file
    assert (corpus.blank, corpus.repeated) == (2, 2)
    assert str(corpus) == "3 texts (2 blank and 2 repeated ones dropped)"


def test_json_lines_need_only_a_text(tmp_path: Path) -> None:
    content = '{"id": "1", "text": "one\\ntwo"}\n\n{"text": "three", "metadata": {}}\n'
    assert read_corpus(write(tmp_path, "c.jsonl.gz", content)).texts == ("one\ntwo", "three")


def test_a_table_gives_its_column_of_sentences(tmp_path: Path) -> None:
    assert read_corpus(write(tmp_path, "c.tsv.gz", "n\tsentence\n1\tone\n2\ttwo\n")).texts == ("one", "two")
    assert read_corpus(write(tmp_path, "d.tsv", 'text\n"quoted\n')).texts == ('"quoted',)


def test_the_digest_names_the_texts_in_any_order_and_form(tmp_path: Path) -> None:
    lines = read_corpus(write(tmp_path, "c.txt", "b\na\nb\n"))
    table = read_corpus(write(tmp_path, "c.jsonl", '{"text": "a"}\n{"text": "b"}\n'))
    expected = hashlib.sha256(b"".join(n.to_bytes(8, "big") + t for n, t in ((1, b"a"), (1, b"b"))))
    assert lines.digest == table.digest == expected.hexdigest()
    assert read_corpus(write(tmp_path, "d.txt", "ab\n")).digest != lines.digest


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("c.txt", b"fine\ncaf\xe9\n", "c.txt, line 2 is not UTF-8 (byte 4)"),
        ("c.txt", b"a\n" + b"x" * (LARGEST_LINE + 1), "c.txt, line 2 is longer than 1 MiB"),
        ("c.txt", b"\n  \n", "c.txt holds no text"),
        ("c.jsonl", b'{"text": "a"}\n{"id": "x"}\n', "c.jsonl, line 2 has no text"),
        ("c.jsonl", b'{"text": "a"}\n["a"]\n', "c.jsonl, line 2 has no text"),
        ("c.jsonl", b'{"text": 3}\n', "c.jsonl, line 1 has no text"),
        ("c.jsonl", b"{text}\n", "c.jsonl, line 1 is not JSON"),
        ("c.jsonl", b'{"text": "\\ud800"}\n', "c.jsonl, line 1 holds half of a surrogate pair"),
        ("c.jsonl", b'{"text": "a"}\n{}\n', "c.jsonl, line 2 has no text under the name sentence or text"),
        ("c.tsv", b"a\tb\n1\t2\n", "c.tsv has no column `sentence` or `text`"),
        ("c.tsv", b"sentence\tb\n1\t2\n3\n", "c.tsv, line 3 has 1 fields; the first row has 2"),
    ],
)
def test_what_cannot_be_read_is_named_with_its_line(
    tmp_path: Path, name: str, content: bytes, message: str
) -> None:
    with pytest.raises(TrainingError) as refused:
        read_corpus(write(tmp_path, name, content))
    assert message in str(refused.value)


def test_a_line_of_one_mebibyte_is_still_a_text(tmp_path: Path) -> None:
    assert len(read_corpus(write(tmp_path, "c.txt", b"x" * LARGEST_LINE + b"\r\n")).texts[0]) == LARGEST_LINE


def test_a_missing_file_and_half_an_archive_are_refused(tmp_path: Path) -> None:
    with pytest.raises(TrainingError, match="There is no file"):
        read_corpus(tmp_path / "none.txt")
    half = tmp_path / "half.txt.gz"
    half.write_bytes(gzip.compress(b"some text\n" * 1000)[:-12])
    with pytest.raises(TrainingError, match="not a whole gzip file"):
        read_corpus(half)
    (tmp_path / "plain.txt.gz").write_bytes(b"no gzip")
    with pytest.raises(TrainingError, match="not a whole gzip file"):
        read_corpus(tmp_path / "plain.txt.gz")


def test_single_texts_have_the_digest_that_they_always_had() -> None:
    assert Corpus.of(["b", "", "ä b", "b"], "c").digest == digest_of("b", "ä b")
    # printf '\0\0\0\0\0\0\0\1a' | sha256sum
    assert Corpus.of(["a"], "c").digest == (
        "3b196fd4907bedf51c3090e9835f2f7cb61e7ee1b2299ea3b8fed9b4183a822a"
    )


class _Service(BaseHTTPRequestHandler):
    """Documents as the service pages them: by id, those after the cursor."""

    documents: ClassVar = {f"d/{n:04} ä": f"text {n}" for n in range(2345)}
    asked: ClassVar[list[str]] = []

    def do_GET(self) -> None:
        split = urlsplit(self.path)
        given = parse_qs(split.query)
        self.asked.append(self.path)
        if split.path != "/documents":
            self._answer(404, {"error": "no such path"})
            return
        limit, after = int(given["limit"][0]), given.get("after", [""])[0]
        ids = [id for id in sorted(self.documents) if id > after]
        page = [{"id": id, "text": self.documents[id], "metadata": {}} for id in ids[:limit]]
        self._answer(200, {"documents": page, "next": ids[limit - 1] if len(ids) > limit else None})

    def _answer(self, status: int, content: object) -> None:
        raw = json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(raw)))
        self.end_headers()
        self.wfile.write(raw)

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""


@contextmanager
def serving() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Service)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def test_every_page_of_a_service_is_read_once() -> None:
    with serving() as url:
        _Service.asked.clear()
        corpus = from_service(url + "/")
    assert corpus.texts == tuple(sorted(_Service.documents.values()))
    assert len(_Service.asked) == 3


def test_half_a_surrogate_pair_in_a_service_names_its_document(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_Service, "documents", {"d/1": "fine", "d/2": "half \ud800"})
    with (
        serving() as url,
        pytest.raises(TrainingError, match=rf"{url}, document 'd/2' holds half of a surrogate pair"),
    ):
        from_service(url)


def test_a_service_that_is_no_service_is_refused() -> None:
    with (
        serving() as url,
        pytest.raises(TrainingError, match=r"/wrong/documents answered 404: .*no such path"),
    ):
        from_service(url + "/wrong")
    with pytest.raises(TrainingError, match=r"http://127\.0\.0\.1:\d+ cannot be reached"):
        from_service(url)
    with pytest.raises(TrainingError, match="is no address"):
        from_service("no address")


def test_a_service_has_no_pairs() -> None:
    with pytest.raises(TrainingError, match="single texts; this recipe reads rows of anchor, positive"):
        from_service("no address", PAIRS)
