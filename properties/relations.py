"""Relations between two calls of the subject: results that must be the same bits, or as close as both bounds allow.

No relation needs the value of the reference: at most its error bounds, and the number of contributions to a pixel.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from reference.expect import Bounded, Expectation, expect
from reference.inputs import Inputs
from reference.model import UNIT_ROUNDOFF
from reference.repeat import COMMUTES

from .verdict import INDICES, PropertyFailed

if TYPE_CHECKING:
    from .harness import Harness
    from .limits import Limits
    from .recipe import Recipe
    from .subject import Observation, Subject

# By output: what a result of a changed call is, moved back to where it lies in the plain call.
Results = dict[str, Tensor]
INTERPRETER_STEPS = 8


def results(observation: Observation) -> Results:
    """Return all four results by name."""
    found = {name: getattr(observation, name) for name in INDICES}
    assert all(isinstance(result, Tensor) for result in found.values())
    return found


def widest(bounded: Bounded) -> Tensor:
    """Return the bound, the larger one where two cells are admissible; infinite where anything is."""
    bound = bounded.bound
    for other in bounded.alternatives:
        bound = torch.maximum(bound, other.bound)
    return torch.where(bounded.hazard, torch.inf, bound)


@dataclass(frozen=True, kw_only=True, eq=False)
class Call:
    """One call of the subject, with its error bounds when they are asked for.

    Attributes:
        inputs: the operands.
        results: what it returned.
        expectation: gives bounds and contributions.
    """

    inputs: Inputs
    results: Results
    expectation: Expectation

    @property
    def commutes(self) -> Tensor:
        """(B, S, M, 1) bool, pixels of grad_value whose sum is the same in any order."""
        assert self.expectation.contributions is not None
        return (self.expectation.contributions <= COMMUTES).unsqueeze(-1)

    def bound(self, name: str) -> Tensor:
        """Largest error of one output, per element."""
        return widest(getattr(self.expectation, name))

    @property
    def bounds(self) -> Results:
        """Largest error of every output, per element."""
        return {name: self.bound(name) for name in INDICES}


class Relation:
    """Runs the calls of one case and compares them; `Harness.for_all` is given one property after another.

    Attributes:
        harness: runs and times.
        recipe: named in failures.
        subject: what to run.
    """

    def __init__(self, harness: Harness, recipe: Recipe, subject: Subject | None = None) -> None:
        self.harness = harness
        self.recipe = recipe
        self.subject = subject or harness.subject

    def build(self) -> Inputs:
        """Build the operands of the recipe."""
        with self.harness.clock("build"):
            return self.recipe.build(self.harness.device)

    def observe(self, inputs: Inputs, subject: Subject | None = None) -> Results:
        """Run forward and backward.

        Operands are made contiguous first: a changed operand usually is, and a kernel may take another path, and
        another order of addition, for other strides.
        """
        with self.harness.clock("subject"):
            return results((subject or self.subject).observe(contiguous(inputs)))

    def call(self, inputs: Inputs, subject: Subject | None = None) -> Call:
        """Run forward and backward, and evaluate the bounds."""
        observed = self.observe(inputs, subject)
        with self.harness.clock("reference"):
            expectation = expect(inputs, (subject or self.subject).arithmetic)
        return Call(inputs=inputs, results=observed, expectation=expectation)

    def same(self, what: str, name: str, got: Tensor, wanted: Tensor, *, where: Tensor | None = None) -> None:
        """Require the same bits; 0 and -0 are the same, and so are two NaN.

        Args:
            what: the relation, for the story of a failure.
            name: the output.
            got: result of the changed call.
            wanted: what it must be.
            where: bool, broadcasts; elements elsewhere are not compared.
        """
        equal = (got == wanted) | (got.isnan() & wanted.isnan())
        wrong = ~equal if where is None else ~equal & where
        self._raise(f"{what}: {name} has other bits", name, wrong, got, wanted, None)

    def close(
        self, what: str, name: str, got: Tensor, wanted: Tensor, allowed: Tensor, *, where: Tensor | None = None
    ) -> None:
        """Require |got - wanted| <= allowed.

        Args:
            what: the relation, for the story of a failure.
            name: the output, or a sum of one.
            got: one side.
            wanted: the other.
            allowed: float64; where it is not finite anything goes.
            where: bool, broadcasts; elements elsewhere are not compared.
        """
        difference = (got.double() - wanted.double()).abs()
        # The other way round, a NaN would pass.
        wrong = ~(difference <= allowed) & allowed.isfinite() & ~(got == wanted)
        if where is not None:
            wrong = wrong & where
        self._raise(
            f"{what}: {name} differs by more than both error bounds together", name, wrong, got, wanted, allowed
        )

    def equivalent(self, what: str, plain: Call, got: Results, bounds: Results, *, loose: tuple[str, ...] = ()) -> None:
        """Compare calls that compute the same sums, perhaps in another order: bitwise where order does not matter.

        That is in grad_value up to two contributions, and in everything else, unless the subject does not declare
        that it computes every row alike.

        Args:
            what: the relation, for the story of a failure.
            plain: the plain call.
            got: results of the changed call, moved to where they lie in the plain one.
            bounds: its error bounds, likewise.
            loose: outputs whose sums are in another order.
        """
        for name, result in got.items():
            wanted = plain.results[name]
            bitwise = torch.full_like(wanted, self.subject.uniform and name not in loose, dtype=torch.bool)
            if name == "grad_value":
                bitwise = plain.commutes.expand_as(wanted)
            self.same(what, name, result, wanted, where=bitwise)
            # Where storage overflows, the bound is about the number before. Whether a NaN may be is for others to say.
            apart = ~bitwise & ~(wanted.isinf() | result.isinf()) & ~(wanted.isnan() & result.isnan())
            self.close(what, name, result, wanted, plain.bound(name) + bounds[name], where=apart)

    def _raise(
        self, headline: str, name: str, wrong: Tensor, got: Tensor, wanted: Tensor, allowed: Tensor | None
    ) -> None:
        if not bool(wrong.any()):
            return
        error = (got.double() - wanted.double()).abs().nan_to_num(nan=torch.inf, posinf=torch.inf)
        if allowed is not None:
            error = error / allowed
        flat = int(torch.where(wrong, error, -1.0).argmax())
        index = tuple(int(i) for i in torch.unravel_index(torch.tensor(flat), wrong.shape))
        labels = INDICES.get(name, ())
        if len(labels) == len(index):
            where = ", ".join(f"{label} {i}" for label, i in zip(labels, index, strict=True))
        else:
            where = ", ".join(map(str, index))
        lines = [
            headline,
            f"  worst     element ({where}); {int(wrong.sum())} of {wrong.numel()} elements are wrong",
            f"  expected  {float(wanted[index])!r}",
            f"  got       {float(got[index])!r}",
        ]
        if allowed is not None:
            lines.append(
                f"  allowed   {float(allowed.expand_as(wrong)[index]):.6g}, exceeded {float(error[index]):.4g} times"
            )
        raise PropertyFailed("\n".join([*lines, f"  on        {self.recipe!r}"]))


def contiguous(inputs: Inputs) -> Inputs:
    """Copy every operand: contiguous and aligned, whatever it was."""
    names = ("value", "locations", "weights", "grad_output")
    copies = {name: getattr(inputs, name).clone(memory_format=torch.contiguous_format) for name in names}
    return dataclasses.replace(inputs, **copies)


def summed(terms: Tensor, dim: int | tuple[int, ...]) -> tuple[Tensor, Tensor]:
    """Sum products of two stored numbers in float64, and bound the error: one rounding each and one an addition.

    Args:
        terms: float64.
        dim: dimensions to sum over.

    Returns:
        The sum, and (count + 1) u sum|terms|, where terms of 0 do not count.
    """
    count = (terms != 0).sum(dim) + 1
    return terms.sum(dim), count * UNIT_ROUNDOFF[torch.float64] * terms.abs().sum(dim) * (1.0 + 2.0**-20)


def small(limits: Limits) -> Limits:
    """Reduce the limits of the interpreter, where each case is several calls."""
    if limits.max_steps is None:
        return limits
    return dataclasses.replace(limits, max_steps=min(limits.max_steps, INTERPRETER_STEPS))


def with_two_entries(recipe: Recipe) -> Recipe:
    """Give a recipe two batch entries."""
    two = dataclasses.replace(recipe, batch=2, hot=())
    # Samples placed by hand in a third entry are gone with it.
    return dataclasses.replace(two, hot=tuple(one for one in recipe.hot if one.sample < two.samples))
