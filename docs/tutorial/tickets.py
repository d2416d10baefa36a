"""Writes invented support tickets and judgments of searches for docs/TUTORIAL.md, always the same.

    python docs/tutorial/tickets.py FOLDER

    tickets.csv      300 tickets: number, subject, body, product
    feedback.json    a body of POST /feedback: 240 judgments of 120 searches, and two invalid ones

problems.tsv has 60 problems with the programs of a firm. No model has read the names of these programs. Users
search in plain words. Each problem has five tickets and two searches.
"""

import csv
import itertools
import json
import random
import sys
from collections.abc import Iterator
from pathlib import Path

WHO = ("Our team in hall three writes:", "From the front desk:", "A customer called:", "I work from home.",
       "Second floor, east wing.", "From the workshop:", "Sales, open-plan office.")  # fmt: skip
SINCE = ("It began on Monday.", "This has been so since the move.", "It happens each afternoon.",
         "I saw it for the first time today.", "It comes and goes.")  # fmt: skip
TRIED = ("A restart changed nothing.", "Two of us tried it on other machines.", "I read the help page twice.",
         "Signing out and in again did not help.", "Nothing was changed on our side.",
         "My neighbour does not have it.")  # fmt: skip
NEED = ("Please call before noon.", "We can wait until next week.", "An audit is due on Friday.",
        "Twelve people cannot work.", "A hint would be enough.", "The order must leave tonight.",
        "Thank you for a look at it.", "It costs us an hour a day.")  # fmt: skip
_FIRST = 1001  # number of the first ticket
PRIORITY = ("", "urgent", "again", "question", "since the update")


def problems() -> list[list[str]]:
    """Returns the product, the subject, two descriptions and two searches of each problem."""
    with Path(__file__).with_name("problems.tsv").open(encoding="utf-8", newline="") as file:
        return list(csv.reader(file, delimiter="\t"))[1:]


def tickets() -> Iterator[tuple[str, str, str, str]]:
    """Yields (number, subject, body, product) of each ticket."""
    chance = random.Random(7)
    for number, (problem, copy) in enumerate(itertools.product(problems(), range(5)), _FIRST):
        product, subject, first, second, *_ = problem
        told = ([first], [second], [first, second], [second, first], [second])[copy]
        around = [chance.choice(said) for said in (SINCE, TRIED, NEED)]
        chance.shuffle(around)
        body = " ".join([chance.choice(WHO), *told, *around[: 2 + copy % 2]])
        mark = PRIORITY[copy]
        yield f"T-{number}", f"{subject}, {mark}" if mark else subject, body, product


def judgements() -> list[dict[str, object]]:
    """Returns each search with the two tickets that have both descriptions, and then two invalid entries."""
    right: list[dict[str, object]] = [
        {"query": query, "id": f"T-{_FIRST + 5 * at + copy}", "relevant": True}
        for at, problem in enumerate(problems())
        for query in problem[4:]
        for copy in (2, 3)
    ]
    query = "printer gives white paper"
    mistakes: list[dict[str, object]] = [
        {"query": query, "id": "T-9999", "relevant": True},
        {"query": query, "id": "T-1026", "relevant": "very"},
    ]
    return [*right, *mistakes]


def main() -> None:
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "tickets.csv").open("w", encoding="utf-8", newline="") as file:
        written = csv.writer(file)
        written.writerow(("number", "subject", "body", "product"))
        written.writerows(tickets())
    feedback = json.dumps({"feedback": judgements()}, indent=0)
    (folder / "feedback.json").write_text(feedback + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
