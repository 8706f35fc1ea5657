"""The probe: what it finds of subjects that differ in one thing, and the declaration that it writes."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from ci import capabilities
from properties import declaration
from properties.adapters.grid_sample import compose
from properties.cells import CELLS
from properties.subject import Subject, from_callable
from reference.model import Arithmetic

ROOT = Path(__file__).parent.parent.parent
CPU = torch.device("cpu")
FLOAT32 = next(cell for cell in CELLS if cell.name == "float32")


def prober(call: Any, **changes: Any) -> capabilities.Prober:
    subject = from_callable(call, name="stranger")
    blank = dataclasses.replace(subject, cells=CELLS, arithmetic=Arithmetic(corner_sum="flat"), **changes)
    return capabilities.Prober(subject=blank, device=CPU)


def right(value: Tensor, *others: Tensor) -> Tensor:
    return compose(value, *others)


def test_dtypes_are_those_that_raise_nothing():
    def call(value: Tensor, *others: Tensor) -> Tensor:
        if value.dtype == torch.float64 or others[2].dtype != value.dtype:
            raise TypeError("no")
        return compose(value, *others)

    found = capabilities.Findings()
    cells = prober(call).dtypes(found)
    assert [cell.name for cell in cells] == ["float32", "float16", "bfloat16"]
    assert found.declared == {"dtypes": ("float32", "float16", "bfloat16"), "mixed_dtypes": False}


def test_gradients_are_those_that_arrive():
    def call(value: Tensor, shapes: Tensor, starts: Tensor, locations: Tensor, weights: Tensor) -> Tensor:
        return compose(value, shapes, starts, locations.detach(), weights)

    assert prober(call).gradients((FLOAT32,), capabilities.Findings()) == ("value", "attention_weights")

    def without(value: Tensor, *others: Tensor) -> Tensor:
        return compose(value.detach(), *(other.detach() for other in others))

    assert prober(without).gradients((FLOAT32,), capabilities.Findings()) == ()


def test_layouts_and_empty_operands_that_raise_are_noted():
    def call(value: Tensor, *others: Tensor) -> Tensor:
        if not value.is_contiguous() or 0 in value.shape:
            raise ValueError("no")
        return compose(value, *others)

    found = capabilities.Findings()
    prober(call).forms(FLOAT32, found, gradients=False)
    assert (found.declared["layouts"], found.declared["empty"]) == ("contiguous", False)
    assert "transposed" in found.notes["layouts"]


@pytest.mark.parametrize(
    ("bad", "word"), [(lambda t: t, "overflow"), (lambda t: t.clamp(-1e6, 1e6), "propagate")], ids=["all", "not finite"]
)
def test_what_is_not_finite_is_tried(bad: Any, word: str):
    def call(value: Tensor, shapes: Tensor, starts: Tensor, locations: Tensor, weights: Tensor) -> Tensor:
        return compose(value, shapes, starts, bad(locations), weights)

    assert prober(call).nonfinite(FLOAT32, capabilities.Findings()) == word


def test_the_form_of_the_coordinates_is_found():
    found = capabilities.Findings()
    prober(right).arithmetic((FLOAT32,), found)
    assert found.declared["coordinates"] == "grid"
    assert found.declared["interpolation"] == "weights"


def test_a_wrong_kernel_fits_nothing_and_is_told():
    found = capabilities.Findings()
    prober(lambda *operands: right(*operands) * 2).arithmetic((FLOAT32,), found)
    assert "none fit float32, which will fail" in found.notes["coordinates"]


def test_a_subject_that_takes_nothing_is_refused():
    def call(*operands: Tensor) -> Tensor:
        raise NotImplementedError("not today")

    with pytest.raises(ValueError, match=r"takes no dtype; for float32 it raised NotImplementedError\('not today'\)"):
        capabilities.probe(Subject(name="stranger", call=call), CPU)


def test_the_command_writes_a_declaration_that_the_subject_then_keeps(tmp_path: Path):
    (tmp_path / "mine.py").write_text(
        "from properties.adapters.grid_sample import compose\n"
        "def operator(value, *others):\n"
        "    if str(value.dtype) != 'torch.float32' or value.dtype != others[2].dtype: raise TypeError('no')\n"
        "    return compose(value, *others)\n"
    )
    file = tmp_path / "mine.toml"
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "MSDA_"))}
    environment |= {"MSDA_FROM": str(tmp_path), "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "ci", "probe", "mine:operator", "--device", "cpu", "--output", str(file)]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    says = declaration.checked(declaration.of_file(file), name="mine")
    assert (says.dtypes, says.coordinates, says.nonfinite, says.devices) == (("float32",), "grid", "overflow", ("cpu",))
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-n",
        "0",
        "-p",
        "no:cacheprovider",
        "properties/test_gradients.py",
    ]
    command += ["--msda-subject", f"mine:operator@{file}", "--msda-device", "cpu", "--msda-examples", "40"]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stdout
    assert "1 passed" in done.stdout


def test_the_command_tells_what_cannot_be_probed():
    command = [sys.executable, "-m", "ci", "probe", "no.such.module:f", "--device", "cpu"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 2
    assert done.stderr.startswith("probe: subject: cannot import 'no.such.module'")
