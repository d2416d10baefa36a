"""`simile check-search FILE`: measures the searches of a running service by a file of judgments.

Start reading at `run`. Each line of the file is QUERY, a tab, the id of a relevant document, and perhaps a
tab and a grade above 0 (default: 1). The measure is nDCG@10. The version that is active at the start answers
all queries. They name it, so they are not counted among the searches of users.

Exit statuses: 0 for success, 1 if the mean is below --min-ndcg, 2 for wrong options or a file that cannot be
used, 3 if the service does not answer or rejects a search.
"""

import argparse
import contextlib
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, get_args
from urllib.parse import urlencode

import numpy as np

from models.manifest import Mode
from models.messages import amount
from models.search.measures import judge
from service.cli.commands.client import Remote, build_path, connect_to_collection, is_header, named_collection
from service.cli.commands.search import cleaned
from service.errors import CommandError

CUT, DEPTH = 10, 100  # hits that the measure reads, and where expected documents are looked for
WORST = 10  # queries that are listed
RESAMPLES = 2000
MIN_GRADE, MAX_GRADE = 1e-6, 1e6  # Sums of grades stay finite and above 0.
_HEADER = ("query", "id")

Golden = dict[str, dict[str, float]]  # grade by id of the document by query


class WrongUsage(CommandError):
    """Raised if an option or the file of judgments cannot be used."""

    exit_status: ClassVar[int] = 2


class NotAnswered(CommandError):
    """Raised if the service cannot be reached or rejects a search."""

    exit_status: ClassVar[int] = 3


class Estimate(NamedTuple):
    """A mean over queries, with the bounds of its 95 % bootstrap interval."""

    mean: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.mean:.3f} (95 %: {self.low:.3f} to {self.high:.3f})"


def describe(parser: argparse.ArgumentParser) -> None:
    """Declares the arguments of `check-search`."""
    parser.add_argument(
        "file", type=Path, metavar="FILE", help="lines of QUERY, tab, document id, and perhaps tab, grade"
    )
    parser.add_argument(
        "--min-ndcg", type=_share, metavar="X", help="exit with status 1 if the mean is below"
    )
    parser.add_argument(
        "--compare", type=_version, metavar="VERSION", help="also search this version, if it is still loaded"
    )
    parser.add_argument("--mode", choices=get_args(Mode), help="default: the service's")
    parser.add_argument("--json", action="store_true", help="print the figures of every query for programs")
    connect_to_collection(parser, "read", every=False)


def _version(text: str) -> str:
    if not text or not is_header(text):
        raise argparse.ArgumentTypeError(f"{text!r} is not the name of a version")
    return text


