"""Names of hosts and origins, as settings write them."""

import ipaddress
import re
from urllib.parse import SplitResult, parse_qs, urlsplit

HOST_NAME = re.compile(r"[0-9a-z_]([0-9a-z_-]*[0-9a-z_])?(\.[0-9a-z_]([0-9a-z_-]*[0-9a-z_])?)*")
_ORIGIN = re.compile(r"https?://[^/\s,?#@A-Z]+")
_NO_TOKEN = re.compile(r"%(?![0-9A-Fa-f]{2})|%00")  # a percent sign that encodes nothing
_USUAL_PORT = {"http": ":80", "https": ":443"}


def allowed_origins(text: str) -> list[str]:
    """The origins of `SIMILE_CORS_ORIGINS`, as browsers write them.

    Raises:
        ValueError: one that no browser would ever send, or a pattern.

    """
    origins = [part.strip() for part in text.split(",") if part.strip()]
    for origin in origins:
        name = f"SIMILE_CORS_ORIGINS: {origin!r}"
        if "*" in origin:
            raise ValueError(f"{name} would let any page on the web in. Name each origin exactly.")
        if not _ORIGIN.fullmatch(origin) or origin.endswith(_USUAL_PORT[origin.partition(":")[0]]):
            raise ValueError(
                f"{name} is no origin as browsers write them: scheme, host in small letters, and a port only "
                "when it is not the usual one, such as https://app.example.org or http://127.0.0.1:3000."
            )
    return origins


def allowed_hosts(text: str) -> frozenset[str]:
    """The names in `SIMILE_ALLOWED_HOSTS`.

    Raises:
        ValueError: one that is no host name.

    """
    names = [part.strip().lower() for part in text.split(",") if part.strip()]
    for name in names:
        if not HOST_NAME.fullmatch(name):
            raise ValueError(
                f"SIMILE_ALLOWED_HOSTS: {name!r} is no host name. Write names only, exactly and without "
                "scheme, port or pattern, separated by commas, such as service,search.example.org."
            )
    return frozenset(names)


def is_loopback(host: str) -> bool:
    """True for an address that only this machine reaches."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def check_database(url: str) -> None:
    """Raise ValueError unless `url` is of a PostgreSQL database. Its password is in no message."""
    example = "Give it as postgresql://USER:PASSWORD@HOST:5432/NAME."
    parts = _parts(url)
    if parts is None:
        raise ValueError(
            f"SIMILE_DATABASE is no URL. A sign such as @, / or # in its password is written as %40, %2F or "
            f"%23, and % itself as %25. {example}"
        )
    if parts.scheme not in {"postgresql", "postgres"}:
        raise ValueError(f"SIMILE_DATABASE does not begin with postgresql://. {example}")
    if not parts.hostname and parts.port is None and "host" not in parse_qs(parts.query):
        raise ValueError(f"SIMILE_DATABASE names no host. {example}")


def _parts(url: str) -> SplitResult | None:
    """The parts of a URL; None where a sign of its password is not encoded.

    PostgreSQL would take the rest of such a password for a host or a name, and say it in its messages.
    """
    try:
        parts = urlsplit(url)
        _ = parts.port, parts.hostname
    except ValueError:
        return None
    cut = parts.netloc.count("@") > 1 or "@" in parts.path or _NO_TOKEN.search(url)
    return None if cut else parts
