"""A benchmark run on a GPU keeps every figure, and a failed stage does not end the run."""

from pathlib import Path

from benchmarks import gpu
from benchmarks.gpu_stages import Job


def job(folder: Path) -> Job:
    return Job(folder, "cpu", 0.1, quick=True)


def test_a_stage_writes_its_figures_and_its_duration(tmp_path: Path) -> None:
    output = tmp_path / "gpu.jsonl"
    gpu._run_bounded("unbuilt", job(tmp_path), output, 60.0)
    *figures, last = gpu.read_rows(output)
    assert [row["stage"] for row in figures] == ["unbuilt"] * len(figures)
    assert all(row["figure"] and row["skipped"] for row in figures)
    assert set(last) == {"stage", "seconds"}
    assert "cross-encoder" in gpu.summarize(output)


def test_a_stage_is_stopped_at_its_limit_and_the_reason_is_kept(tmp_path: Path) -> None:
    output = tmp_path / "gpu.jsonl"
    gpu._run_bounded("models", job(tmp_path), output, 0.05)
    gpu._run_bounded("unbuilt", job(tmp_path), output, 0.0)
    stopped, late = gpu.read_rows(output)
    assert (stopped["stage"], stopped["failed"]) == ("models", gpu.TIMED_OUT)
    assert late == {"stage": "unbuilt", "skipped": "no time is left"}


def test_a_stage_without_what_it_needs_names_it(tmp_path: Path) -> None:
    output = tmp_path / "gpu.jsonl"
    gpu.run_stage("engine", job(tmp_path), output)
    assert gpu.read_rows(output) == [
        {"stage": "engine", "skipped": "model.onnx was not made by the stage `models`"}
    ]


def test_a_stage_that_fails_leaves_its_error(tmp_path: Path) -> None:
    (tmp_path / "default" / "onnx").mkdir(parents=True)
    (tmp_path / "default" / "onnx" / "model.onnx").write_bytes(b"damaged")
    output = tmp_path / "gpu.jsonl"
    gpu.run_stage("engine", job(tmp_path), output)
    [row] = gpu.read_rows(output)
    assert "Error" in row["failed"]


def test_a_line_that_was_cut_off_is_left_out(tmp_path: Path) -> None:
    output = tmp_path / "gpu.jsonl"
    output.write_text('{"stage": "peak", "figure": "a", "tflops": 1.0}\n{"stage": "pe')
    assert [row["figure"] for row in gpu.read_rows(output)] == ["a"]
