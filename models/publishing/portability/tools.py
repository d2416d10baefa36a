"""The tools: which versions are tried, what each cannot do with a version, and failures that are theirs.

The pins are here and nowhere else. Not here: how a tool is called (probe.py, which runs where it is).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from models.graph.head import POOLINGS
from models.sources.files import optional_json
from models.sources.folder import Source

PROBE = Path(__file__).with_name("probe.py")

# As constraints.txt has it. Which build this is, is the package index's choice: docs/PORTABILITY.md.
_TORCH = "torch==2.13.0"
_OPTIMUM = ("optimum==2.1.0", "optimum-onnx==0.1.0", "onnxruntime==1.31.1", "transformers==4.57.6", _TORCH)

_NO_LOCAL_ONNX = (
    "its ONNX engine opens no folder on the disk: it asks for the file by its whole path, and optimum 2 "
    "compares that with the file's name alone"
)
_NO_WEIGHTS = "it computes from model.safetensors, and the version has an ONNX file only"


class Limits(NamedTuple):
    """The limits of a tool with a version, known without trying it."""

    cannot: str = ""  # why it cannot give the version's vectors at all
    remarks: tuple[str, ...] = ()  # what its user has to know
    cut_alike: bool = True  # whether a text beyond the version's maximum is cut where Simile cuts it


@dataclass(frozen=True)
class Tool:
    name: str
    requirements: tuple[str, ...]  # what pip installs
    limits: Callable[[Source], Limits]
    # A part of its last line when it fails, and what that means: its own fault, whatever the version.
    failures: tuple[tuple[str, str], ...] = ()
    probe: Path = PROBE
    seconds: float = 600  # for one version; torch alone can take half a minute to import


def _by_modules(source: Source) -> Limits:
    """sentence-transformers: computes what modules.json lists."""
    if not source.head.portable:
        return Limits(_own_pooling(source))
    remarks = []
    if any(source.prompts.values()):
        names = ", ".join(f"prompt_name={name!r}" for name, prompt in source.prompts.items() if prompt)
        remarks.append(f"prompts go by name and were compared too: {names}")
    default = optional_json(source.folder / "config_sentence_transformers.json").get("default_prompt_name")
    if default:
        remarks.append(
            f"encode() puts the prompt {default!r} before every text that is given no other, as Simile does; "
            "prompt='' prevents it"
        )
    return Limits(remarks=tuple(remarks))


def _by_weights(source: Source) -> Limits:
    return Limits(_NO_WEIGHTS) if not source.weights else _by_modules(source)


def _by_graph(source: Source) -> Limits:
    """fastembed: takes the graph's own output, so whatever the graph holds is there."""
    return Limits(remarks=_unnamed_prompts(source))


def _infinity(source: Source) -> Limits:
    if not source.weights:
        return Limits(_NO_WEIGHTS)
    if not source.head.portable:
        return Limits(_own_pooling(source))
    names = source.head.names
    if list(names) != [mode for mode in POOLINGS if mode in names]:
        return Limits(
            f"the pooling {'+'.join(names)} needs a newer sentence-transformers than infinity takes (below 4)"
        )
    return Limits(remarks=_unnamed_prompts(source))


def _infinity_optimum(source: Source) -> Limits:
    """It pools by itself, as it is told: mean or cls and nothing behind."""
    if source.head.names not in {("mean",), ("cls",)}:
        return Limits(f"it pools by mean or cls only, and this version by {'+'.join(source.head.names)}")
    if source.head.layers:
        return Limits("it leaves out the layers behind the pooling")
    remarks = [f"it does not read how to pool: start it with --pooling-method {source.head.names[0]}"]
    positions = source.config.get("max_position_embeddings")
    cut_alike = positions == source.max_length
    if not cut_alike:
        remarks.append(
            f"it cuts a text at {positions} tokens instead of {source.max_length}, "
            "so longer texts get other vectors and were not compared"
        )
    return Limits("", (*remarks, *_unnamed_prompts(source)), cut_alike)


def _own_pooling(source: Source) -> str:
    return (
        f"it has no word for the pooling {'+'.join(source.head.names)} (`portable: simile` in the manifest)"
    )


def _unnamed_prompts(source: Source) -> tuple[str, ...]:
    if not any(source.prompts.values()):
        return ()
    shown = ", ".join(f"{prompt!r} ({name})" for name, prompt in source.prompts.items() if prompt)
    return (f"it knows no prompts by name: whoever calls it puts them before the text: {shown}",)


TOOLS = (
    Tool(
        "sentence-transformers",
        ("sentence-transformers==6.2.0", "transformers==5.23.0", _TORCH),
        _by_weights,
    ),
    # The newest that its onnx extra resolves to: optimum-onnx wants transformers below 5.
    Tool("sentence-transformers-onnx", ("sentence-transformers[onnx]==5.7.0", *_OPTIMUM), _by_modules),
    Tool("fastembed", ("fastembed==0.9.1", "onnxruntime==1.31.1"), _by_graph),
    Tool(
        "infinity",
        ("infinity-emb==0.0.78", "sentence-transformers==3.4.1", "transformers==4.57.6", _TORCH),
        _infinity,
    ),
    Tool(
        "infinity-optimum",
        ("infinity-emb==0.0.78", *_OPTIMUM),
        _infinity_optimum,
        (
            (
                "Could not find any ONNX files with target file name",
                _NO_LOCAL_ONNX,
            ),
        ),
    ),
)
