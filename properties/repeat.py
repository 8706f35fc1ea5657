"""Repeated runs of one case, made as different from one another as a correct kernel must not notice.

On a GPU: on several streams, beside another kernel. In the interpreter: programs in another order. On both: with the
memory that is handed out unwritten now left as it is, now full of NaN. The results are then held against what
`reference.repeat` admits.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from reference.expect import expect
from reference.inputs import Inputs
from reference.repeat import RunToRun, run_to_run

from . import shuffle
from .agreement import Agreement
from .memory import poisoned
from .recipe import Recipe
from .subject import Observation, Subject
from .verdict import HEADLINES, INDICES, Evidence, Verdict, element, judge, story
from .walk import Clock, untimed

RUNS = 8
# Long sums have more orders to come out in.
LONG_RUNS = {"cuda": 24, "cpu": 12}
LONG = 64
STREAMS = 3
# Elements and rounds of the kernel that runs beside: most of a millisecond, longer than Python takes for a case.
BUSY_ELEMENTS = 1 << 25
BUSY_ROUNDS = 12

_BITS = {8: torch.int64, 4: torch.int32, 2: torch.int16}


@dataclass(kw_only=True, eq=False)
class Runs:
    """Results of repeated runs.

    Attributes:
        first: of the first run.
        count: number of runs.
        low: smallest grad_value of any run, per element; NaN where any was.
        high: largest one.
        differs: by output, bool per element: some run returned other bits than the first; two NaN count as the same.
        other: by output, a result with other bits than the first, or None.
        unequal: by output, number of runs that were not the same as the first.
    """

    first: Observation
    count: int
    low: Tensor
    high: Tensor
    differs: dict[str, Tensor]
    other: dict[str, Tensor | None]
    unequal: dict[str, int]


def repeat(subject: Subject, inputs: Inputs, first: Observation, *, runs: int, seed: int) -> Runs:
    """Run forward and backward several times on the same operands.

    Args:
        subject: what to run.
        inputs: the operands.
        first: result of the first run, of the right shapes and dtypes.
        runs: how many runs there are to be, the first included.
        seed: of the program orders in the interpreter.
    """
    around = _Surroundings(inputs.device, seed)
    assert first.grad_value is not None
    result = Runs(
        first=first,
        count=runs,
        low=first.grad_value.clone(),
        high=first.grad_value.clone(),
        differs={name: torch.zeros_like(_get(first, name), dtype=torch.bool) for name in INDICES},
        other=dict.fromkeys(INDICES),
        unequal=dict.fromkeys(INDICES, 0),
    )
    for number in range(1, runs):
        with around.of_run(number):
            again = subject.observe(inputs)
        for name in INDICES:
            other = other_bits(_get(first, name), _get(again, name))
            result.differs[name] |= other
            if bool(other.any()):
                result.other[name] = _get(again, name)
                result.unequal[name] += 1
        # NaN wins in both directions.
        result.low = torch.minimum(result.low, _get(again, "grad_value"))
        result.high = torch.maximum(result.high, _get(again, "grad_value"))
    return result


def other_bits(one: Tensor, another: Tensor) -> Tensor:
    """Where two tensors of one shape and dtype have other bits; the payload of a NaN is nobody's business."""
    integer = _BITS[one.element_size()]
    differs = one.contiguous().view(integer) != another.contiguous().view(integer)
    return differs & ~(one.isnan() & another.isnan())


@lru_cache(maxsize=1)
def _busy_memory(device: torch.device) -> Tensor:
    return torch.ones(BUSY_ELEMENTS, device=device)


