"""The form in which a retraining's active model mines."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

from models.encoder import Encoder
from models.engines.form import FP32, Form
from models.engines.opening import form_for
from models.store import Store
from tests.training.conftest import WORDS
from training.methods.recipe import load_recipe
from training.retraining.config import Config
from training.retraining.one import Job
from training.retraining.plan import prepare


@pytest.mark.parametrize(("precision", "form"), [("auto", form_for("auto")), ("fp32", FP32)])
def test_lists_are_mined_in_the_quickest_nearly_exact_form_unless_all_is_fp32(
    job: Job, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, precision: str, form: Form
) -> None:
    """bf16 where the processor has it and OpenVINO is installed."""
    draw = random.Random(1)
    texts = [" ".join(draw.choices(WORDS, k=12)) for _ in range(200)]
    lines = [
        {"id": str(at), "title": f"{text[:14]} {at}", "text": f"{text}. {text[::-1]}"}
        for at, text in enumerate(texts)
    ]
    (tmp_path / "documents.jsonl").write_text("\n".join(map(json.dumps, lines)))
    opened: list[Form] = []
    real = Store.open

    def open_and_note(self: Store, *given: Any, **how: Any) -> Encoder:
        encoder = real(self, *given, **how)
        opened.append(encoder.form)
        return encoder

    monkeypatch.setattr(Store, "open", open_and_note)
    config = Config.model_validate(
        {
            "corpus": {"file": tmp_path / "documents.jsonl"},
            "train": {"recipe": "distil-hybrid", "precision": precision},
            "gate": {"data": job.data},
            "folders": {"models": job.store.root, "work": job.work},
        }
    )
    prepare(config, load_recipe("distil-hybrid", {}), job.store, job.work, lambda line: None)
    assert opened == [form]
