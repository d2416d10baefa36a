"""Send every kind of request to a service for half an hour: `python -m benchmarks.soak`.

    a third: warm-up ─▶ idle sample ─▶ two thirds ─▶ idle sample        a swap every two minutes throughout

Clients embed, compare, search, write, update, delete and send wrong requests without pause. Another client
disconnects in the middle of its requests. The set of document ids is fixed, so the documents stay bounded.
The status of every response is checked, and an unexpected one ends the benchmark. Meanwhile the benchmark
activates three versions in turn. The service drops the vectors of a version before its next turn, so each
swap embeds all documents.

An idle sample measures the service while no client is connected and the old version is out of memory. The
second idle sample must not need more memory than the first. Between them, one or two versions are in memory,
so a median or a trend is not meaningful. The benchmark compares the largest memory of the second third of the
time with that of the last third.
"""

import argparse
import json
import random
import socket
import statistics
import struct
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict
from itertools import cycle
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

import numpy as np

from benchmarks import workloads
from benchmarks.command import Verdict, build_parser, format_table, progress, report, scratch_folder
from benchmarks.documents import publish_variants, store_documents
from benchmarks.load import JSON, Answers, Generator, Load, build_request
from benchmarks.machine import Sample, repeating, sampling, take_sample, thirds
from benchmarks.processes import Server, metric, swap

GROWTH = 0.05  # allowed growth of idle memory and of maximum memory
MORE_THREADS = 4  # pools of a bounded size may start a thread at any time
FILES_OF_A_THREAD = 2  # a reading thread opens the store's database and its log

VERSIONS = 3
SAMPLE_SECONDS = 2.0
LINGER_SECONDS = 6.0  # an unused generation is closed after five
MAX_SWAP_SECONDS = 600.0
TEXTS = 4000

# Requests of the clients.
CLIENTS = 8
REQUESTS = 8000  # drawn beforehand, and repeated
NAMES, OWNERS = 1600, 8  # numbers of document ids, and of owners in metadata
MAX_TEXTS = 48
LONG_WORDS = 600
TOO_MANY_INPUTS = 2049
DEEP = 5000
RECONNECTS = 1 << 30  # the service may close a connection after a wrong request

AS_BYTES = JSON | {"accept": "application/octet-stream"}
TIMEOUTS = [JSON | {"x-timeout-ms": milliseconds} for milliseconds in ("1", "5", "20")]
OPTIONS: list[dict[str, Any]] = [
    {},
    {"normalize": False},
    {"dimensions": 8},
    {"truncation_direction": "left"},
]
THREE_KINDS = {"kind": {"$in": [0, 1, 2]}}
ENCODINGS = [{"encoding_format": "float"}, {"encoding_format": "base64"}]
COHERE = {"model": "any", "input_type": "search_document", "embedding_types": ["float", "int8", "ubinary"]}
DOCUMENT_READS = ["/documents?limit=50", "/documents/count"]
OPERATOR_READS = ["/info", "/models", "/health", "/ready", "/metrics"]

# The client that disconnects.
ABORT_SECONDS = 0.3  # pause between two requests
HUGE_BYTES = 64 << 20  # declared, never sent
RESET = struct.pack("ii", 1, 0)  # SO_LINGER: close() sends a reset
TIMEOUT_SECONDS = 60


class Request(NamedTuple):
    """An HTTP request and the response statuses that are valid for it."""

    name: str
    text: str
    expected: tuple[int, ...] = (200,)


