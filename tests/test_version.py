"""The version and the badges agree with pyproject.toml."""

import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest

from models.__main__ import main as models
from models.version import DISTRIBUTION, VERSION
from service.__main__ import parser as service
from service.app import create_app
from service.settings import Settings
from training.__main__ import parser as training

ROOT = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


@pytest.mark.parametrize(
    "program",
    [models, lambda line: service().parse_args(line), lambda line: training().parse_args(line)],
    ids=["models", "service", "training"],
)
def test_every_program_says_its_version(
    program: Callable[[list[str]], object], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        program(["--version"])
    assert ended.value.code == 0
    assert capsys.readouterr().out == f"Simile {VERSION}\n"


def test_the_client_and_the_api_have_the_version_of_the_package() -> None:
    assert PROJECT["dynamic"] == ["version"]
    assert PROJECT["name"] == DISTRIBUTION
    client = tomllib.loads((ROOT / "simile_client/pyproject.toml").read_text(encoding="utf-8"))
    assert client["project"]["version"] == VERSION
    assert create_app(Settings()).openapi()["info"]["version"] == VERSION
    assert f"/simile_search-{VERSION}-py3-none-any.whl" in (ROOT / "README.md").read_text(encoding="utf-8")
    assert f"## {VERSION}" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")


def test_the_badges_say_what_the_package_says() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    said = {"python": PROJECT["requires-python"].removeprefix(">=") + "+", "licence": PROJECT["license"]}
    for name, words in said.items():
        assert f">{words}</text>" in (ROOT / f"docs/{name}.svg").read_text(encoding="utf-8")
        assert f"(docs/{name}.svg)" in readme
