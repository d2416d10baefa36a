"""Reads how a sentence-transformers or Hugging Face folder turns text into vectors. Start at `read_source`.

Pickles (`*.bin`, `*.pt`, …) are never opened, and code from a folder is never run.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from models.errors import ModelUnavailable, Unsupported
from models.files import bounded
from models.graph.backbone import Tensors, read_safetensors, require_finite, tensor_shapes
from models.graph.families import knows
from models.graph.file import SCORES
from models.graph.head import (
    ACTIVATIONS,
    POOLING_FLAGS,
    Dense,
    Head,
    Layer,
    LayerNorm,
    Prompt,
    Unit,
    check_widths,
)
from models.manifest import ModelKind
from models.sources.files import NO_MODEL, optional_json, read_json, skipped_links, weight_files
from models.sources.reranker import Scoring, is_reranker, read_scoring
from models.sources.template import check_places
from models.tokens.japanese import JAPANESE, WORDS, described
from models.tokens.tokenizer import affixes, open_tokenizer

TRANSFORMER, TABLE = "Transformer", "StaticEmbedding"
_FOLLOWING = {"Pooling", "Dense", "LayerNorm", "Normalize", "Dropout"}  # Dropout only matters in training.


_VECTOR = "sentence_embedding"  # Name of the input and output of modules.


class Module(NamedTuple):
    kind: str
    path: str  # relative to the folder


def read_modules(folder: Path) -> list[Module]:
    """Reads the list of sentence-transformers modules, in order. It is empty for a Hugging Face folder.

    Raises:
        Unsupported: The list is malformed, or a module is unknown or needs code of its own.
    """
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
    output: str = _VECTOR,
) -> Head:
    """Reads the pooling and the layers after it. Raises Unsupported.

    Args:
        output: What the last module outputs, if it is a Dense.
        pooling: Names of poolings for a folder without modules. If empty, the mean, as in
            sentence-transformers.
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
            layers.append(_dense(at, output if module is modules[-1] else _VECTOR))
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
    """Returns the prompts that are not pooled: their ids, and the number of tokens that are left out.

    As in sentence-transformers, this number is the length of the tokenized prompt without a special token at
    the end. The ids do not include a space at the end of the prompt, because the space may form a token with
    the text.
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


def _dense(folder: Path, output: str) -> Dense:
    config = read_json(folder / "config.json")
    activation = ACTIVATIONS.get(config.get("activation_function", "torch.nn.modules.activation.Tanh"))
    plain = config.get("module_input_name", _VECTOR) == _VECTOR
    plain = plain and (config.get("module_output_name") or _VECTOR) == output
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


STATIC = "static"  # The model_type of a word table without a transformer.
LONGEST = 8192  # Default limit of tokens, because attention's memory grows with the square.
_SETTINGS = "sentence_bert_config.json"
_OLD_SETTINGS = ("roberta", "distilbert", "camembert", "albert", "xlm-roberta", "xlnet")
# Families whose positions start after the padding id.
_AFTER_PAD = {"roberta", "xlm-roberta", "camembert", "xlm-roberta-xl", "mpnet"}
# Families whose folders contain code that transformers now includes.
_TAKEN_OVER = {"nomic_bert", "eurobert"}
CLASSIFIER = "AutoModelForSequenceClassification"  # Key of auto_map in config.json.
Convert = Callable[[Path], dict[str, Any]]


@dataclass(frozen=True)
class Overrides:
    """Settings of an import that the folder does not contain, or that replace the folder's settings."""

    pooling: tuple[str, ...] = ()  # Only for a folder without modules.json.
    max_length: int | None = None  # tokens
    prompts: Mapping[str, str] = field(default_factory=dict)  # Added to the folder's prompts.


NO_OVERRIDES = Overrides()


