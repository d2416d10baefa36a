"""The final counts of an import into a slow, busy, restarting or broken service."""

import http.server
import json
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from models import progress
from service.__main__ import parser
from service.cli.commands import client, import_files
from service.cli.commands.import_files import MAX_LINES, TARGET_SECONDS
from service.errors import CommandError
from tests.service.process import free_port, plain_environment
from tests.waiting import LIMIT

Reply = tuple[int, dict[str, Any], dict[str, str]]


def done(upserted: int) -> Reply:
    return 200, {"upserted": upserted, "failed": 0, "errors": [], "truncated": 0, "sequence": 1}, {}


class Fake:
    """A fake service. `reply(number, ids)` answers a request. If it returns None, the connection closes.

    `stored` has the ids of requests with status 200, in order. `release` ends hanging requests.
    """

    def __init__(self) -> None:
        self.requested: list[list[str]] = []
        self.stored: list[str] = []
        self.release = threading.Event()
        self.reply: Callable[[int, list[str]], Reply | None] = lambda _, ids: done(len(ids))
        fake = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                ids = [json.loads(line)["id"] for line in body.splitlines()]
                fake.requested.append(ids)
                reply = fake.reply(len(fake.requested), ids)
                if reply is None:
                    self.close_connection = True
                    return
                status, value, headers = reply
                if status == 200:
                    fake.stored += ids
                content = json.dumps(value).encode()
                self.send_response(status)
                for name, given in (headers | {"content-length": str(len(content))}).items():
                    self.send_header(name, given)
                self.end_headers()
                self.wfile.write(content)

            def log_message(self, *_: object) -> None:
                pass

        class Server(http.server.ThreadingHTTPServer):
            def handle_error(self, *_: object) -> None:
                """Ignores clients that disconnect."""

        self.server = Server(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self.release.set()
        self.server.shutdown()
        self.server.server_close()


@pytest.fixture
def fake() -> Iterator[Fake]:
    fake = Fake()
    yield fake
    fake.close()


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Replaces the waits of the command. Records their seconds."""
    found: list[float] = []
    monkeypatch.setattr(client, "pause", found.append)
    return found


class Clock:
    """A fake clock for the command, in `now`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1000.0
        for module in (import_files, progress):
            monkeypatch.setattr(module, "clock", lambda: self.now)


def written(folder: Path, count: int) -> Path:
    file = folder / "rows.jsonl"
    file.write_text("".join(f'{{"id": "{at:05}", "text": "text {at:05}"}}\n' for at in range(count)))
    return file


def put(fake: Fake, file: Path) -> str:
    return import_files.run(parser().parse_args(["import", str(file), "--url", fake.url]))


def test_chunks_grow_and_shrink_to_about_a_second(
    fake: Fake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, seconds = Clock(monkeypatch), 0.001  # per document

    def reply(_: int, ids: list[str]) -> Reply:
        clock.now += seconds * len(ids)
        return done(len(ids))

    fake.reply = reply
    assert put(fake, written(tmp_path, 20_000)) == "20,000 documents are stored."
    sizes = [len(ids) for ids in fake.requested]
    assert sizes[:5] == [16, 64, 256, 1024, 1500]
    assert max(sizes) == TARGET_SECONDS / seconds
    fake.requested.clear()
    seconds = 0.5
    put(fake, written(tmp_path, 100))
    assert [len(ids) for ids in fake.requested][:5] == [16, 4, 3, 3, 3]
    fake.requested.clear()
    seconds = 0.0
    put(fake, written(tmp_path, 20_000))
    assert max(len(ids) for ids in fake.requested) == MAX_LINES


def test_the_bar_says_how_many_how_fast_and_how_long_from_the_first_chunk_on(
    fake: Fake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    clock = Clock(monkeypatch)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)

    def reply(_: int, ids: list[str]) -> Reply:
        clock.now += 1.0 * len(ids)
        return done(len(ids))

    fake.reply = reply
    file = tmp_path / "rows.jsonl"
    file.write_text("".join(f'{{"id": "{at}", "text": "{"a river " * 125}"}}\n' for at in range(200)))
    put(fake, file)
    told = [line for line in capsys.readouterr().err.split("\r\033[K") if line]
    assert told[0] == "0 documents, 0 %"
    assert told[1].startswith("16 documents, ")
    assert "%, 1/s, about " in told[1]
    assert told[1].endswith(" min left")
    assert len(told) == len(fake.requested) + 1, "each chunk of a second and a half is told"


def test_a_command_without_a_terminal_writes_a_line_from_time_to_time(
    fake: Fake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    clock = Clock(monkeypatch)

    def reply(_: int, ids: list[str]) -> Reply:
        clock.now += 0.5 * len(ids)
        return done(len(ids))

    fake.reply = reply
    put(fake, written(tmp_path, 240))
    told = capsys.readouterr().err.splitlines()
    assert 9 <= len(told) <= 12, told  # lines in two minutes
    assert all(" documents, " in line and "/s" in line for line in told)


def test_what_is_not_answered_in_time_is_sent_again_in_halves(
    fake: Fake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, waits: list[float]
) -> None:
    monkeypatch.setattr(client, "TIMEOUT_SECONDS", 1.0)

    def reply(number: int, ids: list[str]) -> Reply | None:
        if number > 1 and len(ids) > 4:
            fake.release.wait(60)
            return None
        return done(len(ids))

    fake.reply = reply
    file = written(tmp_path, 24)
    assert put(fake, file) == "24 documents are stored."
    assert fake.stored == [f"{at:05}" for at in range(24)]
    assert [len(ids) for ids in fake.requested] == [16, 8, 4, 4]
    assert waits == []


def test_one_document_that_is_never_answered_ends_it_with_what_is_known(
    fake: Fake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, waits: list[float]
) -> None:
    monkeypatch.setattr(client, "TIMEOUT_SECONDS", 0.5)
    monkeypatch.setattr(client, "PATIENCE", 2)

    def reply(_: int, ids: list[str]) -> Reply | None:
        if "00018" in ids:
            fake.release.wait(60)
            return None
        return done(len(ids))

    fake.reply = reply
    file = written(tmp_path, 20)
    with pytest.raises(CommandError) as raised:
        put(fake, file)
    said = str(raised.value)
    assert "does not answer (no answer for 0.5 s)" in said
    assert "\n18 documents are stored." in said
    assert f"Of {file}, lines 19 to 20 it is not known which are stored." in said
    assert "Run the same command again" in said
    assert waits == [1.0, 2.0]


def test_a_busy_service_is_waited_for_as_long_as_it_says(
    fake: Fake, tmp_path: Path, waits: list[float]
) -> None:
    def reply(number: int, ids: list[str]) -> Reply:
        if number in {1, 3}:
            return 429, {"error": "The queue is full."}, {"retry-after": "7"}
        return done(len(ids)) if number != 2 else (503, {"error": "It stops."}, {})

    fake.reply = reply
    assert put(fake, written(tmp_path, 3)) == "3 documents are stored."
    assert waits == [7.0, 1.0, 7.0]
    assert len(fake.requested) == 4


def test_a_service_that_restarts_is_waited_for_and_one_that_is_gone_is_told(
    fake: Fake, tmp_path: Path, waits: list[float]
) -> None:
    fake.reply = lambda number, ids: None if number == 2 else done(len(ids))
    assert put(fake, written(tmp_path, 100)) == "100 documents are stored."
    assert waits == [1.0]

    def gone(number: int, ids: list[str]) -> Reply | None:
        if number < 2:
            return done(len(ids))
        fake.server.socket.close()
        return None

    fake.requested.clear()
    fake.reply = gone
    with pytest.raises(
        CommandError, match=r"does not answer .*\n16 documents are stored\. Of .*, lines 17 to 80"
    ):
        put(fake, written(tmp_path, 100))


def test_a_refusal_names_lines_of_the_file_and_counts_what_was_stored_of_them(
    fake: Fake, tmp_path: Path
) -> None:
    full = (
        "The disk is full. Before that 40 rows were stored, and all lines up to 32 are done. Send it "
        "again: text that is stored is not embedded again."
    )
    fake.reply = lambda number, ids: done(len(ids)) if number == 1 else (507, {"error": full}, {})
    file = written(tmp_path, 100)
    with pytest.raises(CommandError) as raised:
        put(fake, file)
    refused, stored, again = str(raised.value).splitlines()
    assert refused == f"{file}, lines 17 to 80 were refused: The disk is full."
    assert stored == (f"56 documents are stored. Of {file}, lines 17 to 80 it is not known which are stored.")
    assert again.startswith("Run the same command again")


@pytest.mark.skipif(sys.platform == "win32", reason="there is no SIGINT to send")
def test_ctrl_c_leaves_a_true_sentence(fake: Fake, tmp_path: Path) -> None:
    hanging = threading.Event()

    def reply(number: int, ids: list[str]) -> Reply | None:
        if number == 1:
            return done(len(ids))
        hanging.set()
        fake.release.wait(60)
        return None

    fake.reply = reply
    file = written(tmp_path, 100)
    command = [sys.executable, "-m", "service", "import", str(file), "--url", fake.url]
    with subprocess.Popen(command, env=plain_environment(), stderr=subprocess.PIPE) as process:
        assert hanging.wait(LIMIT)
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=LIMIT)
    assert process.returncode == 130
    told = said.decode()
    assert "Traceback" not in told
    assert told.startswith("Stopped. 16 documents are stored. Of ")
    assert "lines 17 to 80 it is not known which are stored" in told


@pytest.mark.parametrize("levels", [98, 100, 250, 900])
def test_an_answer_is_read_however_deep_its_documents_are(fake: Fake, levels: int) -> None:
    deep: dict[str, Any] = {"at": 0}
    for _ in range(levels):
        deep = {"a": deep}
    fake.reply = lambda _, _ids: (200, {"documents": [deep]}, {})
    remote = client.Remote(fake.url)
    assert remote.send("POST", "/documents", b"").value == {"documents": [deep]}
    remote.close()


def test_an_answer_that_is_too_deep_or_no_json_is_told_as_what_it_is(
    monkeypatch: pytest.MonkeyPatch, fake: Fake
) -> None:
    remote = client.Remote(fake.url)
    for content, words in (("[" * 100_000, "is nested too deeply"), ("<html>", "it sent no JSON")):
        monkeypatch.setattr(json, "dumps", lambda _, content=content: content)
        with pytest.raises(CommandError, match=words):
            remote.send("POST", "/documents", b"")
    remote.close()


def test_nobody_at_the_address_is_told_at_once(tmp_path: Path, waits: list[float]) -> None:
    requested = ["import", str(written(tmp_path, 3)), "--url", f"http://127.0.0.1:{free_port()}"]
    with pytest.raises(CommandError, match=r"does not answer .* --url\.$") as raised:
        import_files.run(parser().parse_args(requested))
    assert "\n" not in str(raised.value), "nothing was sent, so nothing is to be continued"
    assert waits == []
