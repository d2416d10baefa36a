"""Chromium, and pages whose errors and requests to other hosts are recorded."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Self

from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Locator, Page, expect, sync_playwright

from tests.waiting import LIMIT

CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
FLAGS = (
    "--no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync"
).split()
SERIOUS = {"serious", "critical"}
expect.set_options(timeout=LIMIT * 1000)


class Watched:
    """A page, and its problems: errors, warnings, dialogs and requests to other hosts."""

    def __init__(self, page: Page, url: str) -> None:
        self.page = page
        self.url = url
        self.problems: list[str] = []
        page.set_default_timeout(LIMIT * 1000)
        page.on("console", self._console)
        page.on("pageerror", lambda error: self.problems.append(f"error: {error}"))
        page.on("request", self._request)
        page.on("dialog", lambda dialog: self.problems.append(f"dialog: {dialog.message}"))

    def _console(self, message: Any) -> None:
        # Chromium writes a line for each refused request, even for those that a test provokes.
        if message.type in {"error", "warning"} and "Failed to load resource" not in message.text:
            self.problems.append(f"console: {message.text}")

    def _request(self, request: Any) -> None:
        if not request.url.startswith((f"{self.url}/", "data:", f"blob:{self.url}/")):
            self.problems.append(f"request to another host: {request.url}")

    def open(self, view: str) -> None:
        self.page.goto(f"{self.url}/ui/#/{view}")
        expect(self.page.locator("main h1")).to_be_attached()

    def the(self, selector: str, **options: Any) -> Locator:
        return self.page.locator(selector, **options)

    def button(self, name: str) -> Locator:
        return self.page.get_by_role("button", name=name)

    def check_accessible(self) -> None:
        found = Axe().run(self.page).response["violations"]
        said = [
            f"{one['id']}: {one['help']} {[node['html'][:200] for node in one['nodes']]}" for one in found
        ]
        assert not said, "\n".join(said)

    def check_fits(self) -> None:
        """Fails if the page is wider than the window."""
        wide = self.page.evaluate(
            "document.documentElement.scrollWidth - document.documentElement.clientWidth"
        )
        assert wide <= 0, f"{wide} pixels do not fit"


class Browsing:
    """A Chromium that runs during a `with` block."""

    def __enter__(self) -> Self:
        self._playwright = sync_playwright().start()
        self._chromium = self._playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        return self

    def __exit__(self, *_: object) -> None:
        self._chromium.close()
        self._playwright.stop()

    def another_origin(self) -> Page:
        """Returns a page of another origin, which is another port of this machine."""
        page = self._chromium.new_page()
        page.route(
            "http://127.0.0.1:1/**", lambda route: route.fulfill(body="<body>", content_type="text/html")
        )
        page.goto("http://127.0.0.1:1/")
        return page

    @contextmanager
    def page(self, url: str, width: int = 1280, scheme: Any = "light") -> Iterator[Watched]:
        """Yields a page with empty storage, cache and history. Fails at the end if it had problems."""
        context = self._chromium.new_context(
            viewport={"width": width, "height": 860}, color_scheme=scheme, accept_downloads=True
        )
        watched = Watched(context.new_page(), url)
        try:
            yield watched
        finally:
            context.close()
        assert watched.problems == []
