"""The progress of a long step: one changing line on a terminal, regular lines in a log."""

import sys
from collections.abc import Callable

import pytest

from models import progress
from models.progress import Progress, counted, silent

Wait = Callable[[float], None]


@pytest.fixture
def wait(monkeypatch: pytest.MonkeyPatch) -> Wait:
    """A function that advances the clock of progress messages by a number of seconds."""
    now = [1000.0]
    monkeypatch.setattr(progress, "clock", lambda: now[0])

    def pass_by(seconds: float) -> None:
        now[0] += seconds

    return pass_by


def test_without_a_terminal_there_is_a_line_after_three_seconds_and_every_ten(
    wait: Wait, capsys: pytest.CaptureFixture[str]
) -> None:
    with Progress("texts", 4000, "encoding") as told:
        for _ in range(35):
            wait(1.0)
            told.add(10)
    lines = capsys.readouterr().err.splitlines()
    assert lines == [
        "encoding: 30 texts, 0 %, 10/s, about 7 min left",
        "encoding: 130 texts, 3 %, 10/s, about 6 min left",
        "encoding: 230 texts, 5 %, 10/s, about 6 min left",
        "encoding: 330 texts, 8 %, 10/s, about 6 min left",
    ]


def test_a_step_that_is_over_soon_leaves_no_line_in_a_log(capsys: pytest.CaptureFixture[str]) -> None:
    assert list(counted("abc", "letters", 3, "reading")) == ["a", "b", "c"]
    assert capsys.readouterr().err == ""


def test_on_a_terminal_one_line_moves_from_the_first_moment_and_goes_at_the_end(
    wait: Wait, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    with Progress("steps", 4, "training", first=1) as told:
        wait(5.0)
        told.add(more="loss 0.5")
        wait(0.1)
        told.add()  # too soon for another line
    assert capsys.readouterr().err.split("\r\033[K") == [
        "",
        "training: 1 steps, 25 %",
        "training: 2 steps, 50 %, 5.0 s each, about 10 s left, loss 0.5",
        "",
    ]


def test_the_line_is_told_to_whoever_listens(wait: Wait, capsys: pytest.CaptureFixture[str]) -> None:
    heard: list[str] = []
    with Progress("texts", 2, "proving", say=heard.append) as told:
        wait(40.0)
        told.add()
    assert heard == ["proving: 1 texts, 50 %, 40.0 s each, about 40 s left"]
    assert capsys.readouterr().err == ""


def test_silence_is_kept_on_a_terminal_too(
    wait: Wait, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    with Progress("texts", 2, "proving", say=silent) as told:
        wait(40.0)
        told.add()
    assert capsys.readouterr().err == ""