def draw_requests(texts: Sequence[str], count: int) -> list[Request]:
    """Return `count` random requests of all kinds, the same for the same texts."""
    chance = random.Random(0)
    pick = chance.choice

    def some(most: int) -> list[str]:
        return chance.choices(texts, k=chance.randint(1, most))

    def fields() -> dict[str, int]:
        return {"owner": chance.randrange(OWNERS), "kind": chance.randrange(4)}

    def path() -> str:
        return f"/documents/document-{chance.randrange(NAMES)}"

    def documents() -> list[dict[str, Any]]:
        return [{"id": path().rsplit("/", 1)[1], "text": text, "metadata": fields()} for text in some(20)]

    def long_text() -> dict[str, Any]:
        return {"inputs": " ".join(chance.choices(texts, k=LONG_WORDS // 10))}

    def search() -> str:
        condition = f"&filter={_quoted({'kind': chance.randrange(4)})}" if chance.random() < 0.3 else ""
        return f"/search?k={pick([1, 10, 100])}&q={quote(pick(texts)[:80])}{condition}"

    kinds: dict[Callable[[], Request], int] = {  # weight of each kind
        lambda: _post("embed", "/embed", {"inputs": pick(texts)}): 6,
        lambda: _post("embed many", "/embed", {"inputs": some(MAX_TEXTS)} | pick(OPTIONS)): 3,
        lambda: _post("embed long", "/embed", long_text()): 1,
        lambda: _post("embed too long", "/embed", long_text() | {"truncate": False}, (422,)): 1,
        lambda: _post("embed as bytes", "/embed", {"inputs": some(8)}, headers=AS_BYTES): 1,
        lambda: _post("short timeout", "/embed", {"inputs": some(32)}, (200, 504), pick(TIMEOUTS)): 1,
        lambda: _post("similarity", "/similarity", {"pairs": [[each, pick(texts)] for each in some(8)]}): 3,
        lambda: _get("search", search()): 8,
        lambda: _post("search many", "/search", {"queries": some(8), "k": 10, "filter": THREE_KINDS}): 2,
        lambda: _post("openai", "/v1/embeddings", {"input": some(8), "model": "any"} | pick(ENCODINGS)): 3,
        lambda: _post("cohere", "/v2/embed", COHERE | {"texts": some(8)}): 1,
        lambda: _post("tokenize", "/tokenize", {"inputs": some(8)}): 1,
        lambda: _post("write", "/documents", {"documents": documents()}): 4,
        lambda: Request("delete", build_request("DELETE", path())): 2,
        lambda: Request(
            "delete by filter", build_request("DELETE", f"/documents?filter={_quoted(fields())}")
        ): 1,
        lambda: _get("read documents", pick([*DOCUMENT_READS, path()]), (200, 404)): 2,
        lambda: _get("operation", pick(OPERATOR_READS)): 2,
        lambda: pick(WRONG): 4,
    }
    return [make() for make in chance.choices([*kinds], [*kinds.values()], k=count)]


def _quoted(condition: Any) -> str:
    return quote(json.dumps(condition))


def _post(
    name: str, path: str, body: Any, expected: tuple[int, ...] = (200,), headers: Mapping[str, str] = JSON
) -> Request:
    return Request(name, build_request("POST", path, json.dumps(body), headers), expected)


def _get(name: str, target: str, expected: tuple[int, ...] = (200,)) -> Request:
    return Request(name, build_request("GET", target), expected)


def _wrong_embed(body: str, status: int, headers: Mapping[str, str] = JSON) -> Request:
    return Request("wrong", build_request("POST", "/embed", body, headers), (status,))


WRONG = [
    _wrong_embed('{"inputs": ', 422),
    _wrong_embed('{"inputs": ["\xff"]}', 422),  # not UTF-8
    _wrong_embed('{"inputs": ' + DEEP * "[", 422),
    _wrong_embed(json.dumps({"inputs": TOO_MANY_INPUTS * ["a"]}), 422),
    _wrong_embed('{"inputs": ["a", " "]}', 400),
    _wrong_embed("a", 415, {"content-type": "text/plain"}),
    _wrong_embed('{"inputs": "a"}', 422, JSON | {"x-timeout-ms": "soon"}),
    _get("wrong", "/embed", (405,)),
    _get("wrong", "/nowhere", (404,)),
    _get("wrong", "/search?q=a&filter=%7B%22a%22%3A%7B%22%24like%22%3A1%7D%7D", (422,)),
    _post("wrong", "/documents", {"documents": [{"id": "a", "text": ""}]}, (400,)),
]


def disconnecting(port: int, texts: Sequence[str], answers: Counter[str]) -> AbstractContextManager[None]:
    """Disconnect in the middle of requests, with or without a reset. Count the outcomes in `answers`."""
    chance = random.Random(1)

    def abort() -> None:
        how = chance.choice(["in the body", "before the answer", "in the answer", "rejected by its length"])
        body = json.dumps({"inputs": chance.choices(texts, k=MAX_TEXTS)}).encode()
        try:
            answers[f"{how}: {_abort(port, how, body, chance)}"] += 1
        except OSError as error:
            answers[f"{how}: {error!r}"] += 1

    return repeating(ABORT_SECONDS, abort)


def _abort(port: int, how: str, body: bytes, chance: random.Random) -> str:
    """Send a part of a request, depending on `how`. Return the status if it is read, or "left"."""
    length = HUGE_BYTES if how == "rejected by its length" else len(body)
    head = "POST /embed HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
    with socket.create_connection(("127.0.0.1", port), TIMEOUT_SECONDS) as connection:
        connection.sendall(f"{head}content-length: {length}\r\n\r\n".encode())
        status = "left"
        if how == "in the body":
            connection.sendall(body[: len(body) // 2])
        elif how == "before the answer":
            connection.sendall(body)
            time.sleep(chance.choice([0.0, 0.05, 0.4]))
        else:
            if how == "in the answer":
                connection.sendall(body)
            status = connection.recv(64)[9:12].decode("latin-1")
        if chance.random() < 0.5:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
    return status


LEFT = {"left", "200", "413"}  # how an abort may end


class Soaked(NamedTuple):
    """Memory under load and at the two idle samples, durations of swaps, and what requests ended with."""

    samples: list[Sample]
    idle: list[Sample]
    swap_seconds: list[float]
    requests: list[Request]
    answers: list[Answers]
    aborted: Counter[str]


def main() -> None:
    options = _parse_options()
    settings = {"SIMILE_GRACE_SECONDS": str(options.swap_seconds / 4)}
    with scratch_folder() as folder, Server(folder / "data", settings) as server:
        soaked = soak(server, folder / "data" / "models", options)
    _report(options, soaked)


def _parse_options() -> argparse.Namespace:
    parser = build_parser("soak", __doc__, quick=True)
    parser.add_argument("--minutes", type=float, help="of traffic (30; 1 with --quick)")
    options = parser.parse_args()
    options.minutes = options.minutes or (1.0 if options.quick else 30.0)
    options.swap_seconds, options.documents = (6.0, 200) if options.quick else (120.0, 2000)
    return options


def soak(server: Server, models_dir: Path, options: argparse.Namespace) -> Soaked:
    """Run the traffic and the swaps. Raises BenchError for an unexpected answer."""
    first = server.info()["model_version"]
    progress(f"publishing {VERSIONS - 1} more versions and storing {options.documents} documents")
    others = publish_variants(models_dir, VERSIONS - 1)
    texts = workloads.mixture(server.tokenizer(), workloads.corpus(), TEXTS).texts
    store_documents(server.port, texts, options.documents)
    versions = cycle([*others, first])
    found = Soaked([], [], [], draw_requests(texts, REQUESTS), [], Counter())
    lines = [request.text for request in found.requests]
    expected = [request.expected for request in found.requests]
    third = options.minutes * 60 / 3
    for seconds in (third, 2 * third):
        progress(f"{seconds:.0f} s of traffic")
        load = Load(server.port, lines, CLIENTS, seconds, expected=expected, reconnects=RECONNECTS)
        with disconnecting(server.port, texts, found.aborted), sampling(server.pid, SAMPLE_SECONDS) as taken:
            flow = Generator(load)
            until = time.monotonic() + seconds
            while time.monotonic() + options.swap_seconds < until:
                time.sleep(options.swap_seconds)
                version = next(versions)
                found.swap_seconds.append(swap(server.port, models_dir, version, MAX_SWAP_SECONDS))
            found.answers.append(flow.finish())
        found.samples.extend(taken)
        progress("an idle sample")
        time.sleep(options.swap_seconds / 4 + LINGER_SECONDS)
        found.idle.append(take_sample(server.pid, int(metric(server.port, "simile_tasks"))))
    return found


def _report(options: argparse.Namespace, found: Soaked) -> None:
    before, after = found.idle
    second, last = (max(sample.rss_mb for sample in part) for part in thirds(found.samples)[1:])
    threads = after.threads - before.threads
    files = after.files - before.files - FILES_OF_A_THREAD * max(0, threads)
    wrong = {how: count for how, count in found.aborted.items() if how.rpartition(": ")[2] not in LEFT}
    verdicts = [
        Verdict("idle memory: last sample over first", after.rss_mb / before.rss_mb, 1 + GROWTH),
        Verdict("maximum memory: last third over second", last / second, 1 + GROWTH),
        Verdict("more open files than in the first idle sample, without those of new threads", files, 0),
        Verdict("more threads than in the first idle sample", threads, MORE_THREADS),
        Verdict("unexpected answers to requests that were not read to the end", sum(wrong.values()), 0),
        Verdict("more tasks than in the first idle sample", after.tasks - before.tasks, 0),
    ]
    answers = _answers(found)
    result = {
        "minutes": options.minutes,
        "clients": CLIENTS,
        "documents": options.documents,
        "swap_seconds": found.swap_seconds,
        "idle": [asdict(one) for one in found.idle],
        "answers": answers,
        "aborted": found.aborted,
        "samples": [asdict(sample) for sample in found.samples],
    }
    swaps = found.swap_seconds
    duration = f", {statistics.median(swaps):.1f} s each (median)" if swaps else ""
    notes = (
        f"{options.minutes:g} minutes, {CLIENTS} clients, {options.documents:,} documents "
        f"stored beforehand, {len(swaps)} swaps{duration}. Each swap embeds all documents again. "
        f"Requests that were not read to the end: {dict(found.aborted)}."
    )
    columns = ("request", "count", "answered", "slowest ms")
    report("soak", result, [_memory_table(found), format_table(columns, answers), notes], verdicts)


def _memory_table(found: Soaked) -> str:
    rows: list[list[object]] = []
    for name, part in zip(("first", "second", "last"), thirds(found.samples), strict=True):
        memory = [sample.rss_mb for sample in part]
        files, threads = max(sample.files for sample in part), max(sample.threads for sample in part)
        row = [f"{name} third", statistics.median(memory), min(memory), max(memory), files, threads, ""]
        rows.append(row)
    for name, one in zip(("first", "last"), found.idle, strict=True):
        rows.append([f"{name} idle sample", one.rss_mb, "", "", one.files, one.threads, one.tasks])
    return format_table(("", "RSS MiB", "least", "most", "max files", "max threads", "tasks"), rows)


def _answers(found: Soaked) -> list[list[object]]:
    """Return a row for each kind of request: name, count, answers by status, slowest in milliseconds."""
    names, kinds = np.unique([request.name for request in found.requests], return_inverse=True)
    request, status, milliseconds = (
        np.concatenate([getattr(each, column) for each in found.answers])
        for column in ("request", "status", "milliseconds")
    )
    rows: list[list[object]] = []
    for at, name in enumerate(names.tolist()):
        own = kinds[request] == at
        statuses = Counter(status[own].tolist())
        said = ", ".join(f"{each}: {count:,}" for each, count in sorted(statuses.items()))
        rows.append([name, statuses.total(), said, float(milliseconds[own].max(initial=0.0))])
    return rows


if __name__ == "__main__":
    main()
