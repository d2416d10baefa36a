"""python -m models import | list | show | verify: look after the published versions of a models folder.

Which version is served is the service's matter: nothing here changes it.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from .builtin import publish_named
from .errors import ModelError
from .proof import check_golden
from .seal import read_manifest
from .store import Store


def main(arguments: Sequence[str] | None = None, environ: Mapping[str, str] = os.environ) -> int:
    options = _parser(environ).parse_args(arguments)
    try:
        options.run(Store(options.models_dir), options)
    except (ModelError, OSError) as error:
        print(f"python -m models: {error}", file=sys.stderr)
        return 1
    return 0


def models_dir(environ: Mapping[str, str]) -> Path:
    return Path(environ.get("SIMILE_MODELS_DIR") or Path(environ.get("SIMILE_DATA_DIR") or "data") / "models")


def _parser(environ: Mapping[str, str]) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m models", description="Published versions of embedding models."
    )
    parser.add_argument(
        "--models-dir",
        type=Path,
        default=models_dir(environ),
        help="where the versions are (SIMILE_MODELS_DIR, else SIMILE_DATA_DIR/models; now %(default)s)",
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    command = commands.add_parser(
        "import", help="publish a model, after proving that it computes what it should"
    )
    command.add_argument(
        "source",
        metavar="FOLDER_OR_HUB_ID",
        help="`default`, a hub id, or a sentence-transformers or Hugging Face folder",
    )
    command.add_argument(
        "--name", default="", help="the middle part of the version's name (default: the source's)"
    )
    command.set_defaults(run=_import)
    commands.add_parser("list", help="every version, oldest first").set_defaults(run=_list)
    for name, run, text in (
        ("show", _show, "print a version's manifest"),
        ("verify", _verify, "check every file of a version and compute its golden vectors again"),
    ):
        command = commands.add_parser(name, help=text)
        command.add_argument("version", metavar="VERSION")
        command.set_defaults(run=run)
    return parser


def _import(store: Store, options: argparse.Namespace) -> None:
    known = {manifest.version for manifest in store.versions()}
    manifest = publish_named(store, options.source, options.name, _progress)
    print(f"{manifest.version} {'was published before' if manifest.version in known else 'published'}")


def _list(store: Store, options: argparse.Namespace) -> None:
    state = store.read_state()
    roles = {"wanted": store.wanted(), "live": state.get("live"), "previous": state.get("previous")}
    for manifest in store.versions():
        marks = ", ".join(role for role, version in roles.items() if version == manifest.version)
        size = f"{manifest.dimension} dimensions, {manifest.max_length} tokens, {manifest.precision}"
        print(f"{manifest.version}  {size}{f'  [{marks}]' if marks else ''}")
    for name, reason in store.problems().items():
        print(f"{name}  not served: {reason}")


def _show(store: Store, options: argparse.Namespace) -> None:
    print(read_manifest(store.folder(options.version)).text(), end="")


def _verify(store: Store, options: argparse.Namespace) -> None:
    _progress("checking every file")
    encoder = store.open(options.version, threads=len(os.sched_getaffinity(0)))
    _progress("computing the golden vectors again")
    worst = check_golden(encoder, store.folder(options.version))
    print(
        f"{options.version} is whole: {len(encoder.manifest.files)} files, golden vectors within {worst:.1g}"
    )


def _progress(step: str) -> None:
    print(f"{step} …", file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
