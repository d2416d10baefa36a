"""The rule by which memory is called flat, on curves whose answer is known."""

import os
import tempfile
import threading
from pathlib import Path

import pytest

from benchmarks.growth import Sample, flatness, look, thirds


def curve(*megabytes: float) -> list[Sample]:
    """A sample each second."""
    return [Sample(float(at), value, files=1, threads=1) for at, value in enumerate(megabytes)]


def test_the_first_third_is_warming_up_and_does_not_count() -> None:
    samples = curve(*range(0, 3000, 100), *[500.0] * 61)
    found = flatness(samples)
    assert [len(part) for part in thirds(samples)] == [30, 30, 31]
    assert (found.second_mb, found.last_mb) == (500, 500)


def test_a_steady_leak_shows() -> None:
    found = flatness(curve(*(100 + at for at in range(91))))
    # Seconds 30 to 59 and 60 to 90.
    assert (found.second_mb, found.last_mb) == (144.5, 175)
    assert found.ratio == pytest.approx(175 / 144.5)


def test_a_peak_at_each_swap_is_no_leak() -> None:
    found = flatness(curve(*(400 + (150 if at % 20 < 4 else 0) for at in range(301))))
    assert found.ratio == 1


def test_an_open_file_and_a_thread_are_seen() -> None:
    before = look(os.getpid())
    end = threading.Event()
    thread = threading.Thread(target=end.wait)
    thread.start()
    with tempfile.TemporaryFile():
        during = look(os.getpid())
    end.set()
    thread.join()
    assert during.files == before.files + 1
    assert during.threads == before.threads + 1
    resident = int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    assert during.rss_mb == pytest.approx(resident / 2**20, rel=0.1)
