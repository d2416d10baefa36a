"""An import that takes too much time or memory is ended at a limit, and leaves nothing."""

from __future__ import annotations

import os
import re
import resource
import struct
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from models.__main__ import main
from models.errors import ModelError, ProofFailed, Unsupported
from models.graph import backbone
from models.publishing import default, import_process, limited
from models.publishing.limited import Limits, publish_limited
from models.publishing.publish import publish
from models.store import ModelStore
from tests.parts.json_files import edit_json
from tests.tiny import WIDTH, tiny_source

MEMORY = "more memory than the limit of its process"
WORDS = 400
value = helper.make_tensor_value_info
OBJECT = '{"dtype":"F32","shape":[0],"data_offsets":[0,0]}'


def left_in(root: Path) -> list[str]:
    """Returns the names of versions and of unfinished folders in `root`."""
    return [path.name for path in root.iterdir() if path.name != ".lock"] if root.is_dir() else []


def replacing(*pairs: tuple[object, str]) -> dict[str, Any]:
    parts = [{"type": "Replace", "pattern": pattern, "content": content} for pattern, content in pairs]
    return {"type": "Sequence", "normalizers": parts}


def build_graph(
    folder: Path, nodes: Sequence[onnx.NodeProto], constants: dict[str, Any], functions: Sequence[Any] = ()
) -> None:
    """Replaces the weights by an ONNX file that adds `extra`, the output of `nodes`, to all vectors."""
    (folder / "model.safetensors").unlink()
    table = np.random.default_rng(0).normal(size=(WORDS, WIDTH)).astype(np.float32)
    known = {"table": table, **constants}
    rows = ["batch", "length"]
    gather = helper.make_node("Gather", ["table", "input_ids"], ["words"])
    add = helper.make_node("Add", ["words", "extra"], ["last_hidden_state"])
    graph = helper.make_graph(
        [*nodes, gather, add],
        "graph",
        [value(name, TensorProto.INT64, rows) for name in ("input_ids", "attention_mask")],
        [value("last_hidden_state", TensorProto.FLOAT, [*rows, WIDTH])],
        [numpy_helper.from_array(np.asarray(each), name) for name, each in known.items()],
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("own", 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=8, functions=functions)
    (folder / "onnx").mkdir()
    onnx.save(model, folder / "onnx" / "model.onnx")


def rounds() -> onnx.NodeProto:
    """Returns a loop that adds 1 to `zero`, 2^62 times."""
    integer, truth, number = TensorProto.INT64, TensorProto.BOOL, TensorProto.FLOAT
    nodes = [
        helper.make_node("Identity", ["going"], ["goes"]),
        helper.make_node("Add", ["sum", "one"], ["more"]),
    ]
    given = [value("round", integer, []), value("going", truth, []), value("sum", number, [])]
    body = helper.make_graph(nodes, "body", given, [value("goes", truth, []), value("more", number, [])])
    return helper.make_node("Loop", ["rounds", "true", "zero"], ["extra"], body=body)


NUMBERS: dict[str, Any] = {
    "rounds": np.int64(2**62),
    "true": np.bool_(True),
    "zero": np.float32(0),
    "one": np.float32(1),
    "shape": np.array([2**20, 2**20], np.int64),
    "wide": np.zeros((1, 1), np.float32),
}


def inside_an_if(folder: Path) -> None:
    branch = helper.make_graph([rounds()], "branch", [], [value("extra", TensorProto.FLOAT, [])])
    choice = helper.make_node("If", ["true"], ["extra"], then_branch=branch, else_branch=branch)
    build_graph(folder, [choice], NUMBERS)


def inside_a_function(folder: Path) -> None:
    names, opsets = ["rounds", "true", "zero"], [helper.make_opsetid("", 17)]
    function = helper.make_function("own", "forever", names, ["extra"], [rounds()], opsets)
    call = helper.make_node("forever", names, ["extra"], domain="own")
    build_graph(folder, [call], NUMBERS, [function])


def scanning(folder: Path) -> None:
    body = helper.make_graph([], "b", [], [])
    node = helper.make_node("Scan", ["wide"], ["extra"], body=body, num_scan_inputs=1)
    build_graph(folder, [node], NUMBERS)


def empty_tensors(folder: Path, count: int, entry: str = OBJECT) -> None:
    """Writes weights of `count` tensors that have no numbers."""
    header = ("{" + ",".join(f'"{number:x}":{entry}' for number in range(count)) + "}").encode()
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header)


