"""Measure embedding servers as contestants: our service in each precision, and other projects' servers.

`ServedModel.measure` measures a server once, with clients in a closed loop. `open_precisions` starts our
service in each requested precision, together with the raw engine on the same model file.
"""

import random
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import orjson

from benchmarks import raw
from benchmarks.command import BenchError, progress
from benchmarks.load import NOTHING, Answers, Generator, Load, post_request
from benchmarks.machine import memory_mb
from benchmarks.processes import Server, call
from benchmarks.raw import RawEngine
from benchmarks.rounds import Measured, Scenario, Vectors, cosines, p50_p99
from benchmarks.workloads import Workload
from models.engines.opening import INT8_NAME
from models.manifest import ONNX
from models.tokens.tokenizer import Tokenizer

WARM_TEXTS = 512  # answered before each window, because some runtimes compile kernels for each shape
CHECKED = 8  # answers of a window whose vectors are checked
MIN_COSINE = 0.999  # to the same text sent by itself; other texts are far below
TEXTS_PER_CALL = 32

DEFAULT = "fp32"
OPENVINO_HINTS = {"fp32": "f32", "bf16": "bf16"}


@dataclass(frozen=True)
class Dialect:
    """The HTTP API of a kind of server: path, request body, and how to read vectors from a response."""

    path: str
    body: Callable[[list[str]], Any]
    read: Callable[[Any], list[list[float]]]


OURS = Dialect(
    "/embed", lambda texts: {"inputs": texts[0] if len(texts) == 1 else texts}, lambda answer: answer
)
OPENAI = Dialect(
    "/embeddings",
    lambda texts: {"model": "bench", "input": texts},
    lambda answer: [row["embedding"] for row in answer["data"]],
)


@dataclass(frozen=True)
class Requests:
    """A workload split into requests: texts, number of tokens, and HTTP text of each request."""

    texts: list[list[str]]
    tokens: list[int]
    lines: list[str]


