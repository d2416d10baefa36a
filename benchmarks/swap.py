"""A retraining, a swap and a rollback under clients that search: `python -m benchmarks.swap --corpus FILE`.

    idle ─▶ train beside the service ─▶ re-embed ─▶ the new version ─▶ rollback

Each search notes the phase in which it began, its latency, and whether it failed. The clients pause between
two requests, so these are latencies of a lightly used service, not its throughput. Needs the extra `train`.
"""

import argparse
import http.client
import os
import random
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from itertools import islice
from pathlib import Path
from urllib.parse import quote

from benchmarks.places import SCRATCH
from benchmarks.server import Server, ServerError, call
from benchmarks.workloads import PROJECT
from training.text.corpus import read_corpus

IDLE_SECONDS, AFTER_SECONDS = 5.0, 3.0
PAUSE_SECONDS = 0.05  # of a client between two searches
IMPORT_DOCUMENTS = 500  # of one request


class Clients:
    """Searches from several threads; `phase` is what the main thread is doing meanwhile."""

    def __init__(self, port: int, texts: list[str], count: int) -> None:
        self.phase = "idle"
        self.seconds: dict[str, list[float]] = {}
        self.failures = 0
        self._port = port
        self._texts = texts
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._search, args=[seed]) for seed in range(count)]
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def _search(self, seed: int) -> None:
        rng = random.Random(seed)
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=60)
        while not self._stop.is_set():
            phase, began = self.phase, time.perf_counter()
            connection.request("GET", f"/search?k=5&q={quote(rng.choice(self._texts)[:80])}")
            answer = connection.getresponse()
            answer.read()
            self.seconds.setdefault(phase, []).append(time.perf_counter() - began)
            self.failures += answer.status != 200
            time.sleep(PAUSE_SECONDS)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.swap", description=__doc__.split("\n", 1)[0])
    parser.add_argument("--corpus", type=Path, required=True, help="as `python -m training train` takes it")
    parser.add_argument("--documents", type=int, default=5000)
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--clients", type=int, default=4)
    options = parser.parse_args()
    texts = list(islice(read_corpus(options.corpus).texts, options.documents))
    SCRATCH.mkdir(exist_ok=True)
    try:
        clients, metrics = measure(options, texts)
    except ServerError as error:
        sys.exit(f"The bench failed: {error}")
    report(clients, metrics)


def measure(options: argparse.Namespace, texts: list[str]) -> tuple[Clients, str]:
    """The clients, stopped, and the service's last metrics."""
    with tempfile.TemporaryDirectory(dir=SCRATCH) as folder, Server(Path(folder) / "data") as server:
        for start in range(0, len(texts), IMPORT_DOCUMENTS):
            step = texts[start : start + IMPORT_DOCUMENTS]
            documents = [{"id": str(start + at), "text": text} for at, text in enumerate(step)]
            call(server.port, "POST", "/documents", {"documents": documents})
        clients = Clients(server.port, texts, options.clients)
        try:
            go_round(server, clients, options.steps, Path(folder) / "data" / "models")
        finally:
            clients.stop()
        return clients, str(call(server.port, "GET", "/metrics"))


def go_round(server: Server, clients: Clients, steps: int, models: Path) -> None:
    port = server.port
    old = server.info()["model_version"]
    time.sleep(IDLE_SECONDS)
    clients.phase = "training"
    address = f"http://127.0.0.1:{port}"
    command = ["-m", "training", "retrain", "--from-service", address, "--gate", "off", "--steps", str(steps)]
    environment = os.environ | {"SIMILE_MODELS_DIR": str(models)}
    subprocess.run([sys.executable, *command], cwd=PROJECT, env=environment, check=True)
    clients.phase = "re-embedding"
    began = time.perf_counter()
    while server.info()["model_version"] == old:
        time.sleep(0.05)
    print(f"re-embedded and swapped in {time.perf_counter() - began:.1f} s")
    clients.phase = "new version"
    time.sleep(AFTER_SECONDS)
    clients.phase = "rollback"
    began = time.perf_counter()
    call(port, "POST", "/models/rollback")
    while server.info()["model_version"] != old:
        time.sleep(0.001)
    print(f"rolled back in {(time.perf_counter() - began) * 1000:.0f} ms")
    time.sleep(1.0)


def report(clients: Clients, metrics: str) -> None:
    print("\n| phase | searches | median ms | p99 ms | longest ms |\n|---|---|---|---|---|")
    for phase, seconds in clients.seconds.items():
        ordered = sorted(seconds)
        figures = (statistics.median(ordered), ordered[int(0.99 * len(ordered))], ordered[-1])
        print(f"| {phase} | {len(ordered)} | {' | '.join(f'{1000 * figure:.0f}' for figure in figures)} |")
    print(f"\n{clients.failures} searches failed")
    print(
        "\n".join(line for line in metrics.splitlines() if line.startswith("simile_swap_pause_seconds_sum"))
    )


if __name__ == "__main__":
    main()
