"""Reads pooling and layers from modules.json of sentence-transformers. Start at `read_head`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from models.errors import Unsupported
from models.files import bounded
from models.graph.backbone import Tensors, read_safetensors, require_finite
from models.graph.head import POOLING_FLAGS, Head, Prompt
from models.graph.layers import ACTIVATIONS, Dense, Layer, LayerNorm, Unit
from models.sources.files import read_json
from models.sources.template import check_places
from models.tokens.opening import affixes, open_tokenizer

TRANSFORMER, TABLE = "Transformer", "StaticEmbedding"
_FOLLOWING = {"Pooling", "Dense", "LayerNorm", "Normalize", "Dropout"}  # Dropout only matters in training.


class Module(NamedTuple):
    kind: str
    path: str  # relative to the folder


def read_modules(folder: Path) -> list[Module]:
    """Reads the modules in order; none for a Hugging Face folder. Raises Unsupported."""
    file = folder / "modules.json"
    if not file.is_file():
        return []
    try:
        listed = [(str(module["type"]), str(module["path"])) for module in bounded.read_json(file)]
    except (ValueError, KeyError, TypeError) as error:
        raise Unsupported(f"{file} is malformed: {error!r}") from None
    for type_, path in listed:
        if not type_.startswith("sentence_transformers."):
            raise Unsupported(f"{folder} needs code of its own ({type_}), but Simile never runs remote code.")
        if Path(path).is_absolute() or ".." in Path(path).parts:
            raise Unsupported(f"modules.json points outside the folder: {path!r}.")
    modules = [Module(type_.rpartition(".")[2], path) for type_, path in listed]
    kinds = [module.kind for module in modules]
    table = kinds[:1] == [TABLE]
    if not (
        kinds[:1] in ([TRANSFORMER], [TABLE])
        and set(kinds[1:]) <= _FOLLOWING
        and kinds.count("Pooling") <= 1
        and ("Pooling" not in kinds[2:])
        and (table or kinds[1:2] in ([], ["Pooling"]))
    ):
        raise Unsupported(
            f"modules.json lists {', '.join(kinds)}. Supported are {TRANSFORMER} or {TABLE}, then Pooling, "
            "Dense, LayerNorm, Normalize."
        )
    return modules


def read_head(
    folder: Path,
    modules: Sequence[Module],
    pooling: tuple[str, ...],
    tokenizer: dict[str, Any],
    prompts: Mapping[str, str],
) -> Head:
    """Reads pooling and layers.

    Args:
        pooling: Pooling of a folder without modules; mean if empty, as in sentence-transformers.
    """
    left_out: tuple[Prompt, ...] = ()
    names = pooling or ("mean",)
    layers: list[Layer] = []
    for module in modules:
        at = folder / module.path
        if module.kind == TABLE:
            names = ("static.mean",)
        elif module.kind == "Pooling":
            config = read_json(at / "config.json")
            names = _pooling(config)
            if not config.get("include_prompt", True):
                left_out = _left_out(tokenizer, prompts)
        elif module.kind == "Dense":
            layers.append(_dense(at))
        elif module.kind == "LayerNorm":
            tensors = _tensors(at)
            layers.append(LayerNorm(_tensor(at, tensors, "norm.weight"), _tensor(at, tensors, "norm.bias")))
        elif module.kind == "Normalize":
            layers.append(Unit())
    while layers and isinstance(layers[-1], Unit):  # Every graph ends with unit vectors anyway.
        layers.pop()
    head = Head.of(names, tuple(layers), left_out)
    if head.tokens != "static" and any(module.kind == TABLE for module in modules):
        raise Unsupported(f"A {TABLE} can only pool rows of its table, not {'+'.join(names)}.")
    check_places(tokenizer, head.pooling)
    return head


def _pooling(config: Mapping[str, Any]) -> tuple[str, ...]:
    modes = config.get("pooling_mode") or [
        mode for mode, flag in POOLING_FLAGS.items() if flag and config.get(flag)
    ]
    return (modes,) if isinstance(modes, str) else tuple(map(str, modes))


def _left_out(tokenizer: dict[str, Any], prompts: Mapping[str, str]) -> tuple[Prompt, ...]:
    """Returns the ids of each prompt and the number of tokens that sentence-transformers leaves out.

    That number is the length of the tokenized prompt without a special token at its end. The ids do not
    include a space at the end, which may form a token with the text.
    """
    opened = open_tokenizer(tokenizer)
    before, after = affixes(opened)
    found = set()
    for prompt in filter(None, prompts.values()):
        alone = len(opened.encode(prompt, add_special_tokens=False).ids)
        ids = opened.encode(prompt.rstrip(), add_special_tokens=False).ids
        if not ids:  # Every row would start with such a prompt, for example a space.
            continue
        count = len(before) + alone + max(len(after) - 1, 0)
        found.add(Prompt((*before, *ids), count))
    return tuple(sorted(found))


def _dense(folder: Path) -> Dense:
    config = read_json(folder / "config.json")
    activation = ACTIVATIONS.get(config.get("activation_function", "torch.nn.modules.activation.Tanh"))
    plain = config.get("module_input_name", "sentence_embedding") == "sentence_embedding"
    plain = plain and config.get("module_output_name") in (None, "sentence_embedding")
    if activation is None or config.get("use_residual") or not plain:
        known = ", ".join(name.rpartition(".")[2] for name in ACTIVATIONS)
        raise Unsupported(f"{folder.name} is not a plain Dense layer with one of {known}.")
    tensors = _tensors(folder)
    return Dense(_tensor(folder, tensors, "linear.weight"), tensors.get("linear.bias"), activation)


def _tensors(folder: Path) -> Tensors:
    if not (folder / "model.safetensors").is_file():
        raise Unsupported(
            f"{folder.name} has no model.safetensors; pickled weights are not read. Save it as safetensors."
        )
    tensors = read_safetensors(folder / "model.safetensors")
    for name, tensor in tensors.items():
        require_finite(f"{folder.name}/{name}", tensor)
    return tensors


def _tensor(folder: Path, tensors: Tensors, name: str) -> Any:
    if name not in tensors:
        raise Unsupported(f"{folder.name}/model.safetensors has no {name}.")
    return tensors[name]
