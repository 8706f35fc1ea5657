"""Public operators as subjects, where they are installed: what they declare is what they keep."""

from __future__ import annotations

import pytest

from properties.verify import verify

ADAPTERS = {
    "grid_sample:operator": "torch",
    "transformers:operator": "transformers",
    "deformops:eager": "deformops",
    "deformops:triton_float32": "deformops",
    "deformops:triton_native": "deformops",
}
GPU_ALONE = {"deformops:triton_float32", "deformops:triton_native"}


@pytest.mark.parametrize("name", ADAPTERS)
def test_a_public_operator_is_within_bounds_in_float32(name: str, msda_device: str):
    pytest.importorskip(ADAPTERS[name], reason=f"{ADAPTERS[name]} is not installed")
    if name in GPU_ALONE and msda_device == "cpu":
        pytest.skip("its kernels run on a GPU alone")
    summary = verify(
        f"properties.adapters.{name}", examples=60, device=msda_device, seed=1, properties="gradients_within_bound"
    )
    outcomes = {item.variant: item.outcome for item in summary.items}
    assert outcomes.pop("float32") == "passed", summary
    assert outcomes.pop("float64", "passed") == "passed", summary


def test_an_operator_that_rounds_at_every_step_fails_in_16_bits(msda_device: str):
    summary = verify(
        "properties.adapters.grid_sample:operator",
        examples=60,
        device=msda_device,
        seed=1,
        properties="gradients_within_bound",
    )
    failed = {item.variant: item.failure["class"] for item in summary.items if item.outcome == "failed"}
    assert set(failed) == {"float16", "bfloat16"}
    assert set(failed.values()) <= {"precision loss", "logic fault"}