@dataclass
class ServedModel:
    """A running server as a contestant. This class neither starts nor stops the server.

    Attributes:
        name: Name of the server in the report.
        dialect: The HTTP API of the server.
        port: Port of the server on the loopback interface.
        pid: Process id of the server.
        facts: Facts for the report.
        reconnects: How many times the server may close a connection in one measurement.
        warm: Number of texts that are answered before each window.

    """

    name: str
    dialect: Dialect
    port: int
    pid: int
    facts: dict[str, Any] = field(default_factory=dict)
    reconnects: int = 0
    warm: int = WARM_TEXTS
    _requests: dict[tuple[str, int], Requests] = field(default_factory=dict, init=False)
    _expected: dict[str, Vectors] = field(default_factory=dict, init=False)

    def vectors(self, texts: Sequence[str]) -> Vectors:
        """Return the vectors of texts, shape (n, dimension). Raises BenchError if a request failed."""
        found: list[list[float]] = []
        for at in range(0, len(texts), TEXTS_PER_CALL):
            some = list(texts[at : at + TEXTS_PER_CALL])
            answer = call(self.port, "POST", self.dialect.path, self.dialect.body(some))
            found += self.dialect.read(answer)
        return np.array(found, np.float32)

    def about(self) -> dict[str, Any]:
        """Return `facts` and the memory of the server in MiB."""
        return self.facts | {"memory_mb": memory_mb(self.pid)}

    def requests(self, workload: Workload, texts: int) -> Requests:
        """Split a workload into requests with `texts` texts each. Remaining texts are left out."""
        key = workload.name, texts
        if key not in self._requests:
            starts = range(0, len(workload.texts) - texts + 1, texts)
            rows = [workload.texts[at : at + texts] for at in starts]
            tokens = [sum(len(ids) for ids in workload.ids[at : at + texts]) for at in starts]
            lines = [post_request(self.dialect.path, self.dialect.body(row)) for row in rows]
            self._requests[key] = Requests(rows, tokens, lines)
        return self._requests[key]

    def measure(self, scenario: Scenario, turn: int) -> Measured:
        """Measure the server under the load of a scenario.

        Raises:
            BenchError: The status of a response was not 200, or a response had the vector of another text.

        """
        made = self.requests(scenario.workload, scenario.texts)
        order = list(range(len(made.lines)))
        random.Random(turn).shuffle(order)
        lines = [made.lines[at] for at in order]
        kept = range(4 * scenario.clients, len(order), max(1, len(order) // CHECKED))[:CHECKED]
        load = Load(self.port, lines, scenario.clients, scenario.seconds, pids={"server": self.pid})
        warm = max(self.warm // scenario.texts, 2 * scenario.clients)
        load = replace(load, warm=warm, keep=[*kept], reconnects=self.reconnects)
        answers = Generator(load).finish()
        self._check(made, order, answers)
        return self._summary(scenario, made, order, answers)

    def _summary(self, scenario: Scenario, made: Requests, order: list[int], answers: Answers) -> Measured:
        if not len(answers.request):
            raise BenchError(f"{self.name} answered nothing in {scenario.seconds:g} seconds")
        window, workload = answers.window, scenario.workload
        rows = [order[request] for request in answers.request]
        tokens = sum(made.tokens[row] for row in rows)
        p50, p99 = p50_p99(answers.milliseconds)
        texts = tokens / workload.mean_tokens
        cpu_ms = 1000 * window.cpu_seconds["server"] / texts
        return Measured(texts / window.seconds, window.foreign, cpu_ms, p50, p99)

    def _check(self, made: Requests, order: list[int], answers: Answers) -> None:
        """Check that vectors under load have a cosine of at least MIN_COSINE to those without load.

        Raises:
            BenchError: A cosine is lower, so the vector belongs to another text.

        """
        for request, body in answers.bodies.items():
            text = made.texts[order[request]][0]
            if text not in self._expected:
                self._expected[text] = self.vectors([text])
            found = np.array(self.dialect.read(orjson.loads(body))[:1], np.float32)
            cosine = float(cosines(found, self._expected[text])[0])
            if cosine < MIN_COSINE:
                raise BenchError(f"{self.name}: a vector under load is of another text (cosine {cosine})")


@dataclass(frozen=True)
class OpenPrecision:
    """The running service in a precision, and the raw engine on the same file.

    Attributes:
        precision: "fp32", "bf16" or "int8".
        data_dir: The data directory of the service.
        info: The response of `GET /info`.
        served: The service as a contestant.
        raw: The raw engine, or None if no raw engine supports this precision.

    """

    precision: str
    data_dir: Path
    info: dict[str, Any]
    served: ServedModel
    raw: RawEngine | None

    @property
    def version(self) -> Path:
        """The folder of the active version."""
        return self.data_dir / "models" / str(self.info["model_version"])


def our_name(precision: str) -> str:
    """Return the name of our service in a precision."""
    return f"Simile {precision}"


def raw_name(precision: str) -> str:
    """Return the name of the raw engine in a precision."""
    return f"raw {precision}"


def open_precisions(
    stack: ExitStack, requested: Sequence[str], folder: Path, settings: Mapping[str, str] = NOTHING
) -> tuple[list[OpenPrecision], dict[str, str]]:
    """Start the service in fp32 and in each requested precision.

    Args:
        stack: Stops the services when it closes.
        requested: Precisions in addition to fp32.
        folder: Parent folder of the data directories.
        settings: Further environment variables of each service.

    Returns:
        The precisions that the service supports on this machine, and the reason for each missing contestant.

    Raises:
        BenchError: The service did not start in fp32.

    """
    found: list[OpenPrecision] = []
    missing: dict[str, str] = {}
    for precision in dict.fromkeys((DEFAULT, *requested)):
        progress(f"publishing the default model and starting the service in {precision}")
        try:
            opened = _open(stack, precision, folder / precision / "data", settings)
            found.append(opened)
            if opened.raw is None:
                missing[raw_name(precision)] = f"no raw engine is available for {opened.info['form']}"
        except (BenchError, ImportError) as error:
            if precision == DEFAULT:
                raise
            missing[our_name(precision)] = str(error).strip().rpartition("\n")[2]
    return found, missing


def _open(stack: ExitStack, precision: str, data_dir: Path, settings: Mapping[str, str]) -> OpenPrecision:
    chosen = {} if precision == DEFAULT else {"SIMILE_PRECISION": precision}
    server = Server(data_dir, chosen | {**settings})
    with ExitStack() as starting:
        starting.enter_context(server)
        info = server.info()
        if not info["form"].startswith(f"{precision}/"):
            raise BenchError(f"the service opened {info['form']} instead of {precision}")
        version = data_dir / "models" / info["model_version"]
        engine = open_raw(info["form"], version, info["threads"], server.tokenizer())
        stack.push(starting.pop_all())
    facts = {"form": info["form"], "threads": info["threads"], "ready_seconds": server.ready_seconds}
    served = ServedModel(our_name(precision), OURS, server.port, server.pid, facts)
    return OpenPrecision(precision, data_dir, info, served, engine)


def open_raw(
    form: str, version: Path, count: int, tokenizer: Tokenizer, output: str = raw.OUTPUT
) -> RawEngine | None:
    """Open the raw engine of a version, or return None if there is none for the form.

    Args:
        form: Precision and runtime, as `GET /info` names them.
        version: Folder of the version.
        count: Number of concurrent calls.
        tokenizer: Tokenizer of the version.
        output: Name of the graph's output.

    """
    precision, _, runtime = form.partition("/")
    file = version / ONNX
    if runtime == "openvino" and precision in OPENVINO_HINTS:
        calls, inputs = raw.openvino_calls(file, count, OPENVINO_HINTS[precision], output)
    elif runtime == "onnxruntime" and precision in {DEFAULT, "int8"}:
        file = file if precision == DEFAULT else file.with_name(INT8_NAME)
        calls, inputs = raw.onnx_runtime_calls(file, count, output)
    else:
        return None
    return RawEngine(raw_name(precision), calls, inputs, tokenizer)
