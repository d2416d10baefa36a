"""SIMILE_PRECISION=auto: the fastest form of those that lose little, measured once."""

import json
import logging
from collections.abc import Sequence
from pathlib import Path

import pytest

from models.encoder import Encoder
from models.engines import opening
from models.engines.form import FP32, Form
from models.engines.opening import BF16, INT8
from models.errors import FormUnavailable
from models.store import Store
from service.batching.workers import Layout
from service.cli import check
from service.lifecycle import fastest_form as choosing
from service.lifecycle.fastest_form import FILE_NAME, fastest_form, kept_form, processor
from service.lifecycle.model_loader import ModelLoader
from service.settings import Settings
from tests.models.forms import needs_bf16, needs_int8
from tests.service.conftest import new_settings, serving

ANY_LOSS = 0.5


class Speeds:
    """Measured seconds by form, in the place of a clock, and the forms that were asked."""

    def __init__(self, **seconds: float) -> None:
        self._seconds = seconds
        self.asked: list[Form] = []

    def __call__(self, encoder: Encoder, texts: Sequence[str]) -> float:
        encoder.encode(texts[:1])
        self.asked.append(encoder.form)
        return self._seconds[encoder.form.precision]


def choose(models_dir: Path, folder: Path, loss: float = ANY_LOSS) -> Form:
    store = Store(models_dir)
    loader = ModelLoader(store, FP32, Layout(1, 1, "of a test"))
    return fastest_form(loader, store.versions()[0].version, folder, loss)


@pytest.fixture
def only_int8(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine without bf16, so that the answer is the same on any."""

    def require(form: Form) -> None:
        if form == BF16:
            raise FormUnavailable("no bf16 here")
        opening.require(form)

    monkeypatch.setattr(choosing, "require", require)


@needs_int8
@pytest.mark.parametrize(
    ("int8", "chosen"),
    [(0.1, INT8), (0.82, INT8), (0.85, FP32), (3.0, FP32)],  # 1.2 times as fast is 0.83 s
)
@pytest.mark.usefixtures("only_int8")
def test_a_form_that_is_clearly_faster_is_chosen_and_kept(
    tmp_path: Path, tiny_models_dir: Path, monkeypatch: pytest.MonkeyPatch, int8: float, chosen: Form
) -> None:
    speeds = Speeds(fp32=1.0, int8=int8)
    monkeypatch.setattr(choosing, "_seconds", speeds)
    assert choose(tiny_models_dir, tmp_path) == chosen
    assert set(speeds.asked) == {FP32, INT8}
    kept = json.loads((tmp_path / FILE_NAME).read_text())
    assert kept["form"] == str(chosen)
    assert kept["texts_per_second"] == {str(FP32): 64.0, str(INT8): round(64 / int8, 1)}
    speeds.asked.clear()
    assert choose(tiny_models_dir, tmp_path) == chosen
    assert not speeds.asked


@needs_int8
@pytest.mark.usefixtures("only_int8")
def test_a_form_that_loses_more_is_left_out_and_the_log_says_how_much(
    tmp_path: Path, tiny_models_dir: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    speeds = Speeds(fp32=1.0, int8=0.1)
    monkeypatch.setattr(choosing, "_seconds", speeds)
    with caplog.at_level(logging.INFO, choosing.__name__):
        assert choose(tiny_models_dir, tmp_path, loss=0.0) == FP32
    assert set(speeds.asked) == {FP32}
    assert "leaves bf16/openvino out: no bf16 here" in caplog.text
    assert "leaves int8/onnxruntime out: it loses 0.0" in caplog.text
    assert choose(tiny_models_dir, tmp_path, loss=ANY_LOSS) == INT8  # another loss is another question


@needs_int8
@pytest.mark.usefixtures("only_int8")
@pytest.mark.parametrize("damage", ["", "[]", "{}", '{"form": 3}', "processor", "form"])
def test_another_processor_and_a_damaged_file_are_measured_again(
    tmp_path: Path, tiny_models_dir: Path, monkeypatch: pytest.MonkeyPatch, damage: str
) -> None:
    monkeypatch.setattr(choosing, "_seconds", Speeds(fp32=1.0, int8=0.1))
    choose(tiny_models_dir, tmp_path)
    file = tmp_path / FILE_NAME
    kept = json.loads(file.read_text())
    other = {"processor": kept | {"processor": "of another machine"}, "form": kept | {"form": "fp8/other"}}
    file.write_text(json.dumps(other[damage]) if damage in other else damage)
    assert kept_form(tmp_path, ANY_LOSS) is None
    monkeypatch.setattr(choosing, "_seconds", Speeds(fp32=1.0, int8=2.0))
    assert choose(tiny_models_dir, tmp_path) == FP32
    assert kept_form(tmp_path, ANY_LOSS) == FP32


@needs_bf16
def test_a_form_whose_extra_is_gone_is_kept_no_longer(
    tmp_path: Path, tiny_models_dir: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    monkeypatch.setattr(choosing, "_seconds", Speeds(fp32=1.0, bf16=0.2, int8=0.9))
    assert choose(tiny_models_dir, tmp_path) == BF16
    request.getfixturevalue("only_int8")
    assert kept_form(tmp_path, ANY_LOSS) is None
    assert choose(tiny_models_dir, tmp_path) == FP32


def test_a_processor_is_told_by_name_and_family(tmp_path: Path) -> None:
    file = tmp_path / "cpuinfo"
    file.write_text(
        "processor\t: 0\nmodel name\t: A B\ncpu family\t: 25\nmodel\t\t: 17\n\nmodel name\t: other\n"
    )
    assert processor(file) == "model name A B, cpu family 25, model 17"
    file.write_text("processor\t: 0\nCPU implementer\t: 0x41\nCPU part\t: 0xd0c\n")
    assert processor(file) == "CPU implementer 0x41, CPU part 0xd0c"
    assert processor(tmp_path / "absent") == "unknown"


@pytest.mark.sqlite("replicas on one database measure nothing")
def test_a_service_measures_at_its_first_start_and_serves_what_it_chose(
    tmp_path: Path, tiny_models_dir: Path
) -> None:
    settings = new_settings(tmp_path, tiny_models_dir).model_copy(update={"precision": "auto"})
    assert "the fastest, measured at the next start" in check.report(settings)
    with serving(settings) as client:
        kept = json.loads((settings.data_dir / FILE_NAME).read_text())
        assert client.get("/info").json()["form"] == kept["form"]
        assert kept["texts_per_second"][str(FP32)] > 0
    assert f"{kept['form']}\n" in check.report(settings)


def test_replicas_and_a_gpu_measure_nothing() -> None:
    assert Settings(precision="auto").measures_form
    assert not Settings(precision="auto", device="cuda").measures_form
    assert not Settings(precision="auto", database="postgresql://somewhere/simile").measures_form
    assert not Settings(precision="bf16").measures_form
