"""The files and names that settings hold: each can be used, or the service does not start."""

from service.auth.keys import read_keys
from service.errors import StartupError
from service.http.tls import check_certificate
from service.lifecycle.canary import canary_lines
from service.settings import PREFIX, Settings
from service.store.filters.grammar import indexed_fields


def check(settings: Settings) -> None:
    """Refuse settings that name what cannot be used.

    Raises:
        StartupError: the keys file, the canary file, the certificate or a declared field is wrong.

    """
    files = (
        ("API_KEYS_FILE", settings.api_keys_file, read_keys),
        ("CANARY_FILE", settings.canary_file, canary_lines),
    )
    for name, file, read in files:
        try:
            if file is not None:
                read(file)
        except ValueError as error:
            raise StartupError(f"{PREFIX}{name}={file}: {error}") from error
    try:
        indexed_fields(settings.indexed_fields)
        check_certificate(settings.tls_cert_file, settings.tls_key_file)
    except ValueError as error:
        raise StartupError(str(error)) from error
