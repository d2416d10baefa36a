"""glibc keeps the buffers of each thread after `keep_buffers`, unless one of its variables is set."""

import ctypes
import os
import subprocess
import sys

import pytest

# Prints whether buffers stay, and the MiB that the first thread and another one keep of a block of 20 MiB.
USING = """
import ctypes, os, sys, threading
from models.engines import malloc

libc = ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p
if sys.argv[1] == "keep":
    malloc.keep_buffers()

def used():
    return int(open("/proc/self/statm").read().split()[1]) * os.sysconf("SC_PAGESIZE") >> 20

def use():
    before = used()
    block = ctypes.c_void_p(libc.malloc(ctypes.c_size_t(20 << 20)))
    ctypes.memset(block, 1, 20 << 20)
    libc.free(block)
    kept.append(used() - before)

kept = []
use()
thread = threading.Thread(target=use)
thread.start()
thread.join()
print(int(malloc.buffers_stay), *kept)
"""

pytestmark = pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mallopt"), reason="needs glibc")


def use(how: str, **variables: str) -> list[int]:
    environ = {name: value for name, value in os.environ.items() if not name.startswith("MALLOC_")}
    environ = environ | {"GLIBC_TUNABLES": ""} | variables
    command = [sys.executable, "-c", USING, how]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, check=True)
    return [int(value) for value in done.stdout.split()]


def test_every_thread_keeps_the_buffers_of_a_batch() -> None:
    stay, *kept = use("return")
    assert not stay
    assert kept[0] <= 2  # Later blocks of that size stay, because glibc adapts its thresholds.
    stay, *kept = use("keep")
    assert stay
    assert min(kept) >= 18


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("MALLOC_MMAP_THRESHOLD_", "65536"),
        ("MALLOC_TRIM_THRESHOLD_", "65536"),
        ("MALLOC_TOP_PAD_", "0"),
        ("GLIBC_TUNABLES", "glibc.malloc.mmap_threshold=65536"),
    ],
)
def test_a_variable_of_glibc_takes_precedence(name: str, value: str) -> None:
    stay, *kept = use("keep", **{name: value})
    assert not stay
    assert max(kept) <= 2
