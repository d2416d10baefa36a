"""glibc keeps the memory of a batch and has few arenas, unless its environment variables say otherwise."""

import ctypes
import os
import subprocess
import sys

import pytest

# Prints the mapped blocks and the kept MiB after blocks of 20 MiB, and the arenas of eight threads.
USING = """
import ctypes, os, sys, tempfile, threading
from models.engines.malloc import ARENAS, set_up_malloc

class Info(ctypes.Structure):
    names = "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost"
    _fields_ = [(name, ctypes.c_size_t) for name in names.split()]

libc = ctypes.CDLL(None)
libc.mallinfo2.restype = Info
libc.malloc.restype = libc.fdopen.restype = ctypes.c_void_p
if sys.argv[1] == "set up":
    set_up_malloc(ARENAS)
before = libc.mallinfo2()
block = libc.malloc(ctypes.c_size_t(20 << 20))
mapped = libc.mallinfo2().hblks - before.hblks
libc.free(ctypes.c_void_p(block))
kept = (libc.mallinfo2().arena - before.arena) >> 20
everyone = threading.Barrier(8)

def allocate():
    everyone.wait()
    libc.malloc(ctypes.c_size_t(1000))
    everyone.wait()

threads = [threading.Thread(target=allocate) for _ in range(8)]
for thread in threads: thread.start()
for thread in threads: thread.join()
with tempfile.TemporaryFile("w+") as file:
    stream = libc.fdopen(os.dup(file.fileno()), b"w")
    libc.malloc_info(0, ctypes.c_void_p(stream))
    libc.fclose(ctypes.c_void_p(stream))
    file.seek(0)
    print(mapped, kept, file.read().count("<heap "))
"""

pytestmark = pytest.mark.skipif(
    not hasattr(ctypes.CDLL(None), "mallinfo2"), reason="needs glibc 2.33 or later"
)


def use(how: str, **variables: str) -> list[int]:
    environ = {name: value for name, value in os.environ.items() if not name.startswith("MALLOC_")}
    command = [sys.executable, "-c", USING, how]
    done = subprocess.run(command, env=environ | variables, capture_output=True, text=True, check=True)
    return [int(value) for value in done.stdout.split()]


def test_buffers_of_a_batch_stay_and_threads_share_two_arenas() -> None:
    mapped, kept, arenas = use("not")
    assert (mapped, kept) == (1, 0)
    assert arenas > 2
    mapped, kept, arenas = use("set up")
    assert (mapped, arenas) == (0, 2)
    assert 50 <= kept <= 53  # The block and the pad. A part of them may have been free before.


@pytest.mark.parametrize(
    ("name", "value", "least", "most"),
    [
        ("MALLOC_MMAP_THRESHOLD_", "65536", 0, 0),
        ("MALLOC_TRIM_THRESHOLD_", "65536", 30, 33),  # the pad
        ("MALLOC_TOP_PAD_", "0", 18, 21),  # the block
        ("MALLOC_ARENA_MAX", "3", 50, 53),
    ],
)
def test_a_variable_of_glibc_takes_precedence(name: str, value: str, least: int, most: int) -> None:
    mapped, kept, arenas = use("set up", **{name: value})
    assert mapped == (name == "MALLOC_MMAP_THRESHOLD_")
    assert least <= kept <= most
    assert arenas == (3 if name == "MALLOC_ARENA_MAX" else 2)
