"""Measures the map with 100,000 documents: `python -m tests.ui.measure` in the environment of test-ui.

First paint: from the navigation to the first frame with points. Frames: gaps between frames while the map is
dragged for ten seconds, and the time that the page itself needs to draw a frame.
"""

import tempfile
from pathlib import Path

from tests.ui.browsing import Browsing
from tests.ui.made_map import write_map
from tests.ui.service import Service, prepared

POINTS = 100_000
RUNS = 3
FIRST_PAINT = """() => new Promise((done) => {
  const look = () => {
    const canvas = document.querySelector("canvas");
    const middle = [0, (canvas?.height ?? 0) >> 1, canvas?.width, 1];
    const drawn = canvas?.width && canvas.getContext("2d").getImageData(...middle).data.some(Boolean);
    if (drawn) done(performance.now());
    else requestAnimationFrame(look);
  };
  look();
})"""
# Measures each frame callback: the time that the page itself needs for the frame.
TIMED = """() => {
  window.drawn = [];
  const request = window.requestAnimationFrame.bind(window);
  window.requestAnimationFrame = (work) => request((now) => {
    const begin = performance.now();
    work(now);
    window.drawn.push(performance.now() - begin);
  });
}"""
DRAG = """() => new Promise((done) => {
  const canvas = document.querySelector("canvas");
  const event = (kind, x) => canvas.dispatchEvent(
    new PointerEvent(kind, { pointerId: 1, clientX: 400 + x, clientY: 400 + x / 2, bubbles: true }));
  canvas.setPointerCapture = () => {};
  event("pointerdown", 0);
  const gaps = [];
  let before = performance.now();
  const begin = before;
  const frame = (now) => {
    gaps.push(now - before);
    before = now;
    event("pointermove", 150 * Math.sin((now - begin) / 300));
    if (now - begin < 10000) requestAnimationFrame(frame);
    else { event("pointerup", 0); done([gaps.slice(5), window.drawn.filter((time) => time > 0.3)]); }
  };
  requestAnimationFrame(frame);
})"""


def main() -> None:
    with tempfile.TemporaryDirectory() as name, Browsing() as browsing:
        folder = Path(name)
        prepared(folder, "tiny")
        with Service(folder) as service:
            service.put([{"id": "a", "text": "red river"}])
            write_map(
                folder / "data", service.get("/info")["model_version"], [f"n{at}" for at in range(POINTS)]
            )
            for run in range(RUNS):
                with browsing.page(service.url) as page:
                    page.page.goto(f"{service.url}/ui/#/map")
                    painted = page.page.evaluate(FIRST_PAINT)
                    page.page.evaluate(TIMED)
                    gaps, drawn = page.page.evaluate(DRAG)
                    print(f"run {run + 1}: first paint {painted / 1000:.2f} s; {len(gaps)} frames")
                    print(f"  from frame to frame {quantiles(gaps)}; drawing alone {quantiles(drawn)}")


def quantiles(times: list[float]) -> str:
    """Returns the median, p95 and p99 of times in milliseconds, as text."""
    ordered = sorted(times)
    return ", ".join(f"p{share} {ordered[share * len(ordered) // 100]:.1f} ms" for share in (50, 95, 99))


if __name__ == "__main__":
    main()
