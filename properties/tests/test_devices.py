"""Which GPUs a run sees, how many workers they bear, and which worker gets which."""

from __future__ import annotations

import subprocess
from types import SimpleNamespace

import pytest

from properties import devices
from properties.devices import Device, Gpu

H200 = 143_771
LIST = f"0, GPU-aaaa-1, NVIDIA H200, {H200}\n1, GPU-bbbb-2, NVIDIA H200, {H200}\n2, GPU-cccc-3, NVIDIA T400, 2048\n"


@pytest.fixture
def smi(monkeypatch):
    """nvidia-smi of a machine with three GPUs."""
    monkeypatch.setattr("subprocess.run", lambda *_, **__: SimpleNamespace(stdout=LIST))


def visible(**environment):
    return devices._visible_gpus(environment)


@pytest.mark.usefixtures("smi")
def test_all_gpus_go_by_uuid():
    # Numbers mean other GPUs to nvidia-smi than to CUDA, which puts the fastest first.
    assert [gpu.id for gpu in visible()] == ["GPU-aaaa-1", "GPU-bbbb-2", "GPU-cccc-3"]
    assert visible()[2] == Gpu(id="GPU-cccc-3", name="NVIDIA T400", memory=2048)


@pytest.mark.usefixtures("smi")
@pytest.mark.parametrize(
    ("allowed", "names"),
    [
        ("1", {"1": "NVIDIA H200"}),
        ("2, 0", {"2": "NVIDIA T400", "0": "NVIDIA H200"}),
        ("GPU-cc", {"GPU-cc": "NVIDIA T400"}),
        ("MIG-1234", {"MIG-1234": "GPU"}),
        ("", {}),
    ],
)
def test_only_visible_gpus_are_used(allowed, names):
    assert {gpu.id: gpu.name for gpu in visible(CUDA_VISIBLE_DEVICES=allowed)} == names


def test_without_nvidia_smi_torch_counts(monkeypatch):
    def missing(*_, **__):
        raise FileNotFoundError("nvidia-smi")

    monkeypatch.setattr("subprocess.run", missing)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    assert visible() == (Gpu(id="0"), Gpu(id="1"))


def test_a_driver_that_does_not_answer_names_nothing(monkeypatch):
    def stuck(*_, **__):
        raise subprocess.TimeoutExpired("nvidia-smi", 60)

    monkeypatch.setattr("subprocess.run", stuck)
    assert visible(CUDA_VISIBLE_DEVICES="3") == (Gpu(id="3"),)


@pytest.mark.parametrize(
    ("gpus", "cores", "workers"),
    [
        ([H200], 16, 8),
        ([H200], 6, 3),
        ([H200] * 2, 64, 16),
        ([H200], 1, 1),
        ([9000], 16, 2),
        ([2048], 16, 1),  # not room for one, and still one must try
        ([None], 64, 8),
        ([H200, 9000], 64, 10),
    ],
)
def test_workers_fit_into_memory_and_cores(gpus, cores, workers):
    device = Device(type="cuda", gpus=tuple(Gpu(id=str(number), memory=memory) for number, memory in enumerate(gpus)))
    assert device.workers(cores) == workers


def test_cpu_has_a_worker_for_each_core():
    assert [Device(type="cpu").workers(cores) for cores in (1, 2, 16)] == [1, 2, 16]


def gpu_of(device: Device, worker: int) -> str | None:
    gpu = device.gpu_of(worker)
    return None if gpu is None else gpu.id


def test_workers_go_round_the_gpus():
    device = Device(type="cuda", gpus=(Gpu(id="GPU-a"), Gpu(id="GPU-b")))
    assert [gpu_of(device, number) for number in range(4)] == ["GPU-a", "GPU-b", "GPU-a", "GPU-b"]
    assert gpu_of(Device(type="cuda", gpus=(Gpu(id="GPU-a"),)), 3) == "GPU-a"
    assert Device(type="cpu").gpu_of(0) is None


def test_a_fuller_gpu_gets_fewer_workers_and_each_its_share():
    empty, full = Gpu(id="0", memory=H200), Gpu(id="1", memory=9000)
    device = Device(type="cuda", gpus=(empty, full))
    assert [gpu_of(device, number) for number in range(11)] == [*"0101", *"000000", "0"]
    assert device.share(full, 10) == int(9000 * 0.9 / 2)
    assert device.share(empty, 10) == int(H200 * 0.9 / 8)
    assert device.share(Gpu(id="2"), 10) is None
    assert device.shortage() == "10 workers have room, with 4096 MiB each: 9000 MiB free on 1"
    assert Device(type="cuda", gpus=(empty,)).shortage() is None


def test_no_room_is_said_and_still_one_worker_tries():
    device = Device(type="cuda", gpus=(Gpu(id="0", memory=300),))
    assert device.workers(16) == 1
    assert gpu_of(device, 0) == "0"
    assert device.share(device.gpu_of(0), 1) == 270
    assert "0 workers have room" in str(device.shortage())


def test_names():
    one, other = Gpu(id="0", name="NVIDIA H200"), Gpu(id="1", name="NVIDIA T400")
    assert str(Device(type="cpu")) == "CPU (Triton interpreter)"
    assert str(Device(type="cuda", gpus=(one,))) == "NVIDIA H200"
    assert str(Device(type="cuda", gpus=(one, one))) == "2 x NVIDIA H200"
    assert str(Device(type="cuda", gpus=(one, other))) == "2 x NVIDIA H200, NVIDIA T400"
    assert str(Device(type="cuda")) == "GPU"


def test_the_interpreter_and_a_gpu_exclude_each_other(monkeypatch):
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    assert devices.choose("auto") == Device(type="cpu")
    with pytest.raises(ValueError, match="TRITON_INTERPRET is set"):
        devices.choose("cuda")
