"""Lets glibc keep freed memory, for processes that do nothing but embed. Start at `keep_buffers`."""

import ctypes
import os

# Parameters of `mallopt`, from glibc's malloc.h.
_TRIM_THRESHOLD, _TOP_PAD, _MMAP_THRESHOLD = -1, -2, -3
_VARIABLES = "MALLOC_TRIM_THRESHOLD_", "MALLOC_TOP_PAD_", "MALLOC_MMAP_THRESHOLD_"
# Bytes. A thread's arena consists of heaps of 64 MiB. With these values it returns none of them. Before 2.35,
# glibc accepts at most 32 MiB for the size from which a block comes from the system and goes back to it.
_HEAP, _BLOCK = 64 << 20, 32 << 20

buffers_stay = False  # `keep_buffers` sets it.


def keep_buffers() -> None:
    """Keeps the buffers of a batch for the next batch, in glibc's arena of each thread.

    Otherwise glibc returns them to the system after each batch: without ONNX Runtime's own arena, a sentence
    in fp32 then takes 7.7 ms of a processor instead of 6.8. The service does not do this, because memory that
    it freed would stay as well. Without glibc, or if an environment variable of glibc sets one of the values,
    nothing changes.
    """
    global buffers_stay  # noqa: PLW0603  it is a property of the process
    tuned = "glibc.malloc." in os.environ.get("GLIBC_TUNABLES", "")
    if tuned or not os.environ.keys().isdisjoint(_VARIABLES):
        return
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):  # not glibc
        return
    values = {_MMAP_THRESHOLD: _BLOCK, _TRIM_THRESHOLD: _HEAP, _TOP_PAD: _HEAP}
    buffers_stay = all(mallopt(*each) for each in values.items())
