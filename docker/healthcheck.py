"""HEALTHCHECK of the service images: exit status 0 while GET /health answers 200.

Run with `python -I -S`, which starts in a hundredth of a second, because a check starts every few seconds.
"""

import http.client
import os
import ssl
import sys

# The service's certificate names the host that callers use, and this is the same machine.
TLS = ssl._create_unverified_context() if os.environ.get("SIMILE_TLS_CERT_FILE") else None  # noqa: S323, SLF001
HOST, PORT = "127.0.0.1", int(os.environ.get("SIMILE_PORT") or 8000)
SECONDS = 8


def main() -> int:
    connection = (
        http.client.HTTPSConnection(HOST, PORT, timeout=SECONDS, context=TLS)
        if TLS
        else http.client.HTTPConnection(HOST, PORT, timeout=SECONDS)
    )
    try:
        connection.request("GET", "/health")
        answer = connection.getresponse()
        said = answer.read(500).decode(errors="replace")
    except OSError as error:
        print(error)
        return 1
    print(answer.status, said)
    return 0 if answer.status == 200 else 1


if __name__ == "__main__":
    sys.exit(main())
