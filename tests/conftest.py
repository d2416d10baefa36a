"""Fixtures of all tests, and hooks that distribute tests among worker processes.

The fixtures are the tiny model, as a source folder and as a published version, and the default model.
"""

from __future__ import annotations

import faulthandler
import fcntl
import os
import signal
import sys
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

if "PYTEST_XDIST_WORKER" in os.environ:
    # Before numpy and torch are imported. They would use all processors in each worker.
    os.environ.setdefault("OMP_NUM_THREADS", "1")

# A shell without job control makes background processes ignore Ctrl-C. Processes that a test starts and
# interrupts would inherit this.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

import pytest

from models import cpus
from models.publishing.default import publish_default, wheel_path
from models.publishing.publish import publish
from models.store import ModelStore
from service.runtime import watchdog
from tests import evaldata, postgres
from tests.service.busy_host import BUSY
from tests.tiny import tiny_source as make_tiny_source

WORKER = os.environ.get("PYTEST_XDIST_WORKER")  # the name of this worker, or None without xdist
MAX_WORKERS = 4


def pytest_addoption(parser: pytest.Parser) -> None:
    help_text = "where services of tests keep their documents (default: sqlite)"
    parser.addoption("--store", choices=["sqlite", "postgres"], default="sqlite", help=help_text)


def pytest_configure(config: pytest.Config) -> None:
    postgres.chosen = config.getoption("--store") == "postgres"
    end = watchdog.end

    def say_and_end(reason: str) -> None:
        """Reports on the real stderr that a service's watchdog ends this process, then ends it."""
        if (capture := config.pluginmanager.get_plugin("capturemanager")) is not None:
            capture.suspend_global_capture(in_=True)
        print(f"\n{WORKER or 'pytest'} is ended by the watchdog of a service: {reason}", file=sys.stderr)
        faulthandler.dump_traceback(file=sys.stderr, all_threads=True)
        end(reason)

    watchdog.end = say_and_end


def pytest_unconfigure() -> None:
    postgres.stop()


@pytest.hookimpl(tryfirst=True)  # before the fixtures of the test
def pytest_runtest_setup(item: pytest.Item) -> None:
    mark = item.get_closest_marker("sqlite")
    if postgres.chosen and mark is not None:
        pytest.skip(f"is about SQLite: {mark.args[0]}")
    evaldata.require(item)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """Returns the number of workers: processors + 1, at most MAX_WORKERS. Returns 0 for one file of tests."""
    if len(config.args) == 1 and not Path(config.args[0]).is_dir():
        return 0
    return min(MAX_WORKERS, cpus.available() + 1)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Sorts files with few tests first, because such files take long.

    Workers take whole files in this order, so no worker is left alone with a long file at the end.
    """
    if WORKER:
        tests = Counter(item.path for item in items)
        items.sort(key=lambda item: tests[item.path])


def pytest_deselected(items: list[pytest.Item]) -> None:
    """Sends the number of deselected tests from a worker, because xdist does not report it."""
    if WORKER:
        output = items[0].config.workeroutput  # type: ignore[attr-defined] # of xdist
        output["deselected"] = output.get("deselected", 0) + len(items)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any, error: object) -> None:
    """Shows the number of deselected tests in the closing line. It is the same for every worker."""
    reporter = node.config.pluginmanager.get_plugin("terminalreporter")
    deselected = getattr(node, "workeroutput", {}).get("deselected", 0)
    if deselected and reporter is not None:
        reporter.stats["deselected"] = [SimpleNamespace() for _ in range(deselected)]


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Reports how many tests were skipped because the machine was busy."""
    skipped = terminalreporter.stats.get("skipped", [])
    if count := sum(BUSY in str(report.longrepr) for report in skipped):
        terminalreporter.section("not judged")
        terminalreporter.line(f"{count} tests were skipped because {BUSY}: run them again on a quiet one")


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Escapes lone surrogates in captured output, which a worker cannot send as UTF-8."""
    report.sections = [
        (name, text.encode(errors="backslashreplace").decode()) for name, text in report.sections
    ]


@pytest.fixture(scope="session")
def tiny_source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny model's source folder, seed 0. Read only: it is shared by the whole session."""
    return make_tiny_source(tmp_path_factory.mktemp("tiny") / "tiny")


@pytest.fixture(scope="session")
def tiny_models_dir(tmp_path_factory: pytest.TempPathFactory, tiny_source: Path) -> Path:
    """A models folder with the tiny model, published and requested. Copy it before you change it."""
    store = ModelStore(tmp_path_factory.mktemp("models") / "models")
    store.request(publish(store, tiny_source, int8=True).version)
    return store.root


@pytest.fixture(scope="session")
def default_models_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A models folder with the default model, published and requested. Read only: copy it to change it."""
    if not wheel_path().is_file():
        pytest.skip(f"needs the default model's wheel at {wheel_path()} (`make test` downloads it)")
    root = tmp_path_factory.getbasetemp()
    store = ModelStore((root.parent if WORKER else root) / "default" / "models")  # one folder for all workers
    store.root.parent.mkdir(exist_ok=True)
    with (store.root.parent / "lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        if store.requested() is None:
            store.request(publish_default(store, int8=True).version)
    return store.root
