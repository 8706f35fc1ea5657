"""Kernel compiles of this process: how many, how long, and never the same one in two workers at once.

Triton keeps compiled kernels on disk. Workers that start together would all miss that cache and compile the same
kernels side by side; a lock per kernel makes the later ones wait for the first and then read its result.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import filelock

LOCK_SECONDS = 600.0
# Two kernels on one lock only wait for each other; a fixed number keeps the directory small.
LOCKS = 64


@dataclass(frozen=True, kw_only=True)
class Compile:
    """One kernel that was compiled: its name and the seconds it took."""

    name: str
    seconds: float


@dataclass(frozen=True, kw_only=True)
class Mark:
    """A position in a counter, to count from."""

    compiles: int
    waited: float


@dataclass(frozen=True, kw_only=True)
class Compiles:
    """What was compiled since a mark.

    Attributes:
        kernels: the compiles, in order; kernels found in the disk cache are not among them.
        waited: seconds spent waiting for another process to compile.
    """

    kernels: tuple[Compile, ...]
    waited: float

    @property
    def seconds(self) -> float:
        """Seconds of compiling, without the waiting."""
        return sum(kernel.seconds for kernel in self.kernels)

    @property
    def slowest(self) -> Compile | None:
        """The longest compile."""
        return max(self.kernels, key=lambda kernel: kernel.seconds, default=None)


@dataclass
class CompileCounter:
    """Counts the compiles of this process from `start` on.

    With a Triton that has no compilation listener, or none at all, it counts nothing. The interpreter compiles nothing.

    Attributes:
        available: whether compiles are being counted.
    """

    available: bool = False
    _kernels: list[Compile] = field(default_factory=list)
    _waited: float = 0.0
    _started: bool = False

    def start(self) -> None:
        """Begin to count, and to share compiles with other processes; a second call does nothing."""
        if self._started:
            return
        self._started = True
        try:
            import triton.compiler  # noqa: PLC0415 - only once the device is known
            from triton import knobs  # noqa: PLC0415
        except ImportError:
            return
        if hasattr(knobs, "compilation") and hasattr(knobs.compilation, "listener"):
            knobs.compilation.listener = self._listen(knobs.compilation.listener)
            self.available = True
        cache = getattr(getattr(knobs, "cache", None), "dir", None)
        if cache:
            # `JITFunction` looks this name up when it first compiles, so the wrapper sees every kernel.
            triton.compiler.compile = self._locked(triton.compiler.compile, Path(cache) / "msda-locks")

    def mark(self) -> Mark:
        """Return the present position."""
        return Mark(compiles=len(self._kernels), waited=self._waited)

    def since(self, mark: Mark) -> Compiles:
        """Return what happened after a mark."""
        return Compiles(kernels=tuple(self._kernels[mark.compiles :]), waited=self._waited - mark.waited)

    def _listen(self, previous: Callable[..., None] | None) -> Callable[..., None]:
        # Keyword arguments by name where we use them, so that a Triton that sends more still works.
        def listener(*, src: Any, times: Any = None, cache_hit: bool = False, **others: Any) -> None:
            if not cache_hit:
                microseconds = getattr(times, "total", 0)
                self._kernels.append(Compile(name=str(getattr(src, "name", "kernel")), seconds=microseconds / 1e6))
            if previous is not None:
                previous(src=src, times=times, cache_hit=cache_hit, **others)

        return listener

    def _locked(self, compile_kernel: Callable[..., Any], directory: Path) -> Callable[..., Any]:
        def locked(src: Any, *args: Any, **kwargs: Any) -> Any:
            lock = self._acquire(src, directory)
            try:
                return compile_kernel(src, *args, **kwargs)
            finally:
                if lock is not None:
                    lock.release()

        return locked

    def _acquire(self, src: Any, directory: Path) -> filelock.BaseFileLock | None:
        """Take the lock of a kernel; without one (read-only cache, a stuck holder) the compile still goes on."""
        started = time.perf_counter()
        try:
            number = int(hashlib.sha256(str(src.hash()).encode()).hexdigest(), 16) % LOCKS
            directory.mkdir(parents=True, exist_ok=True)
            lock = filelock.FileLock(directory / f"{number:02d}.lock", timeout=LOCK_SECONDS)
            lock.acquire()
        except (OSError, AttributeError):  # filelock.Timeout is an OSError
            lock = None
        self._waited += time.perf_counter() - started
        return lock
