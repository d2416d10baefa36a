"""The promises of speed, and the verdict on each of them for a run.

A ratio is of texts per second in the same run. A promise that needs a peer that is not there is not judged.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

from benchmarks.environments import REFERENCE
from benchmarks.forms import DEFAULT, name_of, raw_name
from benchmarks.results import Results, Spread
from benchmarks.tables import Verdict
from benchmarks.turns import Cell

MANY, FEW, ONE, BULK, LONG = "64 x 1", "8 x 1", "1 x 1", "4 x 32", "mix, 32 x 1"
SENTENCES_AT_ONCE, MIX_AT_ONCE = "sentences", "mix"
SINGLE = "single calls"
PEER = "infinity, ONNX"
ALONE = "raw, a text a call"
TOKENISED_ALONE = "raw, tokenised in the call"
TOGETHER_ALONE = "raw, the threads of a lone text"


class Floor(NamedTuple):
    """Texts a second of one form under a load, by those of somebody else."""

    precision: str
    load: str
    name: str
    least: float
    name_load: str = ""  # of the other, where it is another

    @property
    def other(self) -> Cell:
        return self.name, self.name_load or self.load


FLOORS = (
    Floor("fp32", MANY, PEER, 1.85),
    Floor("fp32", BULK, PEER, 1.7),
    Floor("fp32", LONG, PEER, 4.5),
    Floor("fp32", MANY, REFERENCE, 1.7, SENTENCES_AT_ONCE),
    Floor("bf16", MANY, PEER, 2.9),
    Floor("bf16", BULK, PEER, 2.6),
    Floor("bf16", LONG, PEER, 6.0),
    Floor("int8", MANY, PEER, 3.0),
    Floor("fp32", MANY, raw_name("fp32"), 0.78, SENTENCES_AT_ONCE),
    Floor("fp32", BULK, raw_name("fp32"), 0.85, SENTENCES_AT_ONCE),
    Floor("fp32", LONG, raw_name("fp32"), 0.80, MIX_AT_ONCE),
    Floor("bf16", MANY, raw_name("bf16"), 0.65, SENTENCES_AT_ONCE),
    Floor("bf16", BULK, raw_name("bf16"), 0.70, SENTENCES_AT_ONCE),
    Floor("int8", MANY, raw_name("int8"), 0.65, SENTENCES_AT_ONCE),
    Floor("int8", BULK, raw_name("int8"), 0.70, SENTENCES_AT_ONCE),
)
TAIL = 2.0  # p99 over p50 at 64 clients, uniform short texts
LONGEST_OVER_MEDIAN = 3.0  # the longest tenth's p99 over the median of all, on the mix
ALONE_MS = 1.5  # one client's p50 beyond the raw call's: that of one thread, and that of as many as it gets
SECOND_START_SECONDS = 2.0
MEMORY_RATIO = 1.15
ADDED_MS = 30.0  # by one more document, beyond embedding it


def verdicts(results: Results) -> list[Verdict]:
    """Every promise that this run can judge."""
    return [*_ratios(results), *_latencies(results), *_starts_and_memory(results.kept)]


def _ratios(results: Results) -> Iterator[Verdict]:
    for floor in FLOORS:
        ours = name_of(floor.precision)
        found = results.ratio((ours, floor.load), floor.other)
        if found:
            yield _verdict(f"{ours}, {floor.load}, over {floor.name}", found, floor.least, at_least=True)


def _latencies(results: Results) -> Iterator[Verdict]:
    ours = name_of(DEFAULT)
    tail = results.spread((ours, MANY), lambda one: _over(one.p99_ms, one.p50_ms))
    if tail:
        yield _verdict(f"{ours}, {MANY}, p99 over p50", tail, TAIL)
    longest = results.spread((ours, LONG), lambda one: _over(one.longest_p99_ms, one.p50_ms))
    if longest:
        said = f"{ours}, {LONG}, p99 of the longest tenth over the median of all"
        yield _verdict(said, longest, LONGEST_OVER_MEDIAN)
    for call, said in (
        (ALONE, "p50 beyond the raw call's, ms"),
        (TOGETHER_ALONE, "p50 beyond the raw call's by the threads of a lone text, ms"),
    ):
        beyond = results.difference((ours, ONE), (call, SINGLE), lambda one: one.p50_ms)
        if beyond:
            yield _verdict(f"{ours}, {ONE}, {said}", beyond, ALONE_MS)


def _starts_and_memory(kept: dict[str, Any]) -> Iterator[Verdict]:
    starts = kept["starts"]
    said = "second start to ready, seconds (median)"
    yield Verdict(said, starts["second_median"], SECOND_START_SECONDS, False, starts["contended"])
    for name, grown in kept["memory"].items():
        said = f"{name}, RSS after {grown['many']:,} requests over {grown['few']:,}"
        yield Verdict(said, grown["after_mb"] / grown["before_mb"], MEMORY_RATIO)
    alone = kept["documents"]["alone"]
    said = f"one document more beside {kept['documents']['stored']}, ms beyond embedding it (median)"
    yield Verdict(said, alone["difference_ms"]["p50"], ADDED_MS, False, alone["contended"])


def _over(above: float | None, below: float | None) -> float | None:
    return above / below if above is not None and below else None


def _verdict(what: str, found: Spread, bound: float, *, at_least: bool = False) -> Verdict:
    return Verdict(what, found.median, bound, at_least, not found.clean)
