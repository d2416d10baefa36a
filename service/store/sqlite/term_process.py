"""A process that cuts texts into terms while this process writes. Start at `TermProcess`.

Cutting takes as long as all other work for a short document. The child reads its pipe, so it ends when this
process ends, for whatever reason.
"""

import contextlib
from collections.abc import Iterator, Sequence
from multiprocessing import get_context
from multiprocessing.connection import Connection
from typing import Self

from models.search.terms import cut
from service.errors import Unhealthy


class TermProcess:
    """Cuts one list of texts at a time: `receive` must follow each `send`."""

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

    def send(self, texts: Sequence[str]) -> None:
        with _ended():
            self._pipe.send(texts)

    def receive(self) -> list[str]:
        """Returns the terms of each text, as `cut` does.

        Raises:
            Unhealthy: The process ended, for example because memory was short.
        """
        with _ended():
            found: list[str] = self._pipe.recv()
            return found


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
