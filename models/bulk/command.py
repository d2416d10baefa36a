"""The command `simile embed IN OUT`. Start at `add_command`. Only running it imports pyarrow."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from models.engines.form import default_device, parse_place
from models.engines.malloc import keep_buffers
from models.errors import ModelError, denied, install_command
from models.files.lines import parse_separator
from models.messages import amount, positive
from models.progress import step_to_stderr, to_stderr
from models.store import ModelStore

if TYPE_CHECKING:
    from models.bulk.job import Engine

_TRUE = {"1", "true", "yes", "on"}


def add_command(commands: Any, environ: Mapping[str, str] = os.environ) -> None:
    """Adds the command to the parser of `simile models`."""
    command = commands.add_parser(
        "embed",
        help="embed Parquet, JSON lines or CSV into Parquet files with vectors, without a service",
        description="Embeds each row of IN, and writes Parquet files to the folder OUT. Run the same command "
        "again to continue after an interruption. docs/BULK.md explains the format.",
    )
    place = "local, or as s3://BUCKET/PATH or gs://BUCKET/PATH"
    command.add_argument("source", metavar="IN", help=f"a file, or a folder of files; {place}")
    command.add_argument("out", metavar="OUT", help=f"an empty or new folder; {place}")
    command.add_argument("--model", metavar="VERSION", help="the version (default: the requested one)")
    command.add_argument(
        "--text", default="text", metavar="COLUMN", help="column of the text (default: text)"
    )
    command.add_argument(
        "--title", metavar="COLUMN", help="column of the title (default: title, if it exists)"
    )
    command.add_argument(
        "--id", metavar="COLUMN", help="column of the id (default: id or _id, else ids derived from the text)"
    )
    others = command.add_mutually_exclusive_group()
    others.add_argument("--columns", metavar="A,B", default="", help="other columns to keep as metadata")
    others.add_argument("--all-columns", action="store_true", help="keep all other columns")
    command.add_argument("--no-text", action="store_true", help="keep no titles and texts")
    command.add_argument("--half", action="store_true", help="store vectors in fp16, in half the space")
    command.add_argument(
        "--precision",
        default=environ.get("SIMILE_PRECISION", "fp32"),
        help="fp32, int8, bf16 or fp16; the service must use the same (default: SIMILE_PRECISION, else fp32)",
    )
    command.add_argument(
        "--device",
        type=_device,
        default=environ.get("SIMILE_DEVICE") or default_device(),
        help="cpu, cuda or cuda:N (default: SIMILE_DEVICE, else cuda if the extra gpu is installed)",
    )
    command.add_argument(
        "--collection",
        default="default",
        metavar="NAME",
        help="collection whose learned length of passages applies (default: default)",
    )
    command.add_argument(
        "--part-rows", type=positive, default=100_000, metavar="N", help="rows of a part (default: 100,000)"
    )
    command.add_argument("--encoding", default="utf-8", help="encoding of text files (default: utf-8)")
    command.add_argument(
        "--delimiter",
        type=_separator,
        default=None,
        metavar="C",
        help="separator of CSV, such as ; or tab (default: a comma)",
    )
    command.add_argument(
        "--engine",
        choices=("local", "ray"),
        default="local",
        help="what distributes the work (default: local)",
    )
    command.add_argument(
        "--ray-address", metavar="ADDRESS", help="the Ray cluster (default: RAY_ADDRESS, else this machine)"
    )
    command.add_argument(
        "--actors", type=positive, default=0, metavar="N", help="Ray actors (default: as many as fit)"
    )
    command.add_argument(
        "--actor-cpus", type=positive, default=1, metavar="N", help="processors of a Ray actor (default: 1)"
    )
    command.set_defaults(run=partial(_embed, environ))


def _embed(environ: Mapping[str, str], store: ModelStore, options: argparse.Namespace) -> None:
    try:
        from models.bulk.inputs import Columns, Reading  # noqa: PLC0415  pyarrow is an extra
        from models.bulk.job import plan, run  # noqa: PLC0415
        from models.bulk.vector_files import shown  # noqa: PLC0415

        engine = _find_engine(options)
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package not in {"pyarrow", "ray"}:
            raise
        extra = "ray" if package == "ray" else "bulk"
        raise ModelError(f"embed needs {package}. Install it: {install_command(extra)}") from error
    version = options.model or store.requested()
    if version is None:
        raise ModelError("No version is requested. Name one with --model; `simile models list` shows them.")
    kept = None if options.all_columns else tuple(filter(None, options.columns.split(",")))
    embedder = {
        "version": version,
        "models_dir": str(store.root.absolute()),
        "precision": options.precision,
        "device": options.device,
        "deterministic": _is_on(environ, "SIMILE_DETERMINISTIC", default=False),
        "collection": options.collection if _is_on(environ, "SIMILE_PASSAGES", default=True) else None,
    }
    reading = Reading(
        Columns(options.text, options.title, options.id, kept),
        options.part_rows,
        options.encoding,
        options.delimiter or "",
    )
    step_to_stderr("finding the inputs")
    out = shown(options.out)
    try:
        job = plan(
            options.out, options.source, embedder, reading, half=options.half, with_text=not options.no_text
        )
    except OSError as error:
        raise ModelError(denied(error, shown(options.source))) from error
    keep_buffers()  # This process does nothing else.
    try:
        counts = run(job, engine, to_stderr)
    except KeyboardInterrupt:
        raise ModelError("Interrupted. Run the same command again to continue.") from None
    except OSError as error:
        raise ModelError(denied(error, out)) from error
    written = f"{amount(counts['documents'], 'document')} in {amount(counts['parts'], 'part')}"
    sys.stdout.write(f"{written}: {out}\n")
    if counts["rejected"]:
        to_stderr(
            f"{amount(counts['rejected'], 'row was', 'rows were')} rejected; part-*.rejects.jsonl in "
            f"{out} has the reasons."
        )


def _separator(given: str) -> str:
    if not (found := parse_separator(given)):
        raise argparse.ArgumentTypeError(f"{given[:20]!r} cannot separate columns. Use one of , ; tab |.")
    return found


def _device(given: str) -> str:
    try:
        parse_place(given)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{given[:20]!r} is no device: {error}") from error
    return given


def _find_engine(options: argparse.Namespace) -> Engine:
    if options.engine == "ray":
        from models.bulk.ray_engine import embed_on_ray  # noqa: PLC0415  an extra

        return partial(
            embed_on_ray,
            address=options.ray_address,
            actors=options.actors,
            processors=options.actor_cpus,
        )
    from models.bulk.job import embed_locally  # noqa: PLC0415  pyarrow is an extra

    return embed_locally


def _is_on(environ: Mapping[str, str], name: str, *, default: bool) -> bool:
    return environ[name].lower() in _TRUE if environ.get(name) else default
