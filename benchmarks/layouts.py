"""Ways to share the processors among workers: `python -m benchmarks.layouts`, on a quiet machine.

    4 workers x 1 thread    2 x 2    1 x 4

Each layout computes batches of the default model's fp32 graph; what all its workers get done together is
compared, in several rounds that take turns. The service takes one thread for each worker, unless
SIMILE_WORKERS and SIMILE_THREADS say otherwise (service/batching/workers.py).
"""

import tempfile
from pathlib import Path
from statistics import median

from benchmarks.gemm import rate
from benchmarks.places import arguments
from benchmarks.results import Spread
from benchmarks.tables import table
from models import cpus
from models.encoder import Encoder
from models.publishing.default import publish_named
from models.store import Store

TEXTS = ["The same sentence of about twenty tokens again and again says how fast this machine is."] * 25


def main() -> None:
    parser = arguments("layouts", __doc__)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--seconds", type=float, default=1.0, help="of each layout in a round")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        store = Store(Path(folder))
        version = publish_named(store, "default").version
        threads = [each for each in dict.fromkeys([1, 2, cpus.available()]) if each <= cpus.available()]
        encoders = {each: store.open(version, each) for each in threads}
        rounds = [
            {
                each: batches(encoder, cpus.available() // each, options.seconds)
                for each, encoder in encoders.items()
            }
            for _ in range(options.rounds)
        ]
    rows = []
    for each in threads:
        median_rate = median(one[each] for one in rounds)
        over = Spread.of([one[each] / one[1] for one in rounds])
        rows.append((f"{cpus.available() // each} x {each}", f"{median_rate:.0f}", over.words()))
    print(table(("workers x threads", "batches/s", "over one thread each"), rows))


def batches(encoder: Encoder, workers: int, seconds: float) -> float:
    """Batches a second of `workers` threads that compute at the same time."""
    ids = [tokens.ids for tokens in encoder.tokenize(TEXTS)]
    return rate([lambda: encoder.forward(ids)] * workers, seconds)


if __name__ == "__main__":
    main()
