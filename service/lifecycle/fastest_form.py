"""`SIMILE_PRECISION=auto` on a processor: the form that computes fastest here, of those that lose little.

    fp32, bf16, int8 ─▶ those that this processor and the version have ─▶ those within SIMILE_PRECISION_LOSS
                     ─▶ each computes the same texts ─▶ the fastest is kept in form.json

Another form has every document embedded again. So the form of the stored vectors stays unless another is
clearly faster, and a choice holds until the version, the processor or what it has to choose from changes.
"""

import json
import logging
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from models import cpus
from models.encoder import Encoder
from models.engines.form import FP32, Form, read_form
from models.engines.opening import CPU_FORMS, INT8, require
from models.errors import FormUnavailable
from models.files.bounded import read_json
from models.files.fsync import replace_text
from models.manifest import read_manifest
from models.tokens.texts import example_texts
from service.batching.workers import Layout
from service.lifecycle.model_loader import ModelLoader, loss_of

log = logging.getLogger(__name__)

FILE_NAME = "form.json"
LEAST_GAIN = 1.2  # over the form of the stored vectors: less is within the noise of a busy machine
_TEXTS, _REPEATS = 64, 5  # about a second for a small encoder
_MOST_SECONDS = 5.0  # for the repeats of one form: a large encoder has fewer
_FACTS = ("model name", "cpu family", "model", "CPU implementer", "CPU part")  # of x86 and of Arm


def fastest_form(loader: ModelLoader, version: str, folder: Path, most_loss: float, now: Form = FP32) -> Form:
    """The form that was kept in `folder`, else the one that is measured now, which takes a few seconds.

    most_loss: of the golden texts, 1 - the mean cosine to their vectors in fp32.
    now: the form of the stored vectors.

    Raises:
        ModelError: the version cannot be opened in fp32.

    """
    asked = asked_of(loader.store.folder(version), loader.layout, most_loss)
    if (kept := kept_form(folder, asked)) is not None:
        return kept
    log.info("SIMILE_PRECISION=auto measures %s", ", ".join(asked["forms"]))
    rates = {}
    for form in map(read_form, asked["forms"]):
        if rate := _rate(loader, version, form, most_loss):
            rates[form] = rate
    best, stays = max(rates, key=lambda form: rates[form]), now if now in rates else FP32
    chosen = best if rates[best] >= LEAST_GAIN * rates[stays] else stays
    said = ", ".join(f"{form} {rate:.0f}" for form, rate in rates.items())
    log.info("SIMILE_PRECISION=auto is %s: texts a second of one processor: %s", chosen, said)
    measured = {str(form): round(rate, 1) for form, rate in rates.items()}
    kept_now = asked | {"form": str(chosen), "texts_per_second": measured}
    try:
        replace_text(folder / FILE_NAME, json.dumps(kept_now, indent=2) + "\n")
    except OSError as error:
        log.warning("SIMILE_PRECISION=auto cannot keep its choice, so the next start measures: %s", error)
    return chosen


def asked_of(version: Path, layout: Layout, most_loss: float) -> dict[str, Any]:
    """The question that a choice answers: a version's folder, this processor, and what may be chosen.

    Raises:
        ModelError: the version cannot be read.

    """
    manifest = read_manifest(version)
    forms = [form for form in CPU_FORMS if _is_here(form)]
    return {
        "fingerprint": manifest.fingerprint,
        "processor": processor(),
        "threads": layout.threads,
        "most_loss": most_loss,
        "forms": [str(form) for form in forms if form != INT8 or manifest.quantised],
    }


def kept_form(folder: Path, asked: dict[str, Any]) -> Form | None:
    """The form that was chosen when the same was asked."""
    try:
        kept = read_json(folder / FILE_NAME)
        same = {name: kept[name] for name in asked} == asked
        form = read_form(kept["form"])
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
    return form if same and str(form) in asked["forms"] else None


def processor(cpuinfo: Path = cpus.CPUINFO) -> str:
    """The first processor's name and family, as the system tells them."""
    facts = cpus.facts(cpuinfo)
    return ", ".join(f"{name} {facts[name]}" for name in _FACTS if name in facts) or "unknown"


def _is_here(form: Form) -> bool:
    try:
        require(form)
    except FormUnavailable:
        return False
    return True


def _rate(loader: ModelLoader, version: str, form: Form, most_loss: float) -> float | None:
    """Texts a second of one processor; None where the form fails or loses too much."""
    try:
        encoder = loader.open(version, form)
        try:
            if (loss := loss_of(encoder)) > most_loss:
                log.info(
                    "SIMILE_PRECISION=auto leaves %s out: it loses %.5f, above %g", form, loss, most_loss
                )
                return None
            return _TEXTS / _least_seconds(encoder, example_texts()[:_TEXTS])
        finally:
            encoder.close()
    except Exception as error:  # a runtime has errors of its own
        if form == FP32:
            raise
        log.warning("SIMILE_PRECISION=auto leaves %s out: %s", form, error)
        return None


def _least_seconds(encoder: Encoder, texts: Sequence[str]) -> float:
    began, found = time.monotonic(), list[float]()
    while len(found) < _REPEATS and (not found or time.monotonic() - began < _MOST_SECONDS):
        found.append(_seconds(encoder, texts))
    return min(found)


def _seconds(encoder: Encoder, texts: Sequence[str]) -> float:
    """Seconds of processor time: those by the clock count other processes too."""
    began = time.process_time()
    encoder.encode(texts)
    return time.process_time() - began
