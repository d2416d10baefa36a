"""Settings are applied or rejected, never ignored."""

from pathlib import Path

import pytest

from models import cpus
from models.engines.form import CPU, Place
from service import memory
from service.__main__ import refuse_clashes
from service.batching.workers import layout_for
from service.cli import check
from service.errors import StartupError
from service.lifecycle.model_loader import requested_form
from service.settings import Settings, read


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for field in Settings.model_fields:
        monkeypatch.delenv(f"SIMILE_{field.upper()}", raising=False)


def refusal(monkeypatch: pytest.MonkeyPatch, **variables: str) -> str:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(StartupError) as refused:
        read()
    return str(refused.value)


def test_the_defaults_are_those_of_the_specification() -> None:
    settings = read()
    assert (settings.host, settings.port) == ("127.0.0.1", 8000)
    assert settings.data_dir == Path("data")
    assert settings.models_dir == Path("data/models")
    assert (settings.model, settings.activate) == ("default", "auto")
    assert (settings.device, settings.precision) == ("cpu", "fp32")
    assert (settings.cache_mb, settings.examples, settings.insecure) == (64, False, False)


@pytest.mark.parametrize(
    ("memory_bytes", "body", "expected"),
    [
        (1 << 30, "16", 64),
        (4 << 30, "16", 256),
        (64 << 30, "16", 256),
        (None, "16", 256),
        (1 << 27, "16", 16),
        (1 << 30, "100", 100),
    ],
)
def test_bodies_in_flight_take_a_sixteenth_of_the_memory_and_one_always_has_room(
    monkeypatch: pytest.MonkeyPatch, memory_bytes: int | None, body: str, expected: int
) -> None:
    monkeypatch.setattr(memory, "limit", lambda: memory_bytes)
    monkeypatch.setenv("SIMILE_MAX_BODY_MB", body)
    assert read().max_admitted_mb == expected
    assert f"SIMILE_MAX_ADMITTED_MB          {expected} " in check.report(read())
    monkeypatch.setenv("SIMILE_MAX_ADMITTED_MB", "5")
    assert read().max_admitted_mb == 5


def test_models_live_beside_the_data_or_in_their_own_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SIMILE_DATA_DIR", "/somewhere")
    assert read().models_dir == Path("/somewhere/models")
    monkeypatch.setenv("SIMILE_MODELS_DIR", "/elsewhere")
    assert read().models_dir == Path("/elsewhere")


