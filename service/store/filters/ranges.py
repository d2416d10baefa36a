"""Cuts the numbers or the times of a facet into ranges with round borders.

Start at `cut_numbers` and `cut_times`. Most ranges are equally wide. The first and the last one also reach
over the rare values outside, so that one odd value does not make all ranges wide. The last border is None if
no finite number, or no time that can be written, is larger than all values.
"""

from decimal import Decimal
from fractions import Fraction
from itertools import pairwise
from math import floor
from sys import float_info

from service.store.filters.grammar import INT64
from service.store.filters.times import DAY, EARLIEST, LATEST, day_number, show_date, show_time

Number = int | float
_SECONDS = (1, 5, 15, 30, 60, 300, 900, 1800, 3600, 10_800, 21_600, 43_200, DAY)
_MAX_MONTH = 9999 * 12 + 11
_MONTHS = (1, 3, 6, *(12 * digit * 10**power for power in range(5) for digit in (1, 2, 5)))


def cut_numbers(
    least: Number, low: Number, high: Number, greatest: Number, count: int, *, whole: bool
) -> list[Number | None]:
    """Returns the ascending borders of at most `count` ranges.

    Args:
        least: The smallest number.
        low: The number below which only a small share of the values are.
        high: The number above which only a small share of the values are, larger than `low`.
        greatest: The largest number.
        count: Maximum number of ranges.
        whole: Whether all numbers are whole, so that the borders are whole as well.
    """
    first, last = _exact(low), _exact(high)
    power = _power(last - first) - 3
    power = max(power, 0) if whole else power
    steps = (digit * Fraction(10) ** exponent for exponent in range(power, 400) for digit in (1, 2, 5))
    step = next(step for step in steps if floor(last / step) - floor(first / step) < max(2, count))
    places = range(floor(first / step), floor(last / step) + 2)
    borders = [_number(at * step) for at in (places if count > 1 else (places[0], places[-1]))]
    if borders[0] is None or borders[0] > least:
        rounded = _number(_round(_exact(least), step))
        borders[0] = -float_info.max if rounded is None else rounded
    if borders[-1] is not None and borders[-1] <= greatest:
        borders[-1] = _number(_round(_exact(greatest), step) + _unit(_exact(greatest), step))
    # Borders that are too close are one number.
    return [borders[0], *(high for low, high in pairwise(borders) if low != high)]


def _exact(number: Number) -> Fraction:
    """Returns a number as it is written, so that 0.6 is three times 0.2."""
    return Fraction(str(number))


def _power(value: Fraction) -> int:
    """Returns the power of ten of the first digit of a number; 0 for 0."""
    return (Decimal(value.numerator) / Decimal(value.denominator)).adjusted() if value else 0


def _unit(value: Fraction, step: Fraction) -> Fraction:
    return max(Fraction(10) ** _power(value), step) if value else step


def _round(value: Fraction, step: Fraction) -> Fraction:
    """Rounds a number down to its first digit, or to a multiple of `step` if that is wider."""
    unit = _unit(value, step)
    return floor(value / unit) * unit


def _number(value: Fraction) -> Number | None:
    if value.denominator == 1 and -INT64 <= value < INT64:
        return int(value)
    try:
        return float(value)
    except OverflowError:
        return None


def cut_times(least: int, low: int, high: int, greatest: int, count: int) -> list[str | None]:
    """Returns the ascending borders of at most `count` ranges, as `cut_numbers` does.

    Args:
        least: The first time, in the seconds of an instant (times.py).
        low: The time before which only a small share of the values are.
        high: The time after which only a small share of the values are.
        greatest: The last time.
        count: Maximum number of ranges.
    """
    borders = _find_times(low, high, max(2, count))
    if count == 1:
        borders = [borders[0], borders[-1]]
    if borders[0] is None or borders[0] > least:
        start = _month_start(_month(least) // 12 * 12)
        borders[0] = start if start is not None and start <= least else EARLIEST
    if borders[-1] is not None and borders[-1] <= greatest:
        borders[-1] = _month_start((_month(greatest) // 12 + 1) * 12)
    return [
        None if border is None or border > LATEST else show_time(max(border, EARLIEST)) for border in borders
    ]


def _find_times(low: int, high: int, count: int) -> list[int | None]:
    for step in _SECONDS:
        if high // step - low // step < count:
            return [at * step for at in range(low // step, high // step + 2)]
    first, last = _month(low), _month(high)
    step = next(step for step in _MONTHS if last // step - first // step < count)
    return [_month_start(at * step) for at in range(first // step, last // step + 2)]


def _month(seconds: int) -> int:
    """Returns the number of a month, counted from the year 0. Times outside of all years are moved."""
    year, month, _ = show_date(seconds // DAY).split("-")
    return max(0, min(int(year) * 12 + int(month) - 1, _MAX_MONTH))


def _month_start(month: int) -> int | None:
    """Returns the first second of a month. None if its year is not between 0 and 9999."""
    year, month = divmod(month, 12)
    return day_number(year, month + 1, 1) * DAY if 0 <= year <= 9999 else None
