"""A source folder, read: how a sentence-transformers or Hugging Face folder says that text becomes a vector.

Reads JSON, safetensors and ONNX. Pickles (`*.bin`, `*.pt`, …) are never opened, and code that a folder may
bring is never run. Nothing is computed here.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from models.errors import ModelUnavailable, Unsupported
from models.files import bounded
from models.files.links import outside
from models.graph.backbone import read_safetensors
from models.graph.head import Dense, Head
from models.sources.template import check_places

_MOST_BYTES = 256 << 20  # a tokenizer.json of many languages has tens of MB
_OPTIONAL = {"README.md", "LICENSE", "LICENSE.txt"}  # copied along, and not needed
_DENSE_ACTIVATIONS = {
    "torch.nn.modules.activation.Tanh": "tanh",
    "torch.nn.modules.linear.Identity": "identity",
}
_OLD_POOLING_KEYS = {  # in the order in which sentence-transformers concatenates them
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}


@dataclass(frozen=True)
class Source:
    folder: Path
    backbone: Path  # where config.json, tokenizer.json and the weights are: the folder or 0_Transformer in it
    config: dict[str, Any]
    tokenizer: dict[str, Any]  # tokenizer.json
    max_length: int
    head: Head
    prompts: dict[str, str]
    search_prompt: str
    document_prompt: str
    weights: tuple[Path, ...]
    onnx: Path | None
    skipped: tuple[Path, ...] = ()  # links that lead out of the folder, to nothing that is needed

    @property
    def width(self) -> int:
        """The width of a token embedding; families name it differently."""
        for name in ("hidden_size", "dim", "d_model"):
            if isinstance(self.config.get(name), int):
                return int(self.config[name])
        raise Unsupported("config.json does not say how wide a token embedding is (hidden_size).")


def read_source(folder: Path) -> Source:
    """Raise ModelUnavailable when there is no folder, Unsupported when it cannot be published here."""
    if not folder.is_dir():
        raise ModelUnavailable(f"{folder} is not a folder.")
    skipped = _skipped(folder)
    modules = _modules(folder)
    backbone = folder / modules[0][1] if modules else folder
    config = read_json(backbone / "config.json")
    tokenizer = _tokenizer(backbone)
    prompts = _prompts(folder)
    return Source(
        folder=folder,
        backbone=backbone,
        config=config,
        tokenizer=tokenizer,
        max_length=_max_length(folder, backbone, config, tokenizer),
        head=_head(folder, modules, config, tokenizer),
        prompts=prompts,
        search_prompt=prompts.get("query", ""),
        document_prompt=prompts.get("document", prompts.get("passage", "")),
        weights=_weights(backbone),
        onnx=next(
            (file for at in (folder, backbone) if (file := at / "onnx" / "model.onnx").is_file()), None
        ),
        skipped=skipped,
    )


def _skipped(folder: Path) -> tuple[Path, ...]:
    """The links that lead out of the folder. Raise Unsupported for one that the model may need."""
    found = outside(folder)
    needed = [link for link in found if link.is_dir() or _is_needed(link)]
    if needed:
        raise Unsupported(
            f"{needed[0]} is a link that leads out of {folder}, and is not followed. Copy the folder "
            f"with what its links name: cp -rL {folder} COPY."
        )
    return found


def _is_needed(link: Path) -> bool:
    return link.name not in _OPTIONAL and link.suffix in {
        ".json",
        ".safetensors",
        ".txt",
        ".onnx",
        ".onnx_data",
    }


def read_json(file: Path) -> dict[str, Any]:
    try:
        content = bounded.read_json(file, _MOST_BYTES)
    except FileNotFoundError:
        raise Unsupported(
            f"{file.parent} has no {file.name}: it is not a sentence-transformers or Hugging Face folder."
        ) from None
    except ValueError as error:
        raise Unsupported(f"{file} is not JSON: {error}") from None
    if not isinstance(content, dict):
        raise Unsupported(f"{file} holds no JSON object.")
    return content


def optional_json(file: Path) -> dict[str, Any]:
    return read_json(file) if file.is_file() else {}


def _modules(folder: Path) -> list[tuple[str, str]]:
    """(kind, path) of each sentence-transformers module; empty for a bare Hugging Face folder."""
    file = folder / "modules.json"
    if not file.is_file():
        return []
    try:
        listed = bounded.read_json(file)
        modules = [(str(module["type"]).rsplit(".", 1)[-1], str(module["path"])) for module in listed]
    except (ValueError, KeyError, TypeError) as error:
        raise Unsupported(f"{file} is malformed: {error!r}") from None
    kinds = [kind for kind, _ in modules]
    known = kinds[:1] == ["Transformer"] and set(kinds[1:]) <= {"Pooling", "Dense", "Normalize"}
    if not known or kinds[1:2] not in ([], ["Pooling"]) or "Normalize" in kinds[:-1]:
        listed_kinds = ", ".join(kinds)
        raise Unsupported(
            f"modules.json lists {listed_kinds}; known here: Transformer, Pooling, Dense …, Normalize."
        )
    for _, path in modules:
        if Path(path).is_absolute() or ".." in Path(path).parts:
            raise Unsupported(f"modules.json points outside the folder: {path!r}.")
    return modules


def _tokenizer(backbone: Path) -> dict[str, Any]:
    if not (backbone / "tokenizer.json").is_file():
        raise Unsupported(f"{backbone} has no tokenizer.json: save the model once with a fast tokenizer.")
    return read_json(backbone / "tokenizer.json")


def _max_length(folder: Path, backbone: Path, config: dict[str, Any], tokenizer: dict[str, Any]) -> int:
    """sentence-transformers' limit: its own setting, else what tokenizer and position table both allow."""
    own = optional_json(backbone / "sentence_bert_config.json")
    lowers = (tokenizer.get("normalizer") or {}).get("lowercase")
    if own.get("do_lower_case") and not lowers:
        raise Unsupported(
            "sentence_bert_config.json lowers the text but tokenizer.json does not: set lowercase there."
        )
    positions = config.get("max_position_embeddings")
    limits = [own.get("max_seq_length"), positions]
    if limits[0] is None:
        limits.append(optional_json(backbone / "tokenizer_config.json").get("model_max_length"))
    known = [int(limit) for limit in limits if limit]
    if not known:
        raise Unsupported(
            "Neither sentence_bert_config.json nor config.json says how many tokens the model takes."
        )
    return min(known)


