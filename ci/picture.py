"""Draw the worst element of a case: the pixels, the samples behind it, and the elements that differ."""

from __future__ import annotations

import contextlib
import io
import math
import textwrap
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

from properties.casefile import CaseFile, evidence_from_dict
from properties.trace import Sample, Trace, trace, worst_element, worst_elements
from properties.verdict import INDICES, Evidence, element_at, level_of
from properties.walk import Case
from reference.inputs import Inputs

MISSING = "picture: matplotlib is not installed; expected the extra 'report': pip install 'msda-verify[report]'"
# What fits on a page.
MOST_LEVELS = 4
MOST_SAMPLES = 6
MOST_ELEMENTS = 8
# Pixels around the samples that are drawn of a large level.
MARGIN = 3
LARGEST = 14

SAMPLE, CORNER, SKIPPED, GRID, EXPECTED, GOT = "#c1121f", "#2a6f97", "#6c757d", "#adb5bd", "#2a6f97", "#c1121f"


def draw(case: CaseFile, walked: Case, path: Path) -> None:
    """Draw the worst element of a case.

    Args:
        case: named in the title.
        walked: what the subject returned and what was expected.
        path: ends in .png or .svg.

    Raises:
        ValueError: matplotlib is not installed, or there is no element to draw.
    """
    element = worst_element(walked)
    with _style():
        figure = _figure(case, element, walked.inputs, _differing(element, walked))
        path.parent.mkdir(parents=True, exist_ok=True)
        # Without the date the same case gives the same file.
        kind: dict[str, Any] = {"pil_kwargs": {"optimize": True}}
        figure.savefig(path, dpi=100, **({"metadata": {"Date": None}} if path.suffix.lower() == ".svg" else kind))


def recorded(case: CaseFile) -> str:
    """Draw the worst element of a case as its file tells it, without running the subject.

    Args:
        case: with evidence.

    Returns:
        An SVG document.

    Raises:
        ValueError: matplotlib is not installed, or there is no element to draw.
    """
    elements = [evidence_from_dict(plain) for plain in case.evidence]
    element = next((one for one in elements if one.index and one.output in INDICES), None)
    if element is None:
        raise ValueError("picture: the case file has no single wrong element to draw")
    written = io.StringIO()
    with _style():
        figure = _figure(case, element, case.recipe.build(torch.device("cpu")), [element])
        figure.savefig(written, format="svg", metadata={"Date": None})
    return written.getvalue()


@contextlib.contextmanager
def _style() -> Iterator[None]:
    try:
        import matplotlib as mpl  # noqa: PLC0415 - an optional extra
    except ImportError:
        raise ValueError(MISSING) from None
    with mpl.rc_context({"font.size": 8, "svg.fonttype": "none", "svg.hashsalt": "msda", "axes.titlesize": 9}):
        yield


def _figure(case: CaseFile, element: Evidence, inputs: Inputs, rows: Sequence[Evidence]) -> Any:
    """Draw the levels of the samples behind one element, and some elements beside them."""
    from matplotlib.figure import Figure  # noqa: PLC0415 - draws with Agg or SVG, and touches no display

    if not element.index:
        raise ValueError(f"picture: {element.output} has no single wrong element to draw")
    taken = trace(inputs, element, most=MOST_SAMPLES)
    levels = _levels(taken, inputs)
    figure = Figure(figsize=(5.2 * (len(levels) + 0.95), 5.2), layout="constrained")
    axes = figure.subplots(1, len(levels) + 1, squeeze=False, width_ratios=[1.0] * len(levels) + [0.95])[0]
    for axis, level in zip(axes, levels, strict=False):
        _draw_level(axis, level, taken, inputs)
    _draw_elements(axes[-1], element, rows)
    figure.suptitle(_title(case, element), fontsize=10)
    figure.supxlabel("\n" + _legend(taken), fontsize=8, color=SKIPPED)
    return figure


def _title(case: CaseFile, element: Evidence) -> str:
    where = ", ".join(f"{label} {i}" for label, i in zip(INDICES[element.output], element.index, strict=True))
    values = f"expected {element.expected:.6g}, got {_number(element.got)}"
    state = f"error {element.ratio:.4g} times the bound {element.bound:.3g}"
    recipe = textwrap.shorten(case.recipe.describe(), 110, placeholder=" ...")
    return f"{element.output} ({where})\n{values}: {state}\n{recipe}"


