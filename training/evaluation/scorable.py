"""Open the models that `evaluate` accepts: a published version, a folder, or a running server.

    default                  the model that the service starts with
    2026…-name-1a2b3c4d      a version in the models folder
    RUN                      the --out of a `train`: its best step
    FOLDER                   a published version's folder, or a sentence-transformers or Hugging Face folder
    http://HOST:PORT         a running server

An unpublished folder is first published into a temporary store. So the scores are the same as after real
publication. Sentences get no prompt. Queries and documents get the prompts of the model, as in a search. A
model with separate encoders for queries and documents uses both. Start reading at `open_scorable`.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from models import cpus
from models.encoder import Encoder
from models.engines.form import FP32, Form
from models.engines.opening import form_for
from models.manifest import check, require_kind
from models.messages import amount, did_you_mean
from models.progress import Say, silent
from models.publishing.default import publish_named
from models.search.content import Content
from models.search.passages import split
from models.store import ModelStore, models_dir
from training.errors import TrainingError
from training.evaluation.encoding import Encode, Vectors
from training.evaluation.modes import Split, whole
from training.model_names import find_model
from training.text.service import connect, fetch_info, send, shown


class Scorable(NamedTuple):
    version: str | None  # None for an unpublished model
    fingerprint: str | None  # None for a server that does not report it
    form: str | None  # precision and runtime; None like `fingerprint`
    encode: Encode  # without a prompt
    encode_queries: Encode
    encode_documents: Encode
    split: Split  # splits a document like the service
    reads: int  # tokens that the model reads; 0 for a server, or without passages
    unrelated: float = 1.0  # mean cosine of unrelated texts; 1 for a server
    encoder: Encoder | None = None  # None for a server


@contextmanager
def open_scorable(
    name: str, environ: Mapping[str, str] = os.environ, say: Say = silent, precision: str | None = None
) -> Iterator[Scorable]:
    """Opens a model for evaluation, and closes it after the `with` block.

    Args:
        name: One of the forms in the module's docstring.
        environ: Environment variables, for the settings.
        say: Called with progress messages.
        precision: Precision as in the settings of the service. None means fp32. Must be None for a server.

    Raises:
        TrainingError: `name` is not a model, or the server cannot be used.
        ModelError: The model cannot be opened.
    """
    if name.lower().startswith(("http://", "https://")):
        if precision:
            raise TrainingError(
                f"{name} has a precision of its own (SIMILE_PRECISION): leave out --precision."
            )
        with closing(Server(name)) as server:
            if server.query_encoder:
                say(f"! {name} serves a pair, and /embed gives its teacher's vectors to queries, too")
            queries, documents = server.behind("query"), server.behind("document", "passage")
            # A server does not report its tokens, so its documents cannot be split here.
            yield Scorable(
                server.version, server.fingerprint, server.form, server.encode, queries, documents, whole, 0
            )
        return
    form = form_for(precision or FP32.precision)
    published = ModelStore(models_dir(environ))
    found = None if name == "default" else find_model(name, published)
    if found and found.published:
        yield _opened(found.folder.resolve(), form)
    elif found or name == "default":
        with tempfile.TemporaryDirectory(prefix="simile-") as temporary:
            store = ModelStore(Path(temporary))
            manifest = publish_named(store, str(found.folder) if found else name, say=say)
            known = published.find(manifest)
            scorable = _opened(store.folder(manifest.version), form)
            yield scorable._replace(version=known.version if known else None)
    else:
        hint = did_you_mean(name, ["default", *published.names()])
        raise TrainingError(
            f"{name} is not a model.{hint} Name `default`, a version, a folder or a server's URL. "
            "`simile models import` fetches one from the hub."
        )


def build_scorable(encoder: Encoder, *, passages: bool = True) -> Scorable:
    """Wraps an encoder, which the caller closes. If `passages` is False, documents are not split."""
    manifest = encoder.manifest

    def behind(prompt: str, encoder: Encoder = encoder) -> Encode:
        return lambda texts: encoder.encode([prompt + text for text in texts]).vectors

    def parts(content: Content, passage_tokens: int | None) -> list[str]:
        found = split(content, encoder, manifest.document_prompt, length=passage_tokens)
        others = () if found is None else found.others
        lead = "" if found is None else found.lead
        return [content.whole, *(lead + content.text[slice(*span)] for span in others)]

    return Scorable(
        manifest.version,
        manifest.fingerprint,
        str(encoder.form),
        behind(""),
        behind(manifest.search_prompt, encoder.for_queries),
        behind(manifest.document_prompt),
        parts if passages else whole,
        manifest.max_length if passages else 0,
        encoder.unrelated,
        encoder,
    )


def _opened(folder: Path, form: Form) -> Scorable:
    manifest = require_kind(check(folder), "encoder")
    return build_scorable(Encoder(folder, manifest, threads=cpus.available(), form=form))


_BATCH = 256  # texts in one request
_REFUSED = 422  # the model does not have the prompt


class Server:
    """An encoder that sends texts to a running server over HTTP. All vectors are from one model version.

    Texts get no prompt unless a call names one. The server cuts long texts.
    """

    def __init__(self, url: str) -> None:
        """Connects to the server.

        Raises:
            TrainingError: No server answers at `url`, or it is not a Simile service.
        """
        info = fetch_info(url)
        self._url, self._client = url, connect()
        self._shown = shown(url.rstrip("/"))
        self.version: str | None = info.get("model_version")
        self.fingerprint: str | None = info.get("fingerprint")
        self.form: str | None = info.get("form")
        # The student of a pair, which encodes queries. No route returns its vectors.
        self.query_encoder: dict[str, Any] | None = info.get("query_encoder")

    def close(self) -> None:
        self._client.close()

    def encode(self, texts: list[str], prompt: str | None = None) -> Vectors:
        """Returns the vectors of texts, shape (n, dimension).

        Args:
            texts: The texts.
            prompt: Name of a prompt of the model to put before each text.

        Raises:
            TrainingError: The server refused a request, or has activated another version.
        """
        batches = [self._embed(texts[at : at + _BATCH], prompt) for at in range(0, len(texts), _BATCH)]
        if len({batch.shape[1] for batch in batches}) > 1:
            raise TrainingError(f"{self._shown} gave vectors of different dimensions.")
        return np.concatenate(batches) if batches else np.empty((0, 0), np.float32)

    def behind(self, *prompts: str) -> Encode:
        """Returns an encoder that uses the first of the named prompts that the model has, if any.

        A server does not list its prompts, so the first call tries the prompts one after another.
        """
        named = cache(lambda: next((prompt for prompt in prompts if self._has(prompt)), None))
        return lambda texts: self.encode(texts, named())

    def _has(self, prompt: str) -> bool:
        body = {"inputs": ["a"], "prompt_name": prompt}
        answer = send(self._client, self._url, "/embed", body=body, allowed=(200, _REFUSED))
        return answer.status_code == 200

    def _embed(self, texts: list[str], prompt: str | None) -> Vectors:
        body = {"inputs": texts, "truncate": True} | ({"prompt_name": prompt} if prompt else {})
        answer = send(self._client, self._url, "/embed", body=body, accept="application/octet-stream")
        version = answer.headers.get("x-model-version")
        if version != self.version:
            raise TrainingError(
                f"{self._shown} changed from {self.version} to {version} during the evaluation. "
                "Start it again."
            )
        shape = answer.headers.get("x-embedding-shape", "")
        try:
            rows, dimension = (int(part) for part in shape.split(","))
            vectors = np.frombuffer(answer.content, "<f4").reshape(rows, dimension)
        except ValueError:
            raise TrainingError(
                f"{self._shown}/embed gave no float32 vectors ({len(answer.content)} bytes, "
                f"x-embedding-shape {shape!r})."
            ) from None
        if rows != len(texts):
            raise TrainingError(
                f"{self._shown}/embed gave {amount(rows, 'vector')} for {amount(len(texts), 'text')}."
            )
        return vectors.astype(np.float32, copy=False)
