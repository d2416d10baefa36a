"""Checks the certificate and the key for HTTPS at start-up."""

import ssl
from pathlib import Path


def check_certificate(cert_file: Path | None, key_file: Path | None) -> None:
    """Rejects a certificate without a key, a key without a certificate, and unusable files.

    Raises:
        ValueError: The message names the settings and the reason.

    """
    if cert_file is None and key_file is None:
        return
    if cert_file is None or key_file is None:
        raise ValueError(
            "SIMILE_TLS_CERT_FILE and SIMILE_TLS_KEY_FILE belong together. Set both, or neither."
        )
    try:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(cert_file, key_file, password="")  # Never prompts at the terminal.
    except OSError as error:  # ssl.SSLError included
        why = getattr(error, "reason", None) or error.strerror
        raise ValueError(
            f"SIMILE_TLS_CERT_FILE={cert_file} and SIMILE_TLS_KEY_FILE={key_file} cannot be used ({why}). "
            "Name a certificate chain and its key without a password, both in PEM."
        ) from error
