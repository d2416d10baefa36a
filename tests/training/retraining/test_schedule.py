"""The schedule of retrainings and the progress file."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from models.engines.opening import has_int8
from models.files.retrainings import (
    FILE_NAME,
    PROGRESS,
    read_progress,
    read_request,
    read_runs,
    request_run,
    schedule_state,
)
from tests.parts.json_server import json_server
from tests.waiting import until
from training.errors import TrainingError
from training.retraining.config import Config, ScheduleTable
from training.retraining.one import Job, retrain
from training.retraining.schedule import Schedule, clock
from training.retraining.watch import Watch, watched


class Small(Schedule):
    """A schedule that runs `code` instead of a retraining."""

    code = "raise SystemExit(4)"

    def command(self) -> list[str]:
        return [sys.executable, "-c", self.code]


def small(
    folder: Path,
    code: str,
    corpus: dict[str, Any] | None = None,
    wall: Wall | None = None,
    kind: type[Small] = Small,
    **table: Any,
) -> Small:
    given = {"cron": "* * * * * *", "jitter_seconds": 0} | table
    tables = {"corpus": corpus or {"file": "x.txt"}, "schedule": given, "folders": {"models": folder}}
    config = Config.model_validate(tables)
    jumping: dict[str, Any] = {"wall": wall, "look_seconds": 0.01} if wall else {}
    made = kind(folder / "retrain.toml", config, **jumping)
    made.code = code
    return made


@contextmanager
def started(schedule: Schedule) -> Iterator[Schedule]:
    schedule.start()
    try:
        yield schedule
    finally:
        schedule.stop()


@pytest.mark.parametrize(
    ("status", "word"), [(0, "published"), (3, "refused"), (4, "nothing to learn"), (1, "failed")]
)
def test_how_a_run_ended_is_written_down_with_what_it_said(tmp_path: Path, status: int, word: str) -> None:
    code = "import sys; print('because', flush=True); sys.stderr.write('of that'); raise SystemExit({})"
    with started(small(tmp_path, code.format(status))):
        until(lambda: read_runs(tmp_path).get("last_run"))
        found = read_runs(tmp_path)
    assert (found["last_run"]["status"], found["last_run"]["outcome"]) == (status, word)
    assert found["last_run"]["said"] == "because\nof that"
    assert found["last_run"]["why"] == "clock"
    assert found["last_run"]["reason"] == "of that"
    assert found["runs"][word] >= 1
    assert found["ends"][0] == {key: value for key, value in found["last_run"].items() if key != "said"}
    began, ended = (datetime.fromisoformat(found["last_run"][key]) for key in ("started", "ended"))
    assert began <= ended <= datetime.now(UTC)
    assert read_runs(tmp_path)["next_run"] is None, "it has stopped, so nothing is due"


def test_a_request_begins_a_run_at_once_and_signs_of_life_are_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("training.retraining.schedule._SIGN_SECONDS", 0.1)
    code = f"import time\nwhile not __import__('os').path.exists(r'{tmp_path / 'end'}'): time.sleep(0.1)"

    def state() -> dict[str, Any]:
        return schedule_state(tmp_path, datetime.now(UTC)) or {}

    with started(small(tmp_path, code, cron="0 3 1 1 *")):
        assert (state()["state"], state()["trainer"]) == ("waiting", True)
        request_run(tmp_path)
        until(lambda: state()["state"] == "running")
        assert (state()["running"]["why"], state()["requested"]) == ("request", None)
        os.utime(tmp_path / FILE_NAME, (0, 0))
        until(lambda: state()["trainer"])
        (tmp_path / "end").touch()
        until(lambda: state().get("last_run"))
        assert (state()["last_run"]["why"], state()["state"]) == ("request", "waiting")
        assert read_request(tmp_path) is None
    assert (state()["state"], state()["trainer"]) == ("stopped", False)


def test_what_is_written_down_is_when_the_next_run_begins(tmp_path: Path) -> None:
    idle = small(tmp_path, "", cron="0 3 1 1 *", jitter_seconds=100_000)
    with started(idle):
        due = idle._due
        assert due is not None
        for _ in range(3):
            written = datetime.fromisoformat(read_runs(tmp_path)["next_run"])
            assert written == due.replace(microsecond=0), "another jitter was drawn"
            idle._write({})


def test_there_are_never_two_at_once(tmp_path: Path) -> None:
    """A run is due every second and takes two seconds. It fails if another one is running."""
    code = (
        f"import os, time; p = r'{tmp_path / 'running'}'; "
        "os.close(os.open(p, os.O_CREAT | os.O_EXCL)); time.sleep(2); os.remove(p); raise SystemExit(4)"
    )
    with started(small(tmp_path, code)):
        until(lambda: read_runs(tmp_path).get("runs", {}).get("nothing to learn", 0) >= 2)
        runs = read_runs(tmp_path)["runs"]
    assert set(runs) == {"nothing to learn"}, "one found the file of another"


def test_a_killed_run_is_a_failed_one_and_the_next_begins(tmp_path: Path) -> None:
    first = f"import os, time; p = r'{tmp_path / 'was'}'\n"
    code = first + "if os.path.exists(p): raise SystemExit(0)\nopen(p, 'w').close(); time.sleep(60)"
    with started(small(tmp_path, code)):
        until(lambda: (tmp_path / "was").exists() and read_runs(tmp_path).get("running"))
        os.kill(read_runs(tmp_path)["running"]["pid"], 9)
        until(lambda: read_runs(tmp_path).get("runs", {}).get("published"))
        assert read_runs(tmp_path)["runs"]["failed"] == 1


def test_a_stop_ends_the_run_in_hand(tmp_path: Path) -> None:
    code = (
        "import signal, sys, time; signal.signal(signal.SIGTERM, lambda *_: sys.exit(130)); "
        f"open(r'{tmp_path / 'on'}', 'w').close(); time.sleep(600)"
    )
    with started(small(tmp_path, code)):
        until((tmp_path / "on").exists)
        began = time.monotonic()
    assert time.monotonic() - began < 300
    found = read_runs(tmp_path)
    assert found["last_run"]["outcome"] == "stopped"
    assert found["running"] is None


def test_a_stop_in_the_moment_when_the_run_ends_is_no_error(tmp_path: Path) -> None:
    class Ending(Small):
        """A schedule whose run ends after the first read of `_child`. Later reads return None."""

        _known: Any = None

        @property
        def _child(self) -> Any:
            child, self._known = self._known, None
            return child

        @_child.setter
        def _child(self, child: Any) -> None:
            self._known = child

    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], text=True) as child:
        try:
            idle = small(tmp_path, "", kind=Ending, cron="0 3 1 1 *")
            with started(idle):
                idle._child = child
            assert child.wait(60) == -signal.SIGTERM
        finally:
            child.kill()


def test_a_run_that_takes_too_much_memory_ends_and_threads_are_bounded(tmp_path: Path) -> None:
    code = "import os; print(os.environ['OMP_NUM_THREADS'], os.nice(0), flush=True); bytearray(1 << 30)"
    with started(small(tmp_path, code, memory_mb=256, threads=3)):
        until(lambda: read_runs(tmp_path).get("last_run"))
    last = read_runs(tmp_path)["last_run"]
    assert (last["status"], last["outcome"]) == (1, "failed")
    assert last["said"].split()[0] == "3"
    assert int(last["said"].split()[1]) >= 10


def test_new_documents_begin_a_run_before_the_clock_does(tmp_path: Path) -> None:
    counts = [100]
    with json_server(lambda *_: (200, {"count": counts[0]})) as url:
        often: dict[str, Any] = {"cron": "0 0 1 1 *", "new_documents": 50, "poll_seconds": 0.1}
        with started(small(tmp_path, "raise SystemExit(0)", {"service": url}, **often)):
            until(lambda: read_runs(tmp_path).get("documents") == 100)
            counts[0] = 149
            time.sleep(0.5)
            assert "last_run" not in read_runs(tmp_path)
            counts[0] = 150
            until(lambda: read_runs(tmp_path).get("last_run"))
            found = read_runs(tmp_path)
            assert (found["last_run"]["why"], found["documents"]) == ("documents", 150)
            time.sleep(0.5)
            assert read_runs(tmp_path)["runs"] == {"published": 1}
            counts[0] = 20  # deleted: counted from there
            until(lambda: read_runs(tmp_path)["documents"] == 20)


class Wall:
    """A wall clock that stands still until a test sets it."""

    def __init__(self, at: str) -> None:
        self.now = datetime.fromisoformat(at).replace(tzinfo=UTC)

    def __call__(self) -> datetime:
        return self.now


BERLIN = {"timezone": "Europe/Berlin"}


def runs_of(folder: Path) -> int:
    return int(read_runs(folder).get("runs", {}).get("nothing to learn", 0))


@pytest.mark.parametrize(
    ("cron", "moments", "runs", "table"),
    [
        # Suspended before half past three, until long after it.
        ("30 3 * * *", ["2026-11-22T08:00"], 1, {}),
        # A container that was paused for three nights.
        ("30 3 * * *", ["2026-11-25T02:00"], 1, {}),
        # Due every minute, and away for a month.
        ("* * * * *", ["2026-12-22T03:00:30"], 1, {}),
        # A board without a clock of its own: NTP sets it years ahead.
        ("* * * * * *", ["2056-11-22T03:00"], 1, {}),
        # An hour late, set back after the run: half past three comes twice.
        ("30 3 * * *", ["2026-11-22T03:31", "2026-11-22T02:31", "2026-11-22T03:31"], 1, {}),
        # Set back before it was due: it is due all the same.
        ("30 3 * * *", ["2026-11-21T02:00", "2026-11-21T03:31"], 1, {}),
        # A month ahead by mistake: the nights that come after the correction count.
        ("30 3 * * *", ["2026-12-22T04:00", "2026-11-22T02:00", "2026-11-23T03:31"], 2, {}),
        # Small corrections change nothing.
        ("30 3 * * *", ["2026-11-22T03:30:01", "2026-11-22T03:29:59", "2026-11-22T03:30:02"], 1, {}),
        # Every hour, and set back before all of the runs: none of them comes twice.
        ("0 * * * *", ["T04:01", "T05:01", "T06:01", "T03:30", "T04:01", "T05:01", "T06:01"], 3, {}),
        ("0 * * * *", "T04:01 T05:01 T04:30 T05:01 T03:30 T04:01 T05:01 T06:01".split(), 3, {}),
        # A run that jitter delays, and set back meanwhile: by less than that, and by more; and after it.
        ("5 3 * * *", ["T03:08", "T03:06", "T03:16"], 1, {"jitter_seconds": 600}),
        ("5 3 * * *", ["T03:08", "T03:06", "T03:09", "T03:05", "T03:16"], 1, {"jitter_seconds": 600}),
        ("5 3 * * *", ["T03:08", "T03:03", "T03:16"], 1, {"jitter_seconds": 600}),
        ("5 3 * * *", ["T03:16", "T03:08", "T03:16"], 1, {"jitter_seconds": 600}),
        # Half past two comes twice in the night of winter time, and both are due.
        ("30 * * * *", [f"2027-10-31T{at}" for at in ("00:29", "00:31", "01:31")], 3, BERLIN),
    ],
)
def test_what_came_due_while_the_clock_jumped_runs_once(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    cron: str,
    moments: list[str],
    runs: int,
    table: dict[str, Any],
) -> None:
    """Sets the clock to each of `moments`. A moment without a date is on the first day of the schedule."""
    monkeypatch.setattr("random.uniform", lambda _, longest: longest)  # the longest jitter
    wall = Wall("2026-11-22T03:00")
    asleep = small(tmp_path, "raise SystemExit(4)", cron=cron, wall=wall, **table)
    looks = threading.Semaphore(0)
    look = asleep._look

    def count_look() -> Any:
        found = look()
        looks.release()
        return found

    asleep._look = count_look  # type: ignore[method-assign]
    with started(asleep):
        for moment in moments:
            looks.acquire(timeout=60)
            at = f"2026-11-22{moment}" if moment.startswith("T") else moment
            wall.now = datetime.fromisoformat(at).replace(tzinfo=UTC)
            while looks.acquire(blocking=False):
                pass
            looks.acquire(timeout=60)  # may have begun before the jump
            looks.acquire(timeout=60)
        assert runs_of(tmp_path) == runs
        due = datetime.fromisoformat(read_runs(tmp_path)["next_run"])
        assert wall.now < due < wall.now + timedelta(days=2), "the next one is not lost"


@pytest.mark.parametrize(
    "damage", ["missing", "a file", "lock is a folder", "schedule.json is a folder", "dangling"]
)
def test_a_schedule_whose_models_folder_cannot_be_written_ends_at_its_start(
    tmp_path: Path, damage: str
) -> None:
    models = tmp_path / "models"
    if damage == "a file":
        models.write_text("")
    elif damage == "dangling":
        models.symlink_to(tmp_path / "nowhere")
    elif damage != "missing":
        name = ".lock" if damage.startswith("lock") else "schedule.json"
        (models / name / "full").mkdir(parents=True)
    with pytest.raises(TrainingError) as refused:
        small(models, "raise SystemExit(4)").start()
    assert f"The models folder {models} cannot be written: " in str(refused.value)
    assert "folders.models in retrain.toml" in str(refused.value)


@pytest.mark.parametrize(
    ("cron", "after", "due"),
    [
        ("30 3 * * *", "2026-11-21T12:00", "2026-11-22T03:30"),  # a Saturday
        ("0 0 * * 0", "2026-11-21T12:00", "2026-11-22T00:00"),  # 0 is Sunday
        ("0 0 * * 7", "2026-11-21T12:00", "2026-11-22T00:00"),  # 7 as well
        ("0 0 * * 1-5", "2026-11-21T12:00", "2026-11-23T00:00"),
        ("0 0 * * 0-2", "2026-11-23T12:00", "2026-11-24T00:00"),
        ("0 0 * * 1-5/2,6", "2026-11-23T12:00", "2026-11-25T00:00"),
        ("0 0 * * mon", "2026-11-21T12:00", "2026-11-23T00:00"),
        ("0 0 * * */2", "2026-11-21T12:00", "2026-11-22T00:00"),  # Sunday, Tuesday, Thursday, Saturday
        ("0 0 1 * 1", "2026-11-24T12:00", "2026-11-30T00:00"),  # the first of a month, or a Monday
        ("0 0 1 * 1", "2026-11-30T12:00", "2026-12-01T00:00"),
        ("15 * * * * *", "2026-11-21T12:00", "2026-11-21T12:00:15"),
    ],
)
def test_the_clock_reads_cron_as_cron_does(cron: str, after: str, due: str) -> None:
    now = datetime.fromisoformat(after).replace(tzinfo=UTC)
    found = clock(ScheduleTable(cron=cron, jitter_seconds=0)).get_next_fire_time(None, now)
    assert found == datetime.fromisoformat(due).replace(tzinfo=UTC)


PAGE = Path(__file__).parents[3] / "service" / "ui" / "views" / "versions.js"


@pytest.mark.long
def test_a_retraining_tells_its_step_its_lines_and_how_long_it_takes(job: Job) -> None:
    seen: list[dict[str, Any]] = []
    said: list[str] = []
    with watched(job.store.root, said.append) as watch:

        def told(event: Any) -> None:
            watch.told(event)
            seen.append(read_progress(job.store.root, datetime.now(UTC)))

        options = replace(job.options, told=told, record_steps=1, eval_steps=1)
        retrain(replace(job, options=options), watch.say)
        last = read_progress(job.store.root, datetime.now(UTC))
    assert not (job.store.root / PROGRESS).exists(), "it is over"
    training = seen[:1] + seen[-1:]
    assert (training[0]["doing"], training[0]["step"]) == ("training", 0)
    assert training[0]["eta_seconds"] is None, "there is no pace yet"
    assert [name for name, _ in training[-1]["loss"]] == [1, 2, 3]
    assert training[-1]["step"] == training[-1]["steps"] == 3
    assert training[-1]["eta_seconds"] == 0
    assert training[-1]["dev_name"] == "stsb_dev"
    assert [step for step, _ in training[-1]["dev"]] == [1, 2, 3]
    assert last["doing"] == said[-1] == "timing both"
    [line_of_phases] = re.findall(r"const PHASES = \[(.*)\];", PAGE.read_text(encoding="utf-8"))
    patterns = re.findall(r"/(\^[^/]+)/", line_of_phases)
    known = [[at for at, one in enumerate(patterns, 1) if re.match(one, line)] for line in said]
    trained = next(at for at, phases in enumerate(known) if 5 in phases)
    phases = [found[0] if at < trained else found[-1] for at, found in enumerate(known) if found]
    assert phases == sorted(phases)
    calibrating = set() if has_int8() else {7}  # left out where the processor has no int8
    assert {*phases, 1, 2, 4} == set(range(1, 10)) - calibrating, f"the page names these phases: {said}"


def test_steps_are_written_once_a_second_at_most(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [1000.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    watch = Watch(tmp_path, lambda _: None)
    watch.told({"event": "start", "steps": 100})
    for step, second in ((10, 0.5), (20, 0.9), (30, 1.1)):
        now[0] = 1000 + second
        watch.told({"event": "step", "step": step, "loss": 1.0})
        found = json.loads((tmp_path / PROGRESS).read_bytes())
        assert found["step"] == (30 if step == 30 else 0)
    assert found["eta_seconds"] == pytest.approx(1.1 * 70 / 30, abs=0.1)


def test_a_models_folder_that_is_away_ends_no_training(tmp_path: Path) -> None:
    models = tmp_path / "models"
    models.mkdir()
    with watched(models, lambda _: None) as watch:
        watch.say("scoring")
        assert (models / PROGRESS).exists()
        shutil.rmtree(models)
        watch.say("training")