def _number(value: float | str) -> str:
    return value if isinstance(value, str) else f"{value:.6g}"


def _levels(taken: Trace, inputs: Inputs) -> list[int]:
    """Levels to draw: those of the samples, by the size of what they add; that of the pixel for grad_value."""
    if taken.element.output == "grad_value":
        return [level_of(taken.element.index[1], inputs.levels)[0]]
    return list(dict.fromkeys(sample.index[3] for sample in taken.samples))[:MOST_LEVELS]


def _draw_level(axis: Any, level: int, taken: Trace, inputs: Inputs) -> None:
    """Draw one level: pixels as squares around their centres, samples as crosses."""
    height, width = inputs.levels[level]
    numbered = [(n, sample) for n, sample in enumerate(taken.samples, 1) if sample.index[3] == level]
    samples = [sample for _, sample in numbered]
    (left, right), (top, bottom) = _window(samples, taken, inputs, level)
    _draw_pixels(axis, height, width, (left, right), (top, bottom))
    if taken.element.output == "grad_value":
        _, row, column = level_of(taken.element.index[1], inputs.levels)
        _square(axis, row, column, "#f4a261", 0.6)
    shown = _apart(numbered)
    for number, sample in numbered:
        _draw_sample(axis, number, sample, (left, right, top, bottom), corners=number in shown)
    axis.set_xlim(left, right)
    axis.set_ylim(bottom, top)
    axis.set_aspect("equal")
    axis.set_ylabel("row, y_im")
    axis.set_xlabel("\n".join(["column, x_im", "", *(_named(number, sample) for number, sample in numbered)]))
    axis.set_title(f"level {level}: {height} rows x {width} columns")
    axis.set_xticks(range(math.ceil(left), math.floor(right) + 1))
    axis.set_yticks(range(math.ceil(top), math.floor(bottom) + 1))


def _apart(numbered: list[tuple[int, Sample]]) -> set[int]:
    """Samples whose corners are drawn: the factors of two samples on one pixel would hide each other."""
    shown: set[int] = set()
    taken: set[tuple[int, int]] = set()
    for number, sample in numbered:
        pixels = {(corner.row, corner.column) for corner in sample.corners}
        if pixels and not pixels & taken:
            shown.add(number)
            taken |= pixels
    return shown


def _named(number: int, sample: Sample) -> str:
    _, query, _, _, point = sample.index
    counts = f"adds {sample.contribution:.5g}" if sample.counts else "skipped"
    return f"{number}: query {query}, point {point} at ({sample.at[0]:.6g}, {sample.at[1]:.6g}), {counts}"


def _legend(taken: Trace) -> str:
    kind = "slope factors" if taken.element.output == "grad_sampling_locations" else "factors"
    pixel = " Orange: the pixel." if taken.element.output == "grad_value" else ""
    return (
        f"Dots: pixel centres. Crosses: samples, grey where skipped; they count inside the dashed line.{pixel} "
        f"Blue: the corners of a sample, with its {kind}."
    )


def _window(
    samples: list[Sample], taken: Trace, inputs: Inputs, level: int
) -> tuple[tuple[float, float], tuple[float, float]]:
    """The part of a level to draw: all of a small one, else what lies around the samples."""
    limits = []
    for axis in (0, 1):
        size = inputs.levels[level][1 - axis]
        low, high = -1.7, size + 0.7
        if high - low > LARGEST:
            marks = [min(max(s.at[axis], -1.0), float(size)) for s in samples if not math.isnan(s.at[axis])]
            if taken.element.output == "grad_value":
                marks.append(float(level_of(taken.element.index[1], inputs.levels)[2 - axis]))
            # The largest contribution comes first: what lies too far from it is left out.
            center = marks[0] if marks else 0.0
            near = [mark for mark in marks if abs(mark - center) <= LARGEST / 2 - MARGIN] or [center]
            low, high = max(low, min(near) - MARGIN), min(high, max(near) + MARGIN)
        limits.append((low, high))
    return limits[0], limits[1]


