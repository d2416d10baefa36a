"""Parses and validates the hosts, origins and database URLs of settings."""

import ipaddress
import re
from urllib.parse import SplitResult, parse_qs, urlsplit

HOST_NAME = re.compile(r"[0-9a-z_]([0-9a-z_-]*[0-9a-z_])?(\.[0-9a-z_]([0-9a-z_-]*[0-9a-z_])?)*")
_ORIGIN = re.compile(r"https?://[^/\s,?#@A-Z]+")
_NO_TOKEN = re.compile(r"%(?![0-9A-Fa-f]{2})|%00")  # invalid percent-encoding
_USUAL_PORT = {"http": ":80", "https": ":443"}


def allowed_origins(text: str) -> list[str]:
    """Parses `SIMILE_CORS_ORIGINS`.

    Raises:
        ValueError: An origin is a pattern, or not in the form that browsers send.

    """
    origins = [part.strip() for part in text.split(",") if part.strip()]
    for origin in origins:
        name = f"SIMILE_CORS_ORIGINS: {origin!r}"
        if "*" in origin:
            raise ValueError(f"{name} would allow any page on the web. Name each origin exactly.")
        if not _ORIGIN.fullmatch(origin) or origin.endswith(_USUAL_PORT[origin.partition(":")[0]]):
            raise ValueError(
                f"{name} is not an origin as browsers send it: scheme, host in lower case, and any unusual "
                "port, such as https://app.example.org or http://127.0.0.1:3000."
            )
    return origins


def allowed_hosts(text: str) -> frozenset[str]:
    """Parses `SIMILE_ALLOWED_HOSTS`.

    Raises:
        ValueError: A name is not a host name.

    """
    names = [part.strip().lower() for part in text.split(",") if part.strip()]
    for name in names:
        if not HOST_NAME.fullmatch(name):
            raise ValueError(
                f"SIMILE_ALLOWED_HOSTS: {name!r} is not a host name. Write names only, exactly and without "
                "scheme, port or pattern, separated by commas, such as service,search.example.org."
            )
    return frozenset(names)


def is_loopback(host: str) -> bool:
    """Returns whether only this machine can reach `host`."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def check_database(url: str) -> None:
    """Rejects other URLs than those of a PostgreSQL database. Messages never contain the password.

    Raises:
        ValueError: The URL is invalid.

    """
    example = "Give it as postgresql://USER:PASSWORD@HOST:5432/NAME."
    parts = _parts(url)
    if parts is None:
        raise ValueError(
            f"SIMILE_DATABASE is not a URL. Write @, / or # in its password as %40, %2F or %23, and % itself "
            f"as %25. {example}"
        )
    if parts.scheme not in {"postgresql", "postgres"}:
        raise ValueError(f"SIMILE_DATABASE does not begin with postgresql://. {example}")
    if not parts.hostname and parts.port is None and "host" not in parse_qs(parts.query):
        raise ValueError(f"SIMILE_DATABASE names no host. {example}")


def _parts(url: str) -> SplitResult | None:
    """Splits a URL. Returns None if a character of its password is not percent-encoded.

    PostgreSQL would treat the rest of such a password as a host or a name and quote it in its messages.
    """
    try:
        parts = urlsplit(url)
        _ = parts.port, parts.hostname
    except ValueError:
        return None
    cut = parts.netloc.count("@") > 1 or "@" in parts.path or _NO_TOKEN.search(url)
    return None if cut else parts
