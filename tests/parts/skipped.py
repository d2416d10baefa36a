"""Skips test modules whose packages are in another environment, and does not import these modules."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def skipped_unless(installed: bool, reason: str) -> Callable[[Path, pytest.Collector], pytest.Module | None]:
    """Return the hook `pytest_pycollect_makemodule` for a folder whose tests need other packages."""

    class Absent(pytest.Module):
        def collect(self) -> list[pytest.Item]:
            pytest.skip(reason)

    def hook(module_path: Path, parent: pytest.Collector) -> pytest.Module | None:
        return None if installed else Absent.from_parent(parent, path=module_path)

    return hook
