"""Put a run into docs/PERFORMANCE.md: `python -m benchmarks.page`, after `make bench` on a quiet machine.

    benchmarks/results/latest.json ─▶ docs/throughput.svg, and what stands between the two marks of the page

A look (`--quick`) is no figure, and is not put there.
"""

import json
import sys
from pathlib import Path

from benchmarks import floors, report
from benchmarks.picture import bars
from benchmarks.places import RESULTS, arguments
from benchmarks.results import Results
from benchmarks.tables import Verdict, table
from benchmarks.workloads import PROJECT

PAGE = PROJECT / "docs" / "PERFORMANCE.md"
PICTURE = "throughput.svg"
BEGIN, END = "<!-- figures of make bench: written by python -m benchmarks.page -->", "<!-- end of figures -->"


def main() -> None:
    parser = arguments("page", __doc__)
    parser.add_argument("--json", type=Path, default=RESULTS, help="the run's figures")
    parser.add_argument("--page", type=Path, default=PAGE)
    options = parser.parse_args()
    results = Results(json.loads(options.json.read_text()))
    if results.kept["quick"]:
        sys.exit(f"{options.json} is of a look with --quick, which is no figure; run `make bench` without.")
    try:
        written = put(options.page.read_text(encoding="utf-8"), section(results))
    except ValueError as error:
        sys.exit(f"{options.page}: {error}")
    options.page.with_name(PICTURE).write_text(bars(results).svg(), encoding="utf-8")
    options.page.write_text(written, encoding="utf-8")
    print(f"Written: {options.page} and {PICTURE} beside it.")


def section(results: Results) -> str:
    """The report, with its picture and its promises."""
    rows = [_promise(verdict) for verdict in floors.verdicts(results)]
    promises = table(["promise", "found", "must be", ""], rows)
    return f"![Texts a second of everybody, in one run]({PICTURE})\n\n{report.text(results)}\n\n{promises}"


def put(page: str, what: str) -> str:
    """The page with `what` between the marks. Raises ValueError when they are not there."""
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"the marks {BEGIN!r} and {END!r} are not there")
    return f"{before}{BEGIN}\n\n{what}\n\n{END}{after}"


def _promise(verdict: Verdict) -> tuple[str, str, str, str]:
    bound = f"{'≥' if verdict.at_least else '≤'} {verdict.bound:g}"
    word = "kept" if verdict.kept else "**missed**"
    return verdict.what, f"{verdict.value:.3g}", bound, f"{word} (c)" if verdict.contended else word


if __name__ == "__main__":
    main()
