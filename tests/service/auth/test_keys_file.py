"""The keys file: its lines, the command that changes it, and reading it again after changes."""

import argparse
import errno
import hashlib
import json
import logging
import os
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest

from service.auth.keys import Key, KeysError, KeysFile, Role, parse, read_keys
from service.cli import check
from service.cli import keys as keyring
from service.cli.check import require_usable
from service.errors import StartupError
from service.settings import Settings, read
from tests.service.keyed import KEYS, keys_file, line
from tests.service.process import plain_environment, run_and_fail
from tests.waiting import LIMIT

SECRET = "sk-simile-this-must-never-be-shown"
HASH = hashlib.sha256(SECRET.encode()).hexdigest()


def test_a_line_is_a_name_a_role_a_hash_and_perhaps_limits() -> None:
    text = f"""
# Keys of the search team
  search : read : {HASH}
ci:write:{"A" * 64}:60
ops:admin:{"0" * 64}::5000
batch:read:{"1" * 64}:0:0
page:write:{"2" * 64}:::untrusted
shop:write:{"3" * 64}:60::trusted
plain:write:{"4" * 64}:::
"""
    assert parse(text) == [
        Key("search", Role.READ, bytes.fromhex(HASH)),
        Key("ci", Role.WRITE, b"\xaa" * 32, 60),
        Key("ops", Role.ADMIN, bytes(32), None, 5000),
        Key("batch", Role.READ, b"\x11" * 32, 0, 0),
        Key("page", Role.WRITE, b"\x22" * 32, trusted=False),
        Key("shop", Role.WRITE, b"\x33" * 32, 60),
        Key("plain", Role.WRITE, b"\x44" * 32),
    ]
    assert HASH not in repr(parse(text))
    assert str(bytes.fromhex(HASH)) not in repr(parse(text))


@pytest.mark.parametrize(
    ("bad", "words"),
    [
        (f"{SECRET}", "1 field; write name:role:sha256-of-key"),
        (f"ci:{HASH}", "2 fields"),
        (f"ci:read:{HASH}:1:2:trusted:4", "the scope must be a JSON object"),
        (f"ci:read:{HASH}:1:2:yes", "the sixth field must be trusted, untrusted"),
        (f":read:{HASH}", "the name must be"),
        (f"{'n' * 65}:read:{HASH}", "the name must be"),
        (f"ci key:read:{HASH}", "the name must be"),
        (f"ci:root:{HASH}", "read, write, admin"),
        (f"ci:Read:{HASH}", "read, write, admin"),
        (f"ci:read:{SECRET}", "64 hexadecimal digits"),
        (f"ci:read:{HASH[:-1]}", "64 hexadecimal digits"),
        (f"ci:read:{HASH}:many", "a limit must be"),
        (f"ci:read:{HASH}:-1", "a limit must be"),
        (f"good:read:{HASH}", "its name is also on line 2"),
        (f"other:read:{'b' * 64}", "its hash is also on line 2"),
        (f"other:read:{'B' * 64}", "its hash is also on line 2"),
    ],
)
def test_a_wrong_line_is_named_and_nothing_of_it_is_repeated(bad: str, words: str) -> None:
    with pytest.raises(KeysError) as refused:
        parse(f"# two lines\ngood:admin:{'b' * 64}\n{bad}\n")
    message = str(refused.value)
    assert message.startswith("line 3: ")
    assert words in message
    for secret in (SECRET, HASH, HASH[:-1], "b" * 64):
        assert secret not in message


@pytest.mark.parametrize("content", [b"", b"\n# only words\n", b"ci:read:\xff\xfe\n"])
def test_a_file_without_a_key_or_not_of_text_does_not_start_a_service(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: bytes
) -> None:
    file = tmp_path / "keys"
    file.write_bytes(content)
    monkeypatch.setenv("SIMILE_API_KEYS_FILE", str(file))
    with pytest.raises(StartupError, match=r"SIMILE_API_KEYS_FILE=.*: it (holds no key|is not UTF-8)"):
        require_usable(read())


def test_a_file_that_cannot_be_read_is_refused_in_plain_words(tmp_path: Path) -> None:
    said = run_and_fail(tmp_path, SIMILE_API_KEYS_FILE=str(tmp_path / "absent"))
    assert f"SIMILE_API_KEYS_FILE={tmp_path / 'absent'}: it cannot be read" in said
    assert "simile keys add" in said
    with pytest.raises(KeysError, match="not a regular file"):
        read_keys(tmp_path)
    (tmp_path / "large").write_text("#" * (2 << 20))
    with pytest.raises(KeysError, match="2097152 bytes"):
        read_keys(tmp_path / "large")


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "example.org"])
def test_with_keys_any_address_is_allowed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, host: str) -> None:
    monkeypatch.setenv("SIMILE_HOST", host)
    with pytest.raises(StartupError, match="SIMILE_API_KEYS_FILE"):
        read()
    monkeypatch.setenv("SIMILE_API_KEYS_FILE", str(keys_file(tmp_path)))
    assert read().host == host


