"""Sends the most expensive requests of every route, one and four at a time. The service must survive.

Meanwhile another client's `/health` and one-text `/embed` must answer within 1.5 s. Each request must be
answered within a second of its deadline with an expected status. The process must stay below 1 GiB, and free
the memory of the requests.

A slow case is repeated if a bare server on the same host stalls too, or if other processes leave less than
one processor. It is skipped if the host stays busy. Crashes and memory always count.
"""

import http.client
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import pytest

from models.store import ModelStore
from tests.parts.rerankers import publish_reranker
from tests.service import one_gib
from tests.service.busy_host import BUSY, Others
from tests.service.bystander import CONTROL, EMBED, HEALTH, Bystander, Look, watching
from tests.service.costly import Case, Facts, Request
from tests.service.costly_store import COLLECTION, PLACE, cases, fill
from tests.service.process import Service
from tests.waiting import until

pytestmark = pytest.mark.long

MIB = 1 << 20
DEADLINE_SECONDS, LATE_SECONDS = 2.0, 1.0
BYSTANDER_SECONDS = 1.5
STALL_SECONDS = 0.3  # If the bare server stalls this long, the host is the cause.
GIVEN_BACK = 100 * MIB
TRIES = 3
REST_SECONDS = 20  # After this time, memory counts as not freed.
TIMED_OUT = 504


class Answer(NamedTuple):
    status: int  # 0 means no answer.
    took: float


class Attacked:
    """The attacked service, and a second client (bystander.py). `renew` replaces both after a failure."""

    def __init__(self, folder: Path, models_dir: Path, prefix: tuple[str, ...]) -> None:
        # The limits of a service with 1 GiB.
        self.service = Service(folder, models_dir, SIMILE_MAX_ADMITTED_MB="64", SIMILE_MAX_ANSWERS_MB="256")
        store = ModelStore(folder / "models")
        store.request_reranker(publish_reranker(store.root))
        self._prefix = prefix
        self._file = folder / "looks"
        self._context: AbstractContextManager[Bystander]
        self.bystander: Bystander
        self.facts: Facts

    def begin(self) -> None:
        self.service.start(self._prefix)
        until(lambda: self.service.client.get("/info").json()["reranker"] is not None)
        info = self.service.client.get("/info").json()
        self.facts = Facts(info["model_version"], info["dimension"])
        fill(self.service)
        self._watch()

    def _watch(self) -> None:
        self._context = watching(self.service.port, self._file)
        self.bystander = self._context.__enter__()
        self.bystander.since(time.monotonic())

    def end(self) -> None:
        self._context.__exit__(None, None, None)
        self.service.kill()

    def renew(self) -> None:
        self.end()
        self.begin()


@pytest.fixture(scope="module")
def attacked(tmp_path_factory: pytest.TempPathFactory, tiny_models_dir: Path) -> Iterator[Attacked]:
    with one_gib.limited() as prefix:
        place = Attacked(tmp_path_factory.mktemp("attacked"), tiny_models_dir, prefix)
        place.begin()
        yield place
        place.end()
        place.service.client.close()


def send(port: int, method: str, request: Request) -> Answer:
    """Sends a request with a deadline, and waits for longer than an answer may take."""
    headers = {"x-timeout-ms": str(int(1000 * DEADLINE_SECONDS)), "Content-Type": request.kind}
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    began = time.monotonic()
    status = 0
    try:
        with suppress(BrokenPipeError, ConnectionResetError):  # The answer came before the body was sent.
            connection.request(method, request.path, request.body or None, headers)
        answer = connection.getresponse()
        status = answer.status
        answer.read()
    except (OSError, http.client.HTTPException):
        status = 0
    connection.close()
    return Answer(status, time.monotonic() - began)


@dataclass
class Outcome:
    """Results of one attack."""

    looks: list[Look] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    doubted: list[str] = field(default_factory=list)  # too slow, perhaps because of the host
    starved: bool = False  # Other processes left less than one processor.

    def slow(self, said: str, begin: float, end: float) -> None:
        """Records `said` about a slow step: as doubted if the host may be the cause, else as failed."""
        bare = [look for look in self.looks if look.what == CONTROL]
        stalled = [look.took for look in bare if look.answered > begin and look.requested < end]
        doubtful = self.starved or max(stalled, default=STALL_SECONDS) >= STALL_SECONDS
        (self.doubted if doubtful else self.failed).append(said)


