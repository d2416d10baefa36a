"""`python -m service check`: each setting with its value and source, and what would run on this machine."""

import os
import shutil
from pathlib import Path

from models import cpus
from models.engines.form import Form
from models.engines.place import CPU
from models.errors import ModelError
from models.store import Store
from service.auth.keys import Role, read_keys
from service.batching.workers import layout_for
from service.errors import CommandError, StartupError
from service.http.tls import check_certificate
from service.index import gpu
from service.lifecycle.canary import canary_lines
from service.lifecycle.model_loader import asked_of, kept_form, require_device, wanted_form
from service.settings import PREFIX, Settings, otlp_endpoints
from service.store.filters.grammar import indexed_fields
from service.store.sqlite.offline import DATABASE, reading


def require_usable(settings: Settings) -> None:
    """Rejects settings that name something unusable.

    Raises:
        StartupError: The keys file, the canary file, the certificate or a declared field is wrong.

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


def report(settings: Settings) -> str:
    """A text for people. Starts nothing and writes nothing.

    Raises:
        StartupError: a GPU that is asked for is not there.

    """
    width = max(len(name) for name in Settings.model_fields) + len(PREFIX)
    lines = []
    for name in Settings.model_fields:
        variable = PREFIX + name.upper()
        source = "environment" if variable in os.environ else "default"
        if name == "otel" and source == "default" and settings.otel:
            source = otlp_endpoints()[0]
        lines.append(f"{variable:<{width}}  {getattr(settings, name)!s:<24}  {source}")
    facts = {
        "processors": f"{cpus.available()} (affinity and cgroup quota)",
        "workers x threads": str(layout_for(settings)),
        "device": require_device(settings),
        "form": _form(settings),
        "provider": "CPUExecutionProvider" if settings.place == CPU else "CUDAExecutionProvider",
        "model": _model(settings),
        "index": _index(settings),
        "documents": _documents(settings),
        "disk": _disk(settings.data_dir),
        "keys": _keys(settings),
    }
    lines.append("")
    lines += [f"{name:<{width}}  {value}" for name, value in facts.items()]
    return "\n".join(lines)


def _form(settings: Settings) -> str:
    try:
        form = wanted_form(settings)
    except StartupError as error:
        return f"none: {error}"
    if settings.measures_form:
        kept = _kept_form(settings)
        if kept is None:
            return "the fastest, measured at the next start"
        form = kept
    return f"{form}, deterministic" if settings.deterministic else str(form)


def _kept_form(settings: Settings) -> Form | None:
    """The measured choice for the wanted version."""
    store = Store(settings.models_dir)
    try:
        if (version := store.wanted()) is None:
            return None
        asked = asked_of(store.folder(version), layout_for(settings), settings.precision_loss)
    except ModelError:
        return None
    return kept_form(settings.data_dir, asked)


def _keys(settings: Settings) -> str:
    if settings.api_keys_file is None:
        return "none, and SIMILE_INSECURE=1" if settings.insecure else "none: loopback only"
    keys = read_keys(settings.api_keys_file)
    counts = (f"{[key.role for key in keys].count(role)} {role}" for role in Role)
    return f"{', '.join(counts)}: {', '.join(key.name for key in keys)}"


def _model(settings: Settings) -> str:
    try:
        wanted = Store(settings.models_dir).wanted()
    except ModelError as error:
        return str(error)
    return wanted or f"none published yet; the first start publishes {settings.model!r}"


def _index(settings: Settings) -> str:
    number = gpu.find(settings.index_device)
    return "searched on the CPU" if number is None else f"large ones searched on GPU {number}"


def _documents(settings: Settings) -> str:
    """What the store holds, or why no service can start on it."""
    if settings.database is not None:
        try:  # an extra, which only those have who need it
            from service.store.postgres.offline import look  # noqa: PLC0415
        except ModuleNotFoundError:
            return "none: SIMILE_DATABASE needs the extra postgres"
        return look(settings.database.get_secret_value())
    if not (settings.data_dir / DATABASE).is_file():
        return "none yet"
    try:
        with reading(settings.data_dir) as store:
            return f"{store.facts().documents} documents"
    except CommandError as error:
        return str(error)


def _disk(folder: Path) -> str:
    while not folder.exists():
        folder = folder.parent
    free = shutil.disk_usage(folder).free
    writable = "writable" if os.access(folder, os.W_OK) else "NOT writable"
    return f"{free / 2**30:.1f} GiB free at {folder.resolve()}, {writable}"
