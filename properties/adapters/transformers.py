"""The pure PyTorch operator of Hugging Face `transformers` (Deformable DETR; DETA, Mask2Former and others copy it)."""

from __future__ import annotations

from typing import Any, cast

from torch import Tensor
from transformers.models.deformable_detr.modeling_deformable_detr import MultiScaleDeformableAttention

IM2COL_STEP = 64
_module = MultiScaleDeformableAttention()


def call(
    value: Tensor, spatial_shapes: Tensor, level_start_index: Tensor, locations: Tensor, weights: Tensor
) -> Tensor:
    """Call the module's forward.

    Args:
        value: (B, S, M, D).
        spatial_shapes: (L, 2); the module also takes it as a list on the host.
        level_start_index: (L,).
        locations: (B, Q, M, L, K, 2).
        weights: (B, Q, M, L, K).

    Returns:
        (B, Q, M * D), of value's dtype.
    """
    sizes = [(int(height), int(width)) for height, width in spatial_shapes.tolist()]
    out: Tensor = _module(value, spatial_shapes, sizes, level_start_index, locations, weights, IM2COL_STEP)
    return out


operator = cast(Any, call)
# It takes 16 bits too, where it rounds at every step, coordinates included; no declaration makes that exact enough.
operator.accumulate = "native"
operator.mixed_dtypes = False
operator.coordinates = "grid"
operator.nonfinite = "overflow"
operator.empty = False
