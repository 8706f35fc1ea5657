"""Bad arguments are refused with an error that names the argument, whatever the shapes; operands stay as they were."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from properties.cells import CELLS, DtypeCell
from properties.harness import Harness
from properties.kinds import Kind
from properties.recipe import Recipe
from properties.strategies import recipes
from properties.verdict import PropertyFailed

Arguments = dict[str, object]
ACCEPTED = "was accepted"


@dataclass(frozen=True)
class BadCall:
    """One way to spoil a good call.

    Attributes:
        what: the mistake.
        argument: the name, or one of the names, that the error must mention.
        error: the exception class expected.
        spoil: returns the replacement for the argument (the first one, if several are named).
    """

    what: str
    argument: str | tuple[str, ...]
    error: type[Exception]
    spoil: Callable[[Tensor], object]

    @property
    def names(self) -> tuple[str, ...]:
        """The names that the error may mention, the spoiled argument first."""
        return (self.argument,) if isinstance(self.argument, str) else self.argument


def _longer(dim: int) -> Callable[[Tensor], Tensor]:
    """One entry more along a dimension."""
    return lambda t: torch.cat([t, t.narrow(dim, 0, 1)], dim=dim)


def _plus(where: int | tuple[int, int], amount: int) -> Callable[[Tensor], Tensor]:
    def spoil(table: Tensor) -> Tensor:
        changed = table.clone()
        changed[where] += amount
        return changed

    return spoil


def _other_half(t: Tensor) -> Tensor:
    """A half dtype that no cell allows beside the stored one: cells here have locations of value's dtype."""
    return t.to(torch.bfloat16 if t.dtype == torch.float16 else torch.float16)


# Cells in which a half dtype that is not value's is wrong for locations and weights alike.
SAME = [cell for cell in CELLS if cell.value == cell.locations == cell.weights]
VALUE, SHAPES, STARTS = "value", "spatial_shapes", "level_start_index"
LOCATIONS, WEIGHTS = "sampling_locations", "attention_weights"

BAD_CALLS = [
    BadCall("not a tensor", VALUE, TypeError, lambda _: None),
    BadCall("a list", VALUE, TypeError, lambda t: t.tolist()),
    BadCall("rank 3", VALUE, ValueError, lambda t: t.flatten(2)),
    BadCall("rank 5", VALUE, ValueError, lambda t: t.unsqueeze(0)),
    BadCall("integer dtype", VALUE, TypeError, lambda t: torch.zeros_like(t, dtype=torch.int32)),
    BadCall("complex dtype", VALUE, TypeError, lambda t: torch.zeros_like(t, dtype=torch.complex64)),
    BadCall("one pixel more than the levels have", (VALUE, SHAPES), ValueError, _longer(1)),
    BadCall("one batch entry more", (VALUE, LOCATIONS), ValueError, _longer(0)),
    BadCall("one head more", (VALUE, LOCATIONS), ValueError, _longer(2)),
    BadCall("rank 6", VALUE, ValueError, lambda t: t[None, None]),
    BadCall("not a tensor", SHAPES, TypeError, lambda t: t.tolist()),
    BadCall("floating dtype", SHAPES, TypeError, lambda t: t.double()),
    BadCall("three columns", SHAPES, ValueError, lambda t: torch.cat([t, t[:, :1]], dim=1)),
    BadCall("rank 1", SHAPES, ValueError, lambda t: t.flatten()),
    BadCall("one level more", (SHAPES, LOCATIONS), ValueError, _longer(0)),
    BadCall("a height of 0", SHAPES, ValueError, lambda t: torch.cat([t[:-1], t[-1:] * torch.tensor([0, 1]).to(t)])),
    BadCall("a negative width", SHAPES, ValueError, lambda t: t * torch.tensor([1, -1]).to(t)),
    BadCall("negative sides that multiply to as many pixels", SHAPES, ValueError, lambda t: -t),
    BadCall("one row more than value has", (SHAPES, VALUE, STARTS), ValueError, _plus((0, 0), 1)),
    BadCall("not a tensor", STARTS, TypeError, lambda t: t.tolist()),
    BadCall("floating dtype", STARTS, TypeError, lambda t: t.float()),
    BadCall("one level more", STARTS, ValueError, _longer(0)),
    BadCall("off by one", STARTS, ValueError, _plus(-1, 1)),
    BadCall("not a tensor", LOCATIONS, TypeError, lambda _: None),
    BadCall("three coordinates", LOCATIONS, ValueError, _longer(5)),
    BadCall("rank 5", LOCATIONS, ValueError, lambda t: t.flatten(3, 4)),
    BadCall("rank 7", LOCATIONS, ValueError, lambda t: t.unsqueeze(-1)),
    BadCall("one batch entry more", (LOCATIONS, VALUE), ValueError, _longer(0)),
    BadCall("one head more", (LOCATIONS, VALUE), ValueError, _longer(2)),
    BadCall("one level more", (LOCATIONS, SHAPES), ValueError, _longer(3)),
    BadCall("integer dtype", LOCATIONS, TypeError, lambda t: torch.zeros_like(t, dtype=torch.int64)),
    BadCall("a half dtype that is not value's", LOCATIONS, TypeError, _other_half),
    BadCall("not a tensor", WEIGHTS, TypeError, lambda _: 1.0),
    BadCall("rank 4", WEIGHTS, ValueError, lambda t: t.flatten(3)),
    BadCall("rank 6", WEIGHTS, ValueError, lambda t: t.unsqueeze(-1)),
    BadCall("one query more", (WEIGHTS, LOCATIONS), ValueError, _longer(1)),
    BadCall("one point more", (WEIGHTS, LOCATIONS), ValueError, _longer(4)),
    BadCall("boolean dtype", WEIGHTS, TypeError, lambda t: torch.zeros_like(t, dtype=torch.bool)),
    BadCall("another device", WEIGHTS, ValueError, lambda t: torch.empty_like(t, device="meta")),
]


