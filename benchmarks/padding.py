"""Graphs without padding against padded ones, by family: `make bench MODEL=FOLDER`

    FOLDER ─▶ the graph that Simile writes from the weights     padding costs attention only
           ─▶ the graph that torch exports                      every token of padding is computed

Batches are of the long-tailed mix, in the order of arrival and sorted by length. Both graphs compute each
batch in turns, so what else the machine does meets both; the ratio is what counts. The name of a family, as
`roberta`, stands for random weights of base size: `python -m benchmarks.padding roberta mpnet`.
"""

import json
import tempfile
import time
from argparse import Namespace
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import onnx

from benchmarks.places import arguments, say
from benchmarks.raw import padded
from benchmarks.results import Spread
from benchmarks.tables import table
from benchmarks.workloads import LONGEST, PROJECT, corpus, mixture
from models.engines.form import FP32
from models.engines.onnx import OnnxEngine
from models.graph.head import SENTENCE
from models.graph.packing import packs
from models.publishing.from_torch.export import prepare_traced
from models.publishing.from_torch.forward import Forward
from models.publishing.publish import prepare
from models.sources.folder import read_source
from models.tokens.tokenizer import Tokenizer

_CLOSE = 1e-4
_BASE = {
    "hidden_size": 768,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "intermediate_size": 3072,
    "max_position_embeddings": 514,
    "initializer_range": 0.02,
}
_RANDOM: dict[str, dict[str, Any]] = {
    "bert": _BASE,
    "roberta": _BASE,
    "xlm-roberta": _BASE,
    "mpnet": _BASE,
    "electra": _BASE | {"embedding_size": 768},
    "distilbert": {
        "dim": 768,
        "n_layers": 6,
        "n_heads": 12,
        "hidden_dim": 3072,
        "max_position_embeddings": 512,
        "initializer_range": 0.02,
    },
    "modernbert": _BASE
    | {
        "num_hidden_layers": 22,
        "intermediate_size": 1152,
        "max_position_embeddings": 8192,
        "local_attention": 128,
    },
}


def main() -> None:
    parser = arguments("padding", __doc__)
    parser.add_argument("models", nargs="+", metavar="FOLDER", help="or a family: " + ", ".join(_RANDOM))
    parser.add_argument("--batch", type=int, default=32, help="texts of one batch")
    parser.add_argument("--batches", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2, help="of each graph")
    options = parser.parse_args()
    lines: list[tuple[str, ...]] = []
    for name in options.models:
        with tempfile.TemporaryDirectory(dir=PROJECT) as scratch:
            folder = _random(Path(scratch) / name, name) if name in _RANDOM else Path(name)
            lines += _measured(folder, options)
    print(table(("model", "order", "texts/s", "padded", "over padded"), lines))


def _random(folder: Path, family: str) -> Path:
    """A folder of base size with random weights, but for its vocabulary, which costs a look-up."""
    from tests.models.families import family_source  # noqa: PLC0415  torch, and the tests' packages

    say(f"making a random {family}")
    family_source(folder, family, **_RANDOM[family])
    settings = folder / "sentence_bert_config.json"
    settings.write_text(json.dumps(json.loads(settings.read_bytes()) | {"max_seq_length": LONGEST}))
    return folder


def _measured(folder: Path, options: Namespace) -> Iterator[tuple[str, ...]]:
    source = read_source(folder)
    tokenizer = Tokenizer(source.tokenizer, source.max_length)
    mixed = mixture(tokenizer, corpus(), options.batch * options.batches)
    ours, traced = prepare(source).model, prepare_traced(source, Forward.load(source)).model
    assert packs(ours.graph), "the family has no graph of its own"
    graphs = [_opened(model, options.threads) for model in (ours, traced)]
    del ours, traced
    for order, rows in (("arrival", mixed.ids), ("sorted", sorted(mixed.ids, key=len))):
        say(f"{folder.name}, in the order of {order}")
        batches = [rows[start : start + options.batch] for start in range(0, len(rows), options.batch)]
        rounds = [_round(graphs, batches) for _ in range(options.rounds + 1)][1:]
        over = Spread.of([slow / fast for fast, slow in rounds])
        rates = [f"{len(rows) / median(one[at] for one in rounds):.1f}" for at in (0, 1)]
        yield folder.name, order, *rates, over.words()


def _opened(model: onnx.ModelProto, threads: int) -> OnnxEngine:
    with tempfile.NamedTemporaryFile(dir=PROJECT, suffix=".onnx") as file:
        onnx.save(model, file.name)
        return OnnxEngine(Path(file.name), FP32, threads)


def _round(graphs: Sequence[OnnxEngine], batches: Sequence[Sequence[Sequence[int]]]) -> tuple[float, float]:
    """Seconds of each graph for all batches, in turns. Both must compute the same."""
    seconds = [0.0, 0.0]
    for batch in batches:
        found = []
        for at, graph in enumerate(graphs):
            feed = padded(batch, graph.inputs)
            start = time.perf_counter()
            found.append(graph.run(feed, SENTENCE))
            seconds[at] += time.perf_counter() - start
        assert np.abs(found[0] - found[1]).max() < _CLOSE
    return seconds[0], seconds[1]


if __name__ == "__main__":
    main()
