"""The models that `evaluate` may name: the default model, a published version, a folder, or a server.

    default                  the model that the service starts with
    2026…-name-1a2b3c4d      a version in the models folder
    RUN                      the --out of a `train`: its best step
    FOLDER                   a published version's folder, or a sentence-transformers or Hugging Face folder
    http://HOST:PORT         a running server (server.py)

A folder that is not published is published into a temporary store, through the same proof as any other, and
forgotten afterwards: what is scored is what would be served. Sentences go in without a prompt; queries and
documents go in behind the model's own, as in a search: those of a pair by both of its encoders.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import NamedTuple

from models import cpus
from models.encoder import Encoder
from models.engines.form import FP32, Form
from models.engines.opening import form_for
from models.manifest import check
from models.messages import did_you_mean
from models.progress import Say, silent
from models.publishing.default import publish_named
from models.search.content import Content
from models.search.passages import split
from models.store import Store, models_dir
from training.errors import TrainingError
from training.evaluation.encoding import Encode
from training.evaluation.modes import Split, whole
from training.evaluation.server import Server
from training.model_names import find_model


class Scorable(NamedTuple):
    version: str | None  # None for a model that is not in the models folder
    fingerprint: str | None  # None for a server that does not say
    form: str | None  # as the one above; the precision and the runtime
    encode: Encode  # without a prompt
    encode_queries: Encode
    encode_documents: Encode
    split: Split  # as the service splits a document
    reads: int  # tokens of a text; 0 for a server, which does not say, and where no text is split


@contextmanager
def open_scorable(
    name: str, environ: Mapping[str, str] = os.environ, say: Say = silent, precision: str | None = None
) -> Iterator[Scorable]:
    """Raise TrainingError when `name` is nothing that can be scored, or ModelError with its reason.

    precision: as the service takes it; None: fp32, and of a server whatever it has.
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
            # A server says nothing of its tokens, so nobody can split as it does.
            yield Scorable(
                server.version, server.fingerprint, server.form, server.encode, queries, documents, whole, 0
            )
        return
    form = form_for(precision or FP32.precision)
    published = Store(models_dir(environ))
    found = None if name == "default" else find_model(name, published)
    if found and found.published:
        yield _opened(found.folder.resolve(), form)
    elif found or name == "default":
        with tempfile.TemporaryDirectory(prefix="simile-") as temporary:
            store = Store(Path(temporary))
            manifest = publish_named(store, str(found.folder) if found else name, say=say)
            known = published.find(manifest)
            scorable = _opened(store.folder(manifest.version), form)
            yield scorable._replace(version=known.version if known else None)
    else:
        hint = did_you_mean(name, ["default", *published.names()])
        raise TrainingError(
            f"{name} is not a model.{hint} Name `default`, a version, a folder or a server's URL. "
            "`python -m models import` fetches one from the hub."
        )


def scorable_of(encoder: Encoder, *, passages: bool = True) -> Scorable:
    """An open version; whoever opened it closes it. passages: False where the service splits no document."""
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
    )


def _opened(folder: Path, form: Form) -> Scorable:
    return scorable_of(Encoder(folder, check(folder), threads=cpus.available(), form=form))
