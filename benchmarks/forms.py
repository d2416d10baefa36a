"""The service in each form that was asked for, and the raw engine on the same file in the same precision."""

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks import engines
from benchmarks.places import BenchError, say
from benchmarks.raw import RawEngine
from benchmarks.served import OURS, Served
from benchmarks.server import Server
from models.encoder import ONNX
from models.engines.opening import INT8_NAME
from models.tokens.tokenizer import FILE_NAME, Tokenizer
from service.settings import Settings

DEFAULT = "fp32"
# Each text of a window, with the cache that the service has by default. What is checked under load comes from
# the cache as well; that it is what others compute is seen when vectors are compared, before the rounds.
CACHED = "Simile fp32, asked before"
HINTS = {"fp32": "f32", "bf16": "bf16"}  # OpenVINO's words


@dataclass(frozen=True)
class Form:
    """A precision: the running service, the raw engine beside it if there is one, and `/info`."""

    precision: str
    data_dir: Path
    info: dict[str, Any]
    served: Served
    raw: RawEngine | None

    @property
    def version(self) -> Path:
        return self.data_dir / "models" / str(self.info["model_version"])


def name_of(precision: str) -> str:
    return f"Simile {precision}"


def raw_name(precision: str) -> str:
    return f"raw {precision}"


def opened(stack: ExitStack, wanted: Sequence[str], folder: Path) -> tuple[list[Form], dict[str, str]]:
    """The forms that the service offers, and why not the others. Raises BenchError when fp32 is not."""
    found: list[Form] = []
    missing: dict[str, str] = {}
    for precision in dict.fromkeys((DEFAULT, *wanted)):
        say(f"publishing the default model and starting the service in {precision}")
        try:
            form = _open(stack, precision, folder / precision / "data")
            found.append(form)
            if form.raw is None:
                missing[raw_name(precision)] = f"no raw engine is known here for {form.info['form']}"
        except (BenchError, ImportError) as error:
            if precision == DEFAULT:
                raise
            missing[name_of(precision)] = str(error).strip().rpartition("\n")[2]
    return found, missing


def _open(stack: ExitStack, precision: str, data_dir: Path) -> Form:
    settings = {} if precision == DEFAULT else {"SIMILE_PRECISION": precision}
    server = Server(data_dir, settings)
    with ExitStack() as starting:
        starting.enter_context(server)
        info = server.info()
        runs, _, runtime = info["form"].partition("/")
        if runs != precision:
            raise BenchError(f"it runs {info['form']} where {precision} was asked for")
        version = data_dir / "models" / info["model_version"]
        raw = _raw(precision, runtime, version, info)
        stack.push(starting.pop_all())
    told = {"form": info["form"], "threads": info["threads"], "first_ready_seconds": server.ready_seconds}
    return Form(
        precision, data_dir, info, Served(name_of(precision), OURS, server.port, server.pid, told), raw
    )


def cached(stack: ExitStack, folder: Path, texts: int) -> Served:
    """fp32 with its vector cache; before each window `texts` are asked, which are all of a workload."""
    say("publishing the default model and starting the service with its cache")
    data_dir = folder / "cached" / "data"
    limit = Settings.model_fields["cache_mb"].default
    server = stack.enter_context(Server(data_dir, {"SIMILE_CACHE_MB": str(limit)}))
    return Served(CACHED, OURS, server.port, server.pid, {"cache_mb": limit}, warm_texts=texts)


def together(form: Form) -> RawEngine:
    """An fp32 session with the threads that the service has for a lone text."""
    call, inputs = engines.together(form.version / ONNX, form.info["lone_threads"])
    tokenizer = Tokenizer(form.version / FILE_NAME, form.info["max_input_length"])
    return RawEngine("raw, together", [call], inputs, tokenizer)


def _raw(precision: str, runtime: str, version: Path, info: dict[str, Any]) -> RawEngine | None:
    file, count = version / "onnx" / "model.onnx", info["threads"]
    if runtime == "openvino" and precision in HINTS:
        calls, inputs = engines.openvino(file, count, HINTS[precision])
    elif runtime == "onnxruntime" and precision in {DEFAULT, "int8"}:
        file = file if precision == DEFAULT else file.with_name(INT8_NAME)
        calls, inputs = engines.onnx_runtime(file, count)
    else:
        return None
    tokenizer = Tokenizer(version / FILE_NAME, info["max_input_length"])
    return RawEngine(raw_name(precision), calls, inputs, tokenizer)
