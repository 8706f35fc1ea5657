"""A correct kernel's arithmetic, emulated on the CPU: every operation rounded once, sums in any order.

The error bounds claim that no correct kernel exceeds them. This module is the set of correct kernels that the claim is
tested on: float32 arithmetic (float64 for float64 values) with storage in any dtype, every declared interpolation and
coordinate form, fused multiply-adds on and off, the arrangements of the gradient sums that real kernels use, flushed
subnormals, and any order of addition, atomics included. Where a form leaves a choice that no kernel declares
(association of a product, arrangement of a sum), the random generator makes it.

Notation: N = B * Q * M rows, T = L * K samples a row, D channels. Sums run over the first axis.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from .inputs import Inputs
from .machine import Array, Machine, Order, Sums, add_to_odd, round_to_storage
from .model import Arithmetic, compute_dtype

NUMPY_DTYPE: dict[torch.dtype, Any] = {torch.float64: np.float64, torch.float32: np.float32}


@dataclass(frozen=True, kw_only=True, eq=False)
class Emulated:
    """What the emulated kernel returns: each tensor has the shape and dtype of its operand (out: dtype of value)."""

    out: Tensor
    grad_value: Tensor
    grad_sampling_locations: Tensor
    grad_attention_weights: Tensor


def run(
    inputs: Inputs,
    arithmetic: Arithmetic | None = None,
    *,
    rng: np.random.Generator,
    contract: bool,
    order: Order,
    flush: bool = False,
) -> Emulated:
    """Compute forward and backward as a kernel that declares `arithmetic` may compute them.

    Args:
        inputs: operands on the CPU; every dimension but the level sizes may be 0.
        arithmetic: the declaration; None means the defaults of the shipped kernels. `flush_to_zero` is ignored:
            it says what a kernel may do, `flush` says what this one does.
        rng: makes every choice that is not declared.
        contract: fuse the coordinate step into one multiply-add, and, as a compiler may, other a * b + c too.
        order: order of every sum. "random" permutes it and then adds one by one or as a tree.
        flush: flush subnormal float32 inputs and results to zero in the atomics, unless declared otherwise, or (rng
            chooses) everywhere.
    """
    arithmetic = arithmetic or Arithmetic()
    # Overflow to infinity, and NaN from it, are results like any other here.
    with np.errstate(all="ignore"):
        return _Kernel(inputs, arithmetic, rng, contract, order, flush).run()


def _as_tensor(x: Array, dtype: torch.dtype, shape: torch.Size | tuple[int, ...]) -> Tensor:
    """Round to storage and convert; torch's own conversion is then exact."""
    return torch.from_numpy(np.ascontiguousarray(round_to_storage(x, dtype))).to(dtype).reshape(shape)


def _as_numpy(tensor: Tensor, dtype: Any) -> Array:
    """Upcast a tensor to the compute dtype, exactly."""
    array: Array = tensor.detach().to(torch.float64).numpy().astype(dtype)
    return array


