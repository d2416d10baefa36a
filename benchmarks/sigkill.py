"""kill -9 a thousand times: `python -m benchmarks.sigkill --kills 1000`.

A process writes to the real store from several threads: documents one by one and several at once, deletes by
id and by a filter, builds of generations, swaps, trims of the log. Each index needs so few rows for a base
that one is made anew all the time, and its lists are written to the disk. The process says what was answered,
and is killed at a random moment. Then the store is opened and held to all that was said: nothing answered is
missing, nothing is half there, and the index that a start loads, with the newest snapshot that is whole, has
every vector bit by bit and gives the answers that numpy finds. Now and then a snapshot is damaged first by
hand. The suite does the same forty times. What is killed is the process, not the power.
"""

import sys
import time

from benchmarks.places import arguments, scratch
from service.index import merge_policy
from tests.service.kills import Store
from tests.service.store_worker import BASE_ROWS

SECONDS = 10.0  # between two words of how far it is


def main() -> None:
    parser = arguments("sigkill", __doc__)
    parser.add_argument("--kills", type=int, default=1000, help="(%(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="of the moments (%(default)s)")
    options = parser.parse_args()
    merge_policy.BASE_ROWS = BASE_ROWS
    began = told = time.monotonic()
    with scratch() as folder:
        store = Store(folder, options.seed)
        try:
            while store.kills < options.kills:
                store.check(store.run_and_kill())
                if time.monotonic() - told > SECONDS:
                    told = time.monotonic()
                    print(f"{store.kills} kills, {store.acknowledged} operations answered", file=sys.stderr)
        except AssertionError as error:
            when = f"kill {store.kills} (seed {options.seed})"
            sys.exit(f"After {when} the store was not what it said: {error}")
    found = store.snapshots
    kinds = ", ".join(f"{count} x {kind}" for kind, count in sorted(store.kinds.items()))
    seconds = time.monotonic() - began
    print(
        f"{store.kills} kills in {seconds:.0f} s; {store.acknowledged} operations were answered ({kinds}): "
        "none was lost, none was half done, and every index was equal to its store.\n"
        f"{store.written} bases were made and their snapshots written; {store.torn} kills came meanwhile. "
        f"{found.used} starts took one; {found.refused} that were damaged ({found.hurt} by hand) "
        "were refused with a word in the log."
    )


if __name__ == "__main__":
    main()
