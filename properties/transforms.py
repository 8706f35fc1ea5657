"""Changes of a call whose effect on its results is known: permutations, splits, extra samples, mirrored maps.

Each returns the changed operands and a function that moves a tensor shaped like one of the changed call's results back
to where it lies in the plain call. What is random follows from a seed alone, so a recipe says everything.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from properties import counter
from reference.inputs import Inputs

# (name of an output, tensor of its shape in the changed call) -> the same in the plain call
Undo = Callable[[str, Tensor], Tensor]
# Streams of the counter that no operand of a recipe uses.
_FIRST_STREAM = 200
EXTRA_LEVEL = (3, 5)
# Of the 52 bits of a float64 fraction.
_CUT_BITS = 50


def choice(seed: int, number: int, limit: int) -> int:
    """Choose one of `limit` integers by a recipe's seed; `number` tells the choices of one seed apart."""
    return (counter.integer(seed, _FIRST_STREAM + number) >> 16) % limit


def permutation(seed: int, number: int, size: int, device: torch.device) -> Tensor:
    """Permute `size` things by a recipe's seed; none stays where it is when they are a rotation at least."""
    order = torch.argsort(counter.bits(seed, _FIRST_STREAM + number, size, device))
    return order.roll(1) if size > 1 and bool((order == torch.arange(size, device=device)).all()) else order


def permute_rows(inputs: Inputs, seed: int) -> tuple[Inputs, Undo]:
    """Permute batch entries, queries and heads, all at once."""
    device = inputs.device
    batch = permutation(seed, 0, inputs.batch, device)
    query = permutation(seed, 1, inputs.queries, device)
    head = permutation(seed, 2, inputs.heads, device)
    grad = inputs.grad_output.unflatten(-1, (inputs.heads, inputs.channels))
    changed = dataclasses.replace(
        inputs,
        value=inputs.value[batch][:, :, head],
        locations=inputs.locations[batch][:, query][:, :, head],
        weights=inputs.weights[batch][:, query][:, :, head],
        grad_output=grad[batch][:, query][:, :, head].flatten(-2),
    )
    back_batch, back_query, back_head = (torch.argsort(order) for order in (batch, query, head))

    def undo(name: str, result: Tensor) -> Tensor:
        if name == "grad_value":
            return result[back_batch][:, :, back_head]
        if name == "out":
            result = result.unflatten(-1, (inputs.heads, inputs.channels))
        moved = result[back_batch][:, back_query][:, :, back_head]
        return moved.flatten(-2) if name == "out" else moved

    return changed, undo


def permute_samples(inputs: Inputs, seed: int) -> tuple[Inputs, Undo]:
    """Permute the points of all levels alike, and the levels with the pixels that belong to them."""
    level = permutation(seed, 3, len(inputs.levels), inputs.device)
    point = permutation(seed, 4, inputs.points, inputs.device)
    order = level.tolist()
    blocks = level_blocks(inputs.value, inputs.levels)
    levels = tuple(inputs.levels[number] for number in order)
    changed = dataclasses.replace(
        inputs,
        levels=levels,
        value=torch.cat([blocks[number] for number in order], dim=1),
        locations=inputs.locations[:, :, :, level][:, :, :, :, point],
        weights=inputs.weights[:, :, :, level][:, :, :, :, point],
    )
    back_level, back_point = torch.argsort(level), torch.argsort(point)

    def undo(name: str, result: Tensor) -> Tensor:
        if name == "out":
            return result
        if name == "grad_value":
            moved = level_blocks(result, levels)
            return torch.cat([moved[number] for number in back_level.tolist()], dim=1)
        return result[:, :, :, back_level][:, :, :, :, back_point]

    return changed, undo


def pad_points(inputs: Inputs) -> tuple[Inputs, Undo]:
    """Add to every level one more point, of weight 0 and where the first one is."""
    locations = torch.cat([inputs.locations, inputs.locations[:, :, :, :, :1]], dim=4)
    weights = torch.cat([inputs.weights, torch.zeros_like(inputs.weights[..., :1])], dim=4)

    def undo(name: str, result: Tensor) -> Tensor:
        return result if name in {"out", "grad_value"} else result[:, :, :, :, : inputs.points]

    return dataclasses.replace(inputs, locations=locations, weights=weights), undo


