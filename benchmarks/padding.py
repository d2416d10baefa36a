"""Graphs without padding against padded ones, by family: `python -m benchmarks.padding FOLDER …`

    FOLDER ─▶ the graph that Simile writes from the weights     padding costs attention only
           ─▶ the graph that torch exports                      every token of padding is computed

Batches are of the long-tailed mix, in the order of arrival and sorted by length, one thread each. Both graphs
compute each batch in turns, so what else the machine does meets both; the ratio is what counts.
"""

import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median

import numpy as np
import onnx
import onnxruntime
from numpy.typing import NDArray

from benchmarks.places import arguments
from benchmarks.results import Spread
from benchmarks.tables import table
from benchmarks.workloads import corpus, mixture
from models.graph.head import SENTENCE
from models.graph.packing import packs
from models.publishing.from_torch.export import prepare_traced
from models.publishing.from_torch.forward import Forward
from models.publishing.publish import prepare
from models.sources.folder import read_source
from models.tokens.tokenizer import Tokenizer

Batch = dict[str, NDArray[np.int64]]
_CLOSE = 1e-4


def main() -> None:
    parser = arguments("padding", __doc__)
    parser.add_argument("folders", type=Path, nargs="+", metavar="FOLDER", help="of a family of kin.py")
    parser.add_argument("--batch", type=int, default=32, help="texts of one batch")
    parser.add_argument("--batches", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    lines = []
    for folder in options.folders:
        source = read_source(folder)
        mixed = mixture(
            Tokenizer(source.tokenizer, source.max_length), corpus(), options.batch * options.batches
        )
        ours, padded = prepare(source).model, prepare_traced(source, Forward.load(source)).model
        assert packs(ours.graph), "the family has no graph of its own"
        graphs = [_opened(model) for model in (ours, padded)]
        for name, rows in (("arrival", mixed.ids), ("sorted", sorted(mixed.ids, key=len))):
            batches = list(_batches(rows, options.batch))
            rounds = [_round(graphs, batches) for _ in range(options.rounds + 1)][1:]
            over = Spread.of([slow / fast for fast, slow in rounds])
            rates = [f"{len(rows) / median(one[at] for one in rounds):.0f}" for at in (0, 1)]
            lines.append((folder.name, name, *rates, over.words()))
    print(table(("model", "order", "texts/s", "padded", "over padded"), lines))


def _opened(model: onnx.ModelProto) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 3
    return onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )


def _batches(rows: Sequence[Sequence[int]], size: int) -> Iterator[Batch]:
    for start in range(0, len(rows), size):
        batch = rows[start : start + size]
        ids = np.zeros((len(batch), max(map(len, batch))), np.int64)
        mask = np.zeros_like(ids)
        for at, row in enumerate(batch):
            ids[at, : len(row)] = row
            mask[at, : len(row)] = 1
        yield {"input_ids": ids, "attention_mask": mask}


def _round(graphs: Sequence[onnxruntime.InferenceSession], batches: Sequence[Batch]) -> tuple[float, float]:
    """Seconds of each graph for all batches, in turns. Both must compute the same."""
    seconds = [0.0, 0.0]
    for batch in batches:
        found = []
        for at, graph in enumerate(graphs):
            taken = {given.name for given in graph.get_inputs()}
            feed = batch | {"token_type_ids": np.zeros_like(batch["input_ids"])}
            start = time.perf_counter()
            [vectors] = graph.run([SENTENCE], {name: feed[name] for name in taken})
            seconds[at] += time.perf_counter() - start
            found.append(vectors)
        assert np.abs(found[0] - found[1]).max() < _CLOSE
    return seconds[0], seconds[1]


if __name__ == "__main__":
    main()
