"""`simile schedule --config retrain.toml`: retrain by clock, documents or request.

    clock (cron) ────────────────────┐
    a number of new documents ───────┤
    POST /retraining ────────────────┴─▶ python -m training retrain --config …   in a separate process
                                                 └─▶ MODELS_DIR/schedule.json: last run, next run

Only one retraining runs at a time: a run that becomes due during another run is skipped. The run after a
killed run continues it. SIGTERM stops the current run and then the schedule.

The wall clock may jump, if a machine sleeps, a container is paused, or NTP sets the time. If runs became due
in between, one run starts as soon as the jump is noticed.
"""

from __future__ import annotations

import argparse
import contextlib
import logging
import os
import random
import resource
import signal
import subprocess
import sys
import threading
import time
from collections import Counter, deque
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

from apscheduler.triggers.base import BaseTrigger
from apscheduler.triggers.combining import OrTrigger
from apscheduler.triggers.cron import CronTrigger

from models.files.retrainings import (
    FAILED,
    OUTCOMES,
    give_sign,
    now,
    read_request,
    read_runs,
    remove_progress,
    take_request,
    write_runs,
)
from models.messages import amount
from models.store import ModelStore
from training.errors import TrainingError
from training.retraining.config import Config, ScheduleTable, check_names, read_config
from training.retraining.workplace import OtherFolder, require_same_folder
from training.text.service import fetch_count

log = logging.getLogger(__name__)

_STOPPING_SECONDS = 30.0  # A stopped run ends after its step, or is killed after this time.
_LOOK_SECONDS = 2.0  # maximum time between two checks of the clock and of requests
_SIGN_SECONDS = 10.0  # time between two signs of life, even during a run
_SET_BACK = timedelta(minutes=1)  # If the clock is set back by less, the next run does not move.
_RUNS_KEPT = 1000  # remembered times of past runs, so that no time gets a second run
_SAID = 2000  # characters of a run's last output that are kept
_REASON = 500  # characters of its last line, for the list of runs
_ENDS = 10  # length of the list of runs
_CAME_TO_AN_END = (0, 3, 4)  # exit statuses of finished runs; other runs are tried again
_NICE = 10  # A run has a lower priority than the service.
_THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "RAYON_NUM_THREADS")
_FIELDS = ("second", "minute", "hour", "day", "month", "day_of_week")
_DAYS = ("sun", "mon", "tue", "wed", "thu", "fri", "sat", "sun")


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    command = commands.add_parser(
        "schedule",
        help="retrain by the clock, when documents have come, and on request",
        description="Retrain by the clock, when documents have come, and when an admin asks (POST "
        "/retraining, or the button of the page); never two at once. Ctrl-C ends it.",
    )
    command.add_argument("--config", type=Path, required=True, metavar="FILE", help="retrain.toml")
    command.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s", stream=sys.stderr)
    logging.getLogger("httpx2").setLevel(logging.WARNING)  # It logs the requests that count documents.
    config = read_config(options.config)
    check_names(config)
    if config.corpus.service is not None:  # Each run checks it again.
        try:
            require_same_folder(config.corpus.service, config.folders.models)
        except OtherFolder:
            raise
        except TrainingError as error:  # The service may start later.
            log.warning("The models folder of the service is not known yet: %s Each run checks it.", error)
    schedule = Schedule(options.config.resolve(), config)
    stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    schedule.start()
    stop.wait()
    schedule.stop()
    return 0