@dataclass(frozen=True)
class Source:
    folder: Path
    backbone: Path  # The folder with config.json, tokenizer.json and the weights.
    config: dict[str, Any]
    tokenizer: dict[str, Any]  # tokenizer.json
    max_length: int
    head: Head
    prompts: dict[str, str]
    default_prompt: str  # For texts without a named prompt.
    search_prompt: str
    document_prompt: str
    weights: tuple[Path, ...]
    onnx: Path | None
    skipped: tuple[Path, ...] = ()  # Links to the outside that the model does not need.
    scoring: Scoring | None = None  # None for an encoder.

    @property
    def is_written_here(self) -> bool:
        """True if Simile builds the graph from the weights."""
        knows_head = self.scoring is None or bool(self.head.layers)
        return self.is_table or (knows(self.config) and knows_head)

    @property
    def width(self) -> int:
        """The width of a token embedding. Raises Unsupported if config.json does not state it."""
        for name in ("hidden_size", "dim", "d_model"):
            if isinstance(self.config.get(name), int):
                return int(self.config[name])
        raise Unsupported("config.json does not say how wide a token embedding is (hidden_size).")

    @property
    def is_table(self) -> bool:
        """True if the model pools rows of a word table, without a transformer."""
        return self.config.get("model_type") == STATIC


def _require_model(folder: Path) -> None:
    if not folder.is_dir():
        raise ModelUnavailable(f"{folder} is not a folder.")
    if not any((folder / name).is_file() for name in ("config.json", "modules.json")):
        raise Unsupported(NO_MODEL.format(folder=folder, file="config.json"))


def find_kind(folder: Path) -> ModelKind:
    """Returns as what a folder would be published, from its configuration alone.

    Raises:
        ModelUnavailable: The folder is missing.
        Unsupported: A file of the folder is missing or malformed.
    """
    _require_model(folder)
    said, config = (
        optional_json(folder / name) for name in ("config_sentence_transformers.json", "config.json")
    )
    return "reranker" if is_reranker(said, config, has_modules=bool(read_modules(folder))) else "encoder"


def read_source(folder: Path, overrides: Overrides = NO_OVERRIDES, convert: Convert | None = None) -> Source:
    """Reads a source folder, with its tokenizer and the paths of its weights.

    Args:
        overrides: Settings that replace or complete the folder's settings.
        convert: Returns the content of a tokenizer.json for a folder with another kind of tokenizer.

    Raises:
        ModelUnavailable: The folder is missing.
        Unsupported: The folder cannot be published.
    """
    _require_model(folder)  # First, because the search for links walks the whole folder.
    skipped = skipped_links(folder)
    modules = read_modules(folder)
    if modules and overrides.pooling:
        raise Unsupported(f"{folder / 'modules.json'} says how the model pools: leave --pooling out.")
    backbone = folder / modules[0].path if modules else folder
    weights = weight_files(backbone)
    table = bool(modules) and modules[0].kind == TABLE
    config = _table_config(backbone, weights) if table else read_json(backbone / "config.json")
    said = optional_json(folder / "config_sentence_transformers.json")
    scores = not overrides.pooling and is_reranker(said, config, has_modules=bool(modules))
    _refuse_code(folder, config, CLASSIFIER if scores else "AutoModel")
    settings = _settings(backbone)
    tokenizer = _tokenizer(backbone, convert, lowers=bool(settings.get("do_lower_case")))
    if table:  # Special tokens do not belong to the mean of words.
        tokenizer = tokenizer | {"post_processor": None}
    prompts = {
        str(name): str(prompt) for name, prompt in (said.get("prompts") or {}).items() if prompt is not None
    }
    prompts |= overrides.prompts
    default = prompts.get(str(said.get("default_prompt_name")), "")
    head = read_head(folder, modules, overrides.pooling, tokenizer, prompts, SCORES if scores else _VECTOR)
    scoring = None
    if scores:
        scoring = read_scoring(backbone, weights, config, said, head if len(modules) > 1 else None)
        head = scoring.head
    if head.tokens != "last" and not table and config.get("model_type") != "bert":
        raise Unsupported(f"The pooling {'+'.join(head.names)} is supported for BERT folders only.")
    source = Source(
        folder=folder,
        backbone=backbone,
        config=config,
        tokenizer=tokenizer,
        max_length=_max_length(backbone, config, settings, tokenizer, overrides.max_length),
        head=head,
        prompts=prompts,
        default_prompt=default,
        search_prompt=default if scores else prompts.get("query", default),
        document_prompt="" if scores else prompts.get("document", prompts.get("passage", default)),
        weights=weights,
        onnx=next(
            (file for at in (folder, backbone) if (file := at / "onnx" / "model.onnx").is_file()), None
        ),
        skipped=skipped,
        scoring=scoring,
    )
    if head.layers:
        check_widths(head.layers, source.width * len(head.pooling))
    return source


