"""The operators of PyTorch that compute inside a block: forward, backward, and within operators registered by others.

A `TorchDispatchMode` sees each operator that is called and is off while that one runs. Of an operator of
`torch.library` it would therefore see the name, and nothing of what happens inside. Here such an operator is called
below the place where the mode intercepts it, with the mode on again.

Not seen: arithmetic in NumPy or in Python, in a thread that the subject starts itself, in a library that it calls
without PyTorch's dispatcher, and whatever it does after it has switched the mode off.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Literal

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

Stage = Literal["forward", "backward"]

# Namespaces whose operators come with PyTorch.
PYTORCH = frozenset({"aten", "prims", "mkldnn", "mkl", "onednn", "quantized", "_quantized", "xnnpack"})
# Operators that allocate, set to a constant, look at memory in another form, copy, cast or move, by the name without
# the underscore of the in-place form. Those that PyTorch itself marks as views need not be here.
CREATES = """
    _efficientzerotensor _foreach_zero arange empty empty_like empty_permuted empty_strided eye fill full full_like lift
    lift_fresh lift_fresh_copy new_empty new_empty_strided new_full new_ones new_zeros ones ones_like scalar_tensor zero
    zeros zeros_like
"""
LOOKS = """
    _reshape_alias _unsafe_view adjoint align_to alias as_strided broadcast_tensors broadcast_to chunk contiguous data
    detach diagonal dsplit expand_as flatten hsplit mH mT matrix_H moveaxis movedim narrow numpy_T ravel record_stream
    refine_names rename requires_grad reshape reshape_as resize resize_as resolve_conj resolve_neg retain_grad set
    set_data split squeeze swapaxes swapdims tensor_split unflatten unsafe_chunk unsafe_split unsafe_split_with_sizes
    view_as vsplit
"""
MOVES = """
    _copy_from _foreach_copy _pin_memory _to_copy cat clone column_stack concat concatenate constant_pad_nd copy cpu
    cuda flip fliplr flipud gather hstack index index_select pad pin_memory repeat repeat_interleave roll select_scatter
    slice_scatter stack take take_along_dim tile to type_as vstack
"""
HARMLESS = frozenset(f"{CREATES} {LOOKS} {MOVES}".split())


class Recorder(TorchDispatchMode):
    """Notes the operators that compute; see `recorded`.

    Attributes:
        computed: by stage, how often each operator of PyTorch has computed a floating-point number.
        seen: operators that were seen at all.
    """

    def __init__(self, device: torch.device) -> None:
        super().__init__()
        self.computed: dict[Stage, Counter[str]] = {"forward": Counter(), "backward": Counter()}
        self.seen = 0
        self._device = device

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        del types
        keywords = dict(kwargs or {})
        self.seen += 1
        if getattr(func, "namespace", "") not in PYTORCH:
            return run_open(self, func, args, keywords)
        result = func(*args, **keywords)
        what = _computes(func, args, keywords, result, self._device)
        if what:
            # Autograd's device threads have the mode too, and the task that they work at.
            in_backward = torch._C._current_graph_task_id() != -1
            self.computed["backward" if in_backward else "forward"][what] += 1
        return result

    def story(self) -> list[str]:
        """Name what computed, stage by stage, the most frequent first; empty when nothing did."""
        lines = []
        for stage, found in self.computed.items():
            told = ", ".join(f"{name} x{count}" if count > 1 else name for name, count in found.most_common())
            lines += [f"  {stage:<9} {told}"] if told else []
        return lines


@contextmanager
def recorded(device: torch.device) -> Iterator[Recorder]:
    """Note the operators of PyTorch that compute floating-point numbers inside the block.

    Views, allocation, constants, copies, casts and moves compute nothing, and neither does anything on integers alone.
    What selects by a condition (`where`, `masked_fill`) does, and so does a copy of such numbers to another kind of
    device, and the host's reading one of them: whatever it is for, it is not done by a kernel of the subject.

    Args:
        device: of the operands.
    """
    recorder = Recorder(device)
    with recorder:
        yield recorder


def run_open(mode: TorchDispatchMode, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Run an operator that a dispatch mode has intercepted so that the mode sees what runs inside of it.

    For operators that are made of others: those of `torch.library`, say. One of PyTorch's own would come back to the
    mode without end where it is made of itself, and has nothing to show.

    Args:
        mode: the mode, off while it handles the operator.
        func: the operator.
        args: its arguments.
        kwargs: its keyword arguments.
    """
    tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
    if not tensors or not isinstance(func, torch._ops.OpOverload):
        return func(*args, **kwargs)
    key = torch._C._dispatch_key_for_device(tensors[0].device.type)
    if not torch._C._dispatch_has_computed_kernel_for_dispatch_key(func.name(), key):
        return func(*args, **kwargs)
    keys = torch._C.DispatchKeySet(getattr(torch._C.DispatchKey, key))
    with mode:
        return func.redispatch(keys, *args, **kwargs)


def _computes(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any, device: torch.device) -> str:
    """Return how an operator is told of when it computed a floating-point number, else nothing."""
    name = func._schema.name.partition("::")[2].removesuffix("_")
    if name == "_local_scalar_dense":
        return f"{func} (a number read by the host)" if _floating((args, kwargs)) else ""
    numbers = [*_floating(result), *_floating(_written(func, args, kwargs))]
    if name in HARMLESS or name.removesuffix("_copy") in HARMLESS or func.is_view:
        elsewhere = {tensor.device.type for tensor in numbers} - {device.type}
        return f"{func} (to {', '.join(sorted(elsewhere))})" if elsewhere else ""
    return str(func) if numbers else ""


def _floating(tree: Any) -> list[Tensor]:
    return [
        leaf
        for leaf in tree_leaves(tree)
        if isinstance(leaf, Tensor) and (leaf.is_floating_point() or leaf.is_complex())
    ]


def _written(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
    """The arguments that an operator writes to; some of those on lists of tensors return nothing."""
    written = []
    for number, argument in enumerate(func._schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            written.append(args[number] if number < len(args) else kwargs.get(argument.name))
    return written
