"""The page in a real Chromium: `make test-ui`, in a separate environment.

The project's own environment lacks playwright. Without it, the test modules are skipped without an import.
"""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec

import pytest

from tests.parts.skipped import skipped_unless

INSTALLED = find_spec("playwright") is not None


pytest_pycollect_makemodule = skipped_unless(
    INSTALLED, "the page's tests have an environment of their own: `make test-ui` runs these"
)


if INSTALLED:
    from tests.ui.browsing import CHROMIUM, Browsing, Watched
    from tests.ui.made_map import write_map
    from tests.ui.service import HOSTILE, LONG_LINE, Service, corpus, prepared

    @pytest.fixture(scope="session")
    def browsing() -> Iterator[Browsing]:
        if CHROMIUM is None:
            pytest.skip("needs Chromium (Debian: apt-get install chromium)")
        with Browsing() as browsing:
            yield browsing

    @pytest.fixture(scope="session")
    def service(tmp_path_factory: pytest.TempPathFactory, browsing: Browsing) -> Iterator[Service]:
        """A service with over 5,000 documents, some hostile, two versions with maps, and a refused one."""
        folder = tmp_path_factory.mktemp("ui")
        second = prepared(folder, "tiny")
        # Passages are off, so that a busy machine embeds 5,000 abstracts twice within a minute.
        with Service(folder, SIMILE_GRACE_SECONDS="86400", SIMILE_PASSAGES="0") as service:
            for start in range(0, 5000, 1000):
                service.put(corpus()[start : start + 1000])
            service.put(
                [
                    {"id": f"hostile-{at}", "text": text, "metadata": {text: text}}
                    for at, text in enumerate(HOSTILE)
                ]
            )
            service.put([{"id": "long-line", "text": LONG_LINE}])
            first = service.get("/models")["active"]
            service.activate(second)
            ids = [one["id"] for one in corpus()]
            write_map(folder / "data", first, ids)
            write_map(folder / "data", second, ids, aligned_to=first)
            yield service

    @pytest.fixture(scope="session")
    def keyed(tmp_path_factory: pytest.TempPathFactory, browsing: Browsing) -> Iterator[Service]:
        """A service with two documents, protected by keys."""
        folder = tmp_path_factory.mktemp("keyed")
        prepared(folder, "tiny")
        with Service(folder, keys=True) as service:
            split = f"blue bridge {'stone ' * 200}"  # longer than the model reads
            service.put([{"id": "a", "text": "red river"}, {"id": "b", "text": split}])
            yield service

    @pytest.fixture
    def page(browsing: Browsing, service: Service) -> Iterator[Watched]:
        """A page on `service`. An error or a request to another host fails the test."""
        with browsing.page(service.url) as page:
            yield page
