"""Fresh memory filled with NaN, so that an element nobody wrote cannot pass for a zero."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from .operations import PYTORCH, run_open

# Every operator that returns memory without writing it.
UNWRITTEN = frozenset(
    {
        torch.ops.aten.empty.memory_format,
        torch.ops.aten.empty_strided.default,
        torch.ops.aten.empty_like.default,
        torch.ops.aten.new_empty.default,
        torch.ops.aten.new_empty_strided.default,
    }
)


class _Poison(TorchDispatchMode):
    """Fills what `torch.empty` and its like return."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        del types
        if getattr(func, "namespace", "") not in PYTORCH:
            # Memory is taken inside of it, where a mode does not look by itself.
            return run_open(self, func, args, dict(kwargs or {}))
        result = func(*args, **(kwargs or {}))
        if func in UNWRITTEN and isinstance(result, Tensor) and result.is_floating_point():
            result.fill_(torch.nan)
        return result


@contextmanager
def poisoned() -> Iterator[None]:
    """Fill memory that PyTorch allocates without writing with NaN, forward and backward.

    Inside of operators of `torch.library` too. Autograd carries the mode into its own threads. Memory that a subject
    takes from elsewhere is not covered: a storage that it makes itself, say.
    """
    with _Poison():
        yield
