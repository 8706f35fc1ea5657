"""Which device a run uses, and which GPU and how many workers that means.

Nothing here creates a CUDA context: the process that only hands out work must not hold GPU memory, and a worker must
be able to pick its GPU before torch does.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from properties.budget import PART

WORKERS_PER_GPU = 8
# A CUDA context, Triton's modules and the largest cases with their float64 reference.
MEBIBYTES_PER_WORKER = 4096
# Any of these says that a driver is loaded; without one there is no reason to import torch to ask.
DEVICE_FILES = ("/dev/nvidiactl", "/dev/nvidia0", "/dev/kfd", "/dev/dxg")


@dataclass(frozen=True, kw_only=True)
class Gpu:
    """One GPU that this run may use.

    Attributes:
        id: what CUDA_VISIBLE_DEVICES calls it.
        name: product name, or "GPU" where nothing could tell.
        memory: MiB that are free, None where nothing could tell.
    """

    id: str
    name: str = "GPU"
    memory: int | None = None

    @property
    def room(self) -> int:
        """Workers that there is room for."""
        return WORKERS_PER_GPU if self.memory is None else min(WORKERS_PER_GPU, self.memory // MEBIBYTES_PER_WORKER)


@dataclass(frozen=True, kw_only=True)
class Device:
    """The device of a run: its type as torch calls it, and the GPUs when it is "cuda"."""

    type: str
    gpus: tuple[Gpu, ...] = ()

    def __str__(self) -> str:
        if self.type == "cpu":
            return "CPU (Triton interpreter)"
        names = sorted({gpu.name for gpu in self.gpus}) or ["GPU"]
        return f"{len(self.gpus)} x {', '.join(names)}" if len(self.gpus) > 1 else names[0]

    def workers(self, cores: int) -> int:
        """Number of worker processes for `-n auto`.

        A GPU worker keeps about two cores busy, one for Python and one for the float64 reference of small cases, and
        must fit into the GPU's memory beside the others.
        """
        if self.type == "cpu":
            return max(1, cores)
        return max(1, min(len(self.places), cores // 2))

    @property
    def places(self) -> tuple[Gpu, ...]:
        """One GPU for each worker that there is room for, going round the GPUs."""
        rounds = range(max((gpu.room for gpu in self.gpus), default=0))
        return tuple(gpu for number in rounds for gpu in self.gpus if number < gpu.room)

    def gpu_of(self, worker: int) -> Gpu | None:
        """The GPU of a worker by its number, None when nothing is known of any."""
        # Without room for one, one must still try.
        places = self.places or self.gpus
        return places[worker % len(places)] if places else None

    def share(self, gpu: Gpu | None, workers: int) -> int | None:
        """MiB of a GPU for each of its workers, when there are so many in all."""
        if gpu is None or gpu.memory is None:
            return None
        there = sum(self.gpu_of(number) == gpu for number in range(workers))
        return int(gpu.memory * PART / max(1, there))

    def shortage(self) -> str | None:
        """Say so where memory allows fewer workers than there could be."""
        tight = [gpu for gpu in self.gpus if gpu.room < WORKERS_PER_GPU]
        if not tight:
            return None
        free = ", ".join(f"{gpu.memory} MiB free on {gpu.id}" for gpu in tight)
        return f"{len(self.places)} workers have room, with {MEBIBYTES_PER_WORKER} MiB each: {free}"


def choose(requested: str) -> Device:
    """Return the device asked for: "cpu", "cuda", or "auto" for a GPU where there is one that torch can use.

    Whoever sets TRITON_INTERPRET wants the interpreter: "auto" is then "cpu".

    Raises:
        ValueError: "cuda" was asked for and torch cannot use one, or TRITON_INTERPRET is set.
    """
    interpreted = os.environ.get("TRITON_INTERPRET", "").lower() in ("1", "true", "yes", "on", "y")
    if requested == "cuda" and interpreted:
        raise ValueError("device: 'cuda' asked for, but TRITON_INTERPRET is set; expected it unset, or 'cpu' or 'auto'")
    if requested == "cpu" or interpreted:
        return Device(type="cpu")
    available = (requested == "cuda" or any(Path(name).exists() for name in DEVICE_FILES)) and _torch_has_gpu()
    if available:
        return Device(type="cuda", gpus=_visible_gpus(os.environ))
    if requested == "cuda":
        raise ValueError("device: 'cuda' asked for, but torch finds no usable GPU; expected a GPU, 'cpu' or 'auto'")
    return Device(type="cpu")


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def prepare_interpreter() -> None:
    """Make Triton interpret its kernels in this process and its children.

    Raises:
        ValueError: triton is imported already and took the other mode; it decides for each function as it is defined.
    """
    if os.environ.get("TRITON_INTERPRET") == "1":
        return
    if "triton" in sys.modules:
        raise ValueError(
            "device: 'cpu' needs Triton's interpreter, but triton was imported before TRITON_INTERPRET=1 was set; "
            "expected no plugin or conftest.py to import it first, or TRITON_INTERPRET=1 in the environment"
        )
    os.environ["TRITON_INTERPRET"] = "1"


def _torch_has_gpu() -> bool:
    # The NVML based check asks the driver without creating a context.
    os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")
    import torch  # noqa: PLC0415 - seconds to import, not needed where there is no driver

    return torch.cuda.is_available()


def _visible_gpus(environment: Mapping[str, str]) -> tuple[Gpu, ...]:
    """GPUs within CUDA_VISIBLE_DEVICES, named by nvidia-smi where it is there."""
    known = _query_gpus()
    allowed = environment.get("CUDA_VISIBLE_DEVICES")
    if allowed is None:
        if known:
            return tuple(Gpu(id=uuid, name=gpu.name, memory=gpu.memory) for uuid, gpu in known.items())
        import torch  # noqa: PLC0415

        return tuple(Gpu(id=str(index)) for index in range(torch.cuda.device_count()))
    by_index = {gpu.id: gpu for gpu in known.values()}
    found = []
    for entry in filter(None, (part.strip() for part in allowed.split(","))):
        # A UUID may be shortened; a MIG instance is not in the list and keeps only its id.
        match = by_index.get(entry) or next((gpu for uuid, gpu in known.items() if uuid.startswith(entry)), None)
        found.append(Gpu(id=entry) if match is None else Gpu(id=entry, name=match.name, memory=match.memory))
    return tuple(found)


def _query_gpus() -> dict[str, Gpu]:
    """All GPUs of this machine by UUID, each with its index as id; empty where nvidia-smi cannot say."""
    command = ["nvidia-smi", "--query-gpu=index,uuid,name,memory.free", "--format=csv,noheader,nounits"]
    try:
        text = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return {}
    gpus = {}
    for line in text.splitlines():
        index, uuid, name, memory = (part.strip() for part in line.split(",", 3))
        gpus[uuid] = Gpu(id=index, name=name, memory=int(memory) if memory.isdigit() else None)
    return gpus