def large(op: str) -> Callable[[Path], None]:
    """Returns a function that writes a graph in which `op` makes a tensor of 2^40 numbers."""
    inputs = {"Expand": ["wide", "shape"], "Tile": ["wide", "shape"], "ConstantOfShape": ["shape"]}[op]
    mean = helper.make_node("ReduceMean", ["large"], ["extra"], keepdims=0)
    nodes = [helper.make_node(op, inputs, ["large"]), mean]
    return lambda folder: build_graph(folder, nodes, NUMBERS)


def config(folder: Path, **changed: int) -> None:
    edit_json(folder / "config.json", **changed)


STRUCTURES: dict[str, tuple[Callable[[Path], object], str]] = {
    "a loop": (lambda at: build_graph(at, [rounds()], NUMBERS), "has a Loop .unnamed., which may never end"),
    "a loop in a branch": (inside_an_if, "has a Loop"),
    "a loop in a function": (inside_a_function, "has a Loop"),
    "a scan": (scanning, "has a Scan"),
    "a million empty tensors": (
        lambda at: empty_tensors(at, 1_000_000),
        "has 1000000 tensors; at most 100000",
    ),
    "empty tensors with an escape in a key": (
        lambda at: empty_tensors(at, 150_000, OBJECT.replace("dtype", "dt\\u0079pe")),
        "has 150000 tensors; at most 100000 are read",
    ),
    "empty tensors with spaces": (
        lambda at: empty_tensors(at, 150_000, OBJECT.replace(":", " : ").replace("[", " [ ")),
        "has 150000 tensors; at most 100000 are read",
    ),
    "empty tensors as lists": (
        lambda at: empty_tensors(at, 150_000, '["F32",[0],[0,0]]'),
        "has 225000 tensors; at most 100000 are read",  # three lists each
    ),
    "replacements that double a text": (
        lambda at: edit_json(at / "tokenizer.json", normalizer=replacing(*[({"String": "e"}, "ee")] * 40)),
        "may make a text more than 1000 times as long",
    ),
    "one long replacement": (
        lambda at: edit_json(at / "tokenizer.json", normalizer=replacing(({"Regex": "."}, "x" * 5000))),
        "may make a text more than 1000 times as long",
    ),
    "deep JSON": (
        lambda at: (at / "config.json").write_text('{"a":' * 100_000 + "1" + "}" * 100_000),
        "is nested too deeply",
    ),
    "2^40 positions": (
        lambda at: config(at, max_position_embeddings=2**40),
        "config.json says .1099511627776",
    ),
    "2^40 layers": (lambda at: config(at, num_hidden_layers=2**40), "incomplete: the tensor encoder.layer.2"),
}


@pytest.mark.parametrize("wrong", STRUCTURES)
def test_what_has_no_bound_by_its_structure_is_refused_at_once(tmp_path: Path, wrong: str) -> None:
    """The refusal comes in this process, before any child process starts."""
    folder = tiny_source(tmp_path / "model")
    break_it, reason = STRUCTURES[wrong]
    break_it(folder)
    with pytest.raises(Unsupported, match=reason) as raised:
        publish(ModelStore(tmp_path / "models"), folder)
    assert "\n" not in str(raised.value)
    assert left_in(tmp_path / "models") == []


def repeating(folder: Path) -> None:
    """Writes a tokenizer that normalizes each text 400,000 times, which takes minutes for the proof."""
    steps = [{"type": form} for form in ("NFD", "NFC")] * 200_000
    edit_json(folder / "tokenizer.json", normalizer={"type": "Sequence", "normalizers": steps})


