"""The systemd units: systemd accepts them, and their commands run unchanged."""

import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from service.runtime.watchdog import EXIT_STATUS
from service.server import DRAIN_SECONDS
from service.settings import PREFIX, Settings
from tests.deploy.manifests import ROOT
from tests.service.process import Service, free_port, plain_environment
from tests.waiting import LIMIT
from training.__main__ import parser
from training.retraining.schedule import _STOPPING_SECONDS

FOLDER = ROOT / "deploy/systemd"
UNITS = sorted(FOLDER.glob("*.service"))
STATE = "/var/lib/simile"
ANALYZE = shutil.which("systemd-analyze")
needs_systemd = pytest.mark.skipif(ANALYZE is None, reason="needs systemd-analyze, of the package systemd")
EXPOSURE = 20  # In tenths. A unit without hardening has about 100.


class Unit:
    """A unit file, with its keys and values in order."""

    def __init__(self, name: str) -> None:
        lines = (FOLDER / name).read_text(encoding="utf-8").splitlines()
        self.pairs = [tuple(line.split("=", 1)) for line in lines if re.match(r"[A-Z]\w+=", line)]

    def __getitem__(self, key: str) -> str:
        [value] = [value for found, value in self.pairs if found == key]
        return value

    @property
    def command(self) -> list[str]:
        return shlex.split(self["ExecStart"])

    @property
    def environment(self) -> dict[str, str]:
        told = [word for key, value in self.pairs if key == "Environment" for word in shlex.split(value)]
        return dict(word.split("=", 1) for word in told)


def analyze(*arguments: str) -> subprocess.CompletedProcess[str]:
    assert ANALYZE is not None
    return subprocess.run(
        [ANALYZE, "--no-pager", *arguments], capture_output=True, text=True, timeout=LIMIT, check=False
    )


@pytest.fixture
def installed(tmp_path: Path) -> Path:
    """A copy of the units with an interpreter of this machine."""
    for unit in UNITS:
        text = unit.read_text(encoding="utf-8")
        program = shlex.split(Unit(unit.name)["ExecStart"])[0]
        (tmp_path / unit.name).write_text(text.replace(program, sys.executable), encoding="utf-8")
    return tmp_path


@needs_systemd
@pytest.mark.parametrize("name", [unit.name for unit in UNITS])
def test_systemd_takes_every_line_of_a_unit(name: str, installed: Path) -> None:
    done = analyze("--man=no", "--recursive-errors=no", "verify", str(installed / name))
    assert done.returncode == 0, done.stderr
    assert done.stderr == "", "what systemd does not know it ignores, with a word"


@needs_systemd
def test_a_mistyped_key_is_seen(installed: Path) -> None:
    unit = installed / "simile.service"
    unit.write_text(unit.read_text(encoding="utf-8").replace("ProtectClock=", "ProtectClok="))
    done = analyze("--man=no", "--recursive-errors=no", "verify", str(unit))
    assert "ProtectClok" in done.stderr


@needs_systemd
@pytest.mark.parametrize("name", [unit.name for unit in UNITS])
def test_a_unit_is_shut_in(name: str, installed: Path) -> None:
    done = analyze("security", "--offline=true", f"--threshold={EXPOSURE}", str(installed / name))
    assert done.returncode == 0, done.stdout[-300:]


@pytest.mark.parametrize("name", [unit.name for unit in UNITS])
def test_every_setting_of_a_unit_exists(name: str) -> None:
    known = {PREFIX + field.upper() for field in Settings.model_fields}
    assert {key for key in Unit(name).environment if key.startswith(PREFIX)} <= known


def test_a_hang_is_started_again_and_a_refused_start_is_not() -> None:
    service = Unit("simile.service")
    assert service["Restart"] == "on-failure"
    prevented = service["RestartPreventExitStatus"].split()
    assert prevented == [str(os.EX_CONFIG)]
    assert not {str(EXIT_STATUS), "1"} & set(prevented), "1: the interpreter hung"


def test_a_unit_is_given_the_time_that_a_stop_takes() -> None:
    assert int(Unit("simile.service")["TimeoutStopSec"]) >= DRAIN_SECONDS + 30
    assert int(Unit("simile-trainer.service")["TimeoutStopSec"]) > _STOPPING_SECONDS
    for unit in UNITS:
        assert Unit(unit.name)["KillMode"] == "mixed", "a second SIGTERM ends the service at once"


def test_the_trainer_does_not_see_the_store() -> None:
    data = Unit("simile.service").environment["SIMILE_DATA_DIR"]
    assert Unit("simile-trainer.service")["InaccessiblePaths"] == f"-{data}"
    assert "SIMILE_DATA_DIR" not in Unit("simile-trainer.service").environment
    models = {Unit(unit.name).environment["SIMILE_MODELS_DIR"] for unit in UNITS}
    assert models == {f"{STATE}/models"}


@pytest.fixture
def home(tmp_path: Path, tiny_models_dir: Path) -> Path:
    """A folder that replaces /var/lib/simile. It has a models folder."""
    shutil.copytree(tiny_models_dir, tmp_path / "models")
    return tmp_path


def moved(unit: Unit, home: Path) -> dict[str, str]:
    return {key: value.replace(STATE, str(home)) for key, value in unit.environment.items()}


@pytest.mark.long
def test_the_service_runs_as_its_unit_says_and_stops_cleanly(home: Path) -> None:
    unit, service = Unit("simile.service"), Service(home)
    [_, *arguments] = unit.command  # the command without the interpreter
    told = {"SIMILE_PORT": str(service.port), "PYTHONPATH": str(ROOT)}
    environment = plain_environment(**(moved(unit, home) | told))
    with service.client, service.log.open("wb") as log:
        service.process = subprocess.Popen(
            [sys.executable, *arguments], cwd="/", env=environment, stdout=log, stderr=log
        )
        try:
            service.wait_until_ready()
            assert service.put({"a": "A first sentence."}).status_code == 200
            assert service.stop(signal.SIGTERM) == 0
        finally:
            service.kill()
    assert (home / "data/simile.db").is_file()


@pytest.mark.long
def test_the_trainer_runs_as_its_unit_says_and_stops_cleanly(home: Path) -> None:
    unit = Unit("simile-trainer.service")
    [_, *arguments] = unit.command
    config = home / "retrain.toml"
    config.write_text(
        f'[corpus]\nservice = "http://127.0.0.1:{free_port()}"\n[schedule]\ncron = "0 0 1 1 *"\n',
        encoding="utf-8",
    )
    assert arguments[arguments.index("--config") + 1] == "/etc/simile/retrain.toml"
    parser().parse_args(arguments[2:])
    here = [str(config) if argument == "/etc/simile/retrain.toml" else argument for argument in arguments]
    environment = plain_environment(**moved(unit, home), PYTHONPATH=str(ROOT))
    with subprocess.Popen(
        [sys.executable, *here], cwd="/", env=environment, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stderr is not None
            assert "cannot be reached" in process.stderr.readline(), "no service answers yet"
            assert "The next retraining is due at" in process.stderr.readline()
            process.send_signal(signal.SIGTERM)
            assert process.wait(_STOPPING_SECONDS) == 0
        finally:
            process.kill()
    assert (home / "models/schedule.json").is_file()