class _Kernel:
    """One emulated launch. Corners run (top left, top right, bottom left, bottom right) on the first axis."""

    def __init__(
        self,
        inputs: Inputs,
        arithmetic: Arithmetic,
        rng: np.random.Generator,
        contract: bool,
        order: Order,
        flush: bool,
    ) -> None:
        self.inputs = inputs
        self.arithmetic = arithmetic
        self.rng = rng
        self.dtype = NUMPY_DTYPE[compute_dtype(inputs.value.dtype)]
        # A device whose atomics keep subnormals may still flush in arithmetic.
        everywhere = flush and (self.chance() or not arithmetic.flush_atomics)
        # The coordinate step is contracted when asked to; the rest only as the compiler sees fit.
        self.coordinate_machine = Machine(self.dtype, contract=contract, flush=everywhere)
        self.machine = Machine(self.dtype, contract=contract and self.chance(), flush=everywhere)
        self.atomics = Machine(self.dtype, contract=False, flush=flush and arithmetic.flush_atomics)
        self.sums = Sums(self.machine, order, rng)
        self.load()

    def chance(self) -> bool:
        """Toss a coin for a choice that no kernel declares."""
        return bool(self.rng.integers(2))

    def load(self) -> None:
        """Read the operands: coordinates, interpolation factors, corners and what belongs to them."""
        inputs, machine = self.inputs, self.machine
        rows = inputs.batch * inputs.queries * inputs.heads
        points, samples = inputs.points, len(inputs.levels) * inputs.points
        sizes = np.repeat(np.array(inputs.levels, dtype=np.int64).reshape(-1, 2), points, axis=0)
        starts = np.repeat(inputs.level_table()[1].cpu().numpy(), points)
        self.size = {"x": sizes[:, 1, None].astype(self.dtype), "y": sizes[:, 0, None].astype(self.dtype)}  # (T, 1)
        locations = machine.flushed(_as_numpy(inputs.locations, self.dtype).reshape(rows, samples, 2).T)  # (2, T, N)
        self.weight = machine.flushed(_as_numpy(inputs.weights, self.dtype).reshape(rows, samples).T)  # (T, N)
        self.grad = machine.flushed(_as_numpy(inputs.grad_output, self.dtype).reshape(rows, inputs.channels))  # (N, D)

        x = self.coordinate(locations[0], self.size["x"])
        y = self.coordinate(locations[1], self.size["y"])
        # Comparisons with NaN are false: such a sample is skipped, like any off the map.
        self.used = (x > -1) & (x < self.size["x"]) & (y > -1) & (y < self.size["y"])
        x, y = np.where(self.used, x, self.dtype(0)), np.where(self.used, y, self.dtype(0))
        column, row = np.floor(x), np.floor(y)
        self.low_x, self.low_y = machine.sub(x, column), machine.sub(y, row)
        self.high_x, self.high_y = machine.sub(self.dtype(1), self.low_x), machine.sub(self.dtype(1), self.low_y)

        columns = column.astype(np.int64) + np.array([0, 1, 0, 1])[:, None, None]  # (4, T, N)
        lines = row.astype(np.int64) + np.array([0, 0, 1, 1])[:, None, None]
        width, height = sizes[:, 1, None], sizes[:, 0, None]
        self.inside = self.used & (columns >= 0) & (columns < width) & (lines >= 0) & (lines < height)
        self.pixel = np.where(self.inside, starts[:, None] + lines * width + columns, 0)
        triple = np.arange(rows)
        self.batch_of = triple // (inputs.heads * inputs.queries)
        self.head_of = triple % inputs.heads
        value = _as_numpy(inputs.value, self.dtype)
        read = value[self.batch_of, self.pixel, self.head_of]
        # Selected, not multiplied: a corner outside the map, or of a skipped sample, is 0 whatever is stored.
        self.corners = machine.flushed(np.where(self.inside[..., None], read, self.dtype(0)))  # (4, T, N, D)

    def coordinate(self, location: Array, size: Array) -> Array:
        """Return the pixel coordinate loc * size - 1/2 in the declared form and precision, (T, N)."""
        mul_add, half, one = self.coordinate_mul_add, self.dtype(0.5), self.dtype(1)
        if self.arithmetic.coordinates == "grid":
            grid = mul_add(self.dtype(2), location, -one)
            doubled = mul_add(mul_add(one, grid, one), size, -one)
            # Halving is exact, coordinates being far from subnormal or 0.
            return np.asarray(doubled * half)
        return mul_add(location, size, -half)

    def coordinate_mul_add(self, a: Array, b: Array, c: Array) -> Array:
        """Return a * b + c, fused or not, in the format that coordinates are computed in."""
        machine = self.coordinate_machine
        storage = self.inputs.locations.dtype
        if self.arithmetic.coordinate_dtype == "float32" or storage in NUMPY_DTYPE:
            return machine.mul_add(a, b, c)
        # In 16 bits. The product is exact in float64, and rounding the sum to odd leaves one rounding, to storage.
        product = np.multiply(a, b, dtype=np.float64)
        if not machine.contract:
            product = round_to_storage(product, storage).astype(np.float64)
        return round_to_storage(add_to_odd(product, np.asarray(c, dtype=np.float64)), storage)

    def run(self) -> Emulated:
        """Compute the four results and round each to its storage dtype."""
        inputs = self.inputs
        self.interpolated = self.interpolate()
        return Emulated(
            out=_as_tensor(self.forward(), inputs.value.dtype, inputs.grad_output.shape),
            grad_value=_as_tensor(self.grad_value(), inputs.value.dtype, inputs.value.shape),
            grad_sampling_locations=_as_tensor(
                np.stack([self.grad_location("x"), self.grad_location("y")], axis=-1).transpose(1, 0, 2),
                inputs.locations.dtype,
                inputs.locations.shape,
            ),
            grad_attention_weights=_as_tensor(self.grad_weight().T, inputs.weights.dtype, inputs.weights.shape),
        )

    def products(self) -> Array:
        """Return the four bilinear factors as products, (4, T, N)."""
        mul = self.machine.mul
        return np.stack(
            [
                mul(self.high_y, self.high_x),
                mul(self.high_y, self.low_x),
                mul(self.low_y, self.high_x),
                mul(self.low_y, self.low_x),
            ]
        )

    def differences(self, weight: Array) -> Array:
        """Return weight times the four bilinear factors, built by subtraction, (4, T, N).

        a = a_top + a_bottom and each of these = left + right: three products, and an absolute error of about u|a| a
        factor where products have a relative one. A compiler may fuse either kind of subtraction, or both.
        """
        machine = self.machine
        plain = Machine(self.dtype, contract=False, flush=machine.flush)
        outer, inner = (machine if self.chance() else plain for _ in range(2))
        bottom = machine.mul(weight, self.low_y)
        top = outer.negative_mul_add(weight, self.low_y, weight)
        bottom_right = machine.mul(bottom, self.low_x)
        top_right = machine.mul(top, self.low_x)
        top_left = inner.negative_mul_add(top, self.low_x, top)
        if machine.contract and self.chance():
            # What Triton 3.6 makes of bottom - bottom_right: the product a * ly is fused instead, unrounded.
            bottom_left = machine.mul_add(weight, self.low_y, -bottom_right)
        else:
            bottom_left = inner.negative_mul_add(bottom, self.low_x, bottom)
        return np.stack([top_left, top_right, bottom_left, bottom_right])

    def interpolate(self) -> Array:
        """Return the bilinear value of each sample in the declared form, (T, N, D)."""
        if self.arithmetic.interpolation == "lerp":
            return self.lerp(self.corners)
        if self.arithmetic.interpolation == "difference":
            return self.sums.dot(self.differences(np.ones_like(self.weight))[..., None], self.corners)
        if self.chance():
            return self.sums.dot(self.products()[..., None], self.corners)
        # Nested: each row first, then the two rows.
        mul, mul_add = self.machine.mul, self.machine.mul_add
        top_left, top_right, bottom_left, bottom_right = self.corners
        left, right = self.high_x[..., None], self.low_x[..., None]
        top = mul_add(left, top_left, mul(right, top_right))
        bottom = mul_add(left, bottom_left, mul(right, bottom_right))
        return mul_add(self.low_y[..., None], bottom, mul(self.high_y[..., None], top))

    def lerp(self, corners: Array) -> Array:
        """Return v00 + lx (v01 - v00), and so on: corners (4, T, N, ...) to (T, N, ...)."""
        machine = self.machine
        extra = (...,) + (None,) * (corners.ndim - 3)
        top_left, top_right, bottom_left, bottom_right = corners
        top = machine.mul_add(self.low_x[extra], machine.sub(top_right, top_left), top_left)
        bottom = machine.mul_add(self.low_x[extra], machine.sub(bottom_right, bottom_left), bottom_left)
        return machine.mul_add(self.low_y[extra], machine.sub(bottom, top), top)

    def forward(self) -> Array:
        """Return the output, (N, D), in one of the associations of its triple product."""
        corners, sums = self.corners, self.sums
        if self.arithmetic.interpolation == "difference":
            factors = self.differences(self.weight)
        elif self.arithmetic.interpolation == "lerp" or self.chance():
            # (w * v) summed over the corners, then times a.
            weight = np.where(self.used, self.weight, self.dtype(0))
            return sums.dot(weight[..., None], self.interpolated)
        else:
            factors = self.machine.mul(self.weight, self.products())
        factors = np.where(self.inside, factors, self.dtype(0))[..., None]
        nested = self.arithmetic.interpolation == "weights" and self.arithmetic.corner_sum == "nested"
        if not nested and self.chance():
            # One running sum over all corners of all samples.
            _, samples, rows, channels = corners.shape
            return sums.dot(factors.reshape(4 * samples, rows, 1), corners.reshape(4 * samples, rows, channels))
        return sums.total(sums.dot(factors, corners))

    def grad_weight(self) -> Array:
        """Return the gradient of the attention weights, (T, N): channels summed last, or first."""
        if self.chance():
            result = self.against_grad(self.interpolated)
        else:
            per_corner = self.against_grad(self.corners)  # (4, T, N)
            form = self.arithmetic.interpolation
            if form == "lerp":
                result = self.lerp(per_corner)
            else:
                factors = self.products() if form == "weights" else self.differences(np.ones_like(self.weight))
                result = self.sums.dot(factors, per_corner)
        return np.where(self.used, result, self.dtype(0))

    def against_grad(self, per_channel: Array) -> Array:
        """Sum grad * per_channel (..., N, D) over the channels: (..., N)."""
        return self.sums.dot(self.grad.T, np.moveaxis(per_channel, -1, 0))

    def grad_location(self, axis: Literal["x", "y"]) -> Array:
        """Return the gradient of one location axis, (T, N), in one of three arrangements."""
        machine = self.machine
        near, far = (self.high_y, self.low_y) if axis == "x" else (self.high_x, self.low_x)
        # Along y, the two corners in the middle change places: then both axes read alike.
        first, second, third, fourth = (0, 1, 2, 3) if axis == "x" else (0, 2, 1, 3)
        arrangement = self.rng.integers(3)
        if arrangement == 2:
            # The original CUDA code: four signed corners, then g * a, per channel, and the channels last.
            v = self.corners
            slope = machine.negative_mul_add(near[..., None], v[first], self.dtype(0))
            slope = machine.mul_add(near[..., None], v[second], slope)
            slope = machine.negative_mul_add(far[..., None], v[third], slope)
            slope = machine.mul_add(far[..., None], v[fourth], slope)
            top = machine.mul(self.grad, self.weight[..., None])
            scaled = (machine.mul(self.size[axis][..., None], slope), top)
            if self.chance():
                scaled = (slope, machine.mul(self.size[axis][..., None], top))
            result = self.sums.dot(*(np.moveaxis(factor, -1, 0) for factor in scaled))
        elif arrangement == 1:
            result = self.scaled(axis, self.slope(self.against_grad(self.corners), near, far, axis))
        else:
            slopes = self.slope(self.corners, near[..., None], far[..., None], axis)
            result = self.scaled(axis, self.against_grad(slopes))
        return np.where(self.used, result, self.dtype(0))

    def slope(self, v: Array, near: Array, far: Array, axis: Literal["x", "y"]) -> Array:
        """Return near * (v01 - v00) + far * (v11 - v10), and for y the same with v01 and v10 exchanged."""
        second, third = (v[1], v[2]) if axis == "x" else (v[2], v[1])
        machine = self.machine
        return machine.mul_add(far, machine.sub(v[3], third), machine.mul(near, machine.sub(second, v[0])))

    def scaled(self, axis: Literal["x", "y"], total: Array) -> Array:
        """Multiply by the level size and the attention weight, in any association."""
        mul, size = self.machine.mul, self.size[axis]
        association = self.rng.integers(3)
        if association == 0:
            return mul(size, mul(self.weight, total))
        if association == 1:
            return mul(self.weight, mul(size, total))
        return mul(mul(size, self.weight), total)

    def grad_value(self) -> Array:
        """Return the gradient of value, (B * S * M, D), its contributions added atomically."""
        inputs, mul = self.inputs, self.machine.mul
        if self.arithmetic.interpolation == "difference":
            terms = mul(self.differences(self.weight)[..., None], self.grad)
        elif self.chance():
            terms = mul(self.products()[..., None], mul(self.weight[..., None], self.grad))
        else:
            terms = mul(mul(self.products(), self.weight)[..., None], self.grad)
        rows = (self.batch_of * inputs.pixels + self.pixel) * inputs.heads + self.head_of
        storage = inputs.value.dtype
        native = self.arithmetic.accumulate == "native" and storage in (torch.float16, torch.bfloat16)
        atomics = self.atomics

        def add(a: Array, b: Array) -> Array:
            # Sixteen-bit atomics keep subnormals; a float32 sum of two rounded again equals one rounding.
            return round_to_storage(np.add(a, b), storage) if native else atomics.add(a, b)

        chosen = terms[self.inside]
        chosen = round_to_storage(chosen, storage) if native else atomics.flushed(chosen)
        total = np.zeros((inputs.batch * inputs.pixels * inputs.heads, inputs.channels), dtype=self.dtype)
        _accumulate(total, rows[self.inside], chosen, self.sums, add)
        return total


