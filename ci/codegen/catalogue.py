"""Which specialisations there are, and which of them are compiled for which architecture."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from functools import lru_cache
from types import ModuleType
from typing import Any

import torch

from msda import ordered_specialisations, specialisations

# Kernels that have no dtype: names need a word there, and what stands in it means nothing.
INTEGER_KERNELS = ("place", "arrange")
NO_DTYPE = "int"


@dataclass(frozen=True, kw_only=True)
class Architecture:
    """A kind of GPU.

    Attributes:
        name: as on the command line.
        backend: Triton's, and its name for the kind of GPU.
        number: Triton's name for the GPU.
        lanes: of a warp.
    """

    name: str
    backend: str
    number: int | str
    lanes: int


ARCHITECTURES = {
    one.name: one
    for one in (
        Architecture(name="sm_80", backend="cuda", number=80, lanes=32),
        Architecture(name="sm_90", backend="cuda", number=90, lanes=32),
        Architecture(name="sm_100", backend="cuda", number=100, lanes=32),
        Architecture(name="gfx942", backend="hip", number="gfx942", lanes=64),
    )
}
# The one that is compiled for in full, because the kernels are designed and measured there.
PRIMARY = "sm_90"


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One specialisation.

    Attributes:
        name: of the specialisation, in one word.
        kernel: its kernel and ways: "backward-native-scalar".
        dtype: of value, locations and weights; one word where they are alike.
        module: knows how to compile it.
        specialisation: of that module.
    """

    name: str
    kernel: str
    dtype: str
    module: ModuleType
    specialisation: Any

    @property
    def representative(self) -> bool:
        """Whether it stands for others on architectures that are not compiled for in full.

        Memory is accessed alike whatever the dtypes of locations and weights; broad heads add a loop or a wider tile to
        narrow ones. Scalar code matters where the atomics become other ones.
        """
        s = self.specialisation
        kernel, *ways = self.kernel.split("-")
        if kernel in INTEGER_KERNELS:
            return True
        if "-" in self.dtype or "wide" in ways or "broad" in ways:
            return False
        if kernel == "forward":
            return "scalar" not in ways
        if kernel == "backward":
            return "scalar" not in ways or "native" in ways or s.value == torch.float64
        return "scalar" not in ways and s.value in (torch.float32, torch.float16)

    @property
    def by_default(self) -> bool:
        """Whether it is compiled for the primary architecture without being asked for.

        Offsets of 64 bits are for tensors of 2^31 elements; they are looked at where registers are short.
        """
        kernel, *ways = self.kernel.split("-")
        if "wide" not in ways:
            return True
        return kernel == "backward" and "-" not in self.dtype and not {"broad", "scalar"} & set(ways)


@lru_cache(maxsize=1)
def entries() -> dict[str, Entry]:
    """All specialisations by name, those with 64-bit offsets included."""
    found = {}
    usual = specialisations.specialisations()
    ordered = ordered_specialisations.ordered_specialisations()
    together = [(specialisations, s) for s in usual] + [(ordered_specialisations, s) for s in ordered]
    twins = [(module, replace(s, wide=True)) for module, s in together if _has_wide_twin(s.kernel)]
    for module, s in together + twins:
        kernel, *dtypes = s.name.split("-")[:4]
        ways = s.name.split("-")[4:]
        dtype = dtypes[0] if len(set(dtypes)) == 1 else "-".join(dtypes)
        if kernel in INTEGER_KERNELS:
            dtype = NO_DTYPE
        label = "-".join([kernel, *ways])
        found[s.name] = Entry(name=s.name, kernel=label, dtype=dtype, module=module, specialisation=s)
    return found


def _has_wide_twin(kernel: str) -> bool:
    return kernel in ("forward", "backward", "count_and_differentiate")


def selected(architecture: str, *, everything: bool = False, kernels: Sequence[str] = ()) -> list[Entry]:
    """Return what is compiled for an architecture.

    Args:
        architecture: name.
        everything: all there is, not only what represents it.
        kernels: patterns; what they match, in full.

    Raises:
        ValueError: a pattern matches nothing.
    """
    for pattern in kernels:
        if not any(_matches(entry, pattern) for entry in entries().values()):
            known = ", ".join(sorted({entry.kernel.split("-")[0] for entry in entries().values()}))
            raise ValueError(f"kernel: {pattern!r} matches none, expected a pattern for {known}; --list names all")
    if kernels:
        return [entry for entry in entries().values() if any(_matches(entry, pattern) for pattern in kernels)]
    if everything:
        return list(entries().values())
    return [e for e in entries().values() if (e.by_default if architecture == PRIMARY else e.representative)]


def _matches(entry: Entry, pattern: str) -> bool:
    return fnmatchcase(entry.kernel, pattern) or fnmatchcase(entry.name, pattern)
