"""How numbers, times and names are written, the same in every format of the report."""

from __future__ import annotations

import math
from datetime import UTC, datetime
from typing import Any

from .load import number

NONE = "\N{EN DASH}"


def count(value: Any) -> str:
    """A whole number with its thousands apart."""
    found = number(value)
    if found is None:
        return NONE
    return f"{found:,.0f}" if math.isfinite(found) else ratio(found)


def ratio(value: Any) -> str:
    """Error over bound."""
    found = number(value)
    if found is None:
        return NONE
    if math.isnan(found):
        return "NaN"
    if math.isinf(found):
        return "∞" if found > 0 else "-∞"
    if found == 0:
        return "0"
    return f"{found:.3f}" if 0.0005 <= abs(found) < 1000 else f"{found:.2g}"


def rate(value: Any) -> str:
    """Cases a second."""
    found = number(value)
    if found is None or not math.isfinite(found):
        return NONE
    return f"{found:,.0f}" if found >= 100 else f"{found:.1f}" if found >= 0.95 else f"{found:.2g}"


def duration(value: Any) -> str:
    """Seconds in the units that a person would use."""
    found = number(value)
    if found is None or not math.isfinite(found):
        return NONE
    if found < 10:
        return f"{found:.1f} s"
    seconds = round(found)
    if seconds < 60:
        return f"{seconds} s"
    minutes, seconds = divmod(seconds, 60)
    if minutes < 60:
        return f"{minutes} min {seconds} s" if seconds else f"{minutes} min"
    hours, minutes = divmod(minutes, 60)
    return f"{hours:,} h {minutes} min" if minutes else f"{hours:,} h"


def percent(part: float, *, of: float) -> str:
    """A share, never rounded to all or nothing when it is not."""
    if not of:
        return NONE
    share = 100 * part / of
    if 0 < share < 0.1:
        return "< 0.1 %"
    if 99.9 < share < 100:
        return "> 99.9 %"
    return f"{share:.1f} %" if share not in (0, 100) else f"{share:.0f} %"


def plural(value: int, one: str, *, many: str = "") -> str:
    """A count with its noun."""
    return f"{count(value)} {one if value == 1 else many or one + 's'}"


def when(value: Any) -> datetime | None:
    """A moment in UTC from ISO 8601, None for anything else."""
    try:
        found = datetime.fromisoformat(str(value))
        return (found if found.tzinfo else found.replace(tzinfo=UTC)).astimezone(UTC)
    except (ValueError, OverflowError):
        return None


def moment(value: Any) -> str:
    """A moment to the minute, as it was written where it is none."""
    found = when(value)
    return f"{found:%Y-%m-%d %H:%M} UTC" if found else str(value or NONE)


def family(test: str) -> str:
    """What the file of a property is about: "gradients" for properties/test_gradients.py::test_x."""
    file = test.rpartition("::")[0] or test
    return file.rpartition("/")[2].removesuffix(".py").removeprefix("test_").replace("_", " ")


def title(test: str) -> str:
    """The name of a property in words."""
    return test.rpartition("::")[2].removeprefix("test_").replace("_", " ")


def one_line(value: Any, *, most: int = 300) -> str:
    """A text without line breaks, cut where it is longer than anybody reads."""
    text = " ".join(str(value).split())
    return text if len(text) <= most else text[: most - 1] + "…"
