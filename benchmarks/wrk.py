"""wrk as an outside judge: another generator, written by others, on the same requests.

https://github.com/wg/wrk; Debian has it as `wrk`. Its Lua script reads the bodies from a file and prints one
line of JSON at the end. It knows neither warm-up nor a window without a tail, and gives all connections one
order of requests, so its figures are a check of ours and no more.
"""

import json
import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from benchmarks.contestant import Measured, Scenario
from benchmarks.machine import Watch
from benchmarks.places import BenchError
from benchmarks.served import Served

LEAST_SECONDS = 2  # whole ones; it takes fractions and then gives nothing
SCRIPT = """\
local made, sent = {}, 0
function init(args)
   for body in io.lines(%(file)s) do
      made[#made + 1] = wrk.format("POST", %(path)s, {["content-type"] = "application/json"}, body)
   end
end
function request()
   sent = sent %% #made + 1
   return made[sent]
end
function done(summary, latency, requests)
   local e = summary.errors
   io.write(string.format(
      '\\n{"requests":%%d,"microseconds":%%d,"p50":%%d,"p99":%%d,"errors":%%d}\\n',
      summary.requests, summary.duration, latency:percentile(50), latency:percentile(99),
      e.connect + e.read + e.write + e.status + e.timeout))
end
"""


@dataclass(frozen=True, slots=True)
class Said:
    """The figures of wrk, in its own units."""

    requests: int
    seconds: float
    p50_ms: float
    p99_ms: float


def program() -> str | None:
    return shutil.which("wrk")


def read(output: str) -> Said:
    """The last line of its output. Raises BenchError when there is none, or when requests failed."""
    line = output.strip().rpartition("\n")[2]
    try:
        found = json.loads(line)
    except json.JSONDecodeError:
        raise BenchError(f"wrk said nothing that could be read: {output[-500:]!r}") from None
    if found["errors"] or not found["requests"]:
        raise BenchError(f"wrk: {found['requests']} requests, {found['errors']} of them failed")
    return Said(found["requests"], found["microseconds"] / 1e6, found["p50"] / 1000, found["p99"] / 1000)


class Judged:
    """A server, asked by wrk."""

    def __init__(self, served: Served, folder: Path) -> None:
        self.name = f"{served.name}, by wrk"
        self._served = served
        self._folder = folder

    def measure(self, scenario: Scenario, turn: int) -> Measured:
        """Raises BenchError."""
        made = self._served.requests(scenario.workload, scenario.texts)
        bodies = self._folder / "bodies"
        bodies.write_text("\n".join(line.partition("\r\n\r\n")[2] for line in made.lines))
        script = self._folder / "requests.lua"
        paths = {"file": _quoted(str(bodies)), "path": _quoted(self._served.dialect.path)}
        script.write_text(SCRIPT % paths)
        seconds = max(LEAST_SECONDS, round(scenario.seconds))
        command = ["wrk", "-t1", f"-c{scenario.clients}", f"-d{seconds}s", "-s", str(script)]
        watch = Watch({"server": self._served.pid})
        used = os.times()
        done = subprocess.run(
            [*command, f"http://127.0.0.1:{self._served.port}/"], capture_output=True, text=True, check=False
        )
        after = os.times()
        window = watch.window()
        own = after.children_user + after.children_system - used.children_user - used.children_system
        said = read(done.stdout)
        texts = said.requests * scenario.texts
        return Measured(
            rate=texts / said.seconds,
            foreign=window.foreign_without(own),  # it had no pid when the window began
            cpu_ms=1000 * window.cpu_seconds["server"] / texts,
            p50_ms=said.p50_ms,
            p99_ms=said.p99_ms,
            client_us=1e6 * own / said.requests,
        )


def _quoted(text: str) -> str:
    """The text as a string of Lua."""
    return json.dumps(text)
