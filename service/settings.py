"""Every setting of the service, from `SIMILE_` variables: the service's only reader of the environment.

A setting whose part is not built yet is refused by its name when it asks for anything but the default, and
so is a `SIMILE_` variable that no setting knows: what a person asked for is never silently ignored.
"""

import ipaddress
import os
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import Field, ValidationError, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

PREFIX = "SIMILE_"
MAX_CANARY_LINES = 1000


class StartupError(Exception):
    """The service cannot start. The message says why and what to do."""


class Settings(BaseSettings):
    """One attribute per `SIMILE_` variable; docs/SETTINGS.md is the same list for people."""

    model_config = SettingsConfigDict(env_prefix=PREFIX, frozen=True, extra="forbid", env_ignore_empty=True)

    host: str = "127.0.0.1"
    port: int = Field(8000, ge=0, le=65535)
    data_dir: Path = Path("data")
    models_dir: Path = Path()  # DATA_DIR/models unless set
    model: str = "default"
    examples: bool = False
    insecure: bool = False

    workers: int = Field(0, ge=0, le=256)  # 0: one per processor of the cgroup
    timeout_seconds: float = Field(120.0, gt=0)
    max_inputs: int = Field(2048, ge=1)
    max_hits: int = Field(50_000, ge=1000)
    max_body_mb: int = Field(16, ge=1)
    max_admitted_mb: int = Field(256, ge=1)
    max_queue_tokens: int = Field(1_000_000, ge=1)
    activate: Literal["auto", "manual"] = "auto"
    grace_seconds: float = Field(600.0, ge=0)
    build_rate: float = Field(0.0, ge=0)  # documents per second; 0: whatever the lane has left
    memory_check: bool = True
    canary_queries: int = Field(20, ge=0, le=1000)  # 0: none, not those of the file either
    canary_file: Path | None = None
    canary_min_overlap: float = Field(0.0, ge=0, le=1)  # 0: report only
    log_level: Literal["debug", "info", "warning", "error"] = "info"

    # Read here so that no name is unknown; their parts are not built yet (see _unbuilt).
    device: str = "cpu"
    precision: Literal["fp32", "bf16", "fp16", "int8", "auto"] = "fp32"
    cache_mb: int = Field(64, ge=0)
    api_keys_file: Path | None = None
    eval_data: Path | None = None  # read by training alone

    @model_validator(mode="before")
    @classmethod
    def _models_beside_the_data(cls, values: dict[str, Any]) -> dict[str, Any]:
        values.setdefault("models_dir", Path(values.get("data_dir", "data")) / "models")
        return values

    @model_validator(mode="after")
    def _refuse(self) -> Self:
        for name, wanted in _unbuilt(self).items():
            raise ValueError(f"{PREFIX}{name.upper()}={wanted}: {_NOT_BUILT[name]}")
        if self.canary_file is not None:
            try:
                canary_lines(self.canary_file)
            except ValueError as error:
                raise ValueError(f"{PREFIX}CANARY_FILE={self.canary_file}: {error}") from error
        if self.canary_min_overlap and not self.canary_queries:
            raise ValueError(
                f"{PREFIX}CANARY_MIN_OVERLAP={self.canary_min_overlap} needs canary queries, and "
                f"{PREFIX}CANARY_QUERIES=0 turns them off. Unset one of the two."
            )
        if not self.insecure and not _is_loopback(self.host):
            raise ValueError(
                f"{PREFIX}HOST={self.host} is reachable from other machines and there are no keys. Listen on "
                f"127.0.0.1, or set {PREFIX}INSECURE=1 when something in front keeps strangers out."
            )
        return self


def canary_lines(file: Path) -> list[str]:
    """The queries of a canary file, one per line; empty lines do not count.

    Raises:
        ValueError: it cannot be read, or holds no query or too many.

    """
    try:
        lines = file.read_text(encoding="utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"it cannot be read ({error}). Name a UTF-8 file, one query per line.") from error
    queries = [line.strip() for line in lines if line.strip()]
    if not 1 <= len(queries) <= MAX_CANARY_LINES:
        raise ValueError(f"it holds {len(queries)} queries; write 1 to {MAX_CANARY_LINES}, one per line.")
    return queries


_NOT_BUILT = {
    "device": "only `cpu` is there yet; leave it unset.",
    "precision": "only `fp32` is there yet; leave it unset.",
    "cache_mb": "the vector cache is not there yet; leave it unset, or 0 to say that there must be none.",
    "api_keys_file": "keys are not there yet, and a keys file is never ignored. Leave it unset and listen on "
    "127.0.0.1.",
}


def _unbuilt(settings: Settings) -> dict[str, Any]:
    """Settings that ask for a part that is not there."""
    asked = {name: getattr(settings, name) for name in _NOT_BUILT}
    defaults = {name: Settings.model_fields[name].default for name in _NOT_BUILT}
    return {
        name: value
        for name, value in asked.items()
        if value != defaults[name] and (name, value) != ("cache_mb", 0)
    }


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def read() -> Settings:
    """Settings from this process's environment.

    Raises:
        StartupError: a value that does not parse, a name that no setting has, a part that is not built.

    """
    known = {PREFIX + name.upper() for name in Settings.model_fields}
    for name in os.environ:
        if name.upper().startswith(PREFIX) and name.upper() not in known:
            close = get_close_matches(name.upper(), known, n=1)
            hint = f" Did you mean {close[0]}?" if close else ""
            raise StartupError(
                f"{name} is not a setting of this version.{hint} Unset it, or see docs/SETTINGS.md."
            )
    try:
        return Settings()
    except ValidationError as error:
        raise StartupError("\n".join(_in_words(problem) for problem in error.errors())) from error


def _in_words(problem: Any) -> str:
    message = str(problem["msg"]).removeprefix("Value error, ")
    if not problem["loc"]:
        return message
    return f"{PREFIX}{str(problem['loc'][0]).upper()}={problem['input']}: {message}."