def test_a_tokenizer_that_takes_too_long_is_ended(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder, root = tiny_source(tmp_path / "model"), tmp_path / "models"
    repeating(folder)
    assert main(["--models-dir", str(root), "import", str(folder), "--max-seconds", "2"]) == 1
    said = capsys.readouterr().err.splitlines()[-1]
    assert said.startswith(f"python -m models: Importing {folder} took longer than 2 s (--max-seconds). Noth")
    assert left_in(root) == []


@pytest.mark.parametrize("op", ["Expand", "Tile", "ConstantOfShape"])
def test_a_tensor_that_takes_all_memory_is_refused(tmp_path: Path, op: str) -> None:
    folder, store = tiny_source(tmp_path / "model"), ModelStore(tmp_path / "models")
    large(op)(folder)
    with pytest.raises((ProofFailed, Unsupported), match=r"cannot compute the graph|--max-memory"):
        publish_limited(store, str(folder), torch=False)
    assert left_in(store.root) == []


def test_an_import_that_takes_more_memory_than_it_may_is_ended(tmp_path: Path) -> None:
    folder, store = tiny_source(tmp_path / "model"), ModelStore(tmp_path / "models")
    with pytest.raises(Unsupported, match=r"took more than 40 MiB of memory \(--max-memory\)"):
        publish_limited(store, str(folder), torch=False, limits=Limits(memory_mb=40))
    assert left_in(store.root) == []


def test_a_child_that_is_killed_publishes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, store = tiny_source(tmp_path / "model"), ModelStore(tmp_path / "models")
    monkeypatch.setattr("models.publishing.limited.CHILD", "tests.models.publishing.crashing")
    with pytest.raises(ModelError, match="its process crashed or was killed"):
        publish_limited(store, str(folder), torch=False)
    assert left_in(store.root) == [], "what it had begun is swept"


@contextmanager
def soft(which: int, limit: int) -> Iterator[None]:
    """Sets the soft limit `which` until the block ends. Child processes inherit it."""
    before = resource.getrlimit(which)
    resource.setrlimit(which, (limit, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(which, before)


def test_a_lower_limit_of_the_process_stays() -> None:
    with soft(resource.RLIMIT_NOFILE, 500):
        for requested, holds in ((505, 500), (500, 500), (495, 495), (505, 495)):
            import_process._limit(resource.RLIMIT_NOFILE, requested)
            assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] == holds


@pytest.mark.parametrize(
    ("ends", "own", "given"),
    [
        (
            "RLIMIT_CPU",
            "more processor time than the limit of its process (ulimit -t).",
            "longer than 1000000 s",
        ),
        *((kind, f"{MEMORY} (ulimit -d", "more than 1000000 MiB") for kind in ("RLIMIT_DATA", "RLIMIT_AS")),
    ],
)
def test_the_limit_that_ended_an_import_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ends: str, own: str, given: str
) -> None:
    monkeypatch.setattr("models.publishing.limited.CHILD", "tests.models.publishing.limited_child")
    monkeypatch.setenv("ENDS", ends)
    limits = Limits(seconds=1_000_000, memory_mb=1_000_000)
    lower = 1_000_000 if ends == "RLIMIT_CPU" else 900_000 << 20
    for limit, said in ((soft(getattr(resource, ends), lower), own), (nullcontext(), given)):
        with limit, pytest.raises(Unsupported, match=re.escape(f"took {said}")):
            publish_limited(ModelStore(tmp_path / "models"), str(tmp_path), limits=limits)


@pytest.mark.parametrize("quota", [0.5, 1.5, 2.0, None])
def test_a_quota_of_processors_does_not_end_an_import_early(
    monkeypatch: pytest.MonkeyPatch, quota: float | None
) -> None:
    """The limit of processor time exceeds what the quota allows within the time limit."""
    monkeypatch.setattr("os.cpu_count", lambda: 4)
    monkeypatch.setattr("models.cpus.quota", lambda _: quota)
    assert limited._cpu_seconds(Limits(seconds=100)) > 100 * (quota or 4)


@pytest.mark.parametrize("source", ["somebody/model", "model", "a folder"])
def test_an_import_may_take_memory_by_the_folder_s_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str
) -> None:
    """The size of a hub model is known only after the download."""
    (tmp_path / "snapshot").mkdir()
    (tmp_path / "snapshot" / "model.safetensors").write_bytes(os.urandom(2 << 20))
    monkeypatch.setattr("models.publishing.default.fetch", lambda _: tmp_path / "snapshot")
    monkeypatch.setattr("models.publishing.limited.CHILD", "tests.models.publishing.limited_child")
    monkeypatch.setenv("ENDS", "memory")
    named, origin = (str(tmp_path / "snapshot"), "") if source == "a folder" else (source, source)
    said = r"took more than 6156 MiB of memory \(--max-memory\)"
    with pytest.raises(Unsupported, match=f"Importing {named} {said}"):
        publish_limited(ModelStore(tmp_path / "models"), named, torch=False)
    assert default.locate(named).origin == origin


def test_as_many_tensors_as_models_have_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tiny_source(tmp_path / "model")
    monkeypatch.setattr(backbone, "MAX_TENSORS", 38)
    assert len(backbone.tensor_shapes(folder / "model.safetensors")) == 38
    monkeypatch.setattr(backbone, "MAX_TENSORS", 37)
    with pytest.raises(Unsupported, match="has 38 tensors; at most 37 are read"):
        backbone.tensor_shapes(folder / "model.safetensors")


def test_a_tensor_that_is_described_by_a_list_is_not_mapped(tmp_path: Path) -> None:
    empty_tensors(tmp_path, 1, '["F32",[0],[0,0]]')
    with pytest.raises(Unsupported, match="is not a valid safetensors file: '0' is not an object"):
        backbone.map_safetensors(tmp_path / "model.safetensors")