class _Surroundings:
    """What is different from run to run."""

    def __init__(self, device: torch.device, seed: int) -> None:
        self.device = device
        self.seed = seed
        self.streams: list[torch.cuda.Stream] = []
        if device.type == "cuda":
            self.streams = [torch.cuda.Stream(device) for _ in range(STREAMS + 1)]
            self.busy = _busy_memory(device)

    @contextlib.contextmanager
    def of_run(self, number: int) -> Iterator[None]:
        """Surround one run after the first, which is as plain as can be."""
        with contextlib.ExitStack() as stack:
            if number % 2:
                stack.enter_context(poisoned())
            if self.device.type == "cuda":
                stack.enter_context(self._elsewhere(number))
            elif shuffle.can_shuffle():
                stack.enter_context(shuffle.shuffled(self.seed + number))
            yield

    @contextlib.contextmanager
    def _elsewhere(self, number: int) -> Iterator[None]:
        """On a stream of its own, with another kernel at work; all is done when the context ends."""
        *streams, beside = self.streams
        stream = streams[number % STREAMS]
        current = torch.cuda.current_stream(self.device)
        for one in (stream, beside):
            one.wait_stream(current)
        with torch.cuda.stream(beside):
            for _ in range(BUSY_ROUNDS):
                self.busy.mul_(1.0)
        with torch.cuda.stream(stream):
            yield
        torch.cuda.synchronize(self.device)


@dataclass(frozen=True, kw_only=True)
class Difference:
    """The worst element of one output that the runs disagree on more than they may.

    Attributes:
        output: name of the output.
        index: position of the element.
        low: smallest result.
        high: largest result.
        bound: largest admissible difference.
        ratio: difference over bound.
        contributions: samples that may contribute to the element; 0 for outputs that nothing is added to.
        wrong: elements that differ by more than they may.
        elements: of the output.
        unequal: runs that were not the same as the first.
        runs: all runs.
    """

    output: str
    index: tuple[int, ...]
    low: float
    high: float
    bound: float
    ratio: float
    contributions: int
    wrong: int
    elements: int
    unequal: int
    runs: int

    def evidence(self) -> Evidence:
        """The same as evidence of a verdict."""
        return Evidence(
            output=self.output,
            failure="not repeatable",
            expected=self.low,
            got=self.high,
            index=self.index,
            bound=self.bound,
            ratio=self.ratio,
            wrong=self.wrong,
            elements=self.elements,
        )

    def story(self, inputs: Inputs) -> list[str]:
        """Tell the difference in lines of "label  text"."""
        spread = f"from {self.low!r} to {self.high!r} over {self.runs} runs"
        if self.bound == 0.0:
            why = "no atomics add to this output" if self.output != "grad_value" else f"n = {self.contributions}"
            rule = f"0: the same bits in every run ({why})"
        else:
            rule = f"{self.bound:.3g} for another order of the n = {self.contributions} contributions"
        return [
            f"{self.output}: {HEADLINES['not repeatable']}",
            *element(self.evidence(), inputs),
            f"  got       {spread}; {self.unequal} of them unlike the first",
            f"  spread    {self.high - self.low:.6g}, {self.ratio:.4g} times the bound",
            f"  bound     {rule}",
        ]


def differences(runs: Runs, allowed: RunToRun, contributions: Tensor) -> tuple[Tensor, list[Difference]]:
    """Hold repeated runs against what they may differ by.

    Args:
        runs: the results.
        allowed: for grad_value.
        contributions: (B, S, M) of grad_value.

    Returns:
        Spread over bound per element of grad_value, and the worst element of each output that fails.
    """
    ratio = allowed.ratio(runs.low, runs.high, runs.differs["grad_value"])
    bound = allowed.bound(runs.low, runs.high)
    found = []
    for name in INDICES:
        if runs.other[name] is None:
            continue
        if name == "grad_value":
            if not bool((ratio <= 1.0).all()):
                count = contributions.unsqueeze(-1).expand_as(ratio)
                found.append(_worst(runs, name, ratio, runs.low, runs.high, bound, count))
            continue
        first, other = _get(runs.first, name), runs.other[name]
        assert other is not None
        low, high = torch.minimum(first, other), torch.maximum(first, other)
        # The element shown is one of that run; the count is over all runs.
        infinite = torch.where(other_bits(first, other), torch.inf, 0.0)
        nothing = torch.zeros_like(infinite)
        found.append(_worst(runs, name, infinite, low, high, nothing, nothing))
    return ratio, found


