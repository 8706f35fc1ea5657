"""Compiles are counted, cache hits are not, and no two processes compile one kernel at once."""

from __future__ import annotations

import sys
import threading
import time
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from properties.compiles import Compile, CompileCounter


class Source:
    """Stands for triton's ASTSource."""

    def __init__(self, name):
        self.name = name

    def hash(self):  # noqa: D102 - triton's name
        return self.name


@pytest.fixture
def triton(monkeypatch, tmp_path):
    """A stand-in for triton whose compiler reports to the listener, as the real one does."""
    knobs = SimpleNamespace(
        compilation=SimpleNamespace(listener=None), cache=SimpleNamespace(dir=str(tmp_path / "cache"))
    )
    built = set()

    def compile_kernel(src, target=None):
        hit = src.name in built
        if not hit:
            time.sleep(0.05)
            built.add(src.name)
        listener = knobs.compilation.listener
        if listener is not None:
            listener(src=src, metadata={}, metadata_group={}, times=SimpleNamespace(total=250_000), cache_hit=hit)
        return f"{src.name} for {target}"

    package: Any = ModuleType("triton")
    package.knobs = knobs
    package.compiler = ModuleType("triton.compiler")
    package.compiler.compile = compile_kernel
    for name, module in (("triton", package), ("triton.compiler", package.compiler)):
        monkeypatch.setitem(sys.modules, name, module)
    return package


def test_counts_misses_only(triton):
    counter = CompileCounter()
    counter.start()
    mark = counter.mark()
    assert triton.compiler.compile(Source("forward"), target="cuda") == "forward for cuda"
    triton.compiler.compile(Source("forward"))
    triton.compiler.compile(Source("backward"))
    since = counter.since(mark)
    assert [kernel.name for kernel in since.kernels] == ["forward", "backward"]
    assert since.seconds == 0.5
    assert since.slowest == Compile(name="forward", seconds=0.25)
    assert counter.since(counter.mark()).kernels == ()
    assert counter.available


def test_starting_twice_counts_once(triton):
    counter = CompileCounter()
    counter.start()
    counter.start()
    triton.compiler.compile(Source("forward"))
    assert len(counter.since(CompileCounter().mark()).kernels) == 1


def test_a_listener_that_was_there_still_hears(triton):
    heard = []
    triton.knobs.compilation.listener = lambda **fields: heard.append(sorted(fields))
    counter = CompileCounter()
    counter.start()
    triton.compiler.compile(Source("forward"))
    assert heard == [["cache_hit", "metadata", "metadata_group", "src", "times"]]


def test_second_process_waits_for_the_first(triton):
    # Two counters on threads stand for two processes: file locks of separate objects exclude each other.
    first, second = CompileCounter(), CompileCounter()
    compile_alone = triton.compiler.compile
    first.start()
    one = triton.compiler.compile
    triton.compiler.compile = compile_alone
    second.start()
    other = triton.compiler.compile
    threads = [threading.Thread(target=call, args=(Source("forward"),)) for call in (one, other)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    mark = CompileCounter().mark()
    assert len(first.since(mark).kernels + second.since(mark).kernels) in {1, 2}  # the listeners are chained
    assert max(first.since(mark).waited, second.since(mark).waited) >= 0.03


def test_a_failing_compile_gives_its_lock_back(triton):
    def broken(_src):
        raise RuntimeError("does not compile")

    triton.compiler.compile = broken
    counter = CompileCounter()
    counter.start()
    for _ in range(2):
        with pytest.raises(RuntimeError, match="does not compile"):
            triton.compiler.compile(Source("forward"))


def test_without_a_place_for_locks_it_still_compiles(triton, tmp_path):
    (tmp_path / "cache").write_text("a file where the folder should be")
    counter = CompileCounter()
    counter.start()
    assert triton.compiler.compile(Source("forward")) == "forward for None"


def test_old_triton_counts_nothing(triton, monkeypatch):
    del triton.knobs
    # Another test may have imported the real one, which `from triton import knobs` would find.
    monkeypatch.setitem(sys.modules, "triton.knobs", None)
    counter = CompileCounter()
    counter.start()
    assert not counter.available
    assert counter.since(counter.mark()).kernels == ()


def test_real_triton_has_what_is_counted():
    knobs = pytest.importorskip("triton.knobs")
    assert hasattr(knobs.compilation, "listener")
    assert knobs.cache.dir
    assert callable(sys.modules["triton"].compiler.compile)
