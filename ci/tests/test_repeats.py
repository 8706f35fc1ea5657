"""Repeating one colliding case: what it finds, and that it notices runs that differ by too much."""

import pytest
import torch

import msda
from ci.repeats import colliding, main, repeat


@pytest.mark.skipif(torch.cuda.is_available(), reason="it would run")
def test_needs_a_gpu(capsys):
    assert main([]) == 2
    assert "expected a CUDA device" in capsys.readouterr().err


def test_the_shipped_kernels_keep_their_promise(msda_device: str):
    found = repeat(colliding(torch.device(msda_device), queries=4), "not_guaranteed", 2)
    assert found.runs == 2
    assert found.kept
    assert 0.0 < found.error_ratio <= 1.0
    assert found.collisions > 2


def test_a_wandering_result_is_noticed(msda_device: str, monkeypatch):
    operator = msda.multi_scale_deformable_attention
    runs = iter(range(10))

    class Wander(torch.autograd.Function):
        @staticmethod
        def forward(_ctx, value):
            return value.clone()

        @staticmethod
        def backward(_ctx, grad):
            # Within the error bound of a single run's larger elements, but not what summation order explains.
            return grad * (1.0 + 1e-3 * next(runs))

    def wandering(value, *operands, **options):
        return operator(Wander.apply(value), *operands, **options)

    monkeypatch.setattr(msda, "multi_scale_deformable_attention", wandering)
    found = repeat(colliding(torch.device(msda_device), queries=4), "not_guaranteed", 2)
    assert found.differing_runs == 2
    assert found.spread_ratio > 1.0
    assert not found.kept
