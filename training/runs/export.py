"""`simile training export`: verify the model of a finished run, and publish it as a version.

The service uses the version only after an operator activates it.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import Any

from models.manifest import ANCHOR, TEACHER, Manifest
from models.progress import Say, silent, step_to_stderr
from models.store import ModelStore, activate_command, models_dir
from training.arguments import LOADING
from training.errors import TrainingError
from training.runfile import read_run
from training.runs.dev import STSB_DEV


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    command = commands.add_parser(
        "export",
        help="prove a trained encoder and publish it as a candidate",
        description="Prove a trained encoder (ONNX against torch) and publish it. Nothing serves it yet.",
    )
    command.add_argument("folder", type=Path, metavar="FOLDER", help="the --out of a finished `train`")
    command.add_argument(
        "--step",
        choices=("best", "last"),
        default="best",
        help="the step with the best dev score, or the last one (%(default)s)",
    )
    add_models_dir(command)
    command.set_defaults(run=_run)


def add_models_dir(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--models-dir",
        type=Path,
        default=models_dir(os.environ),
        metavar="DIR",
        help="where the versions are (SIMILE_MODELS_DIR, else SIMILE_DATA_DIR/models; now %(default)s)",
    )


def export_run(
    out: Path,
    store: ModelStore,
    *,
    step: str = "best",
    anchor: str | None = None,
    int8: bool = False,
    say: Say = silent,
) -> Manifest:
    """Publishes the weights of a finished run, unless they are published already. Returns the manifest.

    Args:
        out: Folder of the run.
        store: Store of model versions.
        step: "best" or "last".
        anchor: Version with which a series of retrainings began.
        int8: Whether to add an int8 graph.
        say: Called with progress messages.

    Raises:
        TrainingError: The run is not finished, or its result is a backbone.
        ProofFailed: The exported graph does not compute the same vectors as the weights.
        Unsupported: The model cannot be published.
    """
    run = read_run(out)
    if "finished" not in run:
        raise TrainingError(f"The run in {out} is not finished. Continue it: train … --resume.")
    if run.get("result") == "backbone":
        raise TrainingError(f"The run in {out} made a backbone to train from: `train … --base {out}`.")
    if "torch" not in sys.modules:
        say(LOADING)
    from models.publishing.from_torch.export import export  # noqa: PLC0415  torch

    lineage = _lineage(run, step) | ({} if anchor is None else {ANCHOR: anchor})
    method, parent = run["method"], run["parent"]
    return export(out / step, store, origin=method, parent=parent, lineage=lineage, int8=int8, say=say)


def _lineage(run: dict[str, Any], step: str) -> dict[str, Any]:
    """Returns the lineage for the manifest, which says how the weights were trained."""
    kept = ("method", "recipe", "corpus", "texts", "seed", "precision", "code", "stages", TEACHER)
    finished = run["finished"]
    share = {"share": finished["share"]} if step == "best" and "share" in finished else {}
    return (
        {key: run[key] for key in kept if key in run}
        | share
        | {
            "steps": finished["done"],
            "base": run["base_name"],
            "base_digest": run["base"],
            "step": step,
            run.get("dev_name", STSB_DEV): finished["dev"],
        }
    )


def _run(options: argparse.Namespace) -> int:
    store = ModelStore(options.models_dir)
    known = {manifest.version for manifest in store.versions()}
    manifest = export_run(options.folder, store, step=options.step, say=step_to_stderr)
    print(  # noqa: T201  the answer of the command
        f"{manifest.version} {'was published before' if manifest.version in known else 'published'}. "
        f"Nothing serves it before `{activate_command(store.root, manifest.version)}`."
    )
    return 0
