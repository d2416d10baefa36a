"""Each precision and engine is known in the types, the setting, `/info` and the docs."""

import re
from pathlib import Path
from typing import get_args

from models.engines.form import Precision, Runtime
from models.engines.opening import ENGINES
from service.api.info import DTYPES
from service.settings import Settings

SETTINGS = Path(__file__).parents[2] / "docs/SETTINGS.md"


def test_each_form_of_the_table_is_known_in_every_place() -> None:
    precisions = {form.precision for form in ENGINES}
    assert precisions == set(get_args(Precision))
    assert {form.runtime for form in ENGINES} == set(get_args(Runtime))
    assert set(get_args(Settings.model_fields["precision"].annotation)) == {*precisions, "auto"}
    assert set(DTYPES) == precisions
    text = SETTINGS.read_text(encoding="utf-8").partition("\n## Precision\n")[2]
    rows = re.findall(r"^\| (\w+) \| ([^|;]*)", text.partition("\n\nIf something")[0], re.MULTILINE)
    for device, word in (("cpu", "processor"), ("cuda", "GPU")):
        named = {precision for precision, devices in rows if word in devices}
        known = {form.precision for form, engine in ENGINES.items() if engine.device == device}
        assert named == {*known, "auto"}, device
