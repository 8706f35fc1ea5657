"""Verdict: an observation held against an expectation, and the story of a failure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor

from reference.bounds import likely
from reference.expect import Bounded, Expectation
from reference.inputs import Inputs

from .kinds import Kind
from .subject import Observation

FailureClass = Literal[
    "written", "shape", "dtype", "not finite", "not zero", "not exact", "out of bound", "not repeatable"
]
# Names of the indices of each output, in the operator's notation.
INDICES = {
    "out": ("batch", "query", "channel"),
    "grad_value": ("batch", "pixel", "head", "channel"),
    "grad_sampling_locations": ("batch", "query", "head", "level", "point", "axis"),
    "grad_attention_weights": ("batch", "query", "head", "level", "point"),
}


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """The worst element of one output that is not admissible.

    Attributes:
        output: name of the output.
        failure: the kind of disagreement.
        index: position of the worst element, empty for a wrong shape or dtype.
        expected: exact value, or the shape or dtype expected.
        got: what was returned there.
        bound: largest admissible error.
        parts: sources of the bound and their sizes.
        alternative: (value, bound) of the other side of a pixel edge, when it is another one.
        ratio: error over bound.
        wrong: number of inadmissible elements.
        elements: number of all elements.
    """

    output: str
    failure: FailureClass
    expected: float | str
    got: float | str
    index: tuple[int, ...] = ()
    bound: float = 0.0
    parts: dict[str, float] = field(default_factory=dict)
    alternative: tuple[float, float] | None = None
    ratio: float = float("inf")
    wrong: int = 0
    elements: int = 0


@dataclass(frozen=True, kw_only=True)
class Worst:
    """The element of one output that came closest to its bound, or went furthest beyond it.

    Attributes:
        expected: its exact value.
        bound: its largest admissible error.
        likely: the error that it hardly ever exceeds; see `reference.bounds.likely`.
    """

    expected: float
    bound: float
    likely: float


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """Outcome of one case.

    Attributes:
        ratios: largest error over bound, per output that was judged.
        collisions: largest number of samples that contribute to one pixel of grad_value; 0 if only the forward ran.
        evidence: one entry per output that failed; empty when the case passed.
        worst: of the element with the largest ratio, per output that has one; empty unless it was asked for.
    """

    ratios: dict[str, float]
    collisions: int = 0
    evidence: tuple[Evidence, ...] = ()
    worst: dict[str, Worst] = field(default_factory=dict)

    @property
    def passed(self) -> bool:
        """Whether every output is admissible."""
        return not self.evidence


def judge(
    observation: Observation, expectation: Expectation, *, written: Sequence[str] = (), details: bool = False
) -> Verdict:
    """Compare every output that both sides have; one device synchronisation when all is well.

    Args:
        observation: what the subject returned.
        expectation: what it may return.
        written: operands that it wrote to, which no operator may.
        details: look up the worst elements too.
    """
    pairs: list[tuple[str, Tensor, Bounded]] = []
    evidence = [Evidence(output=name, failure="written", expected="left alone", got="overwritten") for name in written]
    for name in INDICES:
        observed, bounded = getattr(observation, name), getattr(expectation, name)
        if bounded is None:
            continue
        wrong_form = _form(name, observed, bounded)
        if wrong_form is None:
            pairs.append((name, observed, bounded))
        else:
            evidence.append(wrong_form)
    ratios = [bounded.ratio(observed) for _, observed, bounded in pairs]
    looked_up = [name for (name, _, _), ratio in zip(pairs, ratios, strict=True) if details and ratio.numel()]
    summary = [ratio.max() if ratio.numel() else ratio.new_zeros(()) for ratio in ratios]
    for (name, _, bounded), ratio in zip(pairs, ratios, strict=True):
        if name in looked_up:
            at = ratio.argmax()
            # Bounds of other kinds, as those of an exact lattice, have no part that is likely to be smaller.
            arithmetic = bounded.parts.get("arithmetic")
            summary += [bounded.value.take(at), bounded.bound.take(at)]
            summary.append(summary[-1].new_zeros(()) if arithmetic is None else arithmetic.take(at))
            summary.append(_roundings(expectation, name, at))
    counts = expectation.contributions
    if counts is not None:
        most = counts.max() if counts.numel() else counts.new_zeros(())
        summary.append(most.double())
    largest = torch.stack(summary).tolist() if summary else []
    collisions = int(largest.pop()) if counts is not None else 0
    largest, numbers = largest[: len(pairs)], largest[len(pairs) :]
    at_worst = zip(looked_up, numbers[::4], numbers[1::4], numbers[2::4], numbers[3::4], strict=True)
    worst_elements = {
        name: Worst(expected=expected, bound=bound, likely=bound - arithmetic + likely(arithmetic, roundings))
        for name, expected, bound, arithmetic, roundings in at_worst
    }
    for (name, observed, bounded), ratio, worst in zip(pairs, ratios, largest, strict=True):
        if not worst <= 1.0:
            evidence.append(_worst_element(name, observed, bounded, ratio))
    names = [name for name, _, _ in pairs]
    return Verdict(
        ratios=dict(zip(names, largest, strict=True)),
        collisions=collisions,
        evidence=tuple(evidence),
        worst=worst_elements,
    )


def _roundings(expectation: Expectation, output: str, at: Tensor) -> Tensor:
    """Successive roundings behind one element, 0 where it is not known."""
    count = expectation.roundings.get(output, 0)
    if isinstance(count, Tensor):
        # Of a pixel, for all of its channels.
        return count.take(at // (expectation.grad_value or expectation.out).value.shape[-1]).double()
    return torch.full((), float(count), dtype=torch.float64, device=at.device)


def _form(name: str, observed: Tensor | None, bounded: Bounded) -> Evidence | None:
    """Return evidence of a missing output, a wrong shape or a wrong dtype."""
    shape = tuple(bounded.value.shape)
    if observed is None or tuple(observed.shape) != shape:
        got = "nothing" if observed is None else str(tuple(observed.shape))
        return Evidence(output=name, failure="shape", expected=str(shape), got=got)
    if observed.dtype != bounded.dtype:
        return Evidence(output=name, failure="dtype", expected=str(bounded.dtype), got=str(observed.dtype))
    return None


def _worst_element(name: str, observed: Tensor, bounded: Bounded, ratio: Tensor) -> Evidence:
    flat = int(ratio.nan_to_num(nan=torch.inf, posinf=torch.inf).argmax())
    index = tuple(int(i) for i in torch.unravel_index(torch.tensor(flat), ratio.shape))
    return element_at(name, index, observed, bounded, ratio)


def element_at(name: str, index: tuple[int, ...], observed: Tensor, bounded: Bounded, ratio: Tensor) -> Evidence:
    """Return what is known of one element, whether it is admissible or not.

    Args:
        name: of the output.
        index: of the element.
        observed: the output.
        bounded: what it may be.
        ratio: `bounded.ratio(observed)`.
    """
    expected, bound = float(bounded.value[index]), float(bounded.bound[index])
    failure: FailureClass = "out of bound"
    if not torch.isfinite(observed[index]):
        failure = "not finite"
    elif not bounded.parts:
        failure = "not exact"
    elif bound == 0.0 and expected == 0.0:
        failure = "not zero"
    sides = [(float(other.value[index]), float(other.bound[index])) for other in bounded.alternatives]
    return Evidence(
        output=name,
        failure=failure,
        expected=expected,
        got=float(observed[index]),
        index=index,
        bound=bound,
        parts={part: float(tensor[index]) for part, tensor in bounded.parts.items()},
        alternative=next((side for side in reversed(sides) if side[0] != expected), None),
        ratio=float(ratio[index]),
        wrong=int((~(ratio <= 1.0)).sum()),
        elements=ratio.numel(),
    )


def level_of(pixel: int, levels: Sequence[tuple[int, int]]) -> tuple[int, int, int]:
    """Return (level, row, column) of a position on the axis of all pixels."""
    for level, (height, width) in enumerate(levels):
        if pixel < height * width:
            return level, *divmod(pixel, width)
        pixel -= height * width
    raise IndexError(f"pixel {pixel} lies behind the last level of {levels}")


class PropertyFailed(AssertionError):  # noqa: N818 - reads as a sentence in a failure report
    """A property does not hold; the message is the whole story.

    Attributes:
        evidence: the worst element of each output that failed, where the bounds were the judge.
        kind: the class of the failure where `kinds` cannot tell it from the evidence.
    """

    def __init__(self, message: str, *, evidence: Sequence[Evidence] = (), kind: Kind | None = None) -> None:
        super().__init__(message)
        self.evidence = tuple(evidence)
        self.kind = kind


def story(evidence: Evidence, inputs: Inputs) -> list[str]:
    """Tell one failure in lines of "label  text"."""
    lines = [f"{evidence.output}: {HEADLINES[evidence.failure]}"]
    if not evidence.index:
        return [*lines, _line("expected", str(evidence.expected)), _line("got", str(evidence.got))]
    lines += element(evidence, inputs)
    expected = f"{evidence.expected!r} +- {evidence.bound:.3g}"
    if evidence.alternative is not None:
        value, bound = evidence.alternative
        expected += f", or {value!r} +- {bound:.3g} (the other side of the pixel edge)"
    lines.append(_line("expected", expected))
    lines.append(_line("got", f"{evidence.got!r}"))
    if isinstance(evidence.got, float) and isinstance(evidence.expected, float):
        error = abs(evidence.got - evidence.expected)
        lines.append(_line("error", f"{error:.6g}, {evidence.ratio:.4g} times the bound"))
    if evidence.parts:
        parts = " + ".join(f"{name} {size:.3g}" for name, size in evidence.parts.items())
        lines.append(_line("bound", f"{evidence.bound:.3g} = {parts}"))
    return lines


def element(evidence: Evidence, inputs: Inputs) -> list[str]:
    """Say which element is the worst, and what lies behind it."""
    where = ", ".join(f"{label} {i}" for label, i in zip(INDICES[evidence.output], evidence.index, strict=True))
    lines = [_line("worst", f"element ({where}); {evidence.wrong} of {evidence.elements} elements are wrong")]
    return lines + [_line("sample", text) for text in _sample(evidence, inputs)]


def _line(label: str, text: str) -> str:
    return f"  {label:<9} {text}"


def _sample(evidence: Evidence, inputs: Inputs) -> list[str]:
    """Describe the operands behind an element: its level, coordinate and weight, or its pixel."""
    if evidence.output == "grad_value":
        level, row, column = level_of(evidence.index[1], inputs.levels)
        height, width = inputs.levels[level]
        return [f"pixel (row {row}, column {column}) of level {level} ({height} x {width})"]
    if evidence.output == "out":
        head, channel = divmod(evidence.index[2], inputs.channels)
        return [f"head {head}, channel {channel} of {inputs.channels}"]
    if evidence.output.startswith("grad_"):
        sample = evidence.index[:5]
        height, width = inputs.levels[sample[3]]
        x, y = (float(v) for v in inputs.locations[sample].double())
        weight = float(inputs.weights[sample])
        return [
            f"level {sample[3]} ({height} x {width}), location ({x!r}, {y!r}), weight {weight!r}",
            f"pixel coordinate x_im {x * width - 0.5!r}, y_im {y * height - 0.5!r}",
        ]
    return []


HEADLINES = {
    "written": "an operand was written to",
    "shape": "wrong shape",
    "dtype": "wrong dtype",
    "not finite": "not finite where a finite result is required",
    "not zero": "not exactly zero where nothing contributes",
    "not exact": "not the exact result, rounded once, where no operation may round",
    "out of bound": "outside its error bound",
    "not repeatable": "not repeatable: runs on the same operands differ by more than they may",
}
