"""The journal: the case that a process is about to run, on disk before it runs, so that a crash leaves it behind."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from . import casefile


class DeviceLost(BaseException):
    """The GPU no longer works in this process. No Exception, so that Hypothesis does not go on shrinking without it."""


@dataclass(kw_only=True)
class Journal:
    """Notes of one process. It holds one entry, the present one; a process that ends well leaves none.

    Attributes:
        path: file of this process.
        origin: what a case file says besides the recipe; see `CaseFile`.
        is_lost: whether the device no longer works in this process, asked after a failure.
        leave: called with the recipe and the reason when the device is lost; may end the process.
    """

    path: Path
    origin: dict[str, Any]
    is_lost: Callable[[], bool]
    leave: Callable[[Any, str], None]

    def begin(self, recipe: Any) -> None:
        """Note a case before it runs."""
        self._write(recipe, failure="the process ended while it ran this case")

    def failed(self, recipe: Any, error: Exception) -> None:
        """Stop when a failure took the device with it: every later case would fail, and hide this one.

        Raises:
            DeviceLost: the device is lost, and `leave` has returned.
        """
        if self.is_lost():
            reason = f"{type(error).__name__}: {error}"
            self._write(recipe, failure=reason)
            self.leave(recipe, reason)
            raise DeviceLost(reason) from None

    def end(self) -> None:
        """Forget the entry: the test is over."""
        self.path.unlink(missing_ok=True)

    def _write(self, recipe: Any, *, failure: str) -> None:
        if not hasattr(recipe, "to_dict"):
            return
        plain = casefile.CaseFile(recipe=recipe, **self.origin, failure=failure).to_dict()
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.path.write_text(json.dumps(plain))


def left_behind(path: Path) -> casefile.CaseFile | None:
    """Take the entry of a process that is gone, if it left one."""
    try:
        case = casefile.read(path)
    except (OSError, ValueError):
        return None
    path.unlink(missing_ok=True)
    return case


def cuda_is_lost() -> bool:
    """Whether CUDA still works in this process: an illegal access makes every later call fail."""
    import torch  # noqa: PLC0415 - only where a GPU is in use

    if not torch.cuda.is_initialized():
        return False
    try:
        torch.cuda.synchronize()
        torch.zeros(1, device="cuda").item()
    except torch.OutOfMemoryError:
        return False
    except RuntimeError:
        return True
    return False