class Schedule:
    """Starts retrainings in a background thread, from `start` until `stop`.

    Args:
        file: retrain.toml.
        config: The content of `file`.
        wall: The wall clock, which may jump. None: the clock of the system.
        look_seconds: The longest wait between two looks at the clock and at requests.
    """

    _child: subprocess.Popen[str] | None = None

    def __init__(
        self,
        file: Path,
        config: Config,
        wall: Callable[[], datetime] | None = None,
        look_seconds: float = _LOOK_SECONDS,
    ) -> None:
        self.file, self.config, self.look_seconds = file, config, look_seconds
        self.wall = wall or partial(datetime.now, UTC)
        self._stopping, self._writing = threading.Event(), threading.Lock()
        self._models, self._clock = config.folders.models, clock(config.schedule)
        self._seen = self.wall()
        self._ran: deque[datetime] = deque(maxlen=_RUNS_KEPT)  # earlier values of `_fires` whose runs began
        self._counts_at = 0.0  # monotonic time of the next count of documents
        self._thread = threading.Thread(target=self._keep, name="schedule", daemon=True)
        self._set_due(self._seen)

    def start(self) -> None:
        """Starts the thread, which waits for the first run.

        Raises:
            TrainingError: The models folder cannot be written.

        """
        try:
            ModelStore(self._models).require_writable()
            self._write_or_raise({"running": None})  # The last schedule may have been killed.
        except OSError as error:
            raise TrainingError(
                f"The models folder {self._models} cannot be written: {error.strerror or error}. Nothing can "
                "be published there. Make it writable, or start the service once if it is missing. Or name "
                "the folder of the service (folders.models in retrain.toml, SIMILE_MODELS_DIR)."
            ) from None
        self._thread.start()
        threading.Thread(target=self._give_signs, name="signs", daemon=True).start()
        log.info("The next retraining is due at %s", self._due.isoformat(timespec="seconds"))

    def stop(self) -> None:
        """Stops the current run after its training step, and then the thread. Kills the run after 30 seconds.

        A later run on the same text continues the stopped run.
        """
        self._stopping.set()
        for end in (subprocess.Popen.terminate, subprocess.Popen.kill):
            if (child := self._child) is not None:  # The other thread sets it to None when the run ends.
                end(child)
            self._thread.join(_STOPPING_SECONDS)  # Waits until the end of the run is recorded.
        self._write({"next_run": None})

    def _give_signs(self) -> None:
        while not self._stopping.wait(_SIGN_SECONDS):
            give_sign(self._models)

    def _keep(self) -> None:
        """Checks the clock and the number of documents until `stop` is called."""
        while not self._stopping.is_set():
            try:
                self._look()
            except Exception:
                log.exception("The schedule could not begin a retraining, and tries again when one is due")
            waits = [self.look_seconds, (self._due - self.wall()).total_seconds()]
            if self.config.schedule.new_documents:
                waits.append(self._counts_at - time.monotonic())
            self._stopping.wait(max(0.0, min(waits)))

    def _look(self) -> None:
        """Runs a retraining if one is due by the clock, a request or new documents.

        If several became due since the last check, only one runs.
        """
        now, new_documents = self.wall(), self.config.schedule.new_documents
        if now < self._seen - _SET_BACK:
            log.info("The clock was set back from %s to %s", self._seen, now)
            if now < self._fires:  # Otherwise this run is pending, and stays pending.
                self._set_due(now)
                self._write({})
        self._seen = now
        if now >= self._due:
            self._ran.append(self._fires)
            self._set_due(now)
            self._run("clock")
        elif read_request(self._models) is not None:
            self._run("request")
        elif new_documents and time.monotonic() >= self._counts_at:
            self._counts_at = time.monotonic() + self.config.schedule.poll_seconds
            self._by_documents(new_documents)
        else:
            return
        if self._due <= self.wall():  # Another run became due meanwhile.
            self._set_due(self.wall())
            self._write({})

    def _set_due(self, now: datetime) -> None:
        """Sets the time of the next run after `now`.

        Skips times whose run began before the clock was set back.
        """
        self._fires = _after(self._clock, now)  # from the cron expression
        while self._fires in self._ran:
            self._fires = _after(self._clock, self._fires)
        jitter = timedelta(seconds=random.uniform(0, self.config.schedule.jitter_seconds))  # noqa: S311
        self._due = self._fires + jitter

    def _by_documents(self, enough: int) -> None:
        """Runs a retraining if `enough` documents are new since the last finished run or the first check."""
        count, known = self._count(), read_runs(self._models).get("documents")
        if count is None:
            return
        if not isinstance(known, int) or count < known:
            self._write({"documents": count})
        elif count - known >= enough:
            log.info("%d new documents", count - known)
            self._run("documents")

    def _count(self) -> int | None:
        """Counts the documents of the service. Returns None without a service or an answer."""
        if self.config.corpus.service is None:
            return None
        try:
            return fetch_count(self.config.corpus.service, self.config.corpus.collections)
        except TrainingError as error:
            log.warning("The documents cannot be counted, which is tried again: %s", error)
            return None

    def _run(self, why: str) -> None:
        """Runs a retraining and waits for its end. `why` is the reason to start it."""
        count = self._count()  # Documents that arrive later are new to the next run.
        if not take_request(self._models) and why == "request":
            return  # The models folder cannot be written now.
        began = now()
        log.info("A retraining begins (%s)", why)
        status, said = self._child_to_its_end({"started": began, "why": why})
        outcome = OUTCOMES.get(status, FAILED)
        last = {"started": began, "ended": now(), "why": why, "status": status, "outcome": outcome}
        last["reason"] = said.rpartition("\n")[2][:_REASON]
        before = read_runs(self._models)
        runs = Counter(before.get("runs") or {}) + Counter([outcome])
        ends = [last, *(before.get("ends") or [])][:_ENDS]
        more = {} if count is None or status not in _CAME_TO_AN_END else {"documents": count}
        self._write({"running": None, "last_run": last | {"said": said}, "runs": runs, "ends": ends, **more})
        log.info("It ended: %s", outcome)

    def command(self) -> list[str]:
        """Returns the command line of a run."""
        return [sys.executable, "-m", "training", "retrain", "--config", str(self.file)]

    def _child_to_its_end(self, about: dict[str, Any]) -> tuple[int, str]:
        """Runs the command and copies its output to stderr.

        Returns:
            The exit status, negative if a signal ended the process, and the end of the output.

        """
        table = self.config.schedule
        child = subprocess.Popen(  # noqa: S603  this very program
            self.command(),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            env=os.environ | dict.fromkeys(_THREADS, str(table.threads)) if table.threads else None,
            preexec_fn=lambda: _bounded(table.memory_mb),  # noqa: PLW1509  no thread of ours holds a lock there
            start_new_session=True,  # Ctrl-C reaches only the schedule, which stops the run.
        )
        self._child = child
        self._write({"running": about | {"pid": child.pid}})
        if self._stopping.is_set():  # `stop` was called meanwhile.
            child.terminate()
        said = ""
        with child:
            for line in child.stdout or ():
                sys.stderr.write(line)
                said = (said + line)[-_SAID:]
        self._child = None
        with contextlib.suppress(OSError):
            remove_progress(self._models)  # A killed run leaves its progress.
        return child.returncode, said.strip()

    def _write(self, changed: dict[str, Any]) -> None:
        try:
            self._write_or_raise(changed)
        except OSError as error:  # a full disk must not end the schedule
            log.warning("%s cannot be written: %s", self._models, error)

    def _write_or_raise(self, changed: dict[str, Any]) -> None:
        table = self.config.schedule
        due = self._due.isoformat(timespec="seconds")
        now = {"cron": table.cron, "timezone": table.timezone, "next_run": due}
        with self._writing:
            write_runs(self._models, read_runs(self._models) | now | changed)


