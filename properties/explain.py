"""Explain one element of a case step by step: which samples make it up, and what each of their corners adds."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from reference.inputs import Inputs

from .casefile import CaseFile
from .probe import informed
from .subject import Subject
from .trace import Sample, Trace, trace, worst_element
from .verdict import INDICES, Evidence, level_of, story
from .walk import Case, walk

# Significant digits of derived numbers; stored numbers and coordinates are shown in full.
DIGITS = 12


def explain(case: CaseFile, subject: Subject, device: torch.device) -> str:
    """Run a case and explain its worst element.

    Args:
        case: what to run.
        subject: what to run it on.
        device: where.
    """
    return explain_walked(walk_case(case, subject, device))


def walk_case(case: CaseFile, subject: Subject, device: torch.device) -> Case:
    """Walk the case as the bounds judge it: without gradients where its property looks at the forward alone."""
    gradients = "test_forward" not in case.property
    return walk(case.recipe, informed(subject, device), device, gradients=gradients)


def explain_walked(walked: Case) -> str:
    """Explain the worst element of the first output that failed, or of `out` where none did."""
    element = worst_element(walked)
    lines = []
    if walked.verdict.passed:
        lines.append(
            "Every element is within its bound when the case runs as it is; a property that fails all the same"
        )
        lines += ["compares something else. This is the element of out with the largest error / bound.", ""]
    if not element.index:
        return "\n".join([*lines, *story(element, walked.inputs)])
    taken = trace(walked.inputs, element)
    lines += _heading(element, walked.inputs)
    if element.output == "grad_value":
        lines += _pixel(taken, walked.inputs)
    else:
        for number, sample in enumerate(taken.samples, 1):
            lines += ["", *_sample(number, sample, element)]
    return "\n".join([*lines, "", *_sums(taken)])


def _heading(element: Evidence, inputs: Inputs) -> list[str]:
    where = ", ".join(f"{label} {i}" for label, i in zip(INDICES[element.output], element.index, strict=True))
    lines = [f"{element.output}, element ({where})"]
    if element.output == "out":
        head, channel = divmod(element.index[2], inputs.channels)
        lines.append(
            f"It is channel {channel} of head {head}: the sum over the samples of weight * interpolated value."
        )
    elif element.output == "grad_value":
        level, row, column = level_of(element.index[1], inputs.levels)
        height, width = inputs.levels[level]
        lines.append(
            f"It is pixel (row {row}, column {column}) of level {level} ({height} x {width}): the sum over the"
        )
        lines.append("samples that touch it of factor * weight * grad_output.")
    elif element.output == "grad_attention_weights":
        lines.append("It is the interpolated value of one sample, times grad_output, summed over the channels.")
    else:
        axis = "xy"[element.index[5]]
        lines.append(f"It is {'WH'[element.index[5]]} * weight * the slope of one sample's interpolation along {axis},")
        lines.append("times grad_output, summed over the channels.")
    return [*lines, "All numbers are float64, computed from the stored operands."]


def _sample(number: int, sample: Sample, element: Evidence) -> list[str]:
    _, query, head, level, point = sample.index
    height, width = sample.size
    counts = "it counts" if sample.counts else "skipped: it contributes nothing"
    lines = [f"{number}. query {query}, head {head}, level {level} ({height} x {width}), point {point}: {counts}"]
    lines.append(f"   location      x = {sample.location[0]!r}, y = {sample.location[1]!r}")
    lines += [f"   {line}" for line in _coordinates(sample)]
    if sample.counts:
        lines += [f"   {line}" for line in _corners(sample, element)]
    return lines


def _coordinates(sample: Sample) -> list[str]:
    lines = []
    for axis, name in enumerate("xy"):
        size, side = sample.size[1 - axis], "WH"[axis]
        at = sample.at[axis]
        inside = "yes" if -1 < at < size else "no"
        text = f"{name}_im = {name} * {side} - 0.5 = {sample.location[axis]!r} * {size} - 0.5 = {at!r}"
        lines.append(f"{'coordinates' if not axis else '':<13} {text};  -1 < {name}_im < {size}: {inside}")
    return lines


def _corners(sample: Sample, element: Evidence) -> list[str]:
    dot = element.output != "out"
    slope = element.output == "grad_sampling_locations"
    value, factor = "value . grad" if dot else "value", "slope factor" if slope else "factor"
    rows = [["corner", "row", "column", "inside", factor, value, f"{factor} * {value}"]]
    for one in sample.corners:
        held = [_short(one.value), _short(one.product)] if one.inside else ["-", "0"]
        rows.append([one.name, str(one.row), str(one.column), "yes" if one.inside else "no", _short(one.factor), *held])
    blended = sum(one.product for one in sample.corners)
    lines = _table(rows)
    width = len(lines[0])
    name = "slope" if slope else "interpolated"
    lines.append(f"{name:<13}{_short(blended):>{max(1, width - 13)}}")
    if slope:
        axis = element.index[5]
        text = f"{'WH'[axis]} {sample.size[1 - axis]} * weight {sample.weight!r} * slope"
    elif element.output == "out":
        text = f"weight {sample.weight!r} * interpolated"
    else:
        return lines
    return [*lines, f"contribution  {text} = {_short(sample.contribution)}"]


def _pixel(taken: Trace, inputs: Inputs) -> list[str]:
    _, row, column = level_of(taken.element.index[1], inputs.levels)
    touching = [sample for sample in taken.samples if _touches(sample, row, column)]
    if not touching:
        lines = ["", "No sample touches it; expected exactly 0."]
        if taken.samples:
            lines.append("The nearest samples:")
    else:
        number = len(touching) + taken.rest
        lines = ["", f"{number} {'samples touch' if number > 1 else 'sample touches'} it, the largest first:"]
    rows = [["query", "point", "x", "y", "x_im", "y_im", "counts", "corner", "factor", "weight", "grad_output", "adds"]]
    for one in taken.samples:
        corner = next((c for c in one.corners if (c.row, c.column) == (row, column)), None)
        where = [corner.name, _short(corner.factor)] if corner else ["-", "-"]
        rows.append(
            [
                *(str(one.index[i]) for i in (1, 4)),
                *(repr(part) for part in (*one.location, *one.at)),
                "yes" if one.counts else "no",
                *where,
                *(_short(part) for part in (one.weight, one.grad, one.contribution)),
            ]
        )
    return [*lines, *(f"  {line}" for line in _table(rows))] if taken.samples else lines


def _touches(sample: Sample, row: int, column: int) -> bool:
    return any((corner.row, corner.column) == (row, column) for corner in sample.corners)


def _sums(taken: Trace) -> list[str]:
    element = taken.element
    rows = []
    if taken.rest:
        rows.append(["rest", f"{taken.rest_sum!r}", f"the sum of {taken.rest} more samples, each adding less"])
    other = element.alternative is not None and _nearer(taken.total, element.alternative[0], element.expected)
    side = ": the other side of the pixel edge" if other else ""
    rows.append(["sum", f"{taken.total!r}", f"what the samples above add up to{side}"])
    rows.append(["expected", f"{element.expected!r}", "the reference"])
    if element.alternative is not None:
        value, bound = element.alternative
        rows.append(["or", f"{value!r}", f"+- {bound:.3g}, the cell on the other side of the pixel edge"])
    rows.append(["got", f"{element.got!r}", "what the kernel returned"])
    if isinstance(element.got, float) and isinstance(element.expected, float):
        rows.append(["error", f"{abs(element.got - element.expected):.6g}", "|got - expected|"])
    parts = " + ".join(f"{name} {size:.3g}" for name, size in element.parts.items())
    rows.append(["bound", f"{element.bound:.6g}", f"= {parts}" if parts else "nothing may round here"])
    verdict = "at most 1: admissible" if element.ratio <= 1 else "above 1: wrong"
    rows.append(["ratio", f"{element.ratio:.6g}", f"error / bound, {verdict}"])
    longest = max(len(row[1]) for row in rows)
    return [f"{label:<9} {number:<{longest}}  {text}".rstrip() for label, number, text in rows]


def _nearer(number: float, one: float, other: float | str) -> bool:
    return isinstance(other, float) and abs(number - one) < abs(number - other)


def _short(number: float) -> str:
    return f"{number:.{DIGITS}g}" if math.isfinite(number) else repr(number)


def _table(rows: Sequence[Sequence[str]]) -> list[str]:
    """Align columns: the words of the first to the left, everything else to the right."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return [
        "  ".join(
            cell.ljust(width) if i == 0 else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in rows
    ]
