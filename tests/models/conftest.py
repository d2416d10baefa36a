"""A tiny version with prompts, and what other tools should make of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from models.publishing.portability.check import Expected
from models.publishing.portability.tools import TOOLS, Limits, Tool
from models.publishing.publish import publish
from models.store import Store
from tests.tiny import tiny_source

PROBE = Path(__file__).with_name("foreign_probe.py")
PROMPTS = {"query": "how do i ", "document": "the letter: "}


def foreign_tool(way: str, seconds: float = 900, cut_alike: bool = True) -> Tool:
    """A tool that foreign_probe.py plays, and that fails where the last of the real ones is known to.

    Its time is for torch to be imported on a machine that does much else.
    """
    limits = Limits(remarks=("a remark",), cut_alike=cut_alike)
    return Tool(way, (), lambda _: limits, TOOLS[-1].failures, PROBE, seconds)


@pytest.fixture(scope="session")
def portable_store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    root = tmp_path_factory.mktemp("portable")
    store = Store(root / "models")
    publish(store, tiny_source(root / "source", prompts=PROMPTS))
    return store


@pytest.fixture(scope="session")
def expected(portable_store: Store) -> Expected:
    version = portable_store.versions()[0].version
    return Expected.of(portable_store.folder(version), portable_store.open(version))
