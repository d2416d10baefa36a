"""What benchmarks.reproduction found, as Markdown and as a picture.

    python -m benchmarks.reproduction_tables reproduction.jsonl --picture ladder.svg

A run's gain is its last STS-B dev score less the one at step 0; no step is chosen by the score.
"""

import argparse
import statistics
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from benchmarks.reproduction import lines
from training.evaluation.report.plots import LIGHT, Picture, titled

Line = dict[str, Any]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.reproduction_tables")
    parser.add_argument(
        "files", nargs="+", type=Path, metavar="FILE", help="as benchmarks.reproduction wrote"
    )
    parser.add_argument("--picture", type=Path, metavar="SVG", help="draw the ladder there")
    options = parser.parse_args()
    found = [line for file in options.files for line in lines(file)]
    for part in dict.fromkeys(line["part"] for line in found):
        print("\n".join(table([line for line in found if line["part"] == part])), end="\n\n")
    if options.picture:
        drawn = picture([line for line in found if line["part"] == "ladder"])
        options.picture.write_text(drawn.svg(), encoding="utf-8")


def table(found: list[Line]) -> Iterator[str]:
    """A row for each stage and name: its dev scores over the steps, times 100, and its gain."""
    steps = [*dict.fromkeys(step for line in found for step in _sentences(line))]
    yield f"| backbone | its loss | SimCSE | seeds | {' | '.join(map(str, steps))} | gain |"
    yield "|" + "---|" * (5 + len(steps))
    for (stage, name), runs in _grouped(found).items():
        scores = [
            _cell([100 * _sentences(run)[step] for run in runs if step in _sentences(run)]) for step in steps
        ]
        cells = [stage, f"{runs[0]['loss']:.2f}", name, str(len(runs)), *scores]
        yield f"| {' | '.join(cells)} | {_cell([_gain(run) for run in runs])} |"


def picture(found: list[Line]) -> Picture:
    """The gain of every run by its backbone's loss, which falls to the right; lines are means over seeds."""
    figure = titled("SimCSE's gain over the backbone that it began from")
    axes = figure.add_subplot(
        xlabel="masked-language loss of the backbone", ylabel="gain in STS-B dev, points"
    )
    axes.axhline(0, color="#5b636c", linewidth=0.8)
    said = []
    for number, name in enumerate(dict.fromkeys(line["name"] for line in found)):
        stages = [runs for (_, each), runs in _grouped(found).items() if each == name]
        colour, marker = LIGHT[number], "os^D"[number]
        means = [(runs[0]["loss"], statistics.fmean(map(_gain, runs))) for runs in stages]
        axes.plot(*zip(*means, strict=True), color=colour, marker=marker, label=f"head: {name}")
        points = [(run["loss"], _gain(run)) for runs in stages for run in runs]
        axes.plot(*zip(*points, strict=True), marker, color=colour, markersize=3, alpha=0.5)
        said.append(f"head {name}: " + ", ".join(f"{gain:+.1f} at loss {loss:.2f}" for loss, gain in means))
    axes.invert_xaxis()
    figure.legend(loc="outside lower left", ncols=2)
    return Picture(figure, f"{'; '.join(said)}.")


def _grouped(found: Iterable[Line]) -> dict[tuple[str, str], list[Line]]:
    groups: dict[tuple[str, str], list[Line]] = {}
    for line in found:
        groups.setdefault((line["stage"], line["name"]), []).append(line)
    return groups


def _sentences(line: Line) -> dict[int, float]:
    """Scores by the sentences that were seen, whatever the batch."""
    dev = {int(step): score for step, score in line["dev"].items() if score is not None}
    return {step * line["batch"]: score for step, score in dev.items()}


def _gain(line: Line) -> float:
    scores = [score for _, score in sorted(_sentences(line).items())]
    return 100 * (scores[-1] - scores[0])


def _cell(values: list[float]) -> str:
    if not values:
        return ""
    spread = f" ± {statistics.stdev(values):.1f}" if len(set(values)) > 1 else ""
    return f"{statistics.fmean(values):.1f}{spread}"


if __name__ == "__main__":
    main()
