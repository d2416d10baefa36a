"""schedule.cron: when a run is due, as cron(5) reads it, with seconds in front where there are six fields."""

from __future__ import annotations

from datetime import UTC, datetime

from apscheduler.triggers.base import BaseTrigger
from apscheduler.triggers.combining import OrTrigger
from apscheduler.triggers.cron import CronTrigger

from training.errors import TrainingError
from training.retraining.config import ScheduleTable

_FIELDS = ("second", "minute", "hour", "day", "month", "day_of_week")
_DAYS = ("sun", "mon", "tue", "wed", "thu", "fri", "sat", "sun")


def clock(table: ScheduleTable) -> BaseTrigger:
    """Raise TrainingError for a cron expression or time zone that there is not, or one that is never due."""
    fields = table.cron.split()
    try:
        if len(fields) not in (5, 6):
            raise ValueError(f"it has {len(fields)} fields")  # noqa: TRY301  said together with what is meant
        given = dict(zip(_FIELDS, fields if len(fields) == 6 else ["0", *fields], strict=True))
        given["day_of_week"] = _weekdays(given["day_of_week"])
        each = [given]
        if not given["day"].startswith("*") and not given["day_of_week"].startswith("*"):
            each = [given | {"day": "*"}, given | {"day_of_week": "*"}]  # cron: either of the two
        triggers = [
            CronTrigger(**one, timezone=table.timezone, jitter=table.jitter_seconds or None) for one in each
        ]
        if all(trigger.get_next_fire_time(None, datetime.now(UTC)) is None for trigger in triggers):
            raise ValueError("it is never due")  # noqa: TRY301
    except (ValueError, LookupError) as error:
        raise TrainingError(
            f"schedule.cron {table.cron!r} in {table.timezone}: {error}. "
            'Five fields are meant, as "30 3 * * *" for half past three every night.'
        ) from None
    return triggers[0] if len(triggers) == 1 else OrTrigger(triggers)


def _weekdays(field: str) -> str:
    """Cron counts days from Sunday, 0 or 7, and APScheduler from Monday: numbers become names."""
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
