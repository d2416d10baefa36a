"""Rejects requests from web pages of other sites, by the headers Host and Origin.

A web page can make its own host name resolve to 127.0.0.1 (DNS rebinding). The browser then considers the
service part of the page's origin, but the header Host still contains the page's name. A page of another site
can also send a POST without a preflight, but then the header Origin names the other site.
"""

import ipaddress
import re
from collections.abc import Collection, Iterable
from functools import lru_cache
from typing import NamedTuple

from starlette.datastructures import Headers
from starlette.middleware.cors import CORSMiddleware
from starlette.responses import Response
from starlette.types import ASGIApp, Scope

from service.errors import Forbidden, Malformed, Misdirected, ServiceError
from service.http.error_responses import response
from service.observability.logs import choose_request_id
from service.settings import HOST_NAME

# Headers that may come only once, because a proxy and the service might read different values.
ONCE = frozenset(
    b"authorization content-length content-type host origin sec-fetch-site transfer-encoding x-model-version "
    b"x-request-id x-timeout-ms".split()
)
_USUAL_PORT = {"http": 80, "https": 443}
_AUTHORITY = re.compile(r"(?P<name>\[[0-9A-Fa-f:.]+\]|[0-9A-Za-z._-]+)(?::(?P<port>[0-9]{0,5}))?")
METHODS = ("GET", "POST", "DELETE")
# Headers of a refused preflight.
_KEPT = {"vary", "access-control-allow-origin"}
READ = ("x-request-id", "x-embedding-shape", "x-ignored-fields", "x-content-type-options", "retry-after")


class Authority(NamedTuple):
    """A host and a port, as in `Host: localhost:8000`."""

    name: str
    port: int | None
    is_local: bool  # An IP address or a localhost name, which DNS rebinding cannot use.


class Hosts:
    """The hosts that requests may name, and the origins whose pages may write.

    Args:
        names: Allowed hosts, in addition to IP addresses and localhost.
        own: The host that the service listens on.
        origins: Origins of other sites whose pages may write.
        keys: Whether clients need API keys. Then DNS rebinding gains nothing, so any host is allowed if
            `names` is empty.

    """

    def __init__(self, names: Collection[str], own: str, origins: Collection[str], *, keys: bool) -> None:
        self._names = {*names, own.lower()}
        self._any_name = keys and not names
        self._origins = frozenset(origins)

    def refusal(self, headers: Iterable[tuple[bytes, bytes]]) -> ServiceError | None:
        """Returns the error for a request with these headers, or None if the request is allowed."""
        seen = set()
        host = b""
        for name, value in headers:
            if name in ONCE:
                if name in seen:
                    return Malformed(f"The header {name.decode()} comes more than once. Send it once.")
                seen.add(name)
                if name == b"host":
                    host = value
        authority = _authority(host)
        if authority is None:
            return Malformed("The header Host is missing or invalid. Send a host, with or without a port.")
        if authority.is_local or self._any_name or authority.name in self._names:
            return None
        return Misdirected(
            f"This service does not answer to the name {authority.name[:80]!r}. Use an address or localhost, "
            "or add the name to SIMILE_ALLOWED_HOSTS."
        )

    def refuse_pages(self, scope: Scope) -> None:
        """Rejects a request that a page of another site sends.

        Raises:
            Forbidden: The origin is neither the service itself nor an allowed origin.

        """
        headers = dict(scope["headers"])
        origin = headers[b"origin"].decode("latin-1") if b"origin" in headers else None
        if origin in self._origins:
            return
        # Browsers send Sec-Fetch-Site over https and to localhost. It is also correct if a TLS proxy changes
        # the scheme.
        site = headers.get(b"sec-fetch-site", b"none")
        if site == b"same-origin":
            return
        if site != b"none" or not (origin is None or _is_own(origin, scope["scheme"], headers[b"host"])):
            raise Forbidden(
                "Pages of other sites may not do this. SIMILE_CORS_ORIGINS names the origins that may. A "
                "proxy must pass Host on as it came."
            )


def _is_own(origin: str, scheme: str, host: bytes) -> bool:
    page_scheme, _, page = origin.partition("://")
    ours, theirs = _authority(host), _authority(page.encode("latin-1"))
    if ours is None or theirs is None or page_scheme != scheme:
        return False
    usual = _USUAL_PORT[scheme]
    return (ours.name, ours.port or usual) == (theirs.name, theirs.port or usual)


@lru_cache(maxsize=256)
def _authority(text: bytes) -> Authority | None:
    found = _AUTHORITY.fullmatch(text.decode("latin-1"))
    if found is None:
        return None
    name = found["name"].lower().removesuffix(".")
    port = int(found["port"]) if found["port"] else None
    try:
        ipaddress.ip_address(name.strip("[]"))
    except ValueError:
        if name.startswith("[") or not HOST_NAME.fullmatch(name):
            return None
        return Authority(name, port, is_local=name == "localhost" or name.endswith(".localhost"))
    return Authority(name, port, is_local=True)


class Cors(CORSMiddleware):
    """Starlette's CORS middleware, with the service's error answers and request ids.

    A preflight needs no API key. Pages of allowed origins may send any header, because a list would always
    lack the newest headers of clients. They may also reach a private network from a public one.

    Args:
        exposed: Headers of answers that pages may read, in addition to those in READ.

    """

    def __init__(
        self, app: ASGIApp, allow_origins: Collection[str], hosts: Hosts, exposed: Collection[str]
    ) -> None:
        self._hosts = hosts
        super().__init__(
            app,
            allow_origins=allow_origins,
            allow_methods=METHODS,
            allow_headers=("*",),
            allow_private_network=True,
            expose_headers=(*READ, *exposed),
        )

    def preflight_response(self, request_headers: Headers) -> Response:
        answer = super().preflight_response(request_headers)
        misdirected = self._hosts.refusal(request_headers.raw)
        if misdirected is not None:
            answer = response("/", misdirected)
        elif answer.status_code != 200:
            refusal = Forbidden(
                f"{bytes(answer.body).decode()}. SIMILE_CORS_ORIGINS names the origins that may call this; "
                f"their pages may use {', '.join(METHODS)}."
            )
            kept = {name: value for name, value in answer.headers.items() if name in _KEPT}
            answer = response("/", refusal)
            answer.headers.update(kept)
        answer.headers["x-content-type-options"] = "nosniff"
        given = request_headers.get("x-request-id")
        answer.headers["x-request-id"] = choose_request_id(None if given is None else given.encode("latin-1"))
        return answer