def pad_levels(inputs: Inputs, *, front: bool) -> tuple[Inputs, Undo]:
    """Add one more level before or after all others, sampled in its middle with weight 0."""

    def join(own: Tensor, extra: Tensor, dim: int) -> Tensor:
        return torch.cat([extra, own] if front else [own, extra], dim=dim)

    height, width = EXTRA_LEVEL
    pixels = height * width
    extra = inputs.value.new_full((inputs.batch, pixels, inputs.heads, inputs.channels), 1.5)
    levels = (EXTRA_LEVEL, *inputs.levels) if front else (*inputs.levels, EXTRA_LEVEL)
    changed = dataclasses.replace(
        inputs,
        levels=levels,
        value=join(inputs.value, extra, 1),
        locations=join(inputs.locations, torch.full_like(inputs.locations[:, :, :, :1], 0.375), 3),
        weights=join(inputs.weights, torch.zeros_like(inputs.weights[:, :, :, :1]), 3),
    )

    def undo(name: str, result: Tensor) -> Tensor:
        if name == "out":
            return result
        if name == "grad_value":
            return result[:, pixels:] if front else result[:, : inputs.pixels]
        return result[:, :, :, 1:] if front else result[:, :, :, :-1]

    return changed, undo


def mirror(inputs: Inputs, *, flip_x: bool, flip_y: bool, transpose: bool) -> tuple[Inputs, Undo]:
    """Mirror every map, and the locations with it; the seven choices with one True are those of a square's symmetries.

    1 - x must be exact: the locations of a lattice are such. First the flips, then x and y change places.
    """
    dims = [dim for dim, flipped in ((1, flip_y), (2, flip_x)) if flipped]
    signs = torch.tensor([-1.0 if flip_x else 1.0, -1.0 if flip_y else 1.0], device=inputs.device)

    def turn(tensor: Tensor, levels: Sequence[tuple[int, int]], *, back: bool) -> Tensor:
        turned = []
        for (height, width), block in zip(levels, level_blocks(tensor, levels), strict=True):
            image = block.unflatten(1, (height, width))
            # Transposing is done last, so it is undone first.
            if transpose and back:
                image = image.transpose(1, 2)
            image = image.flip(dims)
            if transpose and not back:
                image = image.transpose(1, 2)
            turned.append(image.flatten(1, 2))
        return torch.cat(turned, dim=1)

    levels = tuple((width, height) for height, width in inputs.levels) if transpose else inputs.levels
    exact = inputs.locations.double()
    moved = torch.where(signs < 0, 1.0 - exact, exact).to(inputs.locations.dtype)
    changed = dataclasses.replace(
        inputs,
        levels=levels,
        value=turn(inputs.value, inputs.levels, back=False),
        locations=moved.flip(-1) if transpose else moved,
    )

    def undo(name: str, result: Tensor) -> Tensor:
        if name == "grad_value":
            return turn(result, levels, back=True)
        if name == "grad_sampling_locations":
            return (result.flip(-1) if transpose else result) * signs.to(result.dtype)
        return result

    return changed, undo


def level_blocks(tensor: Tensor, levels: Sequence[tuple[int, int]]) -> tuple[Tensor, ...]:
    """Split (B, S, M, D) into the pixels of each level."""
    return torch.split(tensor, [height * width for height, width in levels], dim=1)


def on_pixel_edge(inputs: Inputs) -> Tensor:
    """(B, Q, M, L, K, 2) bool: coordinates that are integers, where the location gradient has two admissible values."""
    sizes = torch.tensor([(width, height) for height, width in inputs.levels], dtype=torch.float64)
    place = inputs.locations.double() * sizes.view(-1, 1, 2).to(inputs.device) - 0.5
    return place == place.floor()


def coarse(tensor: Tensor) -> Tensor:
    """Cut to the leading 3 bits, so that the number and its rest are both exact in its own dtype."""
    # By its bits: powers of two from a device's math library need not be exact.
    bits = tensor.double().view(torch.int64)
    return bits.bitwise_and(~((1 << _CUT_BITS) - 1)).view(torch.float64).to(tensor.dtype)