def _bounded(memory_mb: int | None) -> None:
    """Lowers the priority of the child process, and limits its memory.

    RLIMIT_DATA does not count memory-mapped files.
    """
    os.nice(_NICE)
    if memory_mb is not None:
        limit = memory_mb << 20
        resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))


def clock(table: ScheduleTable) -> BaseTrigger:
    """Returns the trigger for schedule.cron. The syntax is cron(5); a sixth field in front means seconds.

    Raises:
        TrainingError: The cron expression or the time zone is invalid, or the expression is never due.

    """
    fields = table.cron.split()
    try:
        if len(fields) not in (5, 6):
            raise ValueError(f"it has {amount(len(fields), 'field')}")  # noqa: TRY301  said together with what is meant
        given = dict(zip(_FIELDS, fields if len(fields) == 6 else ["0", *fields], strict=True))
        given["day_of_week"] = _weekdays(given["day_of_week"])
        each = [given]
        if not given["day"].startswith("*") and not given["day_of_week"].startswith("*"):
            each = [given | {"day": "*"}, given | {"day_of_week": "*"}]  # As in cron, either is enough.
        trigger = OrTrigger([CronTrigger(**one, timezone=table.timezone) for one in each])
        _after(trigger, datetime.now(UTC))
    except (ValueError, LookupError) as error:
        raise TrainingError(
            f"schedule.cron {table.cron!r} in {table.timezone}: {error}. "
            'Five fields are meant, as "30 3 * * *" for half past three every night.'
        ) from None
    return trigger


def _after(trigger: BaseTrigger, now: datetime) -> datetime:
    """Returns the first time after `now` at which the trigger fires, in UTC. Raises ValueError without one.

    UTC is needed for the hour that occurs twice at the end of summer time. Python compares two such local
    times as equal.
    """
    found: datetime | None = trigger.get_next_fire_time(None, now + timedelta(microseconds=1))
    if found is None:
        raise ValueError("it is never due")
    return found.astimezone(UTC)


def _weekdays(field: str) -> str:
    """Replaces numbers of weekdays by names. Cron counts from Sunday (0 or 7), APScheduler from Monday."""
    if field == "*" or not any(letter.isdigit() for letter in field):
        return field
    days: list[int] = []
    for part in field.split(","):
        span, _, step = part.partition("/")
        first, _, last = ("0-6" if span == "*" else span).partition("-")
        if not (first.isdigit() and (last or first).isdigit() and (step or "1").isdigit()):
            raise ValueError(f"the weekday {part!r} is not understood")
        days += range(int(first), int(last or first) + 1, int(step or 1))
    if not days or not all(0 <= day <= 7 for day in days):
        raise ValueError("weekdays are 0 (Sunday) to 7")
    return ",".join(dict.fromkeys(_DAYS[day] for day in days))
