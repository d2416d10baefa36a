"""Takes pictures of every view, at two widths, light and dark: `make screenshots`.

    python -m tests.ui.screenshots FOLDER

The service has the default model, a second version with its weights, and the example texts. For the pictures
"gain" and "hits" it has the tickets and judgments of docs/tutorial. The README shows these two (docs/page/).
"""

import csv
import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from playwright.sync_api import expect

from tests.parts.served import PYTHON, ROOT
from tests.ui.browsing import CHROMIUM, Browsing
from tests.ui.service import Service, prepared
from tests.waiting import until

QUERY = "how+do+I+get+my+money+back"
# By picture: its view, and an element that is visible once the view is drawn.
VIEWS = {
    "search": (f"search?q={QUERY}&mode=hybrid", "li.hit"),
    "counts": (f"search?q={QUERY}&mode=lexical&filter=%7B%22topic%22:%22support%22%7D", "li.hit"),
    "why": ("search?q=mnoey+back", ".corrected"),
    "syntax": ("search?q=%22working+days%22+-parcel&syntax=true", "li.hit"),
    "suggestions": ("search", ".steps li"),
    "steps": ("search", ".steps li"),
    "compare": (f"compare?q={QUERY}", ".column li.hit"),
    "judge": (f"judge?q={QUERY}", "main:has(progress) li.hit"),
    "documents": ("documents?add=1", "li.document"),
    "document": ("document?id=support-refund-window", "li.hit"),
    "map": (f"map?q={QUERY}", ".panel ol li"),
    "versions": ("versions", ".pill.active"),
    "health": ("health", ".verdict-line"),
    "start": ("search", "#add-text"),  # last, because it leaves the page in an empty collection
}
WHOLE = {"versions"}  # pictures of more than the first screen
SIZES = (1280, 390)
JUDGED = {"support-refund-window": True, "support-card-declined": False}


def main() -> None:
    pictures = Path(sys.argv[1])
    pictures.mkdir(parents=True, exist_ok=True)
    if CHROMIUM is None:
        sys.exit("Chromium is missing. On Debian: apt-get install chromium")
    with tempfile.TemporaryDirectory() as name, Browsing() as browsing:
        folder = Path(name)
        second = prepared(folder, "default")
        with Service(folder, SIMILE_EXAMPLES="1", SIMILE_GRACE_SECONDS="86400") as service:
            service.activate(second)
            first = next(
                one["version"] for one in service.get("/models")["models"] if one["state"] == "retired"
            )
            service.activate(first)  # The better version is active.
            _judge(service)
            service.command("map")
            for width in SIZES:
                for scheme in ("light", "dark"):
                    _take(browsing, service, pictures, width, scheme)
        (folder / "tutorial").mkdir()
        with Service(folder / "tutorial", SIMILE_EXAMPLES="0") as service:
            _learn(service)
            _take_gain(browsing, service, pictures)
    print(f"The pictures are in {pictures}.")


def _judge(service: Service) -> None:
    there = {one["id"] for one in service.get("/documents", limit=1000)["documents"]}
    query = QUERY.replace("+", " ")
    said = [
        {"query": query, "id": id, "relevant": relevant} for id, relevant in JUDGED.items() if id in there
    ]
    service.post("/feedback", {"feedback": said})


def _take(browsing: Browsing, service: Service, pictures: Path, width: int, scheme: str) -> None:
    with browsing.page(service.url, width, scheme) as page:
        for name, (view, drawn) in VIEWS.items():
            page.open(view)
            if name == "start":
                page.page.evaluate("sessionStorage.setItem('simile-collection', 'empty')")
                page.page.reload()
            expect(page.the("#status .dot")).to_be_visible()
            expect(page.the(drawn).first).to_be_visible()
            page.page.wait_for_load_state("networkidle")
            if name == "versions":
                page.the(".version-card:has(.pill.refused) summary", has_text="report").click()
                expect(page.the("svg.forest")).to_be_visible()
            if name == "counts" and width < 960:
                page.the(".filter summary").click()
            if name == "why":
                page.button("why this place?").first.click()
            if name == "suggestions":
                page.the("#q").press_sequentially("re")
                expect(page.the("[role=option]").first).to_be_visible()
                page.the("#q").press("ArrowDown")
            if name == "health":
                expect(page.the(".tile path").first).to_have_attribute("d", re.compile("L.*L.*L"))
            page.page.screenshot(path=pictures / f"{name}-{width}-{scheme}.png", full_page=name in WHOLE)
            print(f"{name}, {width} pixels, {scheme}", flush=True)


def _learn(service: Service) -> None:
    """Learns a ranking from the tickets and judgments of docs/tutorial, and waits until it is active."""
    made = service.folder / "tickets"
    subprocess.run([PYTHON, "docs/tutorial/tickets.py", str(made)], cwd=ROOT, check=True)
    with (made / "tickets.csv").open(encoding="utf-8", newline="") as file:
        rows = [*csv.DictReader(file)]
    service.put([{"id": row["number"], "title": row["subject"], "text": row["body"]} for row in rows])
    service.post("/feedback", json.loads((made / "feedback.json").read_text(encoding="utf-8")))
    first = service.get("/models")["active"]
    command = [str(PYTHON), "-m", "training", "rank", "--from-service", service.url]
    subprocess.run(command, cwd=ROOT, env=service.environment, check=True)
    until(lambda: service.get("/models")["active"] != first)


def _take_gain(browsing: Browsing, service: Service, pictures: Path) -> None:
    with browsing.page(service.url, SIZES[0], "light") as page:
        page.open("versions")
        page.the(".version-card:has(.pill.active) summary", has_text="report").click()
        expect(page.the("svg.forest")).to_be_visible()
        page.the(".version-card:has(.pill.active)").screenshot(path=pictures / "gain.png")
        page.open("search?q=bad+sound+on+calls")
        expect(page.the("li.hit").first).to_be_visible()
        page.button("why this place?").first.click()
        page.page.screenshot(
            path=pictures / "hits.png", clip={"x": 0, "y": 0, "width": SIZES[0], "height": 560}
        )


if __name__ == "__main__":
    main()