def _share(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not 0 <= number <= 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 0 to 1")
    return number


def run(arguments: argparse.Namespace) -> str:
    """Measures the searches. Returns the text to print.

    Raises:
        WrongUsage: The file cannot be read, a line is wrong, or an option cannot be used.
        NotAnswered: The service does not answer or rejects a search.
        CommandError: The mean is below the bar. The report is already printed.

    """
    golden = read_golden(arguments.file)
    try:
        remote = Remote(arguments.url, arguments.key_file)
        path = f"{build_path(named_collection(arguments, remote))}/search"
    except CommandError as error:
        raise WrongUsage(str(error)) from error
    try:
        report = _measure(remote, path, arguments, golden)
    except CommandError as error:
        raise NotAnswered(str(error)) from error
    bar, mean = arguments.min_ndcg, report["ndcg10"]["mean"]
    text = json.dumps(report, indent=2) if arguments.json else _format(report)
    if bar is None or mean >= bar:
        return text
    print(text, flush=True)  # noqa: T201
    raise CommandError(f"The mean nDCG@10 is {mean:.4f}, below --min-ndcg {bar:g}.")


def read_golden(file: Path) -> Golden:
    """Reads a file of judgments. A first line `query`, tab, `id` is a header.

    Raises:
        WrongUsage: The file cannot be read, has no judgment, or a line is wrong.

    """
    golden: Golden = {}
    try:
        text = file.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise WrongUsage(f"{file} cannot be read as UTF-8 text ({error}).") from error
    for number, line in enumerate(text.split("\n"), 1):
        cells = [cell.strip() for cell in line.split("\t")]
        if not line.strip() or (number == 1 and tuple(cells[:2]) == _HEADER):
            continue
        query, id, grade = _read_line(cells, f"{file}:{number}")
        if grade == golden.setdefault(query, {}).setdefault(id, grade):
            continue
        raise WrongUsage(f"{file}:{number}: {id!r} has another grade for this query above. Remove one.")
    if not golden:
        raise WrongUsage(f"{file} has no judgment. Write lines of QUERY, tab, document id.")
    return golden


def _read_line(cells: Sequence[str], at: str) -> tuple[str, str, float]:
    if len(cells) not in {2, 3} or not cells[0] or not cells[1]:
        raise WrongUsage(f"{at}: write QUERY, tab, document id, and perhaps tab, grade.")
    try:
        grade = float(cells[2]) if len(cells) == 3 else 1.0
    except ValueError:
        grade = math.nan
    if not grade > 0:
        raise WrongUsage(f"{at}: the grade {cells[2][:40]!r} is not a number above 0. Leave out such lines.")
    if not MIN_GRADE <= grade <= MAX_GRADE:
        raise WrongUsage(
            f"{at}: the grade {cells[2][:40]!r} is not between {MIN_GRADE:f} and {MAX_GRADE:,.0f}."
        )
    return cells[0], cells[1], grade


def _measure(remote: Remote, path: str, arguments: argparse.Namespace, golden: Golden) -> dict[str, Any]:
    mode = {} if arguments.mode is None else {"mode": arguments.mode}

    def search(query: str, version: str, k: int) -> list[str]:
        """Returns the ids of the best k hits."""
        parameters = urlencode({"q": query, "k": k, "fields": "", **mode})
        answer = remote.get(f"{path}?{parameters}", version)
        if answer.status != 200:
            raise CommandError(f"{remote.url} refused the query {query[:80]!r}: {answer.error}")
        return [hit["id"] for hit in answer.field("hits")]

    with contextlib.closing(remote):
        info = remote.get("/info", whole=True)
        if info.status != 200:
            raise CommandError(f"{remote.url} refused: {info.error}")
        version = info.field("model_version")
        scores = _score(golden, {query: search(query, version, CUT) for query in golden})
        report: dict[str, Any] = {"version": version, "queries": len(golden)}
        report["ndcg10"] = estimate([*scores.values()])._asdict()
        if arguments.compare is not None:
            others = {query: search(query, arguments.compare, CUT) for query in golden}
            compared = _score(golden, others)
            differences = [score - compared[query] for query, score in scores.items()]
            report["compared"] = {
                "version": arguments.compare,
                "ndcg10": estimate([*compared.values()])._asdict(),
                "difference": estimate(differences)._asdict(),
            }
        worst = sorted((score, query) for query, score in scores.items() if score < 1)[:WORST]
        report["worst"] = [
            {
                "query": query,
                "ndcg10": score,
                "expected": _places(golden[query], search(query, version, DEPTH)),
            }
            for score, query in worst
        ]
    return report | {"scores": scores}


def _score(golden: Golden, found: Mapping[str, Sequence[str]]) -> dict[str, float]:
    return {query: judge(found[query], grades)["ndcg10"] for query, grades in golden.items()}


def estimate(values: Sequence[float]) -> Estimate:
    """Returns the mean with the 95 % interval of a percentile bootstrap over queries. The seed is fixed."""
    generator, array = np.random.default_rng(0), np.asarray(values)
    means = [generator.choice(array, len(array)).mean() for _ in range(RESAMPLES)]
    low, high = np.quantile(means, (0.025, 0.975))
    return Estimate(float(array.mean()), float(low), float(high))


def _places(grades: Mapping[str, float], found: Sequence[str]) -> list[dict[str, Any]]:
    """Returns each expected document with its place from 1, or None if it is not among the hits."""
    places = {id: place for place, id in enumerate(found, 1)}
    return [{"id": id, "grade": grade, "place": places.get(id)} for id, grade in grades.items()]


def _format(report: Mapping[str, Any]) -> str:
    number = amount(report["queries"], "query", "queries")
    lines = [f"{report['version']}: nDCG@10 {Estimate(**report['ndcg10'])} of {number}"]
    if compared := report.get("compared"):
        lines += [
            f"{compared['version']}: nDCG@10 {Estimate(**compared['ndcg10'])}",
            f"Difference, first minus second: {Estimate(**compared['difference'])}",
        ]
    if report["worst"]:
        lines += ["", "Worst queries, with the places of the expected documents:"]
    for each in report["worst"]:
        places = (
            f"{cleaned(row['id'])} " + (f"at {row['place']}" if row["place"] else f"not in the first {DEPTH}")
            for row in each["expected"]
        )
        lines.append(f"  {each['ndcg10']:.3f}  {cleaned(each['query'])}: {', '.join(places)}")
    return "\n".join(lines)