@pytest.mark.parametrize("name", ["gpu", "cuda:", "cuda:x", "mps"])
def test_a_device_that_is_none_is_refused_with_others(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    assert refusal(monkeypatch, SIMILE_DEVICE=name) == f"SIMILE_DEVICE={name}: name cpu, cuda or cuda:N."


@pytest.mark.parametrize(
    ("requested", "computed"), [("fp32", "fp32"), ("fp16", "fp16"), ("auto", "fp16"), (None, "fp32")]
)
def test_a_gpu_computes_in_the_precision_that_is_asked_for(
    monkeypatch: pytest.MonkeyPatch, requested: str | None, computed: str
) -> None:
    monkeypatch.setenv("SIMILE_DEVICE", "cuda:1")
    monkeypatch.setenv("SIMILE_GPU_MEM_MB", "2048")
    if requested is not None:
        monkeypatch.setenv("SIMILE_PRECISION", requested)
    settings = read()
    assert settings.place == Place("cuda", 1, 2048)
    assert str(requested_form(settings)) == f"{computed}/onnxruntime-cuda"
    assert layout_for(settings)[:2] == (2, 1)


@pytest.mark.parametrize("precision", ["bf16", "int8"])
def test_a_precision_that_a_gpu_does_not_compute_in_is_refused(
    monkeypatch: pytest.MonkeyPatch, precision: str
) -> None:
    monkeypatch.setenv("SIMILE_DEVICE", "cuda")
    monkeypatch.setenv("SIMILE_PRECISION", precision)
    with pytest.raises(StartupError, match=f"SIMILE_PRECISION={precision}: a GPU computes in fp32 or fp16"):
        requested_form(read())


def test_the_gpu_is_the_default_where_its_extra_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    installed = tmp_path / "onnxruntime_gpu-1.31.1.dist-info"
    installed.mkdir()
    (installed / "METADATA").write_text("Metadata-Version: 2.1\nName: onnxruntime-gpu\nVersion: 1.31.1\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert read().device == "cuda"
    monkeypatch.setenv("SIMILE_DEVICE", "cpu")
    assert read().place == CPU


def said_of_the_device(report: str) -> str:
    facts = dict(line.split(maxsplit=1) for line in report.partition("\n\n")[2].splitlines())
    return facts["device"]


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.4", "example.org"])
def test_no_keys_means_loopback_only(monkeypatch: pytest.MonkeyPatch, host: str) -> None:
    assert "SIMILE_INSECURE=1" in refusal(monkeypatch, SIMILE_HOST=host)
    monkeypatch.setenv("SIMILE_INSECURE", "1")
    assert read().host == host


@pytest.mark.parametrize("host", ["127.0.0.1", "127.9.9.9", "localhost", "::1"])
def test_every_loopback_address_is_allowed(monkeypatch: pytest.MonkeyPatch, host: str) -> None:
    monkeypatch.setenv("SIMILE_HOST", host)
    assert read().host == host


def test_a_missing_runtime_and_two_distributions_of_one_import_are_refused_with_the_fix() -> None:
    refuse_clashes({"onnxruntime", "faiss-cpu", "numpy"})
    with pytest.raises(StartupError, match=r"faiss-cpu and faiss-gpu .*pip uninstall -y faiss-cpu faiss-gpu"):
        refuse_clashes({"onnxruntime", "faiss-cpu", "faiss-gpu"})
    with pytest.raises(StartupError, match="onnxruntime and onnxruntime-gpu"):
        refuse_clashes({"onnxruntime", "onnxruntime-gpu", "faiss-cpu"})
    with pytest.raises(StartupError, match=r"constraints\.txt -e '?/.*\[cpu\]'"):
        refuse_clashes({"faiss-cpu"})


@pytest.mark.parametrize(
    ("text", "expected"),
    [("150000 100000", 1), ("max 100000", None), ("50000 100000", 1), ("100000 100000", 1)],
)
def test_threads_follow_the_quota_of_the_cgroup(tmp_path: Path, text: str, expected: int | None) -> None:
    (tmp_path / "cpu.max").write_text(text + "\n")
    unlimited = cpus.available(tmp_path / "absent")
    assert cpus.available(tmp_path) == (unlimited if expected is None else expected)


def test_the_first_version_of_cgroups_is_read_too(tmp_path: Path) -> None:
    (tmp_path / "cpu").mkdir()
    (tmp_path / "cpu/cpu.cfs_quota_us").write_text("150000\n")
    (tmp_path / "cpu/cpu.cfs_period_us").write_text("100000\n")
    assert cpus.quota(tmp_path) == 1.5
    (tmp_path / "cpu/cpu.cfs_quota_us").write_text("-1\n")
    assert cpus.quota(tmp_path) is None


def test_check_prints_every_setting_with_its_source_and_writes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SIMILE_DATA_DIR", str(tmp_path / "new"))
    said = check.report(read())
    for name in Settings.model_fields:
        [line] = [line for line in said.splitlines() if line.startswith(f"SIMILE_{name.upper()} ")]
        assert line.endswith("environment" if name == "data_dir" else "default")
    assert "CPUExecutionProvider" in said
    assert "fp32/onnxruntime" in said
    assert "none published yet" in said
    assert not (tmp_path / "new").exists()


def test_check_says_whether_precision_and_device_can_be_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SIMILE_PRECISION", "fp16")
    assert "none: SIMILE_PRECISION=fp16: fp16 is not available" in check.report(read())
    monkeypatch.setenv("SIMILE_PRECISION", "fp32")
    monkeypatch.setenv("SIMILE_DETERMINISTIC", "1")
    assert "fp32/onnxruntime, deterministic" in check.report(read())
    monkeypatch.setenv("SIMILE_DEVICE", "cpu")
    assert said_of_the_device(check.report(read())) == "cpu"
    monkeypatch.setenv("SIMILE_DEVICE", "cuda:99")
    with pytest.raises(StartupError, match="SIMILE_DEVICE requests"):
        check.report(read())


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("mysql://u:secret-word@h/x", "does not begin with postgresql://"),
        ("postgresql:///x", "names no host"),
        ("postgresql://u:secret-word/@h:5432/x", "%2F"),
    ],
)
def test_a_database_that_is_no_url_is_refused_without_its_password(
    monkeypatch: pytest.MonkeyPatch, url: str, reason: str
) -> None:
    said = refusal(monkeypatch, SIMILE_DATABASE=url)
    assert reason in said
    assert "secret-word" not in said


@pytest.mark.parametrize("url", ["postgresql://u:p%40@h/x", "postgres://h", "postgresql:///x?host=/run/pg"])
def test_a_database_that_is_named_is_taken(monkeypatch: pytest.MonkeyPatch, url: str) -> None:
    monkeypatch.setenv("SIMILE_DATABASE", url)
    assert read().database is not None