def _head(
    folder: Path, modules: list[tuple[str, str]], config: dict[str, Any], tokenizer: dict[str, Any]
) -> Head:
    pooling: tuple[str, ...] = ("mean",)  # what sentence-transformers gives a bare folder
    for kind, path in modules:
        if kind == "Pooling":
            pooling = _pooling(read_json(folder / path / "config.json"))
    dense = tuple(_dense(folder / path) for kind, path in modules if kind == "Dense")
    head = Head.of(pooling, dense)
    if head.tokens != "last" and config.get("model_type") != "bert":
        raise Unsupported(f"The pooling {'+'.join(head.names)} is there for BERT folders only.")
    check_places(tokenizer, head.pooling)
    return head


def _pooling(config: dict[str, Any]) -> tuple[str, ...]:
    if not config.get("include_prompt", True):
        raise Unsupported("The model leaves the prompt out of pooling, which is not supported.")
    modes = config.get("pooling_mode") or [mode for key, mode in _OLD_POOLING_KEYS.items() if config.get(key)]
    return (modes,) if isinstance(modes, str) else tuple(map(str, modes))


def _dense(folder: Path) -> Dense:
    config = read_json(folder / "config.json")
    activation = _DENSE_ACTIVATIONS.get(config.get("activation_function", "torch.nn.modules.activation.Tanh"))
    plain = config.get("module_input_name", "sentence_embedding") == "sentence_embedding"
    plain = plain and config.get("module_output_name") in (None, "sentence_embedding")
    if activation is None or config.get("use_residual") or not plain:
        raise Unsupported(f"{folder.name} is not a plain Dense layer with Tanh or Identity.")
    if not (folder / "model.safetensors").is_file():
        raise Unsupported(
            f"{folder.name} has no model.safetensors; pickled weights are not read. Save it as safetensors."
        )
    tensors = read_safetensors(folder / "model.safetensors")
    if "linear.weight" not in tensors:
        raise Unsupported(f"{folder.name}/model.safetensors has no linear.weight.")
    return Dense(tensors["linear.weight"], tensors.get("linear.bias"), activation)


def _prompts(folder: Path) -> dict[str, str]:
    prompts = optional_json(folder / "config_sentence_transformers.json").get("prompts") or {}
    return {str(name): str(prompt) for name, prompt in prompts.items() if prompt is not None}


def _weights(backbone: Path) -> tuple[Path, ...]:
    whole = backbone / "model.safetensors"
    return (whole,) if whole.is_file() else tuple(sorted(backbone.glob("model-*-of-*.safetensors")))
