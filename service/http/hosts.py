"""The names that the service answers to, and the pages that may change something.

A web page can have its own name resolve to 127.0.0.1 and then read and write a service without keys: to the
browser both are one origin (DNS rebinding). The page's name still stands in `Host`. A page of another site
can also send a POST without any question before; its site stands in `Origin`, also over plain http.
"""

import ipaddress
import re
from collections.abc import Collection, Iterable
from functools import lru_cache
from typing import NamedTuple

from starlette.types import Scope

from service.errors import Forbidden, Malformed, Misdirected, ServiceError
from service.settings.addresses import HOST_NAME

# Headers that decide something. Two of one kind mean different things to two readers.
ONCE = frozenset(
    {
        b"authorization",
        b"content-length",
        b"content-type",
        b"host",
        b"origin",
        b"sec-fetch-site",
        b"transfer-encoding",
        b"x-model-version",
        b"x-request-id",
        b"x-timeout-ms",
    }
)
_USUAL_PORT = {"http": 80, "https": 443}
_AUTHORITY = re.compile(r"(?P<name>\[[0-9A-Fa-f:.]+\]|[0-9A-Za-z._-]+)(?::(?P<port>[0-9]{0,5}))?")


class Authority(NamedTuple):
    """A host and a port, as in `Host: localhost:8000`."""

    name: str
    port: int | None
    is_local: bool  # an address, or a name for this machine: no page can have such a name resolve to it


class Hosts:
    """The rules of one service."""

    def __init__(
        self, names: Collection[str], own_name: str, origins: Collection[str], *, keys: bool
    ) -> None:
        """Make the rules.

        Args:
            names: allowed besides loopback names and addresses.
            own_name: what the service was told to listen on.
            origins: of other sites whose pages may change something.
            keys: whether callers need keys. Then a page gains nothing by its name, so that any name will do
                unless `names` has some.

        """
        self._names = {*names, own_name.lower()}
        self._any_name = keys and not names
        self._origins = frozenset(origins)

    def refusal(self, headers: Iterable[tuple[bytes, bytes]]) -> ServiceError | None:
        """Tell why a request with these headers is refused, whatever it asks for."""
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
            return Malformed("The header Host is missing, or is no host with or without a port. Send one.")
        if authority.is_local or self._any_name or authority.name in self._names:
            return None
        return Misdirected(
            f"This service does not answer to the name {authority.name[:80]!r}. Use an address or localhost, "
            "or add the name to SIMILE_ALLOWED_HOSTS."
        )

    def refuse_pages(self, scope: Scope) -> None:
        """Refuse a request that a page of another site sends.

        Raises:
            Forbidden: its origin is neither the service's own nor an allowed one.

        """
        headers = dict(scope["headers"])
        origin = headers[b"origin"].decode("latin-1") if b"origin" in headers else None
        if origin in self._origins:
            return
        # Over TLS and to localhost a browser compares the two itself: right behind a TLS proxy as well, which
        # makes `https` something else here. Over plain http it does not say.
        site = headers.get(b"sec-fetch-site", b"none")
        if site == b"same-origin":
            return
        if site != b"none" or not (origin is None or _is_own(origin, scope["scheme"], headers[b"host"])):
            raise Forbidden(
                "Pages of other sites may not do this. SIMILE_CORS_ORIGINS names the origins that may. A "
                "proxy must pass Host on as it came."
            )


def _is_own(origin: str, scheme: str, host: bytes) -> bool:
    """Tell whether a page of `origin` came from where this request goes to."""
    page_scheme, _, page = origin.partition("://")
    ours, theirs = _authority(host), _authority(page.encode("latin-1"))
    if ours is None or theirs is None or page_scheme != scheme:
        return False
    usual = _USUAL_PORT[scheme]
    return (ours.name, ours.port or usual) == (theirs.name, theirs.port or usual)


@lru_cache(maxsize=256)
def _authority(text: bytes) -> Authority | None:
    """`text` as a host and a port, None when it is none."""
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