def _accumulate(
    total: Array, rows: NDArray[np.int64], terms: Array, sums: Sums, add: Callable[[Array, Array], Array]
) -> None:
    """Add terms (R, D) to the rows of `total` that they name, in the order of `sums`, all rows at once."""
    arranged = sums.arranged(len(rows))
    by_row = arranged[np.argsort(rows[arranged], kind="stable")]
    rows, terms = rows[by_row], terms[by_row]
    # Number the terms of each row: those of one number belong to different rows and are added at once.
    positions = np.arange(len(rows))
    first = np.ones(len(rows), dtype=bool)
    first[1:] = rows[1:] != rows[:-1]
    rank = positions - np.maximum.accumulate(np.where(first, positions, 0))
    while sums.tree and rank.max(initial=0) > 0:
        left = np.flatnonzero((rank[:-1] % 2 == 0) & (rank[1:] == rank[:-1] + 1))
        terms[left] = add(terms[left], terms[left + 1])
        even = rank % 2 == 0
        rows, terms, rank = rows[even], terms[even], rank[even] // 2
    by_rank = np.argsort(rank, kind="stable")
    for chosen in np.split(by_rank, np.cumsum(np.bincount(rank)))[:-1]:
        total[rows[chosen]] = add(total[rows[chosen]], terms[chosen])
