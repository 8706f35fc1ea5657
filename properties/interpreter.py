"""Triton's interpreter, without work of which nothing comes; what the kernels compute is the same.

- Each time a kernel calls another `@triton.jit` function, the interpreter looks through all members of the language's
  modules for functions to replace, although the kernel's launch has replaced them already. That is a quarter of the
  time of a case. Here the search is made once per module and launch.
- Each addition and product of integers is done a second time in 64 bits, for an assertion that is then dropped unless
  the interpreter's `debug` option is on. That is a third of what remains. Here it is left out where it is dropped.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable
from types import FunctionType
from typing import Any


def patch_once_per_launch() -> bool:
    """Make the interpreter search each language module once per launch.

    Returns:
        Whether this Triton's interpreter has the parts that are replaced; without them it stays as slow as it is.
    """
    import triton.language as tl  # noqa: PLC0415 - only after TRITON_INTERPRET is decided
    from triton.runtime import interpreter  # noqa: PLC0415

    patch: Callable[[FunctionType], Any] | None = getattr(interpreter, "_patch_lang", None)
    executor: Any = getattr(interpreter, "GridExecutor", None)
    if patch is None or executor is None or hasattr(patch, "replaces"):
        return patch is not None and executor is not None
    patched: set[int] = set()
    launch = executor.__call__

    def patch_new(fn: FunctionType) -> Any:
        modules = {id(value) for value in fn.__globals__.values() if inspect.ismodule(value) and value in (tl, tl.core)}
        if modules and modules <= patched:
            return None
        patched.update(modules)
        return patch(fn)

    def launch_fresh(self: Any, *args: Any, **kwargs: Any) -> None:
        # The launch itself restores what it replaced, so the next one must search again.
        patched.clear()
        launch(self, *args, **kwargs)

    patch_new.replaces = patch  # type: ignore[attr-defined]
    interpreter._patch_lang = patch_new
    executor.__call__ = launch_fresh
    return True


def skip_unread_checks() -> None:
    """Leave out the interpreter's check of integer overflow where its result is not looked at."""
    from triton.runtime import interpreter  # noqa: PLC0415 - only after TRITON_INTERPRET is decided

    builder: Any = getattr(interpreter, "interpreter_builder", None)
    options: Any = getattr(builder, "options", None)
    if getattr(options, "sanitize_overflow", False) and not getattr(options, "debug", True):
        builder.options = dataclasses.replace(options, sanitize_overflow=False)
