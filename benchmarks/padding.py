"""What padding to fewer shapes saves in bf16, and what it costs: batches as the service plans them, in turns.

    python -m benchmarks.padding                       32 clients with a text of the mix each
    python -m benchmarks.padding --clients 64 --workload sentences

OpenVINO compiles kernels for each shape that it has not kept. Each row of the table is a compiled model of
its own; all see the same texts in the same batches, padded in their own way, and take turns every few
batches. A processor without bf16 computes in fp32 by other kernels: what it shows says little about bf16.
"""

import argparse
import os
import tempfile
import time
from collections import deque
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from benchmarks.engines import OUTPUT, Feed
from benchmarks.machine import memory_mb
from benchmarks.places import say
from benchmarks.tables import table
from benchmarks.workloads import Workload, corpus, mixture, sentences
from models.encoder import ONNX
from models.engines.opening import BF16
from models.engines.openvino import KEPT_KERNELS, OpenvinoEngine, computes_bf16
from models.publishing.default import publish_default
from models.store import Store
from models.tokens.tokenizer import FILE_NAME, Tokenizer
from service.batching.planner import PROCESSOR, Costs, group_of_oldest

WORKERS = 2  # batches in flight, whose texts are not among those that wait
TURN = 5  # batches


class Padding(NamedTuple):
    """Multiples to which a batch is rounded up; more tokens than its texts have are those of empty texts."""

    length: int = 1
    tokens: int = 1
    texts: int = 1
    kept: int = KEPT_KERNELS

    def feed(self, rows: Sequence[Sequence[int]], names: Sequence[str]) -> Feed:
        tokens, length = sum(map(len, rows)), _up(max(map(len, rows)), self.length)
        missing = _up(tokens, self.tokens) - tokens
        shape = (_up(len(rows) + -(-missing // length), self.texts), length)
        feed = {name: np.zeros(shape, np.int64) for name in names}
        for at, row in enumerate(rows):
            feed["input_ids"][at, : len(row)] = row
            feed["attention_mask"][at, : len(row)] = 1
        feed["attention_mask"][len(rows) :].flat[:missing] = 1
        return feed


PADDINGS = [
    Padding(),
    Padding(kept=3 * KEPT_KERNELS),
    Padding(length=16),
    Padding(length=16, kept=3 * KEPT_KERNELS),
    Padding(length=16, tokens=16),
    Padding(length=16, tokens=16, texts=4, kept=3 * KEPT_KERNELS),
]


def planned(ids: Sequence[list[int]], clients: int, costs: Costs) -> Iterator[list[list[int]]]:
    """Batches of `clients` without pauses who send these rows one by one, while all of them have some."""
    coming = iter(ids)
    waiting = [next(coming) for _ in range(clients)]
    flying: deque[int] = deque()
    while True:
        places = group_of_oldest([len(row) for row in waiting], PROCESSOR.batch_tokens, costs)
        yield [waiting[at] for at in places]
        waiting = [row for at, row in enumerate(waiting) if at not in set(places)]
        flying.append(len(places))
        while len(flying) >= WORKERS or not waiting:
            answered = [row for _, row in zip(range(flying.popleft()), coming, strict=False)]
            if not answered:
                return
            waiting += answered


def measure(file: Path, batches: Sequence[list[list[int]]]) -> list[list[float]]:
    """Of each of PADDINGS: processor ms a text in both halves of `batches`, and MiB more in all."""
    found = []
    engines = []
    for padding in PADDINGS:
        engines.append(OpenvinoEngine(file, BF16, 1, 1, kept_kernels=padding.kept))
        found.append([0.0, 0.0, 0.0])
    middle = len(batches) // 2
    for start in range(0, len(batches), TURN):
        part = batches[start : start + TURN]
        for padding, engine, row in zip(PADDINGS, engines, found, strict=True):
            feeds = [padding.feed(batch, engine.inputs) for batch in part]
            before, began = memory_mb(os.getpid())["now"], time.process_time()
            for feed in feeds:
                engine.run(feed, OUTPUT)
            row[start >= middle] += 1000 * (time.process_time() - began)
            row[2] += memory_mb(os.getpid())["now"] - before
    texts = [sum(map(len, half)) for half in (batches[:middle], batches[middle:])]
    return [[row[0] / texts[0], row[1] / texts[1], row[2]] for row in found]


def workload(name: str, tokenizer: Tokenizer, count: int) -> Workload:
    return (mixture if name == "mixture" else sentences)(tokenizer, corpus(), count)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.padding", description=__doc__)
    parser.add_argument("--clients", type=int, default=32)
    parser.add_argument("--workload", choices=["mixture", "sentences"], default="mixture")
    parser.add_argument("--texts", type=int, default=4096)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="simile-") as temporary:
        store = Store(Path(temporary))
        say("publishing the default model")
        folder = store.folder(publish_default(store).version)
        made = workload(options.workload, Tokenizer(folder / FILE_NAME, 256), options.texts)
        batches = list(planned(made.ids, options.clients, Costs(packed=True)))
        say(f"computing {len(batches)} batches in {len(PADDINGS)} ways")
        found = measure(folder / ONNX, batches)
    columns = ["length", "tokens", "texts", "kept kernels", "first half, ms a text", "second half", "MiB"]
    print(f"{'bf16' if computes_bf16() else 'No bf16 here: fp32'}, {len(batches)} batches\n")
    print(table(columns, [[*padding, *row] for padding, row in zip(PADDINGS, found, strict=True)]))


def _up(size: int, step: int) -> int:
    return -(-size // step) * step


if __name__ == "__main__":
    main()
