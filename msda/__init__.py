"""Multi-scale deformable attention in Triton."""

from .op import multi_scale_deformable_attention

__all__ = ["multi_scale_deformable_attention"]
