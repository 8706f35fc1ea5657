"""The probe measures what the device does, once, and only subjects that it concerns are told."""

from __future__ import annotations

import pytest
import torch

from properties import probe
from properties.subject import from_callable, shipped


def test_interpreter_keeps_subnormals(msda_device: str):
    if msda_device == "cuda":
        pytest.skip("NumPy adds in the interpreter alone")
    assert not probe.atomics_flush(torch.device("cpu"))
    assert probe.facts(torch.device("cpu")) == {probe.FACT: "no"}


def test_measured_once(msda_device: str):
    device = torch.device(msda_device)
    probe.atomics_flush(device)
    before = probe.atomics_flush.cache_info().misses
    probe.atomics_flush(device)
    assert probe.atomics_flush.cache_info().misses == before


def test_only_subjects_with_triton_atomics_are_told(msda_device: str):
    device = torch.device(msda_device)
    stranger = from_callable(lambda *operands: operands[0], name="stranger")
    assert probe.informed(stranger, device) is stranger
    assert stranger.arithmetic.flush_atomics
    ours = probe.informed(shipped(device=msda_device), device)
    assert ours.arithmetic.flush_atomics == probe.atomics_flush(device)
    assert ours.arithmetic.flush_to_zero
