"""All settings of the service, read from environment variables `SIMILE_…`. Start at `read` and `Settings`.

Unknown `SIMILE_` variables are rejected, so that spelling mistakes are noticed. This module validates only
the values. cli/check.py checks the files that the settings name.
"""

import ipaddress
import os
import re
from math import inf
from pathlib import Path
from typing import Any, Literal, Self
from urllib.parse import SplitResult, parse_qs, urlsplit

from pydantic import Field, SecretStr, ValidationError, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from models.engines.form import CPU, Place, default_device, parse_place
from models.manifest import Mode
from models.messages import nearest
from models.validation import sentence
from service import memory
from service.errors import StartupError

PREFIX = "SIMILE_"
RENAMED = {"LONE_THREADS": "SINGLE_TEXT_THREADS"}  # Old and new names of settings.
MAX_ADMITTED_MB = 256
MAX_ANSWERS_MB = 1024
_INDEX_DEVICE = re.compile(r"cpu|cuda(:\d{1,3})?")
MAPS = "maps"  # folder of maps in the data directory
MAP_MIN_DOCUMENTS, MAX_PLAIN = 50, 5000  # Documents on a map, and on one that needs no umap-learn.
INDEXES = "indexes"  # folder of snapshots in the data directory

HOST_NAME = re.compile(r"[0-9a-z_]([0-9a-z_-]*[0-9a-z_])?(\.[0-9a-z_]([0-9a-z_-]*[0-9a-z_])?)*")
_ORIGIN = re.compile(r"https?://[^/\s,?#@A-Z]+")
_NO_TOKEN = re.compile(r"%(?![0-9A-Fa-f]{2})|%00")  # invalid percent-encoding
_USUAL_PORT = {"http": ":80", "https": ":443"}


def default_admitted_mb(given: dict[str, Any]) -> int:
    """Returns the default limit for request bodies in MiB: a sixteenth of the memory, at most 256.

    The limit is never smaller than the largest allowed body.
    """
    allowed = memory.limit()
    share = MAX_ADMITTED_MB if allowed is None else (allowed >> 20) // 16
    return max(min(share, MAX_ADMITTED_MB), int(given.get("max_body_mb", 1)))


