"""Runs the service in this process until a signal stops it. Start reading at `serve`."""

import gc
import logging
import math
import os
import signal
import socket
import sys
import threading
import time
from types import FrameType
from typing import Any

import uvicorn
from fastapi import FastAPI

from models.manifest import MANY, get_language
from service import memory
from service.app import create_app
from service.errors import StartupError
from service.http.connections import Protocol, bounded_by_files, encrypted
from service.observability import logs
from service.runtime.runtime import Runtime
from service.runtime.watchdog import interpreter_timer
from service.settings import Settings

log = logging.getLogger(__name__)

DRAIN_SECONDS = 30
# Next to a GPU, how long a thread may keep the interpreter while others wait for it. Eight workers return
# from the engine and the tokenizer every millisecond, and by default each may wait 5 ms.
SWITCH_SECONDS = 0.0005


class Server(uvicorn.Server):
    """Makes `/ready` answer 503 when a stop signal arrives, then drains and closes connections.

    A second signal ends the process at once, unless it comes within a second of the first, because a signal
    to a process group often arrives twice.
    """

    def __init__(self, config: uvicorn.Config, runtime: Runtime) -> None:
        super().__init__(config)
        self._runtime = runtime
        self._told_at = math.inf  # time.monotonic() of the first signal
        self._close_at = math.inf

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:  # noqa: ARG002  uvicorn's signature
        now = time.monotonic()
        if self._runtime.leaving:
            if now - self._told_at > 1.0:
                os._exit(128 + sig)  # Acknowledged writes are on disk.
            return
        self._runtime.leaving, self._told_at = True, now
        delay = self._runtime.settings.stop_delay_seconds if sig == signal.SIGTERM else 0
        self._close_at = now + delay

    async def on_tick(self, counter: int) -> bool:
        if time.monotonic() >= self._close_at:
            self._runtime.stopping = self.should_exit = True
        return await super().on_tick(counter)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Aborts idle TLS connections, then shuts down as uvicorn does.

        A clean close waits for the client's close_notify, which idle clients never send.
        """
        over_tls = self._runtime.settings.tls_cert_file is not None
        for connection in list(self.server_state.connections) if over_tls else ():
            cycle = getattr(connection, "cycle", None)
            if cycle is None or cycle.response_complete:
                connection.transport.abort()
        await super().shutdown(sockets)


def serve(settings: Settings) -> None:
    """Runs the service until a signal stops it.

    Raises:
        StartupError: The service cannot start.

    """
    logs.install(settings.log_level, settings.log_format)
    on_gpu = settings.place.device == "cuda"
    memory.limit_arenas(memory.GPU_ARENAS if on_gpu else memory.ARENAS)
    if on_gpu:
        sys.setswitchinterval(SWITCH_SECONDS)
    with bound(settings) as listener:
        app = create_app(settings)
        app.state.runtime.open()
        run(app, listener)


def bound(settings: Settings) -> socket.socket:
    """Returns a socket that is bound to the address of the settings, but does not listen yet.

    Raises:
        StartupError: The address cannot be used.

    """
    host, port = settings.host.strip("[]"), settings.port
    listener = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except OSError as error:
        listener.close()
        raise StartupError(
            f"Cannot listen on {host}:{port}: {error.strerror or error}. Set SIMILE_HOST or SIMILE_PORT."
        ) from error
    return listener


def run(app: FastAPI, listener: socket.socket) -> None:
    runtime: Runtime = app.state.runtime
    settings = runtime.settings
    app.state.connections.most = bounded_by_files(settings.max_connections)
    certificate = settings.tls_cert_file
    http: Any = Protocol if certificate is None else encrypted(certificate, settings.tls_key_file)
    config = uvicorn.Config(
        app,
        log_config=None,  # uvicorn's messages go to our log.
        log_level="warning",
        access_log=False,
        server_header=False,
        http=http,
        ws="none",
        proxy_headers=False,  # The service does not read them, and any client can forge them.
        timeout_keep_alive=settings.idle_seconds,
        timeout_graceful_shutdown=DRAIN_SECONDS,
    )
    server = Server(config, runtime)
    # uvicorn handles signals only while its loop runs, and then restores these handlers. They stop the
    # service if a signal arrives earlier, and do nothing harmful after the end.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, server.handle_exit)
    threading.Thread(target=_once_ready, args=(runtime, listener.getsockname()[1]), daemon=True).start()
    with interpreter_timer(runtime.settings.hang_seconds) as runtime.beat:
        server.run(sockets=[listener])
    if not server.started:
        sys.exit(os.EX_CONFIG)


def _once_ready(runtime: Runtime, port: int) -> None:
    runtime.ready.wait()
    calm_collector()
    _welcome(runtime, port)


def calm_collector() -> None:
    """Exempts loaded objects from garbage collection and makes collections rarer.

    Under overload the collector visits every pending request again and again. With these settings the service
    keeps 0.88 of its best throughput at three times its capacity, instead of 0.67 to 0.79
    (benchmarks/overload.py).
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 20)


def _welcome(runtime: Runtime, port: int) -> None:
    settings = runtime.settings
    origin = runtime.active.generation.manifest.origin
    language = get_language(origin)
    more = "" if language == MANY else ". For other languages see docs/MODELS.md#other-languages"
    reads = "" if language is None else f"The model {origin} reads {language}{more}. "
    host = f"[{settings.host.strip('[]')}]" if ":" in settings.host else settings.host
    address = f"{'http' if settings.tls_cert_file is None else 'https'}://{host}:{port}"
    if settings.log_format == "json":  # stdout then contains JSON only.
        if reads:
            log.info("%s", reads.removesuffix(". "))
        log.info("Simile is ready at %s, serving %s", address, runtime.active.generation.version)
        return
    page = f"Page: {address}/ui/. " if settings.ui else ""
    # The user sets $KEY in the shell, because the service stores only hashes of keys.
    key = "" if settings.api_keys_file is None else ' -H "Authorization: Bearer $KEY"'
    json = f"-H 'Content-Type: application/json'{key}"
    # An empty store finds nothing, so the first command then stores a document.
    store = (
        ""
        if runtime.active.generation.indexes.documents
        else f"""
  curl {address}/documents {json} -d '{{"documents": [{{"text": "Unused goods may be sent back."}}]}}'"""
    )
    print(
        f"""
Simile is ready at {address}, serving {runtime.active.generation.version}. {page}API: {address}/docs. Try:

  curl {address}/embed {json} -d '{{"inputs": "A first sentence."}}'
  curl {address}/similarity {json} -d '{{"pairs": [["How old are you?", "What is your age?"]]}}'{store}
  curl '{address}/search?q=how+do+I+get+my+money+back&k=3'{key}

{reads}Ctrl-C stops it.""",
        flush=True,
    )
