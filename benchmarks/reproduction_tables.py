"""What benchmarks.reproduction found, as Markdown and as a picture.

    python -m benchmarks.reproduction_tables reproduction.jsonl --picture ladder.svg

A run's gain is its last STS-B dev score less the one at step 0; no step is chosen by the score.
"""

import argparse
import statistics
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from benchmarks.places import grouped, rows
from benchmarks.tables import mean_of, table
from training.evaluation.report.plots import LIGHT, Picture, titled

Line = dict[str, Any]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.reproduction_tables")
    parser.add_argument(
        "files", nargs="+", type=Path, metavar="FILE", help="as benchmarks.reproduction wrote"
    )
    parser.add_argument("--picture", type=Path, metavar="SVG", help="draw the ladder there")
    options = parser.parse_args()
    found = [line for file in options.files for line in rows(file)]
    for part in dict.fromkeys(line["part"] for line in found):
        print(scores([line for line in found if line["part"] == part]), end="\n\n")
    if options.picture:
        drawn = picture([line for line in found if line["part"] == "ladder"])
        options.picture.write_text(drawn.svg(), encoding="utf-8")


def scores(found: list[Line]) -> str:
    """A row for each stage and name: its dev scores over the steps, times 100, and its gain."""
    steps = [*dict.fromkeys(step for line in found for step in _sentences(line))]
    cells = []
    for (stage, name), runs in _grouped(found).items():
        found_at = [[100 * at[step] for at in map(_sentences, runs) if step in at] for step in steps]
        seen = [mean_of(values, 1) for values in found_at]
        ended = all("ended" in run for run in runs)
        gain = "ended by an alarm" if ended else mean_of([_gain(run) for run in runs], 1)
        cells.append([stage, f"{runs[0]['loss']:.2f}", name, len(runs), *seen, gain])
    return table(["backbone", "its loss", "SimCSE", "seeds", *map(str, steps), "gain"], cells)


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
    return grouped(found, lambda line: (line["stage"], line["name"]))


def _sentences(line: Line) -> dict[int, float]:
    """Scores by the sentences that were seen, whatever the batch."""
    dev = {int(step): score for step, score in line["dev"].items() if score is not None}
    return {step * line["batch"]: score for step, score in dev.items()}


def _gain(line: Line) -> float:
    scores = [score for _, score in sorted(_sentences(line).items())]
    return 100 * (scores[-1] - scores[0])


if __name__ == "__main__":
    main()
