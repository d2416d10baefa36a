"""Pauses builds of an index."""

import asyncio
import threading

import pytest

from service.lifecycle.builder import Builder
from service.store.values import Unembedded


def hold_builds(
    monkeypatch: pytest.MonkeyPatch, version: str | None = None, documents: int = 0
) -> threading.Event:
    """Pauses builds of `version` (None: all) after `documents` documents, until the returned event is set."""
    embed, release, done = Builder._embed, threading.Event(), 0

    async def held(builder: Builder, step: dict[int, Unembedded]) -> None:
        nonlocal done
        if version is None or builder._generation.version == version:
            while done >= documents and not release.is_set():  # noqa: ASYNC110  tests are no tasks
                await asyncio.sleep(0.01)
            done += len(step)
        await embed(builder, step)

    monkeypatch.setattr(Builder, "_embed", held)
    return release
