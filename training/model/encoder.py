"""The encoder in training: a torch backbone, a pooling, and dense layers after the pooling.

`save` writes a sentence-transformers folder, which models.publishing.from_torch publishes. `save_backbone`
writes a raw backbone for further training. methods/loading.py creates an encoder from a base.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor, nn

from models.publishing.fingerprint import hash_layer
from models.publishing.from_torch.backbone import mixed
from models.publishing.from_torch.pooling import DenseLayer, pool, published_layer, skipped
from models.publishing.layout import write_backbone, write_layout
from models.sources.folder import Source
from models.sources.template import with_template
from models.tokens.pairs import Around
from models.tokens.tokenizer import FILE_NAME as TOKENIZER
from models.tokens.tokenizer import Tokenizer
from training.errors import TrainingError
from training.model.dropout import replace_dropouts, set_dropout
from training.model.packed import FAMILIES, Packing, build_groups, build_packing, pad, run_backbone
from training.text.lexicon import Lexicon, surround
from training.text.tokens import Tokens, build_tokens


class Affine(NamedTuple):
    """A dense layer: the affine map x · weight + bias, followed by an activation."""

    weight: NDArray[np.float64]  # (D, K)
    bias: NDArray[np.float64]  # (K,)
    activation: str = "identity"  # name as in a published Dense


class Encoded(NamedTuple):
    """Result of encoding R texts: one pooled vector per text, and one hidden vector per token."""

    pooled: Tensor  # float32 (R, dimension), not normalized
    hidden: Tensor  # (all tokens, D), from the last layer


class TrainedEncoder(nn.Module):
    """Encodes tokens to pooled vectors. Also returns token vectors, which some objectives read.

    Args:
        source: The base.
        backbone: The torch module of the base.
        dense: Dense layers after the pooling.
        template: Template around each text, if the tokenizer of the base does not add it already.

    """

    pairs: Around | None = None  # special tokens of a pair, for a cross-encoder (reranker.py)

    def __init__(
        self, source: Source, backbone: Any, dense: nn.Sequential, template: str | None = None
    ) -> None:
        super().__init__()
        self.source = source
        replace_dropouts(backbone)
        self.backbone = backbone
        self.dense = dense
        self.lexicon = Lexicon.of(source)
        self.family = str(source.config.get("model_type"))
        self.pad_id = int(source.config.get("pad_token_id") or 0)
        self._template = template
        self._around = self.lexicon.affixes if template is None else self.lexicon.around(template)[:2]
        self._longer = sum(map(len, self._around)) - sum(map(len, self.lexicon.affixes))
        self._tokenizer = self.tokenizer(source.max_length)

    def tokenizer(self, max_length: int, *, whole: bool = False) -> Tokenizer:
        """Returns a tokenizer that cuts texts at `max_length` tokens.

        If `whole` is False, it also cuts at the maximum length of the model.
        """
        length = max_length if whole else min(max_length, self.source.max_length - self._longer)
        return Tokenizer(self.source.tokenizer, length, self.source.config.get("vocab_size"))

    def forward(self, tokens: Tokens, dropout: float | Sequence[float] = 0.0) -> Encoded:
        """Encodes texts. `dropout` is one probability, or one for each dropout module of the backbone."""
        set_dropout(self.backbone, dropout)
        packing = build_packing(tokens, self.device)
        layers = self.source.head.tokens != "last"
        with _cut_off(self.backbone, tokens):
            hidden, states = run_backbone(
                self.backbone, tokens, packing, self.family, self.pad_id, states=layers
            )
        return Encoded(self._pool(hidden, states, tokens, packing), hidden)

    def layers(self, tokens: Tokens) -> Tensor:
        """Returns each text's mean token vector after the embeddings and after every layer.

        Dropout is off. The shape is (R, layers + 1, D).
        """
        set_dropout(self.backbone, 0.0)
        packing = build_packing(tokens, self.device)
        _, states = run_backbone(self.backbone, tokens, packing, self.family, self.pad_id, states=True)
        with torch.autocast(self.device.type, enabled=False):
            means = [pool(pad(state.float(), packing), packing.mask.long(), ("mean",)) for state in states]
            return torch.stack(means, dim=1)

    def _pool(self, hidden: Tensor, states: Sequence[Tensor], tokens: Tokens, packing: Packing) -> Tensor:
        kind = self.source.head.tokens
        if kind == "static":
            embeddings: Any = self.backbone.get_input_embeddings()
            hidden = embeddings(tokens.ids.to(self.device))
        elif kind != "last":
            hidden = mixed(states, kind)
        with torch.autocast(self.device.type, enabled=False):  # a mean in bf16 would lose digits
            head = self.source.head
            left_out = None
            if head.left_out:
                left_out = skipped(tokens.padded(self.pad_id)[0], head.left_out).to(self.device)
            found = pool(pad(hidden.float(), packing), packing.mask.long(), head.pooling, left_out)
            pooled: Tensor = self.dense(found)
        return pooled

    @torch.inference_mode()
    def encode(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Encodes texts to unit vectors, without dropout. Cuts texts at the maximum length of the model."""
        return nn.functional.normalize(self.pooled(texts), dim=-1).numpy()

    def encode_queries(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Encodes queries after the model's prompt for queries."""
        return self.encode([self.source.search_prompt + text for text in texts])

    def encode_documents(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Encodes documents after the model's prompt for documents."""
        return self.encode([self.source.document_prompt + text for text in texts])

    @torch.inference_mode()
    def pooled(self, texts: Sequence[str]) -> Tensor:
        """Encodes texts without normalizing the vectors: float32, shape (texts, dimension), on the CPU."""
        rows = [tokens.ids for tokens in self._tokenizer.tokenize(texts)]
        vectors = torch.empty(0)
        for group in build_groups(torch.tensor([len(row) for row in rows], dtype=torch.int64), self.device):
            tokens = build_tokens([rows[row] for row in group.tolist()])
            if self._template is not None:
                tokens = surround(tokens, self.lexicon, *self._around)
            found = self(tokens).pooled.cpu()
            if not len(vectors):
                vectors = torch.empty(len(rows), found.shape[1])
            vectors[group] = found
        return vectors

    @property
    def width(self) -> int:
        """The width of a pooled vector."""
        last = next((layer for layer in reversed(self.dense) if isinstance(layer, DenseLayer)), None)
        return last.linear.out_features if last else self.source.head.dimension(self.source.width)

    @property
    def device(self) -> torch.device:
        device: torch.device = next(self.backbone.parameters()).device
        return device

    def add_dense(self, layers: Sequence[Affine]) -> None:
        """Appends dense layers, such as fitted post-processors."""
        for layer in layers:
            linear = nn.Linear(*layer.weight.shape)
            with torch.no_grad():
                linear.weight.copy_(torch.from_numpy(layer.weight.T))
                linear.bias.copy_(torch.from_numpy(layer.bias))
            self.dense.append(DenseLayer(linear, layer.activation).to(self.device))

    @torch.no_grad()
    def weigh_words(self, weights: NDArray[np.float64]) -> None:
        """Multiplies the embedding of each token by a weight. `weights` has shape (vocabulary,)."""
        table: Tensor = self.backbone.get_input_embeddings().weight
        table.mul_(torch.from_numpy(weights).to(table)[:, None])

    def word_counts(self, texts: Sequence[str]) -> NDArray[np.int64]:
        """Counts each token id in the texts, without special tokens. Returns shape (vocabulary,)."""
        size = len(self.backbone.get_input_embeddings().weight)
        before, after = map(len, self.lexicon.affixes)
        counts = np.zeros(size, np.int64)
        for at in range(0, len(texts), 1024):
            for tokens in self._tokenizer.tokenize(texts[at : at + 1024]):
                counts += np.bincount(tokens.ids[before : len(tokens.ids) - after], minlength=size)
        return counts

    def pooled_chunks(self, texts: Sequence[str], chunk: int = 1024) -> Iterator[NDArray[np.float32]]:
        """Encodes documents in chunks, after the model's prompt for documents, without normalization."""
        prompt = self.source.document_prompt
        for at in range(0, len(texts), chunk):
            yield self.pooled([prompt + text for text in texts[at : at + chunk]]).numpy()

    def save(self, folder: Path) -> None:
        """Writes the encoder to an empty folder, in the layout of sentence-transformers."""
        head = replace(self.source.head, layers=tuple(published_layer(layer) for layer in self.dense))
        source = replace(self.source, head=head, weights=())
        if self._template is not None:
            source = replace(source, tokenizer=with_template(source.tokenizer, self._template)[0])
        write_layout(source, folder)
        save_weights(self.backbone.state_dict(), folder / "model.safetensors", {"format": "pt"})

    def save_backbone(self, folder: Path, head: Mapping[str, Tensor]) -> None:
        """Writes a Hugging Face folder with the backbone and a masked-language head, without pooling."""
        write_backbone(self.source, folder)
        at: str = self.backbone.base_model_prefix  # transformers requires this prefix
        weights = {f"{at}.{name}": tensor for name, tensor in self.backbone.state_dict().items()} | dict(head)
        save_weights(weights, folder / "model.safetensors", {"format": "pt"})


def _cut_off(backbone: Any, tokens: Tokens) -> AbstractContextManager[Any]:
    """Zeroes random tokens or features of the embeddings, inside the `with` block (ConSERT, section 3.2.2).

    The probabilities are in `tokens.cutoff`. If it is None, nothing changes. Like dropout, the choice uses
    torch's global generator, so the same generator state gives the same choice.

    Raises:
        TrainingError: The backbone has no module for its embeddings.

    """
    if tokens.cutoff is None:
        return nullcontext()
    if backbone.config.model_type not in FAMILIES:
        raise TrainingError(f"The view `cutoff` works for {', '.join(FAMILIES)} only.")
    keep = kept(tokens.cutoff, tokens, int(backbone.config.hidden_size))
    hook: AbstractContextManager[Any] = backbone.embeddings.register_forward_hook(
        lambda _module, _inputs, embedded: embedded * keep.to(embedded)
    )
    return hook


def kept(cutoff: Tensor, tokens: Tokens, width: int) -> Tensor:
    """Draws which components of the embeddings are kept (1) or zeroed (0), shape (all tokens, width)."""
    of_tokens, of_features = cutoff.T
    rows = tokens.rows()
    token_stays = torch.rand(len(tokens.ids)) >= of_tokens[rows]
    feature_stays = torch.rand(len(tokens), width) >= of_features[:, None]
    stays: Tensor = token_stays[:, None] & feature_stays[rows]
    return stays.float()


def save_weights(tensors: Mapping[str, Tensor], file: Path, metadata: dict[str, str]) -> None:
    """Writes tensors to a safetensors file.

    Raises:
        TrainingError: The file cannot be written, for example on a full disk. No partial file remains.

    """
    plain = {name: tensor.detach().cpu().contiguous() for name, tensor in _own(tensors).items()}
    try:
        save_file(plain, file, metadata=metadata)
    except (SafetensorError, OSError) as error:
        file.unlink(missing_ok=True)
        raise TrainingError(f"{file} cannot be written: {error}") from None


def _own(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Removes duplicates of tied weights. Each tensor keeps only the first name, as in transformers."""
    first: dict[object, str] = {}
    for name, tensor in tensors.items():
        first.setdefault((tensor.data_ptr(), tensor.numel()) if tensor.numel() else name, name)
    return {name: tensors[name] for name in first.values()}


def compute_digest(source: Source) -> str:
    """Returns the SHA-256 of a base's weights and of all settings that affect its vectors."""
    digest = hashlib.sha256(f"{source.head.names} {source.max_length} {source.prompts}".encode())
    beside = (source.backbone / TOKENIZER, source.backbone / "config.json")
    for file in (*source.weights, *(file for file in beside if file.is_file())):
        with file.open("rb") as stream:
            digest.update(hashlib.file_digest(stream, "sha256").digest())
    for layer in source.head.layers:
        digest.update(" ".join(hash_layer(layer)).encode())
    return digest.hexdigest()
