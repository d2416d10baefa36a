"""`SIMILE_PRECISION=auto` on a processor: the form that computes fastest here, of those that lose little.

    fp32, bf16, int8 ─▶ those that this processor and the version have ─▶ those within SIMILE_PRECISION_LOSS
                     ─▶ each computes the same texts ─▶ the fastest is kept in form.json

Another form has every document embedded again. So a choice holds for a processor and a loss, and fp32 stays
unless another is clearly faster.
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
from models.engines.opening import BF16, INT8, require
from models.errors import FormUnavailable, ProofFailed
from models.files.bounded import read_json
from models.files.fsync import replace_text
from models.tokens.texts import example_texts
from service.lifecycle.model_loader import ModelLoader

log = logging.getLogger(__name__)

FILE_NAME = "form.json"
LEAST_GAIN = 1.2  # over fp32: less is within the noise of a busy machine
_TEXTS, _REPEATS = 64, 5  # about a second for a small encoder
_FACTS = ("model name", "cpu family", "model", "CPU implementer", "CPU part")  # of x86 and of Arm


def fastest_form(loader: ModelLoader, version: str, folder: Path, most_loss: float) -> Form:
    """The form that was kept in `folder`, else the one that is measured now, which takes a few seconds.

    most_loss: of the golden texts, 1 - the mean cosine to their vectors in fp32.

    Raises:
        ModelError: the version cannot be opened in fp32.
        OSError: the choice cannot be kept.

    """
    if (kept := kept_form(folder, most_loss)) is not None:
        return kept
    rates = {form: rate for form in (FP32, BF16, INT8) if (rate := _rate(loader, version, form, most_loss))}
    best = max(rates, key=lambda form: rates[form])
    chosen = best if rates[best] >= LEAST_GAIN * rates[FP32] else FP32
    said = ", ".join(f"{form} {rate:.0f}" for form, rate in rates.items())
    log.info("SIMILE_PRECISION=auto is %s: texts a second on one thread: %s", chosen, said)
    measured = {str(form): round(rate, 1) for form, rate in rates.items()}
    kept_now = _asked(most_loss) | {"form": str(chosen), "texts_per_second": measured}
    replace_text(folder / FILE_NAME, json.dumps(kept_now, indent=2) + "\n")
    return chosen


def kept_form(folder: Path, most_loss: float) -> Form | None:
    """The form that was chosen for this processor and this loss, while it can be computed."""
    try:
        kept = read_json(folder / FILE_NAME)
        asked = _asked(most_loss)
        if {name: kept[name] for name in asked} != asked:
            return None
        form = read_form(kept["form"])
        require(form)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, FormUnavailable):
        return None
    return form


def _asked(most_loss: float) -> dict[str, Any]:
    return {"processor": processor(), "most_loss": most_loss}


def processor(cpuinfo: Path = cpus.CPUINFO) -> str:
    """The first processor's name and family, as the system tells them."""
    facts = cpus.facts(cpuinfo)
    return ", ".join(f"{name} {facts[name]}" for name in _FACTS if name in facts) or "unknown"


def _rate(loader: ModelLoader, version: str, form: Form, most_loss: float) -> float | None:
    """Texts a second, of calls one after the other; None where the form is not there or loses too much."""
    try:
        require(form)
        encoder = loader.open(version, form)
    except (FormUnavailable, ProofFailed) as error:
        if form == FP32:
            raise
        log.info("SIMILE_PRECISION=auto leaves %s out: %s", form, error)
        return None
    try:
        loss = 0.0 if encoder.turned is None else 1 - encoder.turned.mean
        if loss > most_loss:
            log.info("SIMILE_PRECISION=auto leaves %s out: it loses %.5f, above %g", form, loss, most_loss)
            return None
        texts = example_texts()[:_TEXTS]
        return _TEXTS / min(_seconds(encoder, texts) for _ in range(_REPEATS))
    finally:
        encoder.close()


def _seconds(encoder: Encoder, texts: Sequence[str]) -> float:
    began = time.perf_counter()
    encoder.encode(texts)
    return time.perf_counter() - began
