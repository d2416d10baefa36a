"""`python -m service`: settings in, the service up. `python -m service check`: say what would run.

One process, in the foreground. Ctrl-C and SIGTERM stop it cleanly: `/ready` turns red, what was accepted is
answered, and the exit status is 0.
"""

import argparse
import logging
import os
import signal
import socket
import sys
import threading
from types import FrameType

# Before numpy and FAISS are imported: each would take every processor, and throttle the encoder's threads.
for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ.setdefault(_name, "1")

import uvicorn
from fastapi import FastAPI

from service import check, distributions
from service.app import create_app
from service.runtime import Runtime
from service.settings import Settings, StartupError, read

DRAIN_SECONDS = 30


class Server(uvicorn.Server):
    """Turns `/ready` red the moment a stop signal arrives, before connections are drained."""

    def __init__(self, config: uvicorn.Config, runtime: Runtime) -> None:
        super().__init__(config)
        self._runtime = runtime

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self._runtime.stopping = True
        super().handle_exit(sig, frame)


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m service",
        description="Serve embeddings, documents and search. Settings come from SIMILE_ variables.",
    )
    parser.add_argument(
        "command",
        nargs="?",
        choices=["serve", "check"],
        default="serve",
        help="serve (the default), or check: print each setting and what would run, and start nothing",
    )
    command = parser.parse_args().command
    try:
        distributions.refuse_clashes()
        settings = read()
        if command == "check":
            print(check.report(settings))
            return
        serve(settings)
    except StartupError as error:
        sys.exit(f"Simile cannot start: {error}")
    except KeyboardInterrupt:  # before the service was up; what was begun is begun again by the next start
        sys.exit("Stopped before it had started.")


def serve(settings: Settings) -> None:
    """Run until a signal; raises StartupError when the service cannot start."""
    logging.basicConfig(
        level=settings.log_level.upper(), format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )
    with bound(settings) as listener:
        app = create_app(settings)
        app.state.runtime.open()
        run(app, listener)


def bound(settings: Settings) -> socket.socket:
    """A socket on the address, before anything else is touched; it listens once the service has started."""
    host, port = settings.host.strip("[]"), settings.port
    listener = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except OSError as error:
        listener.close()
        raise StartupError(
            f"{host}:{port} cannot be listened on: {error.strerror or error}. Set SIMILE_HOST or SIMILE_PORT."
        ) from error
    return listener


def run(app: FastAPI, listener: socket.socket) -> None:
    """Serve until a stop signal."""
    runtime: Runtime = app.state.runtime
    config = uvicorn.Config(
        app,
        log_level="warning",
        access_log=False,
        server_header=False,
        proxy_headers=False,  # nothing here reads them, and anyone may send them
        timeout_graceful_shutdown=DRAIN_SECONDS,
    )
    server = Server(config, runtime)
    # uvicorn raises the signal again once it has stopped; a clean stop is no failure.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: None)
    threading.Thread(target=_welcome, args=(runtime, listener.getsockname()[1]), daemon=True).start()
    server.run(sockets=[listener])
    if not server.started:
        sys.exit(1)


def _welcome(runtime: Runtime, port: int) -> None:
    """Once all is ready, say where, and what to try."""
    runtime.ready.wait()
    host = runtime.settings.host
    address = f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
    json = "-H 'Content-Type: application/json'"
    print(
        f"""
Simile is ready at {address}, serving {runtime.live.generation.version}. Its API: {address}/docs. Try:

  curl {address}/embed {json} -d '{{"inputs": "A first sentence."}}'
  curl {address}/similarity {json} -d '{{"pairs": [["How old are you?", "What is your age?"]]}}'
  curl '{address}/search?q=how+do+I+get+my+money+back&k=3'

Ctrl-C stops it.""",
        flush=True,
    )


if __name__ == "__main__":
    main()