def _worst(
    runs: Runs, name: str, ratio: Tensor, low: Tensor, high: Tensor, bound: Tensor, contributions: Tensor
) -> Difference:
    flat = int(ratio.nan_to_num(nan=torch.inf, posinf=torch.inf).argmax())
    index = tuple(int(i) for i in torch.unravel_index(torch.tensor(flat), ratio.shape))
    return Difference(
        output=name,
        index=index,
        low=float(low[index]),
        high=float(high[index]),
        bound=float(bound[index]),
        ratio=float(ratio[index]),
        contributions=int(contributions[index]),
        wrong=int((runs.differs[name] if name != "grad_value" else ~(ratio <= 1.0)).sum()),
        elements=ratio.numel(),
        unequal=runs.unequal[name],
        runs=runs.count,
    )


@dataclass(frozen=True, kw_only=True, eq=False)
class Repetition:
    """One recipe, run repeatedly and judged.

    Attributes:
        inputs: the operands.
        agreement: the figures.
        differences: what the runs disagree on more than they may.
        wrong_form: outputs of a wrong shape or dtype, which nothing can be compared with.
    """

    inputs: Inputs
    agreement: Agreement
    differences: tuple[Difference, ...] = ()
    wrong_form: tuple[Evidence, ...] = ()

    @property
    def story(self) -> str:
        """What is wrong, empty when nothing is."""
        lines = [line for one in self.wrong_form for line in story(one, self.inputs)]
        lines += [line for one in self.differences for line in one.story(self.inputs)]
        return "\n".join(lines)

    @property
    def verdict(self) -> Verdict:
        """The same as a verdict, for those who hunt with any property."""
        return Verdict(
            ratios={"grad_value": self.agreement.ratio},
            collisions=self.agreement.collisions,
            evidence=(*self.wrong_form, *(one.evidence() for one in self.differences)),
        )


def walk_repeatedly(recipe: Recipe, subject: Subject, device: torch.device, *, clock: Clock = untimed) -> Repetition:
    """Build the inputs of a recipe, run the subject on them again and again, and compare the runs.

    Args:
        recipe: what to build.
        subject: what to run.
        device: where the subject and the reference run.
        clock: context manager factory that times the stages "build", "reference", "subject" and "judge".
    """
    with clock("build"):
        inputs = recipe.build(device)
    with clock("reference"):
        expectation = expect(inputs, subject.arithmetic)
        allowed = run_to_run(
            expectation, subject.arithmetic, inputs.value.dtype, deterministic=subject.determinism == "run_to_run"
        )
        counts = expectation.contributions
        assert counts is not None
        collisions = int(counts.max()) if counts.numel() else 0
    with clock("subject"):
        # Nothing may run before: a kernel that is tuned at its first call shows it there.
        first = subject.observe(inputs)
        found = judge(first, expectation).evidence
        wrong_form = tuple(evidence for evidence in found if evidence.failure in {"shape", "dtype"})
        if wrong_form:
            return Repetition(inputs=inputs, agreement=Agreement(), wrong_form=wrong_form)
        runs = repeat(
            subject, inputs, first, runs=LONG_RUNS[device.type] if collisions >= LONG else RUNS, seed=recipe.seed
        )
    with clock("judge"):
        ratio, wrong = differences(runs, allowed, counts)
        spread = (runs.high.double() - runs.low.double()).nan_to_num(nan=0.0, posinf=0.0)
        figures = Agreement(
            cases=1,
            runs=runs.count,
            unequal_runs=runs.unequal["grad_value"],
            elements=ratio.numel(),
            unequal=int(runs.differs["grad_value"].sum()),
            spread=float(spread.max()) if spread.numel() else 0.0,
            ratio=float(ratio.max()) if ratio.numel() else 0.0,
            collisions=collisions,
        )
    return Repetition(inputs=inputs, agreement=figures, differences=tuple(wrong))


def _get(observation: Observation, name: str) -> Tensor:
    result = getattr(observation, name)
    assert isinstance(result, Tensor)
    return result
