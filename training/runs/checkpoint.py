"""Write and read checkpoints: one safetensors file with all state that a run needs to continue.

    model.…                        weights of encoder and head, by name
    exp_avg.…  exp_avg_sq.…        AdamW's averages of each parameter, by the name of the parameter
    metadata: {"state": JSON}      the number of finished steps, and the best score so far

A new checkpoint replaces the old one atomically, so a killed run keeps the older checkpoint. Random states
are not stored, because the random numbers of a step depend only on the seed and the number of the step
(step.py).
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from models.files.bounded import parse_json
from models.files.fsync import sync
from training.model.encoder import save_weights
from training.runfile import OtherRun
from training.runs.step import Trainer

FILE_NAME = "checkpoint.safetensors"
_AVERAGES = ("exp_avg", "exp_avg_sq")


def write_checkpoint(file: Path, trainer: Trainer, state: dict[str, Any]) -> None:
    """Writes a checkpoint.

    Args:
        file: File to write.
        trainer: Trainer with the weights and the optimizer.
        state: JSON values to store. `done` is the number of finished steps.

    Raises:
        TrainingError: The file cannot be written.
    """
    tensors = {f"model.{name}": tensor for name, tensor in trainer.model.state_dict().items()}
    for name, parameter in trainer.model.named_parameters():
        for average in _AVERAGES:
            if parameter in trainer.optimizer.state:
                tensors[f"{average}.{name}"] = trainer.optimizer.state[parameter][average]
    temporary = file.with_name(f".{file.name}")
    save_weights(tensors, temporary, {"state": json.dumps(state, allow_nan=False)})
    sync(temporary)
    temporary.replace(file)
    sync(file.parent)


def read_checkpoint(file: Path, trainer: Trainer) -> dict[str, Any]:
    """Loads a checkpoint into `trainer`. Returns the JSON values that `write_checkpoint` stored.

    Raises:
        OtherRun: The file is not a checkpoint of this run.
    """
    try:
        with safe_open(file, framework="pt") as opened:
            state: dict[str, Any] = parse_json(opened.metadata()["state"])
            tensors = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118  no mapping
        _restore(trainer, tensors, state["done"])
    except (SafetensorError, ValueError, KeyError, TypeError, RuntimeError) as error:
        raise OtherRun(f"{file} is not a checkpoint of this run: {error}") from None
    return state


def _restore(trainer: Trainer, tensors: dict[str, Tensor], done: int) -> None:
    prefix = "model."
    trainer.model.load_state_dict(
        {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}
    )
    for name, parameter in trainer.model.named_parameters():
        if f"{_AVERAGES[0]}.{name}" in tensors:
            averages = {average: tensors[f"{average}.{name}"].to(parameter.device) for average in _AVERAGES}
            count = torch.tensor(float(done), device=parameter.device)  # as AdamW counts when it is fused
            trainer.optimizer.state[parameter] = averages | {"step": count}
