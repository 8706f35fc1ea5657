"""The figures of the single cases: how close to the bound, against what they grow, and how the runs developed."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from markupsafe import Markup

from . import svg, text
from .points import Cloud, Column, Points
from .scores import Night

WIDTH, HEIGHT = 262.0, 190.0
# Above that many points a picture of each is a blot of a megabyte; a density tells more.
MOST_DOTS = 600
CELLS = (44, 30)
LEVELS = 5
LINE_BINS = 28
HISTOGRAM_BINS = 25
SUPERSCRIPT = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


@dataclass(frozen=True, kw_only=True)
class Panel:
    """One small figure.

    Attributes:
        title: its heading.
        picture: an SVG element.
        note: what it does not show, "" where it shows everything.
    """

    title: str
    picture: Markup
    note: str = ""


def histograms(points: Points) -> list[Panel]:
    """Draw the distribution of error over bound of each output, a line for each dtype."""
    panels = []
    edges = np.linspace(0.0, 1.0, HISTOGRAM_BINS + 1)
    for number, output in enumerate(points.outputs):
        by_dtype = points.clouds[output]
        figure, axis = svg.axes(width=WIDTH, height=HEIGHT)
        least, outside, total = 1.0, 0, 0
        for dtype in points.dtypes:
            cloud = by_dtype.get(dtype)
            if cloud is None or not len(cloud):
                continue
            inside = cloud.ratio[(cloud.ratio >= 0.0) & (cloud.ratio <= 1.0)]
            total += len(cloud)
            outside += len(cloud) - len(inside)
            least = min(least, 1.0 / len(cloud))
            share = np.histogram(inside, edges)[0] / len(cloud)
            shown = np.where(share > 0, share, np.nan)
            axis.stairs(shown, edges, color=svg.COLOURS[dtype], linewidth=1.6, baseline=None)
        _limit(axis)
        axis.set_yscale("log")
        axis.set_ylim(least / 1.6, 1.6)
        axis.set_xlim(-0.02, 1.06)
        axis.set_xticks([0.0, 0.25, 0.5, 0.75, 1.0], ["0", "¼", "½", "¾", "1"])
        _powers(axis.yaxis, least / 1.6, 1.6, most=4)
        _labels(axis, "error / bound", "share of cases")
        worst = max((_largest(cloud.ratio) for cloud in by_dtype.values()), default=0.0)
        label = f"Distribution of error over bound of {total} cases by dtype; the largest is {text.ratio(worst)}"
        note = f"{text.plural(outside, 'case')} above 1 or not finite" if outside else ""
        panels.append(Panel(title=output, picture=svg.inline(figure, label=label, prefix=f"h{number}"), note=note))
    return panels


def against_magnitude(points: Points, output: str, *, number: int) -> list[Panel]:
    """Draw error against the magnitude of the exact result, a panel for each dtype.

    Args:
        points: of the run.
        output: which one.
        number: of the output, for identifiers.
    """

    def select(cloud: Cloud) -> tuple[Column, ...]:
        return cloud.magnitude, cloud.error, cloud.bound, cloud.likely

    return _clouds(points, output, select, across="magnitude", up="error", prefix=f"m{number}")


def against_collisions(points: Points, output: str) -> list[Panel]:
    """Draw error, as a part of what was summed, against the largest number of samples that met in one pixel."""

    def select(cloud: Cloud) -> tuple[Column, ...]:
        with np.errstate(divide="ignore", invalid="ignore", over="ignore", under="ignore"):
            parts = [column / cloud.magnitude for column in (cloud.error, cloud.bound, cloud.likely)]
        return cloud.collisions, *parts

    return _clouds(points, output, select, across="collisions", up="error / magnitude", prefix="n")


def _clouds(
    points: Points, output: str, select: Callable[[Cloud], tuple[Column, ...]], *, across: str, up: str, prefix: str
) -> list[Panel]:
    panels = []
    for dtype in points.dtypes:
        cloud = points.clouds.get(output, {}).get(dtype)
        if cloud is None:
            continue
        x, y, bound, likely = select(cloud)
        place = np.isfinite(x) & (x > 0)
        told = place & ~np.isnan(y)
        if not told.any():
            continue
        drawn = told & np.isfinite(y) & (y > 0)
        picture = Markup()
        if drawn.any():
            figure, axis = svg.axes(width=WIDTH, height=HEIGHT)
            beyond = drawn & ~(cloud.ratio <= 1.0)
            _points(axis, x[drawn], y[drawn], svg.COLOURS[dtype])
            if beyond.any():
                _dots(axis, x[beyond], y[beyond], svg.COLOURS["bad"], size=5.0)
            _line(axis, x[place], likely[place], dashed=True)
            _line(axis, x[place], bound[place], dashed=False)
            _powers(axis.xaxis, *axis.get_xlim(), most=4)
            _powers(axis.yaxis, *axis.get_ylim(), most=5)
            _labels(axis, across, up)
            label = (
                f"{up} of {output} against {across} in {dtype}: {int(drawn.sum())} cases, {int(beyond.sum())} above "
                f"their bound, largest error over bound {text.ratio(_largest(cloud.ratio))}"
            )
            picture = svg.inline(figure, label=label, prefix=f"{prefix}-{dtype}")
        panels.append(Panel(title=dtype, picture=picture, note=_left_out(y[told])))
    return panels


def _left_out(y: Column) -> str:
    exact, endless = int((y == 0).sum()), int(np.isinf(y).sum())
    parts = [f"{text.count(exact)} exact"] if exact else []
    parts += [f"{text.count(endless)} infinite"] if endless else []
    return f"not shown: {', '.join(parts)}" if parts else ""


def _points(axis: Any, x: Column, y: Column, colour: str) -> None:
    """Each point where they are few, else how dense they lie."""
    axis.set_xscale("log")
    axis.set_yscale("log")
    (left, right), (bottom, top) = _span(x), _span(y)
    axis.set_xlim(left, right)
    axis.set_ylim(bottom, top)
    if len(x) <= MOST_DOTS:
        _dots(axis, x, y, colour, size=3.0)
        return
    counts, columns, rows = np.histogram2d(
        x, y, bins=[np.geomspace(left, right, CELLS[0] + 1), np.geomspace(bottom, top, CELLS[1] + 1)]
    )
    most = math.log1p(counts.max())
    steps = np.ceil(LEVELS * np.log1p(counts) / most).astype(int)
    for level in range(1, LEVELS + 1):
        squares = [(columns[i], rows[j], columns[i + 1], rows[j + 1]) for i, j in np.argwhere(steps == level)]
        _rectangles(axis, squares, colour, alpha=level / LEVELS)


def _span(values: Column) -> tuple[float, float]:
    """Limits of a logarithmic axis around some values, half a decade at least."""
    low, high = math.log10(values.min()), math.log10(values.max())
    space = max(0.06 * (high - low), 0.25)
    # float64 ends there, and so does every tick.
    return 10.0 ** max(low - space, -320.0), 10.0 ** min(high + space, 308.0)


def _dots(axis: Any, x: Column, y: Column, colour: str, *, size: float) -> None:
    """All points in one path, a tenth of the size of a marker each: lines of no length with round ends."""
    from matplotlib.patches import PathPatch  # noqa: PLC0415 - an optional extra
    from matplotlib.path import Path  # noqa: PLC0415

    ends = np.repeat(np.column_stack([x, y]), 2, axis=0)
    codes = np.tile([Path.MOVETO, Path.LINETO], len(x))
    axis.add_patch(
        PathPatch(
            Path(ends, codes), fill=False, edgecolor=colour, linewidth=size, capstyle="round", alpha=0.75, zorder=3
        )
    )


def _rectangles(axis: Any, squares: Sequence[tuple[float, ...]], colour: str, *, alpha: float) -> None:
    from matplotlib.patches import PathPatch  # noqa: PLC0415 - an optional extra
    from matplotlib.path import Path  # noqa: PLC0415

    if not squares:
        return
    corners = [((a, b), (c, b), (c, d), (a, d), (a, b)) for a, b, c, d in squares]
    codes = [Path.MOVETO, Path.LINETO, Path.LINETO, Path.LINETO, Path.CLOSEPOLY] * len(squares)
    path = Path(np.concatenate([np.asarray(one) for one in corners]), codes)
    axis.add_patch(PathPatch(path, facecolor=colour, edgecolor="none", linewidth=0.0, alpha=alpha, zorder=3))


def _line(axis: Any, x: Column, y: Column, *, dashed: bool) -> None:
    """Draw the median of a bound where cases are, in bins of equal width on the axis; raises the axis to show it."""
    known = np.isfinite(y) & (y > 0)
    if not known.any():
        return
    x, y = x[known], y[known]
    left, right = axis.get_xlim()
    bins = np.digitize(np.log10(x), np.linspace(math.log10(left), math.log10(right), LINE_BINS + 1))
    places = [bins == one for one in np.unique(bins)]
    across = [_middle(x[place]) for place in places]
    up = [_middle(y[place]) for place in places]
    bottom, top = axis.get_ylim()
    axis.set_ylim(min(bottom, min(up) / 1.8), max(top, max(up) * 1.8))
    if len(places) == 1:
        # One place has no line; a short one shows the height.
        across, up = [across[0] / 1.25, across[0] * 1.25], up * 2
    colour, dashes = (svg.COLOURS["soft"], (0, (3, 2.4))) if dashed else (svg.COLOURS["ink"], "solid")
    axis.plot(across, up, color=colour, linestyle=dashes, linewidth=1.5, zorder=4, solid_joinstyle="round")


def _middle(values: npt.NDArray[np.float64]) -> float:
    return float(np.median(values))


def _limit(axis: Any) -> None:
    axis.axvline(1.0, color=svg.COLOURS["bad"], linewidth=1.2, linestyle=(0, (3, 2.4)))


def _powers(axis: Any, low: float, high: float, *, most: int) -> None:
    """Ticks at powers of ten, at most so many of them."""
    first, last = math.ceil(math.log10(low)), math.floor(math.log10(high))
    step = max(1, math.ceil((last - first + 1) / most))
    powers = range(first + (-first) % step, last + 1, step)
    names = {0: "1", 1: "10", 2: "100", -1: "0.1"}
    labels = [names.get(power, "10" + str(power).translate(SUPERSCRIPT)) for power in powers]
    axis.set_ticks([10.0**power for power in powers], labels)
    axis.set_ticks([], minor=True)
    axis.grid(visible=True, color=svg.COLOURS["line"], linewidth=0.7)
    axis.axes.set_axisbelow(True)


def _labels(axis: Any, across: str, up: str) -> None:
    """Name the axes in words that need not be turned: above the vertical one, at the end of the horizontal one."""
    where = {"color": svg.COLOURS["soft"], "fontsize": svg.FONT_SIZE}
    axis.text(0.0, 1.03, up, transform=axis.transAxes, ha="left", va="bottom", **where)
    axis.text(1.0, -0.155, across, transform=axis.transAxes, ha="right", va="top", **where)


def _largest(values: Column) -> float:
    if not len(values):
        return 0.0
    return math.nan if np.isnan(values).any() else float(values.max())


def trend(nights: Sequence[Night]) -> list[Panel]:
    """Draw cases, rate, largest error over bound, and faults over the runs."""
    if len(nights) < 2:
        return []
    series: dict[str, list[float]] = {
        "cases": [float(night.cases) for night in nights],
        "cases a second": [night.rate for night in nights],
        "largest error / bound": [math.nan if night.worst is None else night.worst for night in nights],
        "faults": [float(night.faults) for night in nights],
    }
    return [_series(name, values, nights, number) for number, (name, values) in enumerate(series.items())]


def _series(name: str, values: list[float], nights: Sequence[Night], number: int) -> Panel:
    figure, axis = svg.axes(width=WIDTH, height=140.0)
    # The bound is what matters of a ratio; one of 10^6 would flatten the line of all others.
    most = 1.25 if "bound" in name else math.inf
    shown = [min(value, most) for value in values]
    places = range(len(shown))
    if name == "faults":
        axis.bar(places, shown, color=svg.COLOURS["bad"], width=0.6)
    else:
        axis.plot(places, shown, color=svg.COLOURS["accent"], linewidth=1.6, solid_joinstyle="round")
        axis.plot(places[-1:], shown[-1:], "o", color=svg.COLOURS["accent"], markersize=4.5)
    finite = [value for value in shown if math.isfinite(value)]
    top = max([*finite, 1e-9]) * 1.12
    if name == "faults":
        top = max(top, 1.0)
    if "bound" in name:
        axis.axhline(1.0, color=svg.COLOURS["bad"], linewidth=1.2, linestyle=(0, (3, 2.4)))
        top = max(top, 1.12)
    axis.set_ylim(0.0, top)
    axis.set_xlim(-0.4, len(shown) - 0.6)
    axis.set_xticks([0, len(shown) - 1], [nights[0].started[:10], nights[-1].started[:10]])
    for text_, side in zip(axis.get_xticklabels(), ("left", "right"), strict=True):
        text_.set_horizontalalignment(side)
    _round_ticks(axis, top)
    axis.grid(visible=True, axis="y", color=svg.COLOURS["line"], linewidth=0.7)
    axis.set_axisbelow(True)
    label = f"{name} of {len(values)} runs, from {text.ratio(values[0])} to {text.ratio(values[-1])}"
    return Panel(title=name, picture=svg.inline(figure, label=label, prefix=f"t{number}"))


def _round_ticks(axis: Any, top: float) -> None:
    """Zero and one or two round numbers, with k and M for thousands and millions."""
    step = 10.0 ** math.floor(math.log10(top))
    step = next(one for one in (step * 5, step * 2, step, step / 2) if top / one >= 1.4)
    ticks = np.arange(0.0, top + step / 100, step)
    axis.set_yticks(ticks, [_brief(float(tick)) for tick in ticks])


def _brief(value: float) -> str:
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= size:
            return re.sub(r"\.0$", "", f"{value / size:.1f}") + unit
    return f"{value:g}"
