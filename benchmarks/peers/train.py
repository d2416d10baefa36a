"""Train with the trainer of sentence-transformers, in its virtual environment; see training.py.

    ready ─▶ a line on stdin ─▶ a round of steps ─▶ a line on stdout ─▶ a line on stdin ─▶ …

The script runs with the peer's Python and imports nothing from this project. After each round of steps, a
callback of the trainer waits for a line on stdin. Between two lines, only the training loop runs.
"""

import argparse
import json
import os
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from sentence_transformers import (
    SentenceTransformer,
    SentenceTransformerTrainer,
    SentenceTransformerTrainingArguments,
)
from sentence_transformers.sentence_transformer.losses import (
    MultipleNegativesRankingLoss,
)
from transformers import TrainerCallback

PACKAGES = ("sentence-transformers", "torch", "transformers", "accelerate", "tokenizers", "numpy")


class Rounds(TrainerCallback):
    """Pauses the trainer after each round of steps until a line arrives on stdin."""

    def __init__(self, channel: Any, warmup: int, steps: int) -> None:
        self._channel = channel
        self._warmup, self._steps = warmup, steps

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        done = state.global_step - self._warmup
        if done < 0 or done % self._steps:
            return
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        about = _about(kwargs["model"]) if done == 0 else {}
        print(json.dumps(about), file=self._channel, flush=True)
        if not sys.stdin.readline():  # the benchmark has ended
            os._exit(0)


def _about(model: Any) -> dict[str, Any]:
    """Return the package versions, the active dropout rates and the attention implementation."""
    parts = [part for part in model.modules() if isinstance(part, torch.nn.Dropout)]
    return {
        "packages": {name: version(name) for name in PACKAGES},
        "dropout": sorted({part.p if part.training else 0.0 for part in parts}),
        "attention": model[0].auto_model.config._attn_implementation,  # noqa: SLF001  it has no public name
        "threads": torch.get_num_threads(),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--job", type=Path, required=True, help="the job file that training.py writes")
    job = json.loads(parser.parse_args().job.read_text(encoding="utf-8"))
    optim = job["optim"]
    channel = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # output of the libraries must not mix with the answers
    torch.set_num_threads(job["threads"])
    model = SentenceTransformer(job["base"], device=job["device"])
    model.max_seq_length = job["max_length"]
    with tempfile.TemporaryDirectory() as folder:
        arguments = SentenceTransformerTrainingArguments(
            output_dir=folder,
            max_steps=job["warmup"] + job["steps"] * job["repeats"],
            per_device_train_batch_size=optim["batch"],
            learning_rate=optim["lr"],
            weight_decay=optim["weight_decay"],
            adam_epsilon=optim["epsilon"],
            max_grad_norm=optim["clip"],
            seed=job["seed"],
            bf16=job["precision"] == "bf16",
            use_cpu=job["device"] == "cpu",
            eval_strategy="no",
            save_strategy="no",
            logging_strategy="no",
            report_to="none",
            disable_tqdm=True,
        )
        trainer = SentenceTransformerTrainer(
            model=model,
            args=arguments,
            train_dataset=Dataset.from_dict({"anchor": job["texts"], "positive": job["texts"]}),
            loss=MultipleNegativesRankingLoss(model, scale=job["scale"]),
            callbacks=[Rounds(channel, job["warmup"], job["steps"])],
        )
        trainer.train()


if __name__ == "__main__":
    main()