def default_answers_mb() -> int:
    """Returns the default limit for pending answers in MiB: a quarter of the memory, at most 1024."""
    allowed = memory.limit()
    return MAX_ANSWERS_MB if allowed is None else max(1, min((allowed >> 20) // 4, MAX_ANSWERS_MB))


class Settings(BaseSettings):
    """The settings of the service. Each attribute is a `SIMILE_` variable, documented in docs/SETTINGS.md."""

    model_config = SettingsConfigDict(env_prefix=PREFIX, frozen=True, extra="forbid", env_ignore_empty=True)

    host: str = "127.0.0.1"
    port: int = Field(8000, ge=0, le=65535)
    data_dir: Path = Path("data")
    database: SecretStr | None = None  # postgresql://…; None means SQLite in DATA_DIR
    database_connections: int = Field(16, ge=4)
    models_dir: Path = Path()  # DATA_DIR/models unless set
    model: str = "default"
    reranker: str = ""  # the first reranker: a version, a folder or a hub id; empty: none
    examples: bool = False
    ui: bool = True  # the page at /ui, and its redirect from /
    insecure: bool = False

    api_keys_file: Path | None = None
    key_requests_per_minute: int = Field(0, ge=0)  # 0: no limit
    key_tokens_per_minute: int = Field(0, ge=0)  # 0: no limit
    allowed_hosts: str = ""  # separated by commas
    cors_origins: str = ""  # separated by commas
    tls_cert_file: Path | None = None
    tls_key_file: Path | None = None

    device: str = Field(default_factory=default_device)
    gpu_mem_mb: int = Field(0, ge=0)  # 0: all free memory
    workers: int = Field(0, ge=0, le=256)  # 0: one per processor of the cgroup
    threads: int = Field(0, ge=0, le=256)  # per worker; 0: one
    single_text_threads: int = Field(0, ge=0, le=256)  # 0: as many as all workers have, at most 4
    cache_mb: int = Field(64, ge=0)  # 0: no cache, and equal texts in flight are not shared
    timeout_seconds: float = Field(120.0, gt=0)
    hang_seconds: float = Field(20.0, ge=0)  # 0: no detection of hanging work
    stop_delay_seconds: float = Field(0.0, ge=0, le=3600)
    max_connections: int = Field(1000, ge=1)
    idle_seconds: int = Field(75, ge=1)  # of a connection between two requests
    max_inputs: int = Field(2048, ge=1)
    max_collections: int = Field(2000, ge=1)
    # From here to max_queue_events, 0 means no limit.
    feedback_per_key: int = Field(10_000, ge=0)  # judgments
    feedback_per_query: int = Field(100, ge=0)  # per key
    feedback_per_document: int = Field(100, ge=0)  # per key
    events: bool = True  # Searches get ids, and POST /events is accepted.
    events_days: float = Field(90.0, ge=0)  # age at which events are deleted
    live_test: float = Field(0.0, ge=0, le=1)  # share of the searches that a live test may interleave
    suggest_visitors: int = Field(5, ge=0)  # of a query that is suggested to others; 0: none is
    events_per_key: int = Field(100_000, ge=0)
    events_per_document: int = Field(1000, ge=0)  # per key
    max_events: int = Field(1_000_000, ge=0)
    max_queue_events: int = Field(65_536, ge=0)  # events and judgments per key
    max_hits: int = Field(50_000, ge=1000)
    max_candidates: int = Field(1_000_000, ge=24_000)  # A single query is never refused.
    max_faceted: int = Field(10_000_000, ge=1)  # documents times facets of a search
    max_query_characters: int = Field(10_000, ge=1)
    max_ids: int = Field(1_048_576, ge=1)
    max_tokenize_characters: int = Field(200_000, ge=1)
    max_decode_ids: int = Field(250_000, ge=1)
    max_answer_mb: int = Field(64, ge=1)
    max_answers_mb: int = Field(default_factory=default_answers_mb, ge=1)
    max_metadata_kb: int = Field(64, ge=1)
    max_body_mb: int = Field(16, ge=1)
    max_values: int = Field(2_500_000, ge=1)
    max_admitted_mb: int = Field(default_factory=default_admitted_mb, ge=1)
    max_queue_tokens: int = Field(1_000_000, ge=1)
    max_queue_seconds: float = Field(1.0, ge=0)  # 0: no limit
    passages: bool = True
    ranking: bool = True  # Hybrid search has a second stage.
    rank_seconds: float = Field(0.5, gt=0)  # of the second stage, for each query
    rerank_seconds: float = Field(0.5, gt=0)  # of the reranker in a search, for each query
    rerank_collections: str = ""  # searches that rerank by default, separated by commas; *: all
    exact_collections: str = ""  # searches that correct no typos by default, separated by commas; *: all
    search_mode: Mode | None = None  # default of searches; None: the version's own mode, or dense
    activate: Literal["auto", "manual", "test"] = "auto"
    grace_seconds: float = Field(600.0, ge=0)
    build_rate: float = Field(0.0, ge=0)  # documents per second; 0: no limit
    memory_check: bool = True
    canary_queries: int = Field(20, ge=0, le=1000)  # 0: no comparison, even with canary_file
    canary_file: Path | None = None
    canary_min_overlap: float = Field(0.0, ge=0, le=1)  # 0: report only
    indexed_fields: str = ""  # separated by commas
    map_documents: int = Field(20_000, ge=0, le=100_000)  # Larger collections get no automatic map. 0: none
    precision: Literal["fp32", "bf16", "fp16", "int8", "auto"] = "fp32"
    precision_loss: float = Field(0.0005, ge=0, le=1)  # limit for `auto`: 1 - mean cosine to fp32
    deterministic: bool = False
    index_device: str = "cpu"  # or cuda, cuda:1, …
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    log_format: Literal["text", "json"] = "text"
    access_log: bool = False
    otel: bool = Field(default_factory=lambda: bool(otlp_endpoints()))

    # Only training reads these.
    eval_data: Path | None = None
    service_key: SecretStr | None = None
    service_key_file: Path | None = None

    @property
    def place(self) -> Place:
        return parse_place(self.device, self.gpu_mem_mb)

    @property
    def measures_form(self) -> bool:
        """True if the service measures which precision and engine are fastest, for the precision `auto`.

        On a GPU nothing is measured. Replicas do not measure either, because all replicas must use the same
        engine.
        """
        return self.precision == "auto" and self.database is None and self.place == CPU

    @property
    def calibrates_int8(self) -> bool:
        """True if a model that the first start publishes needs an int8 graph, which takes half a minute."""
        lossy = self.precision_loss > Settings.model_fields["precision_loss"].default
        return self.precision == "int8" or (self.measures_form and lossy)

    @property
    def max_answer_bytes(self) -> int:
        return self.max_answer_mb * 1_000_000

    @property
    def reranked(self) -> list[str]:
        """The names in `rerank_collections`, sorted."""
        return sorted(_list_names(self.rerank_collections))

    def reranks(self, collection: str) -> bool:
        """Returns whether searches of a collection use the reranker if the request does not say."""
        return not {collection, "*"}.isdisjoint(self.reranked)

    def corrects(self, collection: str) -> bool:
        """Returns whether searches of a collection correct typos if the request does not say."""
        return {collection, "*"}.isdisjoint(_list_names(self.exact_collections))

    @property
    def events_seconds(self) -> float:
        return self.events_days * 86_400 or inf

    @property
    def snapshots_dir(self) -> Path:
        """Folder of index snapshots. They can be rebuilt from the document store."""
        return self.data_dir / INDEXES

    @property
    def maps_dir(self) -> Path:
        """Folder of maps. The files are named VERSION/COLLECTION.json, and `GET /map` answers with them."""
        return self.data_dir / MAPS

    @model_validator(mode="before")
    @classmethod
    def _models_beside_the_data(cls, values: dict[str, Any]) -> dict[str, Any]:
        values.setdefault("models_dir", Path(values.get("data_dir", "data")) / "models")
        return values

    @model_validator(mode="after")
    def _refuse(self) -> Self:
        try:
            parse_place(self.device)
        except ValueError as error:
            raise ValueError(f"{PREFIX}DEVICE={self.device}: {error}.") from error
        if self.canary_min_overlap and not self.canary_queries:
            raise ValueError(
                f"{PREFIX}CANARY_MIN_OVERLAP={self.canary_min_overlap} needs canary queries, but "
                f"{PREFIX}CANARY_QUERIES=0 turns them off. Unset one of the two."
            )
        if self.api_keys_file is None and not self.insecure and not is_loopback(self.host):
            raise ValueError(
                f"{PREFIX}HOST={self.host} is reachable from other machines, and no API keys are set up. "
                f"Name a keys file ({PREFIX}API_KEYS_FILE), listen on 127.0.0.1, or set {PREFIX}INSECURE=1 "
                "if a proxy rejects unknown clients."
            )
        if self.database is not None:
            check_database(self.database.get_secret_value())
        allowed_origins(self.cors_origins)
        allowed_hosts(self.allowed_hosts)
        if not _INDEX_DEVICE.fullmatch(self.index_device):
            raise ValueError(
                f"{PREFIX}INDEX_DEVICE={self.index_device}: name `cpu`, `cuda`, or one of several GPUs by "
                "its number, such as `cuda:1`."
            )
        if self.otel:
            _check_otlp_protocol()
        return self


def _list_names(listed: str) -> set[str]:
    """Returns the names in a list with commas."""
    return {name.strip() for name in listed.split(",")} - {""}


def keys_file() -> Path | None:
    """Returns the path of the keys file from the environment, or None. The file need not exist yet."""
    named = os.environ.get(f"{PREFIX}API_KEYS_FILE")
    return Path(named) if named else None


def own_url() -> str:
    """Returns the local URL of the service, according to the environment variables."""
    port = os.environ.get(f"{PREFIX}PORT") or Settings.model_fields["port"].default
    scheme = "https" if os.environ.get(f"{PREFIX}TLS_CERT_FILE") else "http"
    return f"{scheme}://127.0.0.1:{port}"


def otlp_endpoints() -> list[str]:
    """Returns the names of the OTEL_ variables that contain an address for traces.

    The list is empty if other OTEL_ variables turn traces off.
    """
    off = os.environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true"
    off = off or os.environ.get("OTEL_TRACES_EXPORTER", "otlp").strip().lower() not in {"", "otlp"}
    names = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
    return [] if off else [name for name in names if os.environ.get(name)]


def _check_otlp_protocol() -> None:
    """Rejects every protocol for traces except http/protobuf.

    Raises:
        ValueError: An OTEL_ variable selects another protocol.

    """
    for name in ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL"):
        protocol = os.environ.get(name) or "http/protobuf"
        if protocol != "http/protobuf":
            raise ValueError(
                f"{name}={protocol}: traces are sent by http/protobuf only, to port 4318 of most collectors. "
                f"Unset it, or set {PREFIX}OTEL=0."
            )


def read() -> Settings:
    """Reads the settings from the environment.

    Raises:
        StartupError: A value is invalid, or a `SIMILE_` variable is unknown.

    """
    known = {PREFIX + name.upper() for name in Settings.model_fields}
    for name in os.environ:
        if name.upper().startswith(PREFIX) and name.upper() not in known:
            bare = name.upper().removeprefix(PREFIX)
            meant = nearest(bare, (field.upper() for field in Settings.model_fields)) or _elsewhere(bare)
            hint = "" if meant is None else f" Did you mean {PREFIX}{meant}?"
            if bare in RENAMED:
                hint = f" Its name is now {PREFIX}{RENAMED[bare]}."
            raise StartupError(
                f"{name} is not a setting of this version.{hint} Unset it, or see docs/SETTINGS.md."
            )
    try:
        return Settings()
    except ValidationError as error:
        # If a setting is wrong, defaults that depend on it are missing as well. Do not report those.
        found = [each for each in error.errors() if each["type"] != "default_factory_not_called"]
        raise StartupError("\n".join(_message(problem) for problem in found)) from error


def get_models_dir(settings: Settings, data_dir: Path | None) -> Path:
    """Returns the models folder: SIMILE_MODELS_DIR if it is set, otherwise `models` in the data directory.

    Args:
        settings: The settings.
        data_dir: The data directory. None means the data directory of the settings.

    """
    return settings.models_dir if data_dir is None else Settings(data_dir=data_dir).models_dir


def _message(problem: Any) -> str:
    if not problem["loc"]:
        return str(problem["msg"]).removeprefix("Value error, ")
    return sentence(problem, Settings, f"{PREFIX}{str(problem['loc'][0]).upper()}")


def _elsewhere(name: str) -> str | None:
    known = {"PROVIDER": "DEVICE", "ADDRESS": "HOST", "BIND": "HOST", "TOKEN": "API_KEYS_FILE"}
    return next((ours for word, ours in known.items() if word in name), None)


def allowed_origins(text: str) -> list[str]:
    """Parses `SIMILE_CORS_ORIGINS` into a list of origins.

    Raises:
        ValueError: An origin is a pattern, or does not have the form that browsers send.

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
    """Parses `SIMILE_ALLOWED_HOSTS` into a set of hosts.

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
    """Checks that `url` is the URL of a PostgreSQL database. Error messages never contain the password.

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
    """Splits a URL. Returns None if it is invalid, or its password seems not to be percent-encoded.

    PostgreSQL would treat the rest of such a password as a host or a name, and would quote it in error
    messages.
    """
    try:
        parts = urlsplit(url)
        _ = parts.port, parts.hostname
    except ValueError:
        return None
    cut = parts.netloc.count("@") > 1 or "@" in parts.path or _NO_TOKEN.search(url)
    return None if cut else parts
