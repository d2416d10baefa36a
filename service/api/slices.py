"""Work on the event loop, in slices: between two of them everybody else has a turn."""

import asyncio
import time

SLICE_SECONDS = 0.005  # a few bodies may be worked on at once, and an answer needs some rounds of the loop


class Slices:
    """One for each body. Call `rest` between the steps of its work."""

    def __init__(self) -> None:
        self._began = time.perf_counter()

    async def rest(self) -> None:
        """Let the event loop go round once, when the slice is over."""
        if time.perf_counter() - self._began > SLICE_SECONDS:
            await asyncio.sleep(0)
            self._began = time.perf_counter()