def test_check_counts_the_keys_of_each_role_by_name(tmp_path: Path) -> None:
    file = keys_file(tmp_path, line("second", "read", "x"))
    said = check.report(Settings(data_dir=tmp_path / "data", api_keys_file=file))
    assert "2 read, 1 write, 1 admin: reader, writer, boss, second" in said
    for key in KEYS.values():
        assert hashlib.sha256(key.encode()).hexdigest() not in said


@pytest.fixture
def eager(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("service.auth.keys.LOOK_SECONDS", 0.0)


def names(file: KeysFile) -> list[str]:
    return [key.name for key in file.keys]


def test_a_changed_file_is_read_again_and_each_change_is_audited(
    tmp_path: Path, eager: None, caplog: pytest.LogCaptureFixture
) -> None:
    keys = KeysFile(keys_file(tmp_path))
    assert not keys.changed()
    keys_file(tmp_path, line("new", "read", "x"))
    assert keys.changed()
    assert names(keys) == ["reader", "writer", "boss", "new"]
    assert not keys.changed()
    lines = [line("reader", "write", KEYS["reader"]), line("new", "read", "y")]
    (tmp_path / "keys").write_text("\n".join(lines))
    assert keys.changed()
    assert names(keys) == ["reader", "new"]
    records = [record for record in caplog.records if record.name == "simile.audit"]
    audited = [(record.getMessage(), record.__dict__["fields"]) for record in records]
    nobody = {"key": "-", "request_id": "-"}
    assert audited == [
        ("key-added", nobody | {"name": "new", "role": "read"}),
        ("key-removed", nobody | {"name": "boss"}),
        ("key-changed", nobody | {"name": "new", "role": "read"}),
        ("key-changed", nobody | {"name": "reader", "role": "write"}),
        ("key-removed", nobody | {"name": "writer"}),
    ]


def test_a_change_that_keeps_size_and_time_is_seen_too(tmp_path: Path, eager: None) -> None:
    file = keys_file(tmp_path)
    keys = KeysFile(file)
    before = file.stat()
    other = tmp_path / "other"
    other.write_text(file.read_text().replace("boss", "chef"))
    os.utime(other, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert other.stat().st_size == before.st_size
    other.replace(file)
    assert keys.changed()
    assert "chef" in names(keys)


@pytest.mark.parametrize("how", ["broken", "empty", "gone"])
def test_a_file_that_has_become_unusable_keeps_the_keys_and_says_so_once(
    tmp_path: Path, eager: None, caplog: pytest.LogCaptureFixture, how: str
) -> None:
    file = keys_file(tmp_path)
    keys = KeysFile(file)
    if how == "gone":
        file.unlink()
    else:
        file.write_text("" if how == "empty" else f"reader:read:{SECRET}\n")
    for _ in range(5):
        assert not keys.changed()
    assert names(keys) == ["reader", "writer", "boss"]
    [error] = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert str(file) in error.getMessage()
    assert SECRET not in caplog.text
    keys_file(tmp_path, line("new", "read", "x"))
    assert keys.changed()
    assert "new" in names(keys)


def test_the_file_is_looked_at_once_a_second_at_most(tmp_path: Path) -> None:
    keys = KeysFile(keys_file(tmp_path))
    keys_file(tmp_path, line("new", "read", "x"))
    assert not keys.changed(), "a second has not passed since it was read"
    keys._look_at -= 1.0
    assert keys.changed()


def run(file: Path, *arguments: str) -> str:
    """Returns the output of `python -m service keys`, run in this process."""
    parser = argparse.ArgumentParser()
    keyring.describe(parser)
    return keyring.run(parser.parse_args([*arguments, "--file", str(file)]))


def test_the_command_prints_a_new_key_and_keeps_its_hash_alone(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    command = [sys.executable, "-m", "service", "keys", "add", "ops", "--role", "admin"]
    environment = plain_environment(SIMILE_API_KEYS_FILE=str(file))
    made = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=LIMIT, check=True)
    key = made.stdout.strip()
    assert key.startswith("sk-simile-")
    assert len(key) >= 50
    assert key not in made.stderr
    assert "simile.audit: key-added key=- name=ops role=admin" in made.stderr
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert file.read_text() == f"ops:admin:{hashlib.sha256(key.encode()).hexdigest()}\n"

    again = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=LIMIT)  # noqa: PLW1510
    assert (again.returncode, again.stdout) == (1, "")
    assert f"{file}: there is a key 'ops' already" in again.stderr
    assert "Traceback" not in again.stderr


def test_keys_are_added_listed_and_removed_and_the_rest_of_the_file_stays(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text(f"# ours\nops:admin:{HASH}")  # without a line break at the end
    file.chmod(0o644)
    first = run(file, "add", "web", "--role", "read", "--tokens-per-minute", "5000")
    second = run(file, "add", "job", "--role", "write", "--requests-per-minute", "0")
    third = run(file, "add", "page", "--role", "write", "--untrusted")
    assert first != second
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    hashes = [hashlib.sha256(key.encode()).hexdigest() for key in (first, second, third)]
    assert file.read_text().splitlines() == [
        "# ours",
        f"ops:admin:{HASH}",
        f"web:read:{hashes[0]}::5000",
        f"job:write:{hashes[1]}:0",
        f"page:write:{hashes[2]}:::untrusted",
    ]
    listed = json.loads(run(file, "list", "--json"))
    assert [tuple(key.values()) for key in listed] == [
        ("ops", "admin", None, None, True, None),
        ("web", "read", None, 5000, True, None),
        ("job", "write", 0, None, True, None),
        ("page", "write", None, None, False, None),
    ]
    assert hashes[0] not in json.dumps(listed)
    assert run(file, "list").splitlines() == [
        "name  role   requests/min  tokens/min  trust",
        "ops   admin  setting's     setting's   trusted",
        "web   read   setting's     5000        trusted",
        "job   write  none          setting's   trusted",
        "page  write  setting's     setting's   untrusted",
    ]
    before = file.read_text().splitlines()
    run(file, "remove", "ops")
    assert file.read_text().splitlines() == [before[0], *before[2:]]
    assert {path.name for path in tmp_path.iterdir()} == {"keys", ".keys.lock"}


@pytest.mark.parametrize(
    ("content", "arguments", "words"),
    [
        (None, "add boss --role read", "there is a key 'boss' already"),
        (None, "add new --role read --requests-per-minute -1", "a limit must be"),
        (None, "remove nobody", "there is no key 'nobody'; there are reader, writer, boss"),
        ("not a keys file\n", "add new --role read", "line 1: it has 1 field"),
        (line("last", "admin", "x") + "\n", "remove last", "its last key"),
    ],
)
def test_what_the_command_cannot_do_changes_nothing(
    tmp_path: Path, content: str | None, arguments: str, words: str
) -> None:
    file = keys_file(tmp_path)
    if content is not None:
        file.write_text(content)
    before = file.read_bytes()
    with pytest.raises(KeysError, match=words):
        run(file, *arguments.split())
    assert file.read_bytes() == before


def test_a_key_in_place_of_a_name_is_refused_and_not_repeated(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        run(keys_file(tmp_path), "add", f"bad {SECRET}", "--role", "read")
    said = capsys.readouterr().err
    assert "a name, not a key" in said
    assert SECRET not in said


def test_a_full_disk_leaves_the_old_file_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = keys_file(tmp_path)
    before = file.read_bytes()

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(KeysError, match=r"cannot be changed \(No space left"):
        run(file, "add", "new", "--role", "read")
    assert file.read_bytes() == before
    assert {path.name for path in tmp_path.iterdir()} == {"keys", ".keys.lock"}


def test_keys_that_are_made_at_once_are_all_kept(tmp_path: Path) -> None:
    file = keys_file(tmp_path)
    script = (
        "import sys, time; from pathlib import Path; from service.cli import keys as keyring\n"
        "replace = keyring._replace\n"
        "keyring._replace = lambda *given: (time.sleep(0.005), replace(*given))\n"
        "while not Path(sys.argv[1] + '.go').exists(): time.sleep(0.001)\n"
        "for at in range(10):\n"
        "    keyring.run(type('A', (), dict(file=Path(sys.argv[1]), change='add', name=f'{sys.argv[2]}{at}',"
        " role=keyring.Role.READ, requests_per_minute=None, tokens_per_minute=None, trust='',"
        " collections=None, filter=None, max_documents=None, max_bytes=None, max_collections=None)))"
    )
    running = [
        subprocess.Popen([sys.executable, "-c", script, str(file), name], env=plain_environment())
        for name in ("left", "right")
    ]
    time.sleep(0.5)
    (tmp_path / "keys.go").touch()
    assert [process.wait(LIMIT) for process in running] == [0, 0]
    expected = {f"{side}{at}" for side in ("left", "right") for at in range(10)} | set(KEYS)
    assert {key.name for key in read_keys(file)} == expected
