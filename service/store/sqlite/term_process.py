"""A process that cuts texts into terms while this process writes. Start at `TermProcess.cut_ahead`.

Cutting takes as long as all other work for a short document. The child reads its pipe, so it ends when this
process ends, for whatever reason.
"""

import contextlib
from collections.abc import Iterator
from multiprocessing import get_context
from multiprocessing.connection import Connection
from typing import Self

from models.search.terms import cut
from service.errors import Unhealthy
from service.store.values import Batch


class TermProcess:
    """The child, and the pipe to it."""

    def __init__(self) -> None:
        context = get_context("spawn")  # A fork would copy locks that other threads hold.
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs,), daemon=True)
        self._process.start()
        theirs.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._pipe.close()
        self._process.join()

    def cut_ahead(self, batches: Iterator[Batch]) -> Iterator[tuple[Batch, list[str]]]:
        """Yields each batch with the terms of its documents. Those of the next batch are cut meanwhile.

        Raises:
            Unhealthy: The process ended, for example because memory was short.
        """
        batch = self._send_next(batches)
        while batch is not None:
            with _ended():
                terms: list[str] = self._pipe.recv()
            following = self._send_next(batches)
            yield batch, terms
            batch = following

    def _send_next(self, batches: Iterator[Batch]) -> Batch | None:
        batch = next(batches, None)
        if batch is not None:
            with _ended():
                self._pipe.send([document.content.whole for document in batch[0]])
        return batch


@contextlib.contextmanager
def _ended() -> Iterator[None]:
    try:
        yield
    except (EOFError, OSError) as error:
        raise Unhealthy("The process that cuts texts into terms has ended. Is memory short?") from error


def _serve(pipe: Connection) -> None:
    with contextlib.suppress(EOFError, OSError, KeyboardInterrupt):
        while True:
            pipe.send([cut(text) for text in pipe.recv()])
