"""Memory growth, computed from curves whose growth is known, and samples of a real process."""

import os
import sys
from contextlib import closing
from pathlib import Path

import pytest

from benchmarks.machine import Sample, memory_growth, take_sample, thirds
from benchmarks.processes import Process

OPENS_AND_STARTS = """
import sys, tempfile, threading
print("{}", flush=True)
sys.stdin.readline()
file = tempfile.TemporaryFile()
threading.Thread(target=threading.Event().wait, daemon=True).start()
print("{}", flush=True)
sys.stdin.readline()
"""


def curve(*megabytes: float) -> list[Sample]:
    """Return one sample per second, with the given megabytes of memory."""
    return [Sample(float(at), value, files=1, threads=1) for at, value in enumerate(megabytes)]


def test_a_steady_leak_shows_and_neither_a_warm_up_nor_a_peak_at_each_swap_does() -> None:
    samples = curve(*range(0, 3000, 100), *[500.0] * 61)
    assert [len(part) for part in thirds(samples)] == [30, 30, 31]
    assert memory_growth(samples) == 1
    assert memory_growth(curve(*(100 + at for at in range(91)))) == pytest.approx(175 / 144.5)
    assert memory_growth(curve(*(400 + (150 if at % 20 < 4 else 0) for at in range(301)))) == 1


def test_a_sample_counts_an_open_file_and_a_thread() -> None:
    program = Process("The program", [sys.executable, "-c", OPENS_AND_STARTS], piped=True)
    with closing(program):
        program.answer()
        before = take_sample(program.pid)
        program.order()
        during = take_sample(program.pid)
        pages = int(Path(f"/proc/{program.pid}/statm").read_text().split()[1])
    assert during.files == before.files + 1
    assert during.threads == before.threads + 1
    assert during.rss_mb == pytest.approx(pages * os.sysconf("SC_PAGE_SIZE") / 2**20, rel=0.1)
