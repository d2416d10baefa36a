"""Graphs without padding against padded ones, by family: `python -m benchmarks.padding FOLDER …`

    FOLDER ─▶ the graph that Simile writes from the weights     padding costs attention only
           ─▶ the graph that torch exports                      every token of padding is computed

Batches are of the long-tailed mix, in the order of arrival and sorted by length, one thread each. Both graphs
compute each batch in turns, so what else the machine does meets both; the ratio is what counts.
"""

import tempfile
import time
from pathlib import Path
from statistics import median

from benchmarks.places import arguments
from benchmarks.results import Spread
from benchmarks.tables import table
from benchmarks.workloads import corpus, mixture
from models.encoder import Encoder
from models.publishing.from_torch.export import prepare_traced
from models.publishing.from_torch.forward import Forward
from models.publishing.importing import opener
from models.publishing.publish import publish, publish_prepared
from models.sources.folder import NOTHING_ASKED, read_source
from models.store import Store
from models.tokens.tokenizer import Tokenizer

Rows = list[list[int]]


def main() -> None:
    parser = arguments("padding", __doc__)
    parser.add_argument(
        "folders", type=Path, nargs="+", metavar="FOLDER", help="of a family with its own graph"
    )
    parser.add_argument("--batch", type=int, default=32, help="texts of one batch")
    parser.add_argument("--batches", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    lines = []
    for folder in options.folders:
        source = read_source(folder)
        mixed = mixture(Tokenizer(source.tokenizer, 256), corpus(), options.batch * options.batches)
        with tempfile.TemporaryDirectory() as temporary:
            ours, padded = _opened(folder, Path(temporary))
            cut = [row[: ours.max_length] for row in mixed.ids]
            for name, rows in (("arrival", cut), ("sorted", sorted(cut, key=len))):
                batches = [rows[at : at + options.batch] for at in range(0, len(rows), options.batch)]
                rounds = [_round(ours, padded, batches) for _ in range(options.rounds + 1)][1:]
                over = Spread.of([slow / fast for fast, slow in rounds])
                texts = [len(rows) / median(one[at] for one in rounds) for at in (0, 1)]
                lines.append((folder.name, name, *(f"{rate:.0f}" for rate in texts), over.words()))
    print(table(("model", "order", "texts/s", "padded", "over padded"), lines))


def _opened(folder: Path, temporary: Path) -> tuple[Encoder, Encoder]:
    """Of the graph without padding, and of the one that torch exports."""
    packed = Store(temporary / "packed")
    ours = packed.open(publish(packed, folder, opened=opener(NOTHING_ASKED)).version)
    traced = Store(temporary / "traced")
    source = read_source(folder)
    prepared = prepare_traced(source, Forward.load(source))
    padded = traced.open(publish_prepared(traced, prepared, origin="padded", lineage={}).version)
    assert (ours.packs, padded.packs) == (True, False), "the family has no graph of its own"
    return ours, padded


def _round(ours: Encoder, padded: Encoder, batches: list[Rows]) -> tuple[float, float]:
    """Seconds of each for all batches, one batch after the other in turns."""
    seconds = [0.0, 0.0]
    for batch in batches:
        for at, encoder in enumerate((ours, padded)):
            start = time.perf_counter()
            encoder.forward(batch)
            seconds[at] += time.perf_counter() - start
    return seconds[0], seconds[1]


if __name__ == "__main__":
    main()