def _refuse_code(folder: Path, config: Mapping[str, Any], class_: str) -> None:
    code = (config.get("auto_map") or {}).get(class_)
    if code and config.get("model_type") not in _TAKEN_OVER:
        raise Unsupported(
            f"{folder} needs code of its own ({code}, by auto_map in config.json), but Simile never runs "
            "remote code."
        )


def _table_config(backbone: Path, weights: tuple[Path, ...]) -> dict[str, Any]:
    shapes = [shape for file in weights for shape in tensor_shapes(file).values()]
    if len(shapes) != 1 or len(shapes[0]) != 2:
        raise Unsupported(
            f"{backbone} must have one table of vectors in model.safetensors, and nothing else."
        )
    rows, width = shapes[0]
    return {"model_type": STATIC, "vocab_size": rows, "hidden_size": width}


def _settings(backbone: Path) -> dict[str, Any]:
    """Reads sentence_bert_config.json, or a file with one of the older names."""
    names = (_SETTINGS, *(f"sentence_{family}_config.json" for family in _OLD_SETTINGS))
    return next((read_json(backbone / name) for name in names if (backbone / name).is_file()), {})


def _tokenizer(backbone: Path, convert: Convert | None, *, lowers: bool) -> dict[str, Any]:
    config = optional_json(backbone / "tokenizer_config.json")
    tokenizer = optional_json(backbone / "tokenizer.json")
    if config.get("tokenizer_class") == JAPANESE and WORDS not in tokenizer:
        tokenizer = described(backbone, config)
    elif not tokenizer and convert is not None:
        tokenizer = convert(backbone)
    elif not tokenizer:
        raise Unsupported(
            f"{backbone} has no tokenizer.json. `simile models import` can convert its tokenizer, "
            "once `make train` has installed the extra `train`."
        )
    if not lowers or _lowercases(tokenizer.get("normalizer")):
        return tokenizer
    own = tokenizer.get("normalizer")
    parts = own["normalizers"] if own and own.get("type") == "Sequence" else [own] if own else []
    return tokenizer | {"normalizer": {"type": "Sequence", "normalizers": [{"type": "Lowercase"}, *parts]}}


def _lowercases(normalizer: Mapping[str, Any] | None) -> bool:
    if normalizer is None:
        return False
    if normalizer.get("type") == "Sequence":
        return any(map(_lowercases, normalizer.get("normalizers") or []))
    return normalizer.get("type") == "Lowercase" or bool(normalizer.get("lowercase"))


def _max_length(
    backbone: Path,
    config: Mapping[str, Any],
    settings: Mapping[str, Any],
    tokenizer: Mapping[str, Any],
    requested: int | None,
) -> int:
    """Returns the maximum number of tokens in a text. Raises Unsupported if none can be found.

    This is `requested`, or else the folder's setting, or else the tokenizer's limit, but at most LONGEST.
    The result never exceeds the number of positions.
    """
    positions = _positions(config)
    if requested is not None and positions and requested > positions:
        raise Unsupported(f"--max-length is {requested}, but the model has only {positions} positions.")
    own = settings.get("max_seq_length") if requested is None else requested
    limits = [own, positions]
    if own is None:
        limits.append(LONGEST)
        if config.get("model_type") == STATIC:  # sentence-transformers then uses tokenizer.json.
            limits.append((tokenizer.get("truncation") or {}).get("max_length"))
        else:
            limits.append(optional_json(backbone / "tokenizer_config.json").get("model_max_length"))
            if not any(limits[1:2] + limits[3:]):
                raise Unsupported(
                    "Neither sentence_bert_config.json nor config.json has the token limit of the model. "
                    "Set it with --max-length."
                )
    longest = min(int(limit) for limit in limits if limit is not None)
    if longest < 1:
        raise Unsupported(
            f"The longest text would have {longest} tokens. Set a number above 0: max_seq_length in "
            f"{_SETTINGS}, or --max-length."
        )
    return longest


def _positions(config: Mapping[str, Any]) -> int | None:
    """Returns the number of tokens that the position table supports.

    Returns None for a model without such a table.
    """
    positions = config.get("max_position_embeddings")
    if not isinstance(positions, int) or positions < 1:
        return None
    family = config.get("model_type")
    if family in _AFTER_PAD:
        padding = 1 if family == "mpnet" else config.get("pad_token_id", 1)
        positions -= int(padding or 0) + 1
    return positions
