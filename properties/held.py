"""Operands in memory that is held: guarded on both sides, and given other contents in place between calls."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from reference.inputs import Inputs

from .declaration import OPERANDS, Operand
from .subject import Observation, Subject
from .verdict import INDICES

# By the operator's names: the fields of `Inputs` whose memory is held.
FIELDS = {
    "value": "value",
    "sampling_locations": "locations",
    "attention_weights": "weights",
    "grad_output": "grad_output",
}
TABLE = ("spatial_shapes", "level_start_index")
ALL = (*FIELDS, *TABLE)
# On each side: keeps the alignment of every address, up to this many bytes.
GUARD_BYTES = 256
# Every byte of a guard: NaN in all floating-point formats, -1 as an integer.
GUARD = 0xFF
# What number x is turned into is this less x: no x that the patterns draw often stays what it is, and a location on a
# map stays on it or next to it.
MIRROR = {"value": 0.75, "sampling_locations": 0.9375, "attention_weights": 0.75, "grad_output": 0.75}

Where = Literal["in its elements", "between its elements", "in the memory before it", "in the memory behind it"]


def place(tensor: Tensor) -> Tensor:
    """Copy a tensor with all the memory behind it into the middle of a larger memory, guarded on both sides.

    Args:
        tensor: any strides; its shape, strides and alignment (up to 256 bytes) stay what they are.
    """
    own = _bytes(tensor)
    whole = torch.full((own.numel() + 2 * GUARD_BYTES,), GUARD, dtype=torch.uint8, device=tensor.device)
    whole[GUARD_BYTES : GUARD_BYTES + own.numel()] = own
    offset = GUARD_BYTES // tensor.element_size() + tensor.storage_offset()
    return tensor.new_empty(0).set_(whole.untyped_storage(), offset, tensor.shape, tensor.stride())


def once(tensor: Tensor) -> Tensor:
    """View each element of an expanded tensor once, with a version counter of its own."""
    view = tensor.data
    for dim, (size, stride) in enumerate(zip(tensor.shape, tensor.stride(), strict=True)):
        if size > 1 and stride == 0:
            view = view.narrow(dim, 0, 1)
    return view


def _bytes(tensor: Tensor) -> Tensor:
    storage = tensor.untyped_storage()
    return torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(storage, 0, (storage.nbytes(),), (1,))


class Held:
    """Operands of a call in memory that stays theirs.

    Attributes:
        inputs: the operands as they are now, for the reference; none requires a gradient.
        tensors: what the subject is given, by name: the same memory, the same objects until `renew`.
        gradients: the operands that require a gradient.
    """

    def __init__(self, inputs: Inputs, *, gradients: tuple[Operand, ...] = OPERANDS) -> None:
        fields: dict[str, Any] = {field: place(getattr(inputs, field).detach()) for field in FIELDS.values()}
        self.inputs = dataclasses.replace(inputs, **fields)
        self._table = dict(zip(TABLE, map(place, inputs.level_table()), strict=True))
        self.tensors: dict[str, Tensor] = {}
        self.gradients = gradients
        self.renew()

    def renew(self) -> None:
        """Give the subject new tensor objects at the same addresses."""
        # The old ones go first, so that the new ones may well be where they were.
        self.tensors.clear()
        for name in ALL:
            old = self._memory(name)
            new = old.new_empty(0).set_(old.untyped_storage(), old.storage_offset(), old.shape, old.stride())
            self.tensors[name] = new.requires_grad_(name in self.gradients)

    def _memory(self, name: str) -> Tensor:
        return self._table[name] if name in TABLE else getattr(self.inputs, FIELDS[name])

    def write(self, name: str, contents: Tensor | float) -> None:
        """Overwrite the elements of an operand in place, on the current stream; no version counter moves.

        Args:
            name: of the operand.
            contents: as `once` shows it, or one number for all elements.
        """
        memory = once(self._memory(name))
        if isinstance(contents, Tensor):
            memory.copy_(contents)
        else:
            memory.fill_(contents)

    def contents(self, name: str) -> Tensor:
        """Copy the elements of an operand, each once."""
        return once(self._memory(name)).clone()

    def turn(self, name: str) -> bool:
        """Turn one operand's contents into others in place.

        Args:
            name: of an operand. `spatial_shapes` gets sides of other lengths and the same areas, so that everything
                else still fits.

        Returns:
            Whether it is another one now: levels of one pixel have no other sides.
        """
        if name in FIELDS:
            before = self.contents(name)
            after = (MIRROR[name] - before.double()).to(before.dtype)
            self.write(name, after)
            return not torch.equal(before.nan_to_num(), after.nan_to_num())
        levels = other_sides(self.inputs.levels)
        if levels == self.inputs.levels:
            return False
        self.inputs = dataclasses.replace(self.inputs, levels=levels)
        self.write(name, self.inputs.level_table()[0])
        return True

    def forward(self, subject: Subject) -> Tensor:
        """Call the subject on the tensors themselves, no copies and no views of them."""
        tensors = self.tensors
        return subject.call(*(tensors[name] for name in ("value", *TABLE, "sampling_locations", "attention_weights")))

    def backward(self, out: Tensor) -> Observation:
        """Run the backward of sum(out * grad_output)."""
        leaves = [self.tensors[name] for name in self.gradients]
        found: tuple[Tensor | None, ...] = (None,) * len(leaves)
        if out.requires_grad:
            found = torch.autograd.grad(out, leaves, self.tensors["grad_output"], allow_unused=True)
        grads = {f"grad_{name}": grad for name, grad in zip(self.gradients, found, strict=True)}
        return Observation(out=out.detach(), **grads)

    def call(self, subject: Subject, *, gradients: bool = True) -> Observation:
        """Run forward and backward, or the forward alone with gradients off."""
        if not gradients:
            with torch.no_grad():
                return Observation(out=self.forward(subject))
        return self.backward(self.forward(subject))


def results(observation: Observation) -> dict[str, Tensor]:
    """Return the results that there are, by name."""
    found = {name: getattr(observation, name) for name in INDICES}
    return {name: result for name, result in found.items() if isinstance(result, Tensor)}


def copied(observation: Observation) -> Observation:
    """Copy results, so that one can tell later whether they are still the same."""
    return Observation(**{name: result.clone() for name, result in results(observation).items()})


def other_sides(levels: tuple[tuple[int, int], ...]) -> tuple[tuple[int, int], ...]:
    """Return levels of the same areas and other sides, (2, 3) -> (3, 2) or else (2, 2) -> (1, 4), unless all are 1 x 1.

    Args:
        levels: (H, W) of each.
    """
    if any(height != width for height, width in levels):
        return tuple((width, height) for height, width in levels)
    return tuple((side // 2, 2 * side) if side % 2 == 0 else (1, side * side) for side, _ in levels)


@dataclass(frozen=True, kw_only=True, eq=False)
class _Before:
    tensor: Tensor
    memory: Tensor
    form: dict[str, object]
    version: int


@dataclass(frozen=True, kw_only=True)
class Change:
    """What happened to an operand that must be left alone.

    Attributes:
        name: of the operand.
        what: in words.
    """

    name: str
    what: str


@contextmanager
def watched(held: Held) -> Iterator[list[Change]]:
    """Note what a block does to the operands of a call, to the level table and to the memory around each.

    Memory is compared byte by byte. Version counters tell of writes that were taken back. Shape, strides, address and
    whether a gradient is required must stay, and no gradient may be left behind.

    Yields:
        A list that has the changes once the block has ended.
    """
    before = {
        name: _Before(tensor=tensor, memory=_bytes(tensor).clone(), form=_form(tensor), version=tensor._version)
        for name, tensor in held.tensors.items()
    }
    whole = {name: _bytes(tensor) for name, tensor in held.tensors.items()}
    # Where the elements are is for their first form to say.
    views = {name: tensor.detach() for name, tensor in held.tensors.items()}
    changes: list[Change] = []
    yield changes
    for name, old in before.items():
        differs = whole[name] != old.memory
        if bool(differs.any()):
            count = int(differs.sum())
            bytes_ = "1 byte" if count == 1 else f"{count} bytes"
            changes.append(Change(name=name, what=f"{bytes_} changed {_where(views[name], differs)}"))
        elif old.tensor._version != old.version:
            changes.append(Change(name=name, what="written to by PyTorch, though every byte is what it was"))
        form = _form(old.tensor)
        wrong = [
            f"its {what} is {form[what]}, no longer {value}" for what, value in old.form.items() if form[what] != value
        ]
        changes += [Change(name=name, what=", ".join(wrong))] if wrong else []
        if old.tensor.grad is not None:
            changes.append(Change(name=name, what="a gradient was left in its .grad"))


def _form(tensor: Tensor) -> dict[str, object]:
    return {
        "shape": tuple(tensor.shape),
        "strides": tensor.stride(),
        "address": tensor.data_ptr(),
        "dtype": tensor.dtype,
        "requires_grad": tensor.requires_grad,
    }


def _where(tensor: Tensor, differs: Tensor) -> Where:
    """Say where the changes lie, in the elements first.

    Args:
        tensor: in the form that it was given in.
        differs: bool, one per byte of its memory.
    """
    elements = torch.zeros(differs.numel() // tensor.element_size(), dtype=torch.bool, device=tensor.device)
    each = once(tensor)
    elements.as_strided(each.shape, each.stride(), each.storage_offset()).fill_(True)
    inside = elements.repeat_interleave(tensor.element_size())
    if bool((differs & inside).any()):
        return "in its elements"
    reached = elements.nonzero().flatten().tolist() or [GUARD_BYTES // tensor.element_size()]
    first = int(differs.nonzero()[0]) // tensor.element_size()
    if first < reached[0]:
        return "in the memory before it"
    return "in the memory behind it" if first > reached[-1] else "between its elements"
