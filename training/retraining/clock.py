"""schedule.cron: when a run is due, as cron(5) reads it, with seconds in front where there are six fields."""

from __future__ import annotations

from apscheduler.triggers.cron import CronTrigger

from training.errors import TrainingError

from .config import ScheduleTable

_FIELDS = ("second", "minute", "hour", "day", "month", "day_of_week")
_DAYS = ("sun", "mon", "tue", "wed", "thu", "fri", "sat", "sun")


def clock(table: ScheduleTable) -> CronTrigger:
    """Raise TrainingError for a cron expression or a time zone that there is not."""
    fields = table.cron.split()
    try:
        if len(fields) not in (5, 6):
            raise ValueError(f"it has {len(fields)} fields")  # noqa: TRY301  said together with what is meant
        given = dict(zip(_FIELDS, fields if len(fields) == 6 else ["0", *fields], strict=True))
        given["day_of_week"] = _weekdays(given["day_of_week"])
        trigger = CronTrigger(**given, timezone=table.timezone)
    except (ValueError, LookupError) as error:
        raise TrainingError(
            f"schedule.cron {table.cron!r} in {table.timezone}: {error}. "
            'Five fields are meant, as "30 3 * * *" for half past three every night.'
        ) from None
    trigger.jitter = table.jitter_seconds or None
    return trigger


def _weekdays(field: str) -> str:
    """Cron counts days from Sunday, 0 or 7, and APScheduler from Monday: numbers become names."""
    if not any(letter.isdigit() for letter in field) or field.startswith("*"):
        return field
    days: list[int] = []
    for part in field.split(","):
        span, _, step = part.partition("/")
        first, _, last = span.partition("-")
        if not (first.isdigit() and (last or first).isdigit() and (step or "1").isdigit()):
            raise ValueError(f"the weekday {part!r} is not understood")
        days += range(int(first), int(last or first) + 1, int(step or 1))
    if not days or not all(0 <= day <= 7 for day in days):
        raise ValueError("weekdays are 0 (Sunday) to 7")
    return ",".join(dict.fromkeys(_DAYS[day] for day in days))
