"""How many workers run the model, and with how many threads each: measured once on each machine.

    set by hand ─▶ else measured here before ─▶ else one thread on each processor, measured at the first start

Independent workers beat one pass on several threads wherever it was measured so far (two processors; by 1.05
to 1.18), so another layout must be clearly faster to be taken, and one thread each is what is taken whenever
nothing can be learnt: on one processor, or while others use the machine.
"""

import json
import logging
import platform
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import onnxruntime

from models import cpus
from models.encoder import Encoder
from models.engines.form import FP32
from models.engines.opening import form_for
from models.errors import ModelError
from models.files.bounded import read_json
from models.files.fsync import replace_text
from models.store import Store
from service.errors import StartupError
from service.settings import Settings

log = logging.getLogger(__name__)

FILE = "tuning.json"
CLEARLY_FASTER = 1.1
BUSY_SHARE = 0.8  # of the processors that it could have; a measurement that got less says nothing
SLICES = 4  # of each layout; the best one counts
SLICE_SECONDS = 0.1
MOST_SECONDS = 2.5  # of all of it
TEXTS = ["The same sentence of about twenty tokens again and again says how fast this machine is."] * 25


class Layout(NamedTuple):
    workers: int
    threads: int  # of each worker

    def __str__(self) -> str:
        return f"{self.workers}x{self.threads}"


GPU_LAYOUT = Layout(2, 1)


class Tuning(NamedTuple):
    """A layout, and in words where it is from."""

    layout: Layout
    reason: str
    settled: bool  # nothing is left to be measured


class Slice(NamedTuple):
    batches_per_second: float
    share: float  # of the processors that it could have