@pytest.mark.partial
@pytest.mark.parametrize("cell", SAME, ids=lambda cell: cell.name)
def test_bad_arguments_are_refused(harness: Harness, cell: DtypeCell) -> None:
    """Every row of the table raises its exception and names the argument, and no operand is written."""
    if not harness.subject.validates:
        pytest.skip(f"{harness.subject.name} does not declare that it validates its arguments")
    if harness.case is not None:
        pytest.skip("bad arguments are not recorded as cases: the table is the case")
    harness.for_all(recipes(cell, limits=harness.limits), lambda recipe: check_refusals(harness, recipe))


def check_refusals(harness: Harness, recipe: Recipe) -> None:
    """Spoil one argument after the other of one good call."""
    inputs = recipe.build(harness.device)
    shapes, starts = inputs.level_table()
    good: Arguments = {
        VALUE: inputs.value,
        SHAPES: shapes,
        STARTS: starts,
        LOCATIONS: inputs.locations,
        WEIGHTS: inputs.weights,
    }
    before = {name: tensor.clone() for name, tensor in good.items() if isinstance(tensor, Tensor)}
    for bad in BAD_CALLS:
        argument = good[bad.names[0]]
        assert isinstance(argument, Tensor)
        arguments = good | {bad.names[0]: bad.spoil(argument)}
        problem = refusal(harness, bad, arguments)
        if problem is not None:
            kind: Kind = "accepted wrongly" if problem.startswith(ACCEPTED) else "logic fault"
            raise PropertyFailed(f"{bad.names[0]} with {bad.what}: {problem}\n  on {recipe!r}", kind=kind)
    for name, tensor in before.items():
        now = good[name]
        assert isinstance(now, Tensor)
        if not torch.equal(now.nan_to_num(7.0), tensor.nan_to_num(7.0)):
            raise PropertyFailed(f"{name} was written by a refused call\n  on {recipe!r}", kind="memory")
    harness.record_case(recipe)


def refusal(harness: Harness, bad: BadCall, arguments: Arguments) -> str | None:
    """Return what is wrong with the refusal, or None when it is right."""
    expected = f"expected a {bad.error.__name__} that names {' or '.join(bad.names)}"
    try:
        harness.subject.call(*arguments.values())  # type: ignore[arg-type]  # wrong types are the point
    except (TypeError, ValueError) as error:
        if not isinstance(error, bad.error):
            return f"raised {type(error).__name__}({error}), {expected}"
        if not any(name in str(error) for name in bad.names):
            return f"the message does not name the argument: {error}; {expected}"
        return None
    except Exception as error:
        return f"raised {type(error).__name__}({error}), {expected}"
    return f"{ACCEPTED}, {expected}"
