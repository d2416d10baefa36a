"""A Compose project of this tree: runs commands, talks to its service over HTTP, and removes it."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any, Self

import httpx2

from tests.service.process import free_port, is_ready, plain_environment
from tests.waiting import LIMIT, until

ROOT = Path(__file__).resolve().parents[2]
TAG = "test"


def image_environment() -> dict[str, str]:
    """Returns the environment of a build from docker-compose.yml alone. It overrides the caller's .env."""
    return plain_environment(SIMILE_TAG=TAG, COMPOSE_FILE="docker-compose.yml", COMPOSE_PROFILES="")


def docker(
    *arguments: str,
    environment: dict[str, str] | None = None,
    seconds: float = 300,
    status: int | None = 0,
    both: bool = False,
) -> str:
    """Run `docker ARGUMENTS` in the tree. Return its stdout, with stderr if `both`.

    Unless `status` is None, the command must exit with this status.
    """
    done = subprocess.run(
        ["docker", *arguments],
        cwd=ROOT,
        env=environment or dict(os.environ),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT if both else subprocess.PIPE,
        text=True,
        timeout=seconds,
        check=False,
    )
    assert status in {None, done.returncode}, (
        f"docker {' '.join(arguments)}\n{done.stdout[-4000:]}{(done.stderr or '')[-4000:]}"
    )
    return done.stdout


def config(files: tuple[str, ...] = (), profiles: tuple[str, ...] = (), **variables: str) -> dict[str, Any]:
    """Return the configuration of docker-compose.yml and `files`, as Compose resolves it."""
    environment = image_environment() | {
        "COMPOSE_FILE": ":".join(["docker-compose.yml", *files]),
        "COMPOSE_PROFILES": ",".join(profiles),
        "POSTGRES_PASSWORD": "secret-word",  # docker/postgres.yml requires a password
        **variables,
    }
    found: dict[str, Any] = json.loads(
        docker("compose", "config", "--format", "json", environment=environment)
    )
    return found


def image(configuration: dict[str, Any], name: str, stand_in: str) -> str:
    """Returns the official image of service `name`, or a `stand_in` that is built if a pull fails."""
    official: str = configuration["services"][name]["image"]
    for command in ("image inspect", "pull"):
        if not subprocess.run(
            ["docker", *command.split(), official], capture_output=True, check=False
        ).returncode:
            return official
    tag = f"simile-standin-{stand_in}:test"
    docker("build", "--quiet", "--tag", tag, str(ROOT / "tests/docker/standins" / stand_in), seconds=600)
    return tag


class Stack:
    """Project `simile-NAME-PID`, with `files` after docker-compose.yml and `variables` as in .env."""

    def __init__(self, name: str, *files: str, **variables: str) -> None:
        self.name = f"simile-{name}-{os.getpid()}"
        self.port, self.prometheus_port = free_port(), free_port()
        self._environment = image_environment() | {
            "COMPOSE_PROJECT_NAME": self.name,
            "COMPOSE_FILE": ":".join(["docker-compose.yml", *files]),
            "SIMILE_PORT": str(self.port),
            "PROMETHEUS_PORT": str(self.prometheus_port),
            **variables,
        }
        self.client = httpx2.Client(base_url=f"http://127.0.0.1:{self.port}", timeout=LIMIT, trust_env=False)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        if any(raised):
            print(self.compose("logs", "--no-color"))
        self.client.close()
        self.compose("--profile", "*", "down", "--volumes", "--timeout", "5")

    def compose(
        self, *arguments: str, seconds: float = 300, status: int | None = 0, both: bool = False
    ) -> str:
        return docker(
            "compose", *arguments, environment=self._environment, seconds=seconds, status=status, both=both
        )

    def shell(self, command: str, seconds: float = 300) -> str:
        """Run a command of the docs, in which only the port is replaced, and return its output."""
        here = command.replace("127.0.0.1:8000", f"127.0.0.1:{self.port}")
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", here],
            cwd=ROOT,
            env=self._environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=seconds,
            check=False,
        )
        assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
        return done.stdout

    def up(self, *services: str, build: bool = False) -> None:
        self.compose("up", "--detach", "--wait", *([] if build else ["--no-build"]), *services)

    def container(self, service: str = "service") -> str:
        return self.compose("ps", "--all", "--quiet", service).strip()

    def inspect(self, service: str = "service") -> Any:
        [found] = json.loads(docker("inspect", self.container(service)))
        return found

    def volumes(self) -> list[str]:
        label = f"label=com.docker.compose.project={self.name}"
        return docker("volume", "ls", "--quiet", "--filter", label).split()

    def wait_until_ready(self) -> None:
        until(lambda: is_ready(self.client), lambda: self.compose("logs", "service"), pause=0.1)
