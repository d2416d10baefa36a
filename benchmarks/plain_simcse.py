"""Unsupervised SimCSE in plain transformers, as a judge of ours: `python -m benchmarks.plain_simcse STAGE`.

Written from the paper and its table A.1, with nothing of training/: padded batches, transformers' own BERT
and its dropout, one pass of both views, fp32. Lines as of benchmarks.reproduction, under the part `plain`.
"""

import gzip
import itertools
import json
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812  its usual name
from scipy.stats import spearmanr
from transformers import AutoModel, AutoTokenizer

from benchmarks.places import arguments, say
from benchmarks.reproduction import BATCH, SENTENCES, lines


def main() -> None:
    parser = arguments("plain_simcse", __doc__)
    parser.add_argument(
        "stage", type=Path, help="a folder that benchmarks.reproduction made, as WORK/mlm-600"
    )
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, default=Path("plain.jsonl"))
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--eval-steps", type=int, default=20)
    parser.add_argument("--head", action="store_true", help="the paper's, in training only")
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.manual_seed(options.seed)
    dev = train(options)
    losses = [each["loss"] for each in lines(options.stage / "record.jsonl") if each["event"] == "step"]
    known = {
        "part": "plain",
        "stage": options.stage.name,
        "name": "mlp in training" if options.head else "none",
    }
    known |= {"seed": options.seed, "steps": options.steps, "batch": BATCH, "loss": sum(losses[-50:]) / 50}
    with options.out.open("a", encoding="utf-8") as stream:
        stream.write(json.dumps(known | {"dev": dev}) + "\n")


def train(options: Any) -> dict[int, float]:
    """STS-B dev by the number of steps."""
    tokenizer = AutoTokenizer.from_pretrained(options.stage)
    model = AutoModel.from_pretrained(options.stage, add_pooling_layer=False)
    width = model.config.hidden_size
    head: torch.nn.Module = torch.nn.Identity()
    if options.head:
        linear = torch.nn.Linear(width, width)
        torch.nn.init.normal_(linear.weight, std=0.02)
        torch.nn.init.zeros_(linear.bias)
        head = torch.nn.Sequential(linear, torch.nn.Tanh())

    def pooled(texts: list[str], longest: int) -> torch.Tensor:
        found = tokenizer(texts, padding=True, truncation=True, max_length=longest, return_tensors="pt")
        mask = found["attention_mask"][..., None]
        vectors: torch.Tensor = (model(**found).last_hidden_state * mask).sum(1) / mask.sum(1)
        return vectors

    def score() -> float:
        model.eval()
        with torch.inference_mode():
            a, b = (
                torch.cat([pooled(side[at : at + 64], 128) for at in range(0, len(side), 64)])
                for side in pairs
            )
        return float(spearmanr(F.cosine_similarity(a, b).numpy(), gold).statistic)

    with gzip.open(
        options.data / "wiki_sentences" / "wiki_sentences.tsv.gz", "rt", encoding="utf-8"
    ) as stream:
        sentences = [line.rstrip("\n") for line in itertools.islice(stream, 1, SENTENCES + 1)]
    with gzip.open(options.data / "stsb" / "dev.tsv.gz", "rt", encoding="utf-8") as stream:
        rows = [line.rstrip("\n").split("\t") for line in stream][1:]
    pairs, gold = [[row[-2] for row in rows], [row[-1] for row in rows]], [float(row[-3]) for row in rows]
    order = torch.randperm(len(sentences)).tolist()
    parameters = [*model.parameters(), *head.parameters()]
    optimizer = torch.optim.AdamW(parameters, lr=3e-5, eps=1e-8, weight_decay=0.0)
    dev = {0: score()}
    for step in range(options.steps):
        for group in optimizer.param_groups:
            group["lr"] = 3e-5 * (1 - step / options.steps)
        model.train()
        texts = [sentences[at] for at in order[step * BATCH : (step + 1) * BATCH]]
        first, second = F.normalize(head(pooled(texts + texts, 32)), dim=-1).chunk(2)
        loss = F.cross_entropy(first @ second.T / 0.05, torch.arange(len(texts)))
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        if not (step + 1) % options.eval_steps:
            dev[step + 1] = score()
            say(f"step {step + 1}: loss {loss.item():.4f}, STS-B dev {dev[step + 1]:.4f}")
    return dev


if __name__ == "__main__":
    main()
