"""A TCP relay to a PostgreSQL server's socket, which tests can cut, stop or redirect."""

import contextlib
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


class Relay:
    """Relays TCP connections to the Unix socket `to`. Tests may change `to` for new connections."""

    def __init__(self, to: Path) -> None:
        self.to = to
        # Text in a transaction whose COMMIT is relayed, but whose answer is dropped.
        self.drop_commit: bytes | None = None
        self._pairs: list[tuple[socket.socket, socket.socket]] = []
        self._matching = threading.Event()
        self._matching.set()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self) -> None:
        """End all connections. New ones are accepted."""
        while self._pairs:
            for end in self._pairs.pop():
                _close(end)

    def refuse(self) -> None:
        """End all connections, and accept no new ones."""
        _close(self._listener)
        self.cut()

    def listen(self) -> None:
        """Accept connections again, at the same port."""
        self._listener = socket.create_server(("127.0.0.1", self.port))
        threading.Thread(target=self._accept, daemon=True).start()

    def fall_silent(self) -> None:
        """Hold all data back without closing connections, like a broken network."""
        self._matching.clear()

    def pass_on(self) -> None:
        """Relay again, beginning with the data that came since `fall_silent`."""
        self._matching.set()

    def _accept(self) -> None:
        listener = self._listener
        while True:
            try:
                client, _ = listener.accept()
            except OSError:  # The listener was closed.
                return
            server = socket.socket(socket.AF_UNIX)
            try:
                server.connect(str(self.to))
            except OSError:
                _close(client)
                _close(server)
                continue
            self._pairs.append((client, server))
            for source, sink in ((client, server), (server, client)):
                threading.Thread(
                    target=self._pass, args=(source, sink, source is client), daemon=True
                ).start()

    def _pass(self, source: socket.socket, sink: socket.socket, from_client: bool) -> None:
        said = False
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                self._matching.wait()
                said |= from_client and self.drop_commit is not None and self.drop_commit in data
                if dropped := said and b"COMMIT" in data:
                    self.drop_commit = None
                    _close(source)  # Before the commit, so that its answer never arrives.
                sink.sendall(data)
                if dropped:
                    break
        _close(source)
        _close(sink)


def _close(end: socket.socket) -> None:
    with contextlib.suppress(OSError):
        end.shutdown(socket.SHUT_RDWR)
    end.close()


@contextmanager
def relaying(to: Path) -> Iterator[Relay]:
    relay = Relay(to)
    yield relay
    relay.pass_on()
    relay.refuse()
