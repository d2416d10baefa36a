"""Simulate a service that retrains itself every night: `python -m benchmarks.unattended SET --nights N`.

    documents ─▶ import
    each night: searches with clicks ─▶ POST /events ─▶ `training schedule` ─▶ gate ─▶ swap
    unseen queries: GET /search, for answers without any click

Simulated users send half of a set's queries, a share of them each day. The other half gets no clicks and
measures the search quality (sets.py). One client searches all the time, and its failed requests are counted.
A night begins when a day's events are stored, and ends after the first retraining by the schedule. Each night
adds a line of JSON to the file --out. The last line has the figures of the searching client.
"""

import http.client
import json
import sys
import time
import urllib.parse
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.command import PROJECT, BenchError, append_row, build_parser, progress, scratch_folder
from benchmarks.load import Generator, Load, get_request
from benchmarks.processes import Process, Server, call, wait_until_active
from benchmarks.retrieval import import_set, query_scores
from benchmarks.sets import SEARCHES, clicks, split_queries
from benchmarks.workloads import evaluation_folder
from models.files.retrainings import read_runs
from models.publishing.default import publish_named
from models.store import ModelStore
from training.evaluation.retrieval import load
from training.evaluation.significance import of_mean

MODES = {"served": "", "dense": "dense", "hybrid": "hybrid"}
BATCH = 200  # events of a request
NIGHT_SECONDS = 5400.0
SWAP_SECONDS = 1200.0
MAX_SECONDS = 24 * 3600.0
SEARCHES_PER_SECOND = 5.0  # of the client that searches all the time


def main() -> None:
    parser = build_parser("unattended", __doc__)
    parser.add_argument("set", nargs="?", default="mlqa_en")
    parser.add_argument("--nights", type=int, default=3)
    parser.add_argument("--minutes", type=float, default=5.0, help="of training, for each recipe")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--out", type=Path, default=Path("unattended.jsonl"))
    options = parser.parse_args()
    with scratch_folder() as folder:
        models = folder / "models"
        first = publish_named(ModelStore(models), "default").version
        ModelStore(models).request(first)
        settings = {"SIMILE_MODELS_DIR": str(models)}
        with Server(folder / "data", settings=settings) as server, _search_client(server.port) as client:
            users = Users(server.port, options.set)
            scores = [users.unseen_scores()]
            row = {"set": options.set, "night": 0, "version": first, "ndcg10": _means(scores[0])}
            append_row(options.out, row)
            progress(json.dumps(row))
            for night in range(1, options.nights + 1):
                sent = users.day(night, options.nights)
                began = time.monotonic()
                with _schedule(folder, server.port, options.minutes, options.threads):
                    last = _wait_for_run(models)
                if last["outcome"] == "published":
                    wait_until_active(models, str(ModelStore(models).requested()), SWAP_SECONDS)
                minutes = (time.monotonic() - began) / 60
                scores.append(users.unseen_scores())
                row |= {"night": night, "events": sent, "minutes": round(minutes, 1)} | last
                row |= {"version": server.info()["model_version"], "ndcg10": _means(scores[-1])}
                row |= {"gain": _gains(scores[0], scores[-1])}
                append_row(options.out, row)
                progress(json.dumps(row))
            answered = client.finish().status == http.client.OK
            failed = len(answered) - int(answered.sum())
            append_row(options.out, {"set": options.set, "searches": len(answered), "failed": failed})


class Users:
    """Simulated users, who store the documents of a set, send half of its queries, and click on results."""

    def __init__(self, port: int, name: str) -> None:
        self._port = port
        whole = load(evaluation_folder() / name)
        self._known, self._unseen = split_queries(whole)
        self._whole = whole
        self._random = np.random.default_rng(1)
        import_set(port, evaluation_folder() / name, len(whole.documents))

    def day(self, night: int, nights: int) -> int:
        """Send one day's queries and the click events that follow. Returns the number of stored events."""
        stored = 0
        events: list[dict[str, Any]] = []
        for query in self._known[night - 1 :: nights]:
            for user in range(SEARCHES):
                text = self._whole.queries[query]
                answer = call(self._port, "GET", f"/search?q={urllib.parse.quote(text)}&k=10")
                shown = [hit["id"] for hit in answer["hits"]]
                event = {"search_id": answer["search_id"], "query": text, "shown": shown, "type": "click"}
                event["user"] = f"user-{user}"
                clicked = clicks(shown, self._whole.relevant[query], self._random)
                events += [event | {"id": id} for id in clicked]
        for at in range(0, len(events), BATCH):
            answer = call(self._port, "POST", "/events", {"events": events[at : at + BATCH]})
            stored += answer["stored"]
        return stored

    def unseen_scores(self) -> dict[str, list[float]]:
        """Return nDCG@10 of each unseen query in each search mode, measured with `GET /search`."""
        return {name: query_scores(self._port, self._unseen, mode) for name, mode in MODES.items()}


def _means(scores: dict[str, list[float]]) -> dict[str, float]:
    return {mode: round(100 * float(np.mean(each)), 1) for mode, each in scores.items()}


def _gains(before: dict[str, list[float]], after: dict[str, list[float]]) -> dict[str, list[float]]:
    """Return the difference in points and its 95 % interval for each search mode."""
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


def _search_client(port: int) -> closing[Generator]:
    """Start a client that searches without pause until it is closed."""
    requests = [get_request("/search?q=what+do+people+look+for&k=3")]
    return closing(Generator(Load(port, requests, 1, MAX_SECONDS, SEARCHES_PER_SECOND, max_connections=8)))


def _wait_for_run(models: Path) -> dict[str, Any]:
    """Wait until the next retraining ends; return its outcome and reason."""
    before = read_runs(models).get("last_run")
    until = time.monotonic() + NIGHT_SECONDS
    while (last := read_runs(models).get("last_run")) == before:
        if time.monotonic() > until:
            raise BenchError(f"no retraining ended in {NIGHT_SECONDS:.0f} seconds: {read_runs(models)}")
        time.sleep(1)
    return {"outcome": last["outcome"], "said": last.get("said")} if last else {}


if __name__ == "__main__":
    main()