def known(settings: Settings) -> Tuning:
    """What can be said without measuring."""
    processors = cpus.available()
    if _by_hand(settings):
        threads = settings.threads or 1
        layout = Layout(settings.workers or max(1, processors // threads), threads)
        return Tuning(layout, "set by SIMILE_WORKERS or SIMILE_THREADS", settled=True)
    if settings.place.device == "cuda":
        return Tuning(GPU_LAYOUT, "while a GPU computes one batch, the next is tokenised", settled=True)
    if processors == 1:
        return Tuning(Layout(1, 1), "one processor", settled=True)
    plain = Tuning(Layout(processors, 1), "one for each processor; not measured yet", settled=False)
    return _read(settings.data_dir / FILE, _key(settings, processors)) or plain


def _by_hand(settings: Settings) -> bool:
    return bool(settings.workers or settings.threads)


def tune(settings: Settings, open_encoder: Callable[[int], Encoder]) -> Tuning:
    """Measure, and remember it in the data directory: some two seconds.

    open_encoder: the model with so many threads for each pass; it is closed again.
    """
    processors = cpus.available()
    slices = measure(layouts(processors), open_encoder)
    tuning = choose(slices, processors)
    kept = {
        "key": _key(settings, processors),
        "workers": tuning.layout.workers,
        "threads": tuning.layout.threads,
        "reason": tuning.reason,
    }
    replace_text(settings.data_dir / FILE, json.dumps(kept, indent=2) + "\n")
    log.info("%s workers x threads: %s", tuning.layout, tuning.reason)
    return tuning


def run(settings: Settings) -> str:
    """`python -m service tune`: measure anew, on the version that is wanted; what was found, in words.

    Raises:
        StartupError: there is no version yet, or it cannot be opened, or its form knows no other layout.

    """
    store = Store(settings.models_dir)
    try:
        if form_for(settings.precision, settings.place) != FP32:
            raise StartupError("Only fp32 on the CPU is measured; other forms need one thread each.")
        version = store.wanted()
        if version is None:
            raise StartupError(f"{settings.models_dir} has no version yet; start the service once.")
        tuned = tune(settings, partial(store.open, version, deterministic=settings.deterministic))
    except ModelError as error:
        raise StartupError(str(error)) from error
    counts = "SIMILE_WORKERS or SIMILE_THREADS counts" if _by_hand(settings) else "from the next start on"
    return f"{tuned.layout} workers x threads ({tuned.reason}); {counts}"


def layouts(processors: int) -> list[Layout]:
    """The layouts to compare: one thread each, two each, and all of them for one worker."""
    threads = dict.fromkeys([1, 2, processors])
    return [Layout(processors // each, each) for each in threads if each <= processors]


def measure(compared: Sequence[Layout], open_encoder: Callable[[int], Encoder]) -> dict[Layout, list[Slice]]:
    """Slices of each layout, one layout after the other; of one that there was no time for none."""
    until = time.monotonic() + MOST_SECONDS
    slices: dict[Layout, list[Slice]] = {layout: [] for layout in compared}
    for layout, found in slices.items():
        if time.monotonic() > until:
            break
        encoder = open_encoder(layout.threads)
        try:
            ids = [tokens.ids for tokens in encoder.tokenize(TEXTS)]
            encoder.forward(ids)  # the first is slow
            while len(found) < SLICES and time.monotonic() < until:
                found.append(_slice(layout, lambda: encoder.forward(ids)))  # noqa: B023  called before the next
        finally:
            encoder.close()
    return slices


def choose(slices: dict[Layout, list[Slice]], processors: int) -> Tuning:
    """The fastest, when it is clearly faster than one thread each."""
    plain = Layout(processors, 1)
    if max((one.share for one in slices[plain]), default=0.0) < BUSY_SHARE:
        reason = "one for each processor; others used the machine while it was measured"
        return Tuning(plain, f"{reason} (python -m service tune measures again)", settled=True)
    rates = {
        layout: max(one.batches_per_second for one in found) for layout, found in slices.items() if found
    }
    best = max(rates, key=rates.__getitem__)
    if rates[best] < CLEARLY_FASTER * rates[plain]:
        best = plain
    told = ", ".join(f"{layout} {rate:.0f}" for layout, rate in rates.items())
    return Tuning(best, f"measured, batches per second: {told}", settled=True)


def _slice(layout: Layout, forward: Callable[[], object]) -> Slice:
    """Every worker computes batches for a moment."""
    done = [0] * layout.workers
    until = time.monotonic() + SLICE_SECONDS

    def work(number: int) -> None:
        while True:
            forward()
            done[number] += 1
            if time.monotonic() >= until:
                return

    workers = [threading.Thread(target=work, args=[number]) for number in range(layout.workers)]
    started, cpu = time.monotonic(), time.process_time()
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    seconds = time.monotonic() - started
    share = (time.process_time() - cpu) / (seconds * layout.workers * layout.threads)
    return Slice(sum(done) / seconds, share)


def _key(settings: Settings, processors: int) -> dict[str, Any]:
    """What a measurement holds for: this machine, in this form."""
    return {
        "cpu": _cpu(),
        "processors": processors,
        "device": settings.device,
        "precision": settings.precision,
        "onnxruntime": onnxruntime.__version__,  # of whichever package it came in,
    }


def _cpu() -> str:
    """The processor's name, family and model: some virtual machines tell no more than a maker's name."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").split("\n\n", 1)[0].splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    facts = {name.strip(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    told = [facts.get(name, "") for name in ("model name", "cpu family", "model", "stepping")]
    return " ".join(filter(None, told)) or platform.machine()


def _read(file: Path, key: dict[str, Any]) -> Tuning | None:
    """What was measured here before; None when that was elsewhere, or cannot be read."""
    try:
        kept = read_json(file)
        layout = Layout(kept["workers"], kept["threads"])
        sound = all(isinstance(count, int) and 1 <= count <= key["processors"] for count in layout)
        if kept["key"] != key or not sound or not isinstance(kept["reason"], str):
            return None
    except (OSError, ValueError, LookupError, TypeError):
        return None
    return Tuning(layout, kept["reason"], settled=True)