def _draw_pixels(axis: Any, height: int, width: int, across: tuple[float, float], down: tuple[float, float]) -> None:
    columns = [c for c in range(width) if across[0] <= c <= across[1]]
    rows = [r for r in range(height) if down[0] <= r <= down[1]]
    for row in rows:
        for column in columns:
            _square(axis, row, column, "white", 1.0, edge=GRID)
    axis.scatter([c for _ in rows for c in columns], [r for r in rows for _ in columns], s=12, color="black", zorder=3)
    axis.plot(
        [-1, width, width, -1, -1], [-1, -1, height, height, -1], color=SKIPPED, linestyle="--", linewidth=0.9, zorder=2
    )


def _square(axis: Any, row: int, column: int, color: str, alpha: float, *, edge: str = "none") -> None:
    from matplotlib.patches import Rectangle  # noqa: PLC0415 - an optional extra

    axis.add_patch(
        Rectangle((column - 0.5, row - 0.5), 1, 1, facecolor=color, edgecolor=edge, alpha=alpha, linewidth=0.8)
    )


def _draw_sample(
    axis: Any, number: int, sample: Sample, window: tuple[float, float, float, float], *, corners: bool
) -> None:
    """Draw one sample, and its corners with their factors."""
    left, right, top, bottom = window
    # A skipped sample may lie anywhere; its mark stays at the edge of the picture.
    x, y = (
        low + 0.15 if math.isnan(at) else min(max(at, low + 0.15), high - 0.15)
        for at, low, high in zip(sample.at, (left, top), (right, bottom), strict=True)
    )
    color = SAMPLE if sample.counts else SKIPPED
    for corner in sample.corners if corners else ():
        _square(axis, corner.row, corner.column, CORNER, 0.1 + 0.4 * min(1.0, abs(corner.factor)))
        text = f"{corner.factor:.4g}" + ("" if corner.inside else "\noutside")
        ink = "black" if corner.inside else SKIPPED
        # In the half of the pixel that is away from the sample.
        place = corner.row + (0.28 if sample.at[1] < corner.row else -0.28)
        axis.text(corner.column, place, text, ha="center", va="center", color=ink, fontsize=8, zorder=4)
    axis.scatter([x], [y], marker="x", s=60, color=color, zorder=5, linewidth=1.8)
    offset = 6 if x < (left + right) / 2 else -6
    axis.annotate(
        str(number), (x, y), xytext=(offset, 6), textcoords="offset points", ha="center", color=color, weight="bold"
    )


def _differing(element: Evidence, walked: Case) -> list[Evidence]:
    """The elements that differ most from what was expected; without a wrong one, those with the largest errors."""
    bounded = getattr(walked.expectation, element.output)
    observed = getattr(walked.observation, element.output)
    indices = worst_elements(bounded, observed, most=MOST_ELEMENTS)
    ratio = bounded.ratio(observed)
    rows = [element_at(element.output, index, observed, bounded, ratio) for index in indices]
    return [row for row in rows if not row.ratio <= 1.0] or rows


def _draw_elements(axis: Any, element: Evidence, shown: Sequence[Evidence]) -> None:
    """Draw some elements: what was expected, and what came."""
    finite = [float(v) for row in shown for v in (row.expected, row.got) if math.isfinite(float(v))]
    for place, row in enumerate(shown):
        expected, got = float(row.expected), float(row.got)
        if math.isfinite(expected):
            axis.errorbar([expected], [place], xerr=[row.bound], fmt="o", color=EXPECTED, capsize=3, markersize=6)
        if math.isfinite(got):
            axis.plot([got], [place], "x", color=GOT, markersize=8, markeredgewidth=1.8)
            axis.plot([expected, got], [place, place], color=GRID, linewidth=1.0, zorder=0)
    labels = [
        f"{row.index}: {row.ratio:.3g} x bound\nexpected {row.expected:.6g}\ngot {_number(row.got)}" for row in shown
    ]
    axis.set_yticks(range(len(shown)), labels, fontsize=7)
    axis.set_ylim(len(shown) - 0.3, -0.7)
    axis.yaxis.tick_right()
    axis.margins(x=0.15)
    if not finite:
        axis.set_xticks([])
    names = ", ".join(INDICES[element.output])
    if element.wrong:
        head = f"{len(shown)} of {element.wrong} wrong elements of {element.output}"
    else:
        head = f"the largest errors of {element.output}, all admissible"
    axis.set_title(f"{head}\n({names}); o expected, x got")
    axis.grid(axis="x", color="#e9ecef")
    axis.set_axisbelow(True)
