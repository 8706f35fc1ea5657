"""What the benchmark of the backward does without a GPU, and its table."""

import io

import pytest
import torch
from rich.console import Console

from ci.backward_bench import Timing, main, table


@pytest.mark.skipif(torch.cuda.is_available(), reason="it would run")
def test_needs_a_gpu(capsys):
    assert main([]) == 2
    assert "expected a CUDA device" in capsys.readouterr().err


def test_table():
    common = {"preset": "decoder", "dtype": "fp32"}
    console = Console(width=120, file=io.StringIO(), record=True)
    console.print(
        table(
            [
                Timing(backward="atomic", cold=72.25, warm=76.0, **common),
                Timing(backward="DeformOps", cold=None, warm=None, error="ImportError", **common),
            ]
        )
    )
    shown = console.export_text()
    for word in ("decoder", "fp32", "72.2 / 76.0", "failed"):
        assert word in shown
