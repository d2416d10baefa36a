"""TLS handshakes that never begin are bounded too, and keep nobody out."""

import http.client
import ssl
from contextlib import ExitStack
from pathlib import Path

import httpx2
import pytest

from service.http.connections import MAX_HANDSHAKES, SPARE
from tests.service.http.test_cors_tls import pair
from tests.service.process import Service
from tests.service.raw import Wire, held
from tests.waiting import LIMIT, until

__all__ = ["pair"]


@pytest.mark.long
def test_handshakes_that_never_begin_are_bounded_and_keep_nobody_out(
    tmp_path: Path, tiny_models_dir: Path, pair: tuple[Path, Path]
) -> None:
    cert, key = pair
    service = Service(tmp_path, tiny_models_dir, SIMILE_TLS_CERT_FILE=str(cert), SIMILE_TLS_KEY_FILE=str(key))
    service.client.close()
    trusting = ssl.create_default_context(cafile=str(cert))
    service.client = httpx2.Client(
        base_url=f"https://127.0.0.1:{service.port}", verify=trusting, timeout=LIMIT, trust_env=False
    )
    with service, ExitStack() as stack:
        for _ in range(2 * (MAX_HANDSHAKES + SPARE)):
            stack.enter_context(Wire(service))
        one = http.client.HTTPSConnection("127.0.0.1", service.port, timeout=LIMIT, context=trusting)
        one.request("GET", "/health")
        assert one.getresponse().status == 200
        most = MAX_HANDSHAKES + SPARE + 2  # and those of the two clients
        until(lambda: held(service) <= most, "their number has no bound")
        one.close()
