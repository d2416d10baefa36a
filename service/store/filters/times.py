"""Parses times in filters: texts that are RFC 3339 date-times, compared by time instead of letter by letter.

A time is `2024-05-01T08:30:00.25+02:00`: a date, `T` or a space, hours to seconds, and optionally a fraction
(up to 30 digits) and a zone (`Z` or an offset). A time without a zone is in UTC, and a date alone is midnight
UTC. `:60` is accepted for a leap second, the last second of a day in UTC, and equals the second after it. Any
other text, such as `2024-02-30` or `24:00:00`, is not a time.

Times are compared by their instants. An instant is a text whose order is the order in time: the seconds since
the day before the year 0 in 12 digits, and then the digits of the fraction without trailing zeros. The SQL
function simile_instant computes the same text in SQLite (sqlite/filters.py) and in PostgreSQL.
"""

import re
from datetime import date
from typing import NamedTuple

_TIME = re.compile(
    r"([0-9]{4})-([0-9]{2})-([0-9]{2})"
    r"(?:[Tt ]([0-9]{2}):([0-9]{2}):([0-9]{2})(?:\.([0-9]{1,30}))?(?:[Zz]|([+-])([0-9]{2}):([0-9]{2}))?)?"
)
DAY = 86_400  # Seconds.
_ZONE = DAY - 60  # The largest offset.
_YEAR_0 = 366  # Days from the day before the year 0 to the origin of Python's ordinals.
# The first and the last second of all times.
EARLIEST, LATEST = DAY - _ZONE, DAY * (date.max.toordinal() + _YEAR_0 + 1) - 1 + _ZONE
_CYCLE = 146_097  # Days of 400 years, after which the calendar repeats itself.


class Time(NamedTuple):
    """A time as a filter compares it: as it was written, and its instant as in the module's docstring.

    If the date of another time is not between `earliest` and `latest`, the order of the two texts is
    their order in time.
    """

    text: str
    instant: str

    @property
    def earliest(self) -> str:
        """The first date that an equal time can have, in any zone."""
        return show_date(int(self.instant[:12]) // DAY - 1)

    @property
    def latest(self) -> str:
        """The last date that an equal time can have, in any zone."""
        return show_date(int(self.instant[:12]) // DAY + 1)


def parse_time(text: object) -> Time | None:
    """Parses a text as a time. Returns None if the value is not a time."""
    if not isinstance(text, str) or (found := _TIME.fullmatch(text)) is None:
        return None
    year, month, day, hour, minute, second, fraction, sign, hours, minutes = found.groups(default="0")
    if int(hour) > 23 or int(minute) > 59 or int(second) > 60 or int(hours) > 23 or int(minutes) > 59:
        return None
    try:
        days = day_number(int(year), int(month), int(day))
    except ValueError:
        return None
    clock = (int(hour) * 60 + int(minute)) * 60 + int(second)
    offset = (int(hours) * 60 + int(minutes)) * 60
    whole = days * DAY + clock + (offset if sign == "-" else -offset)
    if int(second) == 60 and whole % DAY:
        return None
    return Time(text, f"{whole:012d}{fraction.rstrip('0')}")


def show_time(seconds: int, fraction: str = "") -> str:
    """Returns a time as a text: a date alone for midnight UTC, else a date-time in UTC.

    An instant outside of the years 0000 to 9999 has another zone, because it has no date in UTC.

    Args:
        seconds: Whole seconds of an instant.
        fraction: Digits of its fraction.
    """
    shift, zone = 0, "Z"
    if seconds < DAY:
        shift, zone = _ZONE, "+23:59"
    elif seconds > LATEST - _ZONE:
        shift, zone = -_ZONE, "-23:59"
    day, clock = divmod(seconds + shift, DAY)
    if not clock and not fraction and not shift:
        return show_date(day)
    hour, minute, second = clock // 3600, clock // 60 % 60, clock % 60
    ending = f".{fraction}" if fraction else ""
    return f"{show_date(day)}T{hour:02}:{minute:02}:{second:02}{ending}{zone}"


def day_number(year: int, month: int, day: int) -> int:
    """Returns the number of days since the day before the year 0. The module datetime starts at year 1."""
    if year == 0:
        return date(400, month, day).toordinal() + _YEAR_0 - _CYCLE
    return date(year, month, day).toordinal() + _YEAR_0


def show_date(number: int) -> str:
    """Returns the date with a day number, such as `2024-05-01`.

    For days before the year 0000 or after 9999, returns a text that sorts before or after all dates.
    """
    if number <= 0:
        return "0000-00-00"
    if number <= _YEAR_0:
        return f"0000{date.fromordinal(number - _YEAR_0 + _CYCLE).isoformat()[4:]}"
    if number - _YEAR_0 > date.max.toordinal():
        return "9999-99-99"
    return date.fromordinal(number - _YEAR_0).isoformat()