def attack(place: Attacked, case: Case, count: int) -> Outcome:
    process = place.service.process
    method, _ = case.route.split()
    case.prepare(place.service, case.at)
    request = case.make(place.facts)
    before = one_gib.resident(process.pid)
    one_gib.forget_peak(process.pid)
    others = Others(process.pid)
    begin = time.monotonic()
    with ThreadPoolExecutor(count) as pool:
        answers = list(pool.map(lambda _: send(place.service.port, method, request), range(count)))
    end = time.monotonic()
    if process.poll() is not None:
        return Outcome(failed=[f"the process ended with status {process.returncode}"])
    outcome = Outcome(place.bystander.since(begin), starved=others.leave_none())
    for answer in answers:
        if answer.status not in case.expected | (case.beside if count > 1 else set()):
            said = f"answered with {answer.status or 'nothing'} after {answer.took:.1f} s"
            if answer.status == TIMED_OUT:
                outcome.slow(said, begin, end)
            else:
                outcome.failed.append(f"{said}, and not with {sorted(case.expected)}")
        elif case.timed and answer.took > DEADLINE_SECONDS + LATE_SECONDS:
            outcome.slow(f"answered with {answer.status} after {answer.took:.1f} s", begin, end)
    look_at_bystander(outcome)
    look_at_memory(outcome, process.pid, before)
    return outcome


def look_at_bystander(outcome: Outcome) -> None:
    for what in (HEALTH, EMBED):
        seen = [look for look in outcome.looks if look.what == what]
        # 429 is allowed: the bodies of the attack may fill the limit of admitted bytes.
        wrong = {look.status for look in seen} - ({200} if what == HEALTH else {200, 429})
        if wrong or not seen:
            outcome.failed.append(f"the bystander's {what} got {sorted(wrong) or 'no answer'}")
        worst = max(seen, key=lambda look: look.took, default=None)
        if worst and worst.took > BYSTANDER_SECONDS:
            said = f"the bystander's {what} took {worst.took:.1f} s"
            outcome.slow(said, worst.requested, worst.answered)


def look_at_memory(outcome: Outcome, process: int, before: int) -> None:
    peak = one_gib.peak(process)
    if peak >= one_gib.GIB:
        outcome.failed.append(f"{peak / MIB:.0f} MiB at the most")
    deadline = time.monotonic() + REST_SECONDS
    while (left := one_gib.resident(process) - before) > GIVEN_BACK and time.monotonic() < deadline:
        time.sleep(0.1)
    if left > GIVEN_BACK:
        outcome.failed.append(f"{left / MIB:.0f} MiB more than before were not given back")


CASES = cases()


@pytest.mark.parametrize("count", [1, 4])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_request_that_costs_most_harms_nobody(attacked: Attacked, case: Case, count: int) -> None:
    outcome = Outcome()
    for _ in range(TRIES):
        outcome = attack(attacked, case, count)
        if outcome.failed:
            attacked.renew()
            pytest.fail(f"{case}, {count} at a time: {'; '.join(outcome.failed)}", pytrace=False)
        if not outcome.doubted:
            return
    pytest.skip(f"{BUSY} in {TRIES} tries: {'; '.join(outcome.doubted)}")


def test_every_route_has_a_case(attacked: Attacked) -> None:
    paths = attacked.service.client.get("/openapi.json").json()["paths"]
    methods = {"get", "post", "put", "patch", "delete"}
    routes = {
        f"{method.upper()} {path}" for path, known in paths.items() for method in known if method in methods
    }
    assert routes - {case.route for case in CASES} == set(), (
        "write a case for it in costly.py or costly_store.py"
    )
    assert {case.route for case in CASES} - routes == set(), "no route has this name any more"


def test_a_collection_is_asked_where_there_is_one(attacked: Attacked) -> None:
    inside = [
        case.make(attacked.facts).path for case in CASES if case.route.split()[1].startswith(COLLECTION + "/")
    ]
    assert inside
    assert all(path.startswith(PLACE) for path in inside)
