"""How much memory a process may take: a case that asks for all of it must fail alone."""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path

MEBI = 1 << 20
# Of what is free when the run starts; the rest is for contexts, compilers and whoever else is here.
PART = 0.9
ROOM_MEBIBYTES = 1024
WAIT_SECONDS = 30.0


def host_share(workers: int) -> int | None:
    """Return the MiB of host memory for each of some workers, None where nothing tells what is free."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return None
    kibibytes = next((int(line.split()[1]) for line in lines if line.startswith("MemAvailable:")), None)
    return None if kibibytes is None else max(ROOM_MEBIBYTES, int(kibibytes / 1024 * PART / workers))


def cap_host(mebibytes: int) -> None:
    """Limit what this process may allocate from now on, beyond what it has; allocations then fail with an error.

    Without the limit the kernel of the system ends a process when memory is used up, and not always the right one. A
    system that knows no such limit, or a lower one already, is left as it is.
    """
    try:
        import resource  # noqa: PLC0415 - not on Windows
    except ImportError:
        return
    with contextlib.suppress(OSError, ValueError):
        used = int(Path("/proc/self/statm").read_text().split()[5]) * os.sysconf("SC_PAGE_SIZE")
        _, hard = resource.getrlimit(resource.RLIMIT_DATA)
        limit = used + mebibytes * MEBI
        if hard == resource.RLIM_INFINITY or limit <= hard:
            resource.setrlimit(resource.RLIMIT_DATA, (limit, hard))


def cap_gpu(mebibytes: int) -> None:
    """Limit what PyTorch's allocator takes from the current GPU."""
    import torch  # noqa: PLC0415 - only where a GPU is in use

    total = torch.cuda.get_device_properties(torch.cuda.current_device()).total_memory
    torch.cuda.set_per_process_memory_fraction(min(1.0, mebibytes * MEBI / total))


def wait_for_room(seconds: float = WAIT_SECONDS) -> None:
    """Wait until the current GPU has room for a small case, or the time is over: others may be about to free theirs."""
    import torch  # noqa: PLC0415

    deadline = time.monotonic() + seconds
    while torch.cuda.mem_get_info()[0] < ROOM_MEBIBYTES * MEBI and time.monotonic() < deadline:
        torch.cuda.empty_cache()
        time.sleep(0.2)
