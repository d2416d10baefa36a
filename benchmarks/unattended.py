"""A service that its schedule retrains, night by night: `python -m benchmarks.unattended SET --nights N`.

    documents ─▶ POST /documents
    each night: searches with clicks ─▶ POST /events ─▶ `training schedule` ─▶ gate ─▶ swap
    the truth:  GET /search of queries that nobody asked before, for answers that nobody clicked

Half of a set's queries are asked by simulated users (clicked.py), a share of them each day; the other half is
the truth (recipes.py). One client searches all the time: its failures are counted. The night comes as soon
as the events of a day are stored, and ends with its first run. A line of JSON for each goes to --out, and at
the end one for that client.
"""

import http.client
import json
import sys
import time
import urllib.parse
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.clicked import SEARCHES, clicks
from benchmarks.openloop import Flow, OpenLoop
from benchmarks.places import BenchError, add_row, arguments, say, scratch
from benchmarks.process import Process
from benchmarks.retrieval import scores
from benchmarks.server import Server, call, wait_until_live
from benchmarks.sets import halves
from benchmarks.wire import get
from benchmarks.workloads import PROJECT, evaluation_folder
from models.files.retrainings import read_runs
from models.publishing.default import publish_named
from models.store import Store
from training.evaluation.bootstrap import of_mean
from training.evaluation.retrieval import load

_MODES = {"served": "", "dense": "dense", "hybrid": "hybrid"}
_BATCH = 200  # documents or events of a request
_NIGHT_SECONDS = 5400.0
_SWAP_SECONDS = 1200.0
_LONGEST_SECONDS = 24 * 3600.0
_SEARCHES_PER_SECOND = 5.0  # of the client that searches all the time


def main() -> None:
    parser = arguments("unattended", __doc__)
    parser.add_argument("set", nargs="?", default="mlqa_en")
    parser.add_argument("--nights", type=int, default=3)
    parser.add_argument("--minutes", type=float, default=5.0, help="of training, for each recipe")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--out", type=Path, default=Path("unattended.jsonl"))
    options = parser.parse_args()
    with scratch() as folder:
        models = folder / "models"
        first = publish_named(Store(models), "default").version
        settings = {"SIMILE_MODELS_DIR": str(models)}
        with Server(folder / "data", settings=settings) as server, _searching(server.port) as client:
            team = Team(server.port, options.set)
            truth = [team.truth()]
            row = {"set": options.set, "night": 0, "version": first, "ndcg10": _means(truth[0])}
            add_row(options.out, row)
            say(json.dumps(row))
            for night in range(1, options.nights + 1):
                sent = team.day(night, options.nights)
                began = time.monotonic()
                with _schedule(folder, server.port, options.minutes, options.threads):
                    last = _first_run(models)
                if last["outcome"] == "published":
                    wait_until_live(models, str(Store(models).wanted()), _SWAP_SECONDS)
                minutes = (time.monotonic() - began) / 60
                truth.append(team.truth())
                row |= {"night": night, "events": sent, "minutes": round(minutes, 1)} | last
                row |= {"version": server.info()["model_version"], "ndcg10": _means(truth[-1])}
                row |= {"gain": _gains(truth[0], truth[-1])}
                add_row(options.out, row)
                say(json.dumps(row))
            answered = client.finish().status == http.client.OK
            failed = len(answered) - int(answered.sum())
            add_row(options.out, {"set": options.set, "searches": len(answered), "failed": failed})


class Team:
    """People who put a set's documents into the service, ask half of its queries, and click."""

    def __init__(self, port: int, name: str) -> None:
        self._port = port
        whole = load(evaluation_folder() / name)
        self._known, self._unseen = halves(whole)
        self._whole = whole
        self._random = np.random.default_rng(1)
        documents = [
            {"id": id, "title": content.title, "text": content.text}
            for id, content in whole.documents.items()
            if content.text.strip()
        ]
        for some in _batches(documents):
            call(port, "POST", "/documents", {"documents": some})

    def day(self, night: int, nights: int) -> int:
        """Ask this day's share of the queries, click, and send the events; the number of those stored."""
        stored = 0
        events: list[dict[str, Any]] = []
        for query in self._known[night - 1 :: nights]:
            for user in range(SEARCHES):
                text = self._whole.queries[query]
                answer = call(self._port, "GET", f"/search?q={urllib.parse.quote(text)}&k=10")
                shown = [hit["id"] for hit in answer["hits"]]
                about = {"search_id": answer["search_id"], "query": text, "shown": shown, "type": "click"}
                about["user"] = f"user-{user}"
                events += [
                    about | {"id": id} for id in clicks(shown, self._whole.relevant[query], self._random)
                ]
        for some in _batches(events):
            stored += call(self._port, "POST", "/events", {"events": some})["stored"]
        return stored

    def truth(self) -> dict[str, list[float]]:
        """nDCG@10 of each unseen query in each mode, through `GET /search`."""
        return {name: scores(self._port, self._unseen, mode) for name, mode in _MODES.items()}


def _batches(rows: Sequence[dict[str, Any]]) -> Iterator[Sequence[dict[str, Any]]]:
    for begin in range(0, len(rows), _BATCH):
        yield rows[begin : begin + _BATCH]


def _means(truth: dict[str, list[float]]) -> dict[str, float]:
    return {mode: round(100 * float(np.mean(each)), 1) for mode, each in truth.items()}


def _gains(before: dict[str, list[float]], after: dict[str, list[float]]) -> dict[str, list[float]]:
    """The difference in each mode, in points, and its 95 % interval."""
    found = {}
    for mode, first in before.items():
        points = float(np.mean(after[mode]) - np.mean(first))
        interval = of_mean(first, after[mode], level=0.95)
        found[mode] = [round(100 * each, 1) for each in (points, *interval)]
    return found


def _schedule(folder: Path, port: int, minutes: float, threads: int) -> closing[Process]:
    config = folder / "retrain.toml"
    config.write_text(
        f'[corpus]\nservice = "http://127.0.0.1:{port}"\n'
        f"[train]\nminutes = {minutes}\n"
        f'[schedule]\ncron = "*/5 * * * * *"\njitter_seconds = 0\nthreads = {threads}\n'
        '[folders]\nmodels = "models"\nwork = "work"\n'
    )
    command = [sys.executable, "-m", "training", "schedule", "--config", str(config)]
    return closing(Process("The schedule", command, cwd=PROJECT))


def _searching(port: int) -> closing[OpenLoop]:
    """A client that searches all the time, whatever else happens."""
    requests = [get("/search?q=what+do+people+look+for&k=3")]
    return closing(OpenLoop(Flow(port, requests, _SEARCHES_PER_SECOND, _LONGEST_SECONDS, 1, 8)))


def _first_run(models: Path) -> dict[str, Any]:
    """The outcome of the next run that ends, and what it said."""
    before = read_runs(models).get("last_run")
    until = time.monotonic() + _NIGHT_SECONDS
    while (last := read_runs(models).get("last_run")) == before:
        if time.monotonic() > until:
            raise BenchError(f"no retraining ended in {_NIGHT_SECONDS:.0f} seconds: {read_runs(models)}")
        time.sleep(1)
    return {"outcome": last["outcome"], "said": last.get("said")} if last else {}


if __name__ == "__main__":
    main()
